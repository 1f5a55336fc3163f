"""Explaining on the command line: the important lines, and what is said of things that are not here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result


def rows(result: Result) -> list[list[str]]:
    """The lines of the output, split into cells where two spaces stand."""
    return [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in result.stdout.splitlines()]


@pytest.fixture
def recipe(here: Path, tmp_path: Path) -> str:
    """Contexts, an adapter and another model in one recipe, with folders that have short names."""
    for name in ("base", "other", "math-lora"):
        shutil.copytree(here / name, tmp_path / name)
    (tmp_path / "r.yaml").write_text(
        """
        base: base
        components:
          pirate: {context: Be a pirate., temperature: 2}
          math: {adapter: math-lora, weight: 0.5, allow_other_base: true}
          code: {model: other, weight: -1, relative_to: uniform}
        """
    )
    return "r.yaml"


def test_the_important_lines(run, recipe: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    result = run("explain", recipe)
    assert (result.exit_code, result.stderr) == (0, "")
    found = rows(result)
    here = str(tmp_path)
    assert found[0] == [
        "p(v) ∝ p_base(v) · (p_pirate(v)^(1/2) / p_base(v)) · (p_math(v) / p_base(v))^0.5 · p_code(v)^-1"
    ]
    for row in (
        ["voice", "model", "adapter", "rank", "context", "weight", "temperature", "measured against"],
        ["base", f"{here}/base", "1"],
        ["pirate", f"{here}/base", "Be a pirate.", "1", "2", "base"],
        ["math", f"{here}/base", f"{here}/math-lora", "4", "0.5", "1", "base"],
        ["code", f"{here}/other", "-1", "1", "uniform"],
        ["backbone", "voices", "parameters", "type", "weights", "cache a token", "window"],
        [f"{here}/base", "base, pirate, math", "19,616", "float32", "78.5 kB", "768 B", "256"],
        [f"{here}/other", "code", "19,616", "float32", "78.5 kB", "256 B", "256"],
        ["Rows: 4 for each sequence (the base and 3 components)"],
        [
            "rows of base, math, code: have no context, and begin with the chat template's own start: "
            "'<|start|>system be nice<|end|>'"
        ],
        ["plausibility: off: no token is ruled out"],
        ["decoding: greedy, unless a temperature, top-p or top-k is given"],
        ["measured against: the base, where a component does not say otherwise; code against uniform"],
        ["number type: auto: each checkpoint's own type for the weights; the composition itself is float32"],
    ):
        assert row in found, row
    assert "Memory: about 157 kB for weights, " in result.stdout
    assert f"prompts: chat, because the tokenizer of {here}/base has a chat template: " in result.stdout
    assert "Notes" not in result.stdout


def test_it_works_with_configs_alone(run, recipe: str, tmp_path: Path) -> None:
    whole = json.loads(run("explain", recipe, "--json").stdout)
    for file in tmp_path.glob("*/model.safetensors"):
        file.unlink()
    assert json.loads(run("explain", recipe, "--json").stdout) == whole
    assert run("explain", recipe).exit_code == 0


def test_what_is_not_here_is_said(run, here: Path) -> None:
    parts = ["--adapter", "math=org/lora", "--context", "pirate=x"]
    result = run("explain", "--base", "org/none", *parts)
    assert (result.exit_code, result.stderr) == (0, "")
    notes = result.stdout.split("\nNotes\n")[1].splitlines()
    here_or_cache = (
        "is not a folder here and not in the local Hugging Face cache; to fetch it pass --download (download=True)"
    )
    assert notes == [f"  math: adapter 'org/lora' {here_or_cache}", f"  org/none: 'org/none' {here_or_cache}"]
    assert "Memory: unknown until every model is on this machine\n" in result.stdout


def test_json_holds_everything(run, recipe: str) -> None:
    found = json.loads(run("explain", recipe, "--json", "--dtype", "bfloat16").stdout)
    assert found["rows"] == 4
    assert [voice["rank"] for voice in found["voices"]] == [None, None, "4", None]
    assert [b["dtype"] for b in found["backbones"]] == ["bfloat16", "bfloat16"]
    assert found["weight_bytes"] == sum(b["parameters"] for b in found["backbones"]) * 2
    assert found["defaults"]["number type"].startswith("bfloat16")
