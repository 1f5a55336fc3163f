"""Fitting from the command line: what is printed and written, and what is said of files that cannot be fitted to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from counterpoint import ComposedModel, Recipe
from counterpoint.cli import app
from counterpoint.cli._prompts import EXAMPLE_FORMS
from counterpoint.cli._recipe_file import write_recipe
from counterpoint.composition import fitted
from counterpoint.composition.fitted import FitSettings, HeldOut, fit_to_answers
from counterpoint.errors import CounterpointError
from counterpoint.intervals import Interval

PAIRS = [(prompt, answer) for prompt in ("hi", "who are you", "why") for answer in ("a pirate", "no", "the sea.", "so")]
ROOT = Path(__file__).parents[2]


def written(pairs: Iterable[tuple[str, str | None]], name: str = "a.jsonl") -> str:
    Path(name).write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in pairs))
    return name


@pytest.fixture
def answers(here: Path) -> str:
    return written(PAIRS)


def figures(stdout: str) -> dict[str, list[str]]:
    """The tables' rows, by what stands first."""
    return {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in stdout.splitlines() if "  " in line}


def test_the_tables_and_the_file_and_the_json_agree(run, here: Path, answers: str) -> None:
    printed = run("fit", "recipe.yaml", answers, "--out", "fitted.yaml", "--seed", "4")
    assert (printed.exit_code, printed.stderr) == (0, "fitted.yaml: the recipe with the fitted weights\n")
    told = json.loads(run("fit", "recipe.yaml", answers, "--json", "--seed", "4").stdout)
    report = fit_to_answers(ComposedModel.from_recipe(here / "recipe.yaml"), PAIRS, FitSettings(seed=4))
    rows, held = figures(printed.stdout), report.held_out
    assert held is not None
    pirate, math = report.components
    assert rows["pirate"] == ["1", f"{pirate.after:g}", f"{pirate.standard_error:.4f}"]
    assert rows["math"] == ["0.5", f"{math.after:g}", f"{math.standard_error:.4f}"]
    assert rows["base alone"] == [f"{held.base.mean:.4f}", f"{held.base.low:.4f}", "to", f"{held.base.high:.4f}"]
    assert held.ones is not None
    assert rows["all weights 1"][0] == f"{held.ones.mean:.4f}"
    assert rows["recipe's weights"][0] == f"{held.before.mean:.4f}"
    assert rows["fitted weights"][0] == f"{held.after.mean:.4f}"
    assert rows["difference"] == [
        f"{x:+.4f}" if x != "to" else x for x in (*held.difference[:2], "to", held.difference[2])
    ]
    assert f"Fitted to all {report.tokens} answer tokens of 8 examples" in printed.stdout
    assert f"4 examples held out, {held.tokens} tokens" in printed.stdout
    for remark in report.remarks:
        assert remark in printed.stdout
    assert told["held_out"]["difference"] == held.difference._asdict()
    assert told["recipe"] == report.recipe.as_dict()
    assert told["components"][0]["after"] == pirate.after
    assert told["settings"]["seed"] == 4
    assert (told["version"], told["data"], told["left_out"]) == (version("counterpoint"), "a.jsonl", 0)
    assert told["digest"] == {"before": Recipe.read(here / "recipe.yaml").digest(), "after": report.recipe.digest()}
    assert Recipe.read("fitted.yaml") == report.recipe


def test_the_written_recipe_says_how_it_was_made_and_means_the_same_models(run, here: Path, answers: str) -> None:
    out = here / "fits" / "fitted.yaml"
    out.parent.mkdir(exist_ok=True)
    assert run("fit", "recipe.yaml", answers, "--out", out, "--overwrite", "--hold", "math").exit_code == 0
    text = out.read_text()
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert comments[0].startswith(
        f"# Weights fitted by counterpoint fit {version('counterpoint')} to a.jsonl: 8 examples, "
    )
    assert comments[1] == "# Settings: seed 0, held-out 0.3, l2 0.01, bounds -1 to 5, hold math."
    assert comments[2].startswith("# Standard errors: pirate 0.")
    assert comments[3].startswith("# Held out, 4 examples, nats a token: base alone -")
    assert "base: ../base\n" in text
    assert "adapter: ../math-lora\n" in text
    before, after = Recipe.read(here / "recipe.yaml"), Recipe.read(out)
    assert after.components["pirate"].weight != 1
    assert after.with_weights({"pirate": 1}) == before
    assert run("generate", out, "hi", "--max-new-tokens", "2").exit_code == 0


