"""Every mistake gives one line on stderr that says how to mend it, and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.composition.recipe import Recipe

GENERATE = ("generate", "recipe.yaml", "hi")
FORMS = 'a line is "text", {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'

USAGE = [
    (["bogus"], "no such command 'bogus'; see `counterpoint --help`"),
    (["generat"], "no such command 'generat'. Did you mean 'generate'?; see `counterpoint --help`"),
    ([*GENERATE, "there"], "got unexpected extra argument(s) (there); see `counterpoint generate --help`"),
    ([*GENERATE, "--max-new-tokens", "0"], "nothing to generate: --max-new-tokens is 0; use 1 or more"),
    ([*GENERATE, "--temperature", "-1"], "--temperature -1: use a number above 0, or 0 for greedy"),
    ([*GENERATE, "--temperature", "nan"], "--temperature nan: use a number above 0, or 0 for greedy"),
    ([*GENERATE, "--top-p", "1.5"], "--top-p 1.5: use a number above 0 and at most 1"),
    ([*GENERATE, "--top-k", "0"], "--top-k 0: use 1 or more"),
    ([*GENERATE, "--seed", "-1"], "--seed -1: use a whole number from 0 to 2**63 - 1"),
    ([*GENERATE, "--batch-size", "0"], "--batch-size 0: use 1 or more"),
    ([*GENERATE, "--overwrite"], "--overwrite goes with --out FILE"),
    ([*GENERATE, "--weight", "math"], "--weight math: write it as in --weight math=0.5"),
    ([*GENERATE, "--weight", "=1"], "--weight =1: write it as in --weight math=0.5"),
    (
        [*GENERATE, "--weight", "math=much"],
        "--weight math=much: 'much' is not a number; write it as in --weight math=0.5",
    ),
    (
        [*GENERATE, "--context", "pirate=x"],
        "--context, --adapter and --model go with --base MODEL; a recipe file has its own components",
    ),
    ([*GENERATE, "--prompts", "p.jsonl"], "give a prompt or --prompts FILE, not both"),
    (["generate", "recipe.yaml", " "], "the prompt is empty; say something"),
    (["generate", "recipe.yaml", "-"], "the prompt on stdin is empty; say something"),
    (
        ["generate", "recipe.yaml"],
        'no prompt: give one after the recipe, "-" to read it from stdin, or --prompts FILE',
    ),
    (["generate", "recipe.yaml", "--prompts", "p.jsonl"], "--prompts p.jsonl: no such file (looked in {cwd})"),
    (["generate", "recipe.yaml", "--prompts", "."], "--prompts .: cannot be read: Is a directory"),
    (
        ["generate", "no.yaml", "hi"],
        "no.yaml: no such recipe file or folder (looked in {cwd}); without one, use --base MODEL",
    ),
    (
        ["explain", "--json"],
        "no recipe: name a file or a saved folder, or compose without one: --base MODEL --context NAME=TEXT",
    ),
    (
        ["generate", "--base", "m", "--context", "a=b", "recipe.yaml", "hi"],
        "with --base the recipe is on the command line: give only the prompt",
    ),
    (
        ["explain", "--base", "m", "--context", "a=b", "recipe.yaml"],
        "with --base the recipe is on the command line: give no RECIPE",
    ),
    (
        ["generate", "--base", "m", "hi"],
        "--base needs components: at least one of --context, --adapter and --model",
    ),
    (
        ["generate", "--base", "m", "--context", "a=b", "--context", "a=c", "hi"],
        "--context a: given twice; give each component one context",
    ),
    (
        ["generate", "--base", "m", "--context", "arr", "hi"],
        '--context arr: write it as in --context pirate="You are a pirate."',
    ),
    (["save", "recipe.yaml"], "no folder: name one to save to, after the recipe"),
]

FAILED = [
    ([*GENERATE, "--weight", "mth=1"], "no component is called 'mth'; did you mean 'math'?"),
    (
        [*GENERATE, "--device", "cpu", "--device-map", "auto"],
        "device ('cpu') and device_map ('auto') are both given: keep one of them",
    ),
    ([*GENERATE, "--dtype", "int8"], "unknown dtype 'int8'; valid are: auto, float32, bfloat16, float16"),
    (["generate", "--base", "./none", "--context", "a=b", "hi"], "there is no folder {cwd}/none"),
    (
        ["generate", "--base", "org/none", "--context", "a=b", "hi"],
        "'org/none' is not a folder here and not in the local Hugging Face cache; to fetch it pass --download "
        "(download=True)",
    ),
    ([*GENERATE, "--out", "no/out.jsonl"], "no/out.jsonl: its folder does not exist; name a file"),
    ([*GENERATE, "--out", "."], ".: is a folder; name a file"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_a_mistake_on_the_command_line_is_one_line_and_exit_2(run, tmp_path: Path, arguments, message) -> None:
    result = run(*arguments)
    assert result.stderr == f"error: {message.replace('{cwd}', str(tmp_path))}\n"
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(("arguments", "message"), FAILED, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_a_failure_is_one_line_and_exit_1(run, tmp_path: Path, arguments, message) -> None:
    result = run(*arguments)
    assert result.stderr == f"error: {message.replace('{cwd}', str(tmp_path))}\n"
    assert (result.exit_code, result.stdout) == (1, "")


def test_a_weight_that_the_library_refuses_is_a_failure(run) -> None:
    result = run(*GENERATE, "--weight", "math=inf")
    assert result.stderr.startswith("error: components.math.weight: inf")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "hi"', f"not JSON (Expecting ',' delimiter: line 1 column 16 (char 15)); {FORMS}"),
        ("hi", f"not JSON (Expecting value: line 1 column 1 (char 0)); {FORMS}"),
        ("3", f"not a prompt; {FORMS}"),
        ('["hi"]', f"not a prompt; {FORMS}"),
        ('{"prompt": 3}', f"not a prompt; {FORMS}"),
        ('{"text": "hi"}', f"needs one of the keys prompt and messages; {FORMS}"),
        ('{"messages": [{"role": "user"}]}', f"a message has a role and a content, both text; {FORMS}"),
        ('{"messages": []}', f"not a prompt; {FORMS}"),
        ('""', "the prompt is empty"),
        ('"\\ud800"', "the prompt is not valid Unicode (character 1)"),
    ],
)
def test_a_bad_line_of_prompts_is_named(run, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(f'"good"\n\n{line}\n')
    result = run("generate", "recipe.yaml", "--prompts", "p.jsonl")
    assert (result.exit_code, result.stderr) == (1, f"error: p.jsonl: line 3: {message}\n")


def test_files_of_prompts_that_hold_none_or_are_not_text(run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n")
    result = run("generate", "recipe.yaml", "--prompts", "p.jsonl")
    assert (result.exit_code, result.stderr) == (1, f"error: p.jsonl: holds no prompts; {FORMS}\n")
    (tmp_path / "p.jsonl").write_bytes(b'"caf\xe9"\n')
    result = run("generate", "recipe.yaml", "--prompts", "p.jsonl")
    assert result.stderr == "error: p.jsonl: not UTF-8 text (byte 4); save the file as UTF-8\n"


def test_a_prompt_that_does_not_fit_the_recipe_is_named_before_anything_is_generated(run, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('"hi"\n{"messages": [{"role": "system", "content": "x"}]}\n')
    result = run("generate", "recipe.yaml", "--prompts", "p.jsonl")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: prompt 2: the prompt has a system message, but this recipe gives every row")
    assert result.stdout == ""


def test_every_fault_of_a_recipe_is_a_line(run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("base: b\nruel: product\ncomponents: {a: {wieght: 1, context: x}}\n")
    result = run("explain", "bad.yaml")
    assert result.exit_code == 1
    assert [line[:35] for line in result.stderr.splitlines()] == [
        "error: bad.yaml: components.a.wieght"[:35],
        "error: bad.yaml: ruel: unknown key; did"[:35],
    ]


def test_an_unexpected_exception_is_one_line_and_a_traceback_only_with_debug(run, monkeypatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("of all things\nsecond line")

    monkeypatch.setattr(Recipe, "read", broken)
    result = run("explain", "recipe.yaml")
    assert result.stderr == "error: ZeroDivisionError: of all things (--debug shows where it comes from)\n"
    assert result.exit_code == 1
    for arguments in (["--debug", "explain", "recipe.yaml"], ["explain", "recipe.yaml", "--debug"]):
        result = run(*arguments)
        assert "Traceback" in result.stderr
        assert result.stderr.endswith("error: ZeroDivisionError: of all things (--debug shows where it comes from)\n")


def test_debug_after_two_dashes_is_an_argument(run) -> None:
    result = run("explain", "--", "--debug")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --debug: no such recipe file or folder")


def test_ctrl_c_anywhere_is_130(run, monkeypatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "read", interrupted)
    result = run("explain", "recipe.yaml")
    assert (result.exit_code, result.stderr, result.stdout) == (130, "\nstopped\n", "")
