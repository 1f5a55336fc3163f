"""Help teaches, and comes at once: nothing heavy is imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALL = "import sys; sys.argv = ['counterpoint', *{words}]; import counterpoint.cli as cli\n"
QUICK = "try: cli.main()\nexcept SystemExit as end: assert not end.code, end.code\n"
LIGHT = "heavy = {'torch', 'transformers', 'yaml'} & set(sys.modules); assert not heavy, heavy"


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    code = CALL.format(words=words) + QUICK + LIGHT
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "counterpoint" in result.stdout


@pytest.mark.parametrize("verb", ["generate", "chat", "explain", "save"])
def test_each_verb_has_examples(run, verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"counterpoint {verb} pirate.yaml" in result.stdout


@pytest.mark.parametrize("words", [[], ["generate"], ["chat"], ["explain"], ["save"]])
def test_no_arguments_are_a_call_for_help(run, words: list[str]) -> None:
    result = run(*words)
    assert "Usage: counterpoint" in result.stdout
    assert (result.exit_code, result.stderr) == (2, "")


def test_generate_says_that_it_is_greedy(run) -> None:
    words = " ".join(run("generate", "--help").stdout.split())
    assert "greedy unless --temperature, --top-p or --top-k is given" in words


def test_version_is_that_of_the_package(run) -> None:
    from importlib.metadata import version

    assert run("--version").stdout == f"counterpoint {version('counterpoint')}\n"