def test_paths_that_are_absolute_or_from_the_command_line_stay_so(run, here: Path, answers: str) -> None:
    base = here / "base"
    result = run("fit", "--base", base, "--context", "a=be brief", answers, "--out", "f.yaml")
    assert result.exit_code == 0, result.stderr
    assert f"base: {base}\n" in Path("f.yaml").read_text()
    Path("abs.yaml").write_text(
        f"base: {base}\ncomponents: {{a: {{context: 'yes'}}, b: {{adapter: {here}/./math-lora}}}}\n"
    )
    assert run("fit", "abs.yaml", answers, "--out", "g.yaml").exit_code == 0
    assert f"adapter: {here}/math-lora\n" in Path("g.yaml").read_text()
    recipe = Recipe.read("g.yaml")
    assert recipe.components["a"].context == "yes"


def test_a_file_that_is_there_is_kept_unless_told(run, answers: str) -> None:
    Path("f.yaml").write_text("mine")
    refused = run("fit", "recipe.yaml", answers, "--out", "f.yaml")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "error: f.yaml: is there already; use another file, or --overwrite to replace it\n"
    assert Path("f.yaml").read_text() == "mine"
    assert run("fit", "recipe.yaml", answers, "--out", "f.yaml", "--overwrite").exit_code == 0
    assert Recipe.read("f.yaml")


def test_a_file_that_came_while_fitting_is_kept_too(here: Path) -> None:
    Path("f.yaml").write_text("mine")
    with pytest.raises(CounterpointError, match=r"^f.yaml: is there already"):
        write_recipe(Path("f.yaml"), Recipe.read(here / "recipe.yaml"), None, [], False)
    assert (os.listdir(), Path("f.yaml").read_text()) == (["f.yaml"], "mine")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError("disk full")])
