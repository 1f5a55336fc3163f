"""`counterpoint diagnose`, called as a user would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def prompts(here: Path) -> Path:
    lines = ['"hi"', '{"prompt": "</script><b>", "answer": "no"}', '{"messages": [{"role": "user", "content": "why"}]}']
    Path("prompts.jsonl").write_text("\n".join(lines) + "\n")
    return Path("prompts.jsonl")


def test_it_writes_three_files_and_says_what_it_found(run: Run, prompts: Path) -> None:
    result = run("diagnose", "recipe.yaml", prompts, "--max-new-tokens", 5)
    assert result.exit_code == 0, result.stderr
    assert "Look at diagnosis/report.html" in result.stdout
    for name in ("pirate", "math"):
        assert name in result.stdout
    found = json.loads(Path("diagnosis/diagnosis.json").read_text())
    assert found["texts"] == 3
    assert found["components"] == ["pirate", "math"]
    assert found["settings"]["settings"]["continuations"] == "composed"
    assert {"counterpoint", "torch", "transformers"} <= set(found["versions"])
    assert found["verdict"]["headline"] in " ".join(result.stdout.split())
    page = Path("diagnosis/report.html").read_text()
    assert "</script><b>" not in page
    assert len(Path("diagnosis/texts.jsonl").read_text().splitlines()) == 3


def test_a_second_run_measures_nothing_again_and_a_torn_one_goes_on(run: Run, prompts: Path) -> None:
    words = ("diagnose", "recipe.yaml", prompts, "--max-new-tokens", 4, "--batch-size", 2)
    assert run(*words).exit_code == 0
    texts = Path("diagnosis/texts.jsonl")
    whole = texts.read_bytes()
    texts.write_bytes(whole[: len(whole) - 50])
    assert run(*words).exit_code == 0
    assert texts.read_bytes() == whole
    result = run(*words, "--seed", 3)
    assert result.exit_code == 1
    assert "was made with another seed (0, now 3); use another file, or --overwrite to begin again" in result.stderr
    assert run(*words, "--seed", 3, "--overwrite").exit_code == 0


def test_every_kind_of_continuation(run: Run, prompts: Path) -> None:
    for kind, texts in (("base", 3), ("component", 6)):
        result = run("diagnose", "recipe.yaml", prompts, "--max-new-tokens", 3, "--continuations", kind, "--out", kind)
        assert result.exit_code == 0, result.stderr
        assert json.loads(Path(kind, "diagnosis.json").read_text())["texts"] == texts
    result = run("diagnose", "recipe.yaml", prompts, "--continuations", "given")
    assert result.exit_code == 2
    assert "prompts.jsonl: example 1 has no answer, which --continuations given measures" in result.stderr
    Path("answers.jsonl").write_text('{"prompt": "hi", "answer": "ho"}\n')
    result = run("diagnose", "recipe.yaml", "answers.jsonl", "--continuations", "given", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["positions"] == 3  # two letters and the end of the turn


def test_other_rules_and_no_file(run: Run, prompts: Path, here: Path) -> None:
    result = run(
        *("diagnose", "--base", here / "base", "--context", "a=be nice", "--context", "b=be rude", prompts),
        *("--rule", "raking", "--rule-option", "bins=4", "--max-new-tokens", 3, "--limit", 1),
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(Path("diagnosis/diagnosis.json").read_text())
    assert found["texts"] == 1
    assert found["settings"]["recipe"]["rule_options"] == {"bins": 4}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("missing.jsonl",), 2, "missing.jsonl: no such file"),
        ((), 2, "no prompts: name a file of JSON lines after the recipe"),
        (("prompts.jsonl", "--max-new-tokens", "0"), 2, "nothing to measure: --max-new-tokens is 0; use 1 or more"),
        (("prompts.jsonl", "--temperature", "-1"), 2, "--temperature -1: use a number above 0, or 0 for greedy"),
        (("prompts.jsonl", "--limit", "0"), 2, "--limit 0: use 1 or more"),
        (("prompts.jsonl", "--batch-size", "0"), 2, "--batch-size 0: use 1 or more"),
        (("prompts.jsonl", "--out", "prompts.jsonl"), 2, "--out prompts.jsonl: is a file; name a folder"),
        (("prompts.jsonl", "--rule-option", "bins=3"), 2, "--rule-option goes with --rule NAME"),
        (("prompts.jsonl", "--rule", "raking", "--rule-option", "bin=3"), 1, "rule_options.bin: unknown key; did you"),
        (("long.jsonl",), 1, "prompt 2: "),
        (("empty.jsonl",), 1, "empty.jsonl: holds no examples"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    run: Run, prompts: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    Path("long.jsonl").write_text('"hi"\n{"prompt": "' + "long " * 200 + '"}\n')
    Path("empty.jsonl").write_text("\n")
    result = run("diagnose", "recipe.yaml", *options)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("diagnosis/diagnosis.json").exists()
