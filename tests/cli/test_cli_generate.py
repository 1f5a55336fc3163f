"""Generating: what is printed where, and files of results that survive an interruption."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from counterpoint.cli._results import ResultsFile
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.recipe import Recipe

SHORT = ("--max-new-tokens", "6")
SAMPLED = (*SHORT, "--temperature", "1.5", "--batch-size", "2", "--seed", "7")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'counterpoint'; import counterpoint.cli as c; c.main()"]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def five(tmp_path: Path) -> list[object]:
    """Five prompts in p.jsonl, in every form."""
    prompts = ["one", "a long question", "three", [{"role": "user", "content": "four"}], "five"]
    forms = [prompts[0], {"prompt": prompts[1], "id": 3}, prompts[2], {"messages": prompts[3]}, prompts[4]]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(form) + "\n" for form in forms))
    return prompts


def test_the_json_line_has_the_answer_and_all_that_it_depends_on(run, here: Path) -> None:
    result = run("generate", "recipe.yaml", "hi", *SHORT)
    assert (result.exit_code, result.stderr) == (0, "")
    model = ComposedModel.from_recipe(here / "recipe.yaml")
    encoded = model.encode("hi")
    expected = model.generate(**encoded, do_sample=False, max_new_tokens=6)[0, encoded["input_ids"].shape[1] :]
    assert model.tokenizer is not None
    assert lines(result.stdout) == [
        {
            "index": 0,
            "prompt": "hi",
            "text": model.tokenizer.decode(expected, skip_special_tokens=True),
            "tokens": 6,
            "finish": "length",
            "seed": 0,
            "recipe": Recipe.read(here / "recipe.yaml").digest(),
            "version": version("counterpoint"),
            "settings": {
                "max_new_tokens": 6,
                "temperature": None,
                "top_p": None,
                "top_k": None,
                "batch_size": 1,
                "dtype": "auto",
                "device": None,
            },
        }
    ]


def test_an_answer_that_ends_by_itself_counts_its_end_and_no_padding(run, monkeypatch) -> None:
    def generate(self: ComposedModel, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.cat([input_ids, torch.tensor([[6, 2, 0, 0], [6, 7, 8, 9]])], dim=1)

    monkeypatch.setattr(ComposedModel, "generate", generate)
    result = run("generate", "recipe.yaml", "--prompts", "-", "--batch-size", "2", stdin='"a"\n"b"\n')
    found = [(r["text"], r["tokens"], r["finish"]) for r in lines(result.stdout)]
    assert found == [("b", 2, "stop"), ("bcde", 4, "length")]


def test_a_prompt_on_stdin_is_the_same_as_one_in_the_arguments(run) -> None:
    there = run("generate", "recipe.yaml", "hi you", *SHORT)
    assert run("generate", "recipe.yaml", "-", *SHORT, stdin="hi you\n").stdout == there.stdout


def test_a_recipe_without_a_file_is_the_same_as_one_in_a_file(run, here: Path) -> None:
    parts = ["--context", "pirate=Be a pirate.", "--adapter", f"math={here}/math-lora", "--weight", "math=0.5"]
    made = lines(run("generate", "--base", here / "base", *parts, "hi", *SHORT).stdout)
    assert made == lines(run("generate", "recipe.yaml", "hi", *SHORT).stdout)


def test_one_name_in_two_options_is_one_component(run, here: Path) -> None:
    parts = ["--context", "a=Be kind.", "--adapter", f"a={here}/math-lora", "--model", f"b={here}/other"]
    result = run("explain", "--base", here / "base", *parts, "--json")
    names = [(v["name"], bool(v["context"]), bool(v["adapter"])) for v in json.loads(result.stdout)["voices"]]
    assert names == [("base", False, False), ("a", True, True), ("b", False, False)]


def test_weights_and_rule_change_the_recipe_and_its_digest(run) -> None:
    plain = lines(run("generate", "recipe.yaml", "hi", *SHORT).stdout)[0]
    changed = lines(run("generate", "recipe.yaml", "hi", *SHORT, "--rule", "mixture").stdout)[0]
    assert changed["recipe"] != plain["recipe"]
    same = lines(run("generate", "recipe.yaml", "hi", *SHORT, "--weight", "math=0.5").stdout)[0]
    assert same == plain


def test_a_saved_folder_is_a_recipe(run, tmp_path: Path) -> None:
    run("save", "recipe.yaml", "saved")
    saved, plain = (lines(run("generate", r, "hi", *SHORT).stdout)[0] for r in ("saved", "recipe.yaml"))
    assert saved["text"] == plain["text"]


def test_sampling_needs_a_seed_only_to_differ(run) -> None:
    texts = [
        lines(run("generate", "recipe.yaml", "hi", "--max-new-tokens", "20", *more).stdout)[0]["text"]
        for more in (
            ["--top-p", "0.9"],
            ["--top-p", "0.9"],
            ["--top-p", "0.9", "--seed", "1"],
            ["--temperature", "0"],
            [],
        )
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4] != texts[0]


def test_an_answer_is_streamed_to_a_terminal_and_is_the_same_as_elsewhere(run, monkeypatch) -> None:
    elsewhere = lines(run("generate", "recipe.yaml", "hi", *SHORT, "--temperature", "1").stdout)[0]["text"]
    monkeypatch.setattr("counterpoint.cli.generate.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    result = run("generate", "recipe.yaml", "hi", *SHORT, "--temperature", "1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, elsewhere + "\n", "")


def test_prompts_of_every_form_are_answered_in_order(run, five: list[object]) -> None:
    result = run("generate", "recipe.yaml", "--prompts", "p.jsonl", *SHORT, "--batch-size", "2")
    assert [(r["index"], r["prompt"]) for r in lines(result.stdout)] == list(enumerate(five))


def stop_after(monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    add = ResultsFile.add

    def interrupted(self: ResultsFile, *result: object) -> None:
        if self.done == written:
            raise KeyboardInterrupt
        add(self, *result)  # type: ignore[arg-type]

    monkeypatch.setattr(ResultsFile, "add", interrupted)


@pytest.mark.parametrize("written", [0, 1, 2, 3])
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_a_resumed_file_is_the_one_that_was_never_interrupted(
    run, five, tmp_path: Path, monkeypatch, written: int, torn: bool
) -> None:
    command = ["generate", "recipe.yaml", "--prompts", "p.jsonl", *SAMPLED, "--out"]
    assert run(*command, "whole.jsonl").exit_code == 0
    with monkeypatch.context() as patch:
        stop_after(patch, written)
        result = run(*command, "parts.jsonl")
    again = "run the same command again to go on"
    assert result.stderr == f"\nstopped: {written} of 5 prompts are done in parts.jsonl; {again}\n"
    assert (result.exit_code, result.stdout) == (130, "")
    whole, parts = (tmp_path / "whole.jsonl").read_bytes(), tmp_path / "parts.jsonl"
    assert whole.startswith(parts.read_bytes())
    if torn:
        parts.write_bytes(whole[: len(parts.read_bytes()) + 25])
    result = run(*command, "parts.jsonl")
    assert (result.exit_code, result.stderr) == (0, "parts.jsonl: 5 of 5 prompts done\n")
    assert parts.read_bytes() == whole


def test_a_finished_file_is_left_alone_and_nothing_is_loaded(run, five, tmp_path: Path, monkeypatch) -> None:
    command = ["generate", "recipe.yaml", "--prompts", "p.jsonl", *SHORT, "--out", "out.jsonl"]
    run(*command)
    before = (tmp_path / "out.jsonl").read_bytes()
    monkeypatch.setattr("counterpoint.cli.generate.load", None)
    assert run(*command).exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (["--seed", "1"], "was made with another seed (0, now 1)"),
        (["--top-k", "3"], "was made with another top_k (none, now 3)"),
        (["--max-new-tokens", "7"], "was made with another max_new_tokens (6, now 7)"),
        (["--weight", "math=2"], "was made with another recipe ("),
    ],
)
def test_a_file_of_another_run_is_refused(run, five, tmp_path: Path, change: list[str], why: str) -> None:
    command = ["generate", "recipe.yaml", "--prompts", "p.jsonl", *SHORT, "--out", "out.jsonl"]
    run(*command)
    before = (tmp_path / "out.jsonl").read_bytes()
    result = run(*command, *change)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: out.jsonl: {why}")
    assert result.stderr.endswith("; use another file, or --overwrite to begin again\n")
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert run(*command, *change, "--overwrite").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() != before


def test_a_file_that_answers_other_prompts_or_is_no_result_is_refused(run, five, tmp_path: Path) -> None:
    mend = "use another file, or --overwrite to begin again"
    command = ["generate", "recipe.yaml", *SHORT, "--out", "out.jsonl"]
    run(*command, "--prompts", "p.jsonl")
    result = run(*command, "one")
    assert result.stderr == f"error: out.jsonl: line 2 answers another prompt; {mend}\n"
    for text, line in (
        ("my notes", 1),
        ("my notes\n", 1),
        ('{"index": 0}\n', 1),
        ('{"index": 0, "prompt": "one"}\n', 1),
    ):
        (tmp_path / "out.jsonl").write_text(text)
        result = run(*command, "one")
        assert result.stderr == f"error: out.jsonl: line {line} is not a result of `counterpoint generate`; {mend}\n"
        assert (tmp_path / "out.jsonl").read_text() == text


def test_ctrl_c_keeps_what_is_finished(here: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('"hello"\n' * 5000)
    arguments = ["generate", str(here / "recipe.yaml"), "--prompts", "p.jsonl", "--out", "out.jsonl", *SHORT]
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, env=ONE_THREAD, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (out.exists() and out.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    done = len(lines(out.read_text()))
    assert done > 0, stderr
    again = "run the same command again to go on"
    assert stderr == f"\nstopped: {done} of 5000 prompts are done in out.jsonl; {again}\n"
    assert process.returncode == 130


def test_a_closed_pipe_is_no_error(here: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('"hello"\n' * 5000)
    arguments = ["generate", str(here / "recipe.yaml"), "--prompts", "p.jsonl", *SHORT]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, env=ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert isinstance(process.stdout, io.BufferedReader)
    assert json.loads(process.stdout.readline())["index"] == 0
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 141