def test_nothing_half_written_stays(run, answers: str, monkeypatch: pytest.MonkeyPatch, failure: Any) -> None:
    def fails(*_: object) -> None:
        raise failure

    before = sorted(os.listdir())
    for name in ("os.replace", "os.chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(f"counterpoint.cli._recipe_file.{name}", fails)
            result = run("fit", "recipe.yaml", answers, "--out", "f.yaml")
        assert result.exit_code == (130 if failure is KeyboardInterrupt else 1)
        assert sorted(os.listdir()) == before
    monkeypatch.setattr(fitted, "gather", fails)
    assert run("fit", "recipe.yaml", answers, "--out", "f.yaml").exit_code in (1, 130)
    assert sorted(os.listdir()) == before


def test_a_recipe_that_reads_back_differently_is_not_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.read(here / "recipe.yaml")
    monkeypatch.setattr("counterpoint.cli._recipe_file._yaml", lambda _: "base: other\ncomponents: {a: {context: x}}")
    with pytest.raises(CounterpointError) as caught:
        write_recipe(Path("f.yaml"), recipe, None, [], False)
    assert str(caught.value) == "f.yaml: the recipe does not read back as it is, so it is not written"
    assert os.listdir() == []


USAGE = [
    (["--held-out", "1"], "--held-out 1: use a share of at least 0 and below 1, such as 0.3"),
    (["--l2", "-1"], "--l2 -1: use a number of at least 0"),
    (["--l2", "nan"], "--l2 nan: use a number of at least 0"),
    (["--lower", "2", "--upper", "1"], "--lower 2 --upper 1: use two numbers, the lower one first"),
    (["--upper", "inf"], "--lower -1 --upper inf: use two numbers, the lower one first"),
    (["--max-tokens", "0"], "--max-tokens 0: use 1 or more"),
    (["--seed", "-1"], "--seed -1: use a whole number from 0 to 2**63 - 1"),
    (["--overwrite"], "--overwrite goes with --out FILE.yaml"),
]
FAILED = [
    (["--rule", "mixture"], "rule mixture: weights are fitted for the product rule, where that is a convex problem; "
        "fit with --rule product (rule: product in the recipe)"),
    (["--hold", "pirat"], "no component is called 'pirat'; did you mean 'pirate'?"),
    (["--hold", "pirate", "--hold", "math"], "every component is held at its weight, so nothing is left to fit; "
        "hold fewer"),
    (["--out", "none/f.yaml"], "none/f.yaml: its folder does not exist; name a file"),
    (["--out", "."], ".: is a folder; name a file"),
    (["--out", "fitted"], "fitted: a recipe is a YAML file; name it fitted.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "message"), [*((o, 2, m) for o, m in USAGE), *((o, 1, m) for o, m in FAILED)]
)
def test_what_cannot_be_is_one_line(
    run, answers: str, monkeypatch, options: list[str], code: int, message: str
) -> None:
    monkeypatch.setattr(ComposedModel, "from_recipe", None)  # said before any model is loaded
    result = run("fit", "recipe.yaml", answers, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {message}\n")


def test_files_that_cannot_be_fitted_to(run, here: Path, tmp_path: Path) -> None:
    written([("hi", None), ("ho", None)], "none.jsonl")
    written([("hi", "ho")], "one.jsonl")
    written([("hi", "ho"), ("hey", None), ("hi", "a" * 300)], "long.jsonl")
    for arguments, code, message in (
        (["none.jsonl"], 1, f"none.jsonl: no line has an answer to fit to; {EXAMPLE_FORMS}"),
        (["gone.jsonl"], 2, f"gone.jsonl: no such file (looked in {tmp_path})"),
        ([], 2, 'no examples: give a file of them after the recipe, or "-" to read them from stdin'),
        (
            ["one.jsonl"],
            1,
            "one example cannot be both fitted to and held out; give more examples, or --held-out 0 (held_out=0) to "
            "fit to all there is, without figures on answers that the fit has not seen",
        ),
    ):
        result = run("fit", "recipe.yaml", *arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"error: {message}\n")
    result = run("fit", "recipe.yaml", "long.jsonl")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: example 3: prompt and answer come to 321 tokens, and ")
    everything = run("fit", "recipe.yaml", "one.jsonl", "--held-out", "0")
    assert everything.exit_code == 0
    assert "Nothing was held out, so nothing is known of answers that the fit has not seen." in everything.stdout
    assert "difference" not in everything.stdout


def told(run, recipe: str, pairs: Iterable[tuple[str, str | None]], *options: str) -> dict[str, Any]:
    Path("r.yaml").write_text(recipe)
    result = run("fit", "r.yaml", written(pairs), "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def remarks(run, recipe: str, pairs: Iterable[tuple[str, str | None]], *options: str) -> list[str]:
    return told(run, recipe, pairs, *options)["remarks"]


def test_what_there_is_to_know_of_the_weights_is_said(run, here: Path) -> None:
    start = f"base: {here}/base\ncomponents:\n  a: {{context: be brief}}\n"
    assert (
        "a and b: move together, so the answers do not tell their weights apart; the pull towards 1 does."
        in remarks(run, start + "  b: {context: be brief}\n", PAIRS)
    )
    silent = told(run, f"{start}  b: {{model: {here}/base}}\n", PAIRS)
    assert (
        "b: says nothing beyond what it is measured against at these tokens, so its weight is whatever the pull "
        "towards 1 makes it." in silent["remarks"]
    )
    assert [component["standard_error"] is None for component in silent["components"]] == [False, True]
    assert "a is at its upper bound, 0.01: the answers ask for more of it." in remarks(
        run, start, PAIRS, "--lower", "0", "--upper", "0.01", "--l2", "100"
    )
    assert "Plausibility plays no part in the fit and its figures; the recipe keeps it." in remarks(
        run, f"{start}plausibility: 0.1\n", PAIRS
    )
    assert "Plausibility and budgets play no part in the fit and its figures; the recipe keeps them." in remarks(
        run, f"{start}plausibility: 0.1\nbudgets: {{base: 2}}\n", PAIRS
    )
    assert "4 of the held-out examples are also among those fitted to: the figures flatter the fit." in remarks(
        run, start, [("hi", "ho")] * 12
    )


def test_what_the_fit_is_worth_is_said(run, here: Path) -> None:
    recipe = f"base: {here}/base\ncomponents:\n  a: {{context: be brief}}\n"
    assert remarks(run, recipe, PAIRS[:3])[0].startswith("One held-out example became ")
    assert "4 held-out examples are few: the interval is likely too narrow." in remarks(run, recipe, PAIRS)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.2, 0.1, 0.3), "The fitted weights make held-out answers likelier than the recipe's own."),
        (
            (-0.2, -0.3, -0.1),
            "The fitted weights make held-out answers LESS likely: keep the recipe's own, or give more examples.",
        ),
        (
            (-0.1, -0.3, 0.1),
            "The fitted weights make held-out answers less likely, if anything (the interval includes 0).",
        ),
        ((0.1, -0.1, 0.3), "On held-out answers the fitted weights are no clearly better (the interval includes 0)."),
        ((0.1, None, None), "One held-out example became likelier; that is no evidence."),
        ((-0.1, None, None), "One held-out example became no likelier; that is no evidence."),
    ],
)
def test_every_outcome_is_said_plainly(ends: tuple[float, float, float], said: str) -> None:
    other, alone = Interval(-1.0, None, None), ends[1] is None
    held_out = HeldOut(1 if alone else 20, 100, other, None, other, other, Interval(*ends))
    assert fitted._worth(held_out) == [said]


