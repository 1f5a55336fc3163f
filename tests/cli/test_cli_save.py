"""Saving: what is written, and that the printed lines load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_files_are_listed_and_the_printed_lines_load_them(run, tmp_path: Path) -> None:
    result = run("save", "recipe.yaml", "saved", "--weight", "math=2")
    assert (result.exit_code, result.stderr) == (0, "")
    listed, lines = result.stdout.split("\nLoad it with:\n\n")
    assert listed.startswith("Saved to saved:\n")
    for file in (
        "config.json",
        "README.md",
        "adapters/math/adapter_model.safetensors",
    ):
        assert f"  {file}  " in listed
        assert (tmp_path / "saved" / file).is_file()
    assert len(lines.splitlines()) == 3
    code = "\n".join(line.strip() for line in lines.splitlines()) + "\nprint(model.recipe.components['math'].weight)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=ONE_THREAD)
    assert loaded.stdout == "2.0\n", loaded.stderr


def test_a_recipe_without_a_file_is_saved_under_absolute_names(run, here: Path, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(here)
    target = tmp_path / "deep" / "saved"
    result = run("save", "--base", "./base", "--adapter", "a=math-lora", target)
    assert result.exit_code == 0, result.stderr
    result = run("generate", target, "hi", "--max-new-tokens", "1")
    assert result.exit_code == 0, result.stderr


def test_a_folder_with_something_else_in_it_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    result = run("save", "recipe.yaml", "mine")
    assert result.exit_code == 1
    assert result.stderr == "error: mine: holds something else than a composed model; name an empty or new folder\n"


def test_weights_are_copied_on_demand(run, here: Path, tmp_path: Path) -> None:
    assert "  backbones/0/model.safetensors  " in run("save", "recipe.yaml", "saved", "--include-backbones").stdout
    alone, plain = (run("generate", recipe, "hi", "--max-new-tokens", "4") for recipe in ("saved", "recipe.yaml"))
    assert alone.exit_code == 0, alone.stderr
    assert json.loads(alone.stdout)["text"] == json.loads(plain.stdout)["text"]