def test_lines_without_an_answer_are_left_out_and_counted(run, answers: str) -> None:
    few, all_ = written([*PAIRS, ("hey", None), ("ho", None)], "more.jsonl"), answers
    one, other = (json.loads(run("fit", "recipe.yaml", file, "--json").stdout) for file in (few, all_))
    assert (one["left_out"], one["components"]) == (2, other["components"])
    assert "2 lines have no answer and are left out.\n" in run("fit", "recipe.yaml", few).stdout


def test_data_may_come_on_stdin_and_the_recipe_from_the_line(run, here: Path) -> None:
    lines = "".join(
        json.dumps({"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": a}]}) + "\n"
        for p, a in PAIRS
    )
    result = run("fit", "--base", here / "base", "--context", "a=be brief", "-", "--max-tokens", "7", stdin=lines)
    assert result.exit_code == 0, result.stderr
    assert "Fitted to 7 of " in result.stdout


def test_help_teaches(run) -> None:
    result = run("fit", "--help")
    assert "counterpoint fit pirate.yaml answers.jsonl --out fitted.yaml" in result.stdout
    assert '{"messages": [...]} whose last message is the assistant\'s' in result.stdout


@pytest.mark.embedded
def test_commands_of_the_page_run_and_fit_pirates_to_pirates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With four of the examples, so that it does not take long."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    lines = (ROOT / "examples/answers.jsonl").read_text().splitlines()
    Path("examples/answers.jsonl").write_text("\n".join(lines[:4]))
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/fitting.md").read_text(), re.DOTALL)
    first, second = (CliRunner().invoke(app, shlex.split(block)[1:]) for block in blocks)
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert json.loads(second.stdout)["text"]
    recipe = Recipe.read("examples/fitted.yaml")
    pirate, scientist = (component.weight for component in recipe.components.values())
    assert pirate > scientist
    held = {name: float(row[0]) for name, row in figures(first.stdout).items() if name.endswith(("alone", "weights"))}
    assert held["fitted weights"] > held["base alone"]
