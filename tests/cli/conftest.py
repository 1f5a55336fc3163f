"""A small world on disk, and the command line called as a user would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from counterpoint.cli import app
from worlds import save_adapter, save_model

RECIPE = """\
base: base
components:
  pirate: {context: Be a pirate.}
  math: {adapter: math-lora, weight: 0.5}
"""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `base` and `other` (with a chat template), `plain` (without) and `math-lora`, and `recipe.yaml`."""
    folder = tmp_path_factory.mktemp("world")
    save_model(folder / "base")
    save_model(folder / "other", seed=1)
    save_model(folder / "plain", seed=2, template=None)
    save_adapter(folder / "math-lora", str(folder / "base"))
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world, with an empty working folder of the test's own as the current one; `../` is not the world."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return world


@pytest.fixture
def run(here: Path) -> Callable[..., Result]:
    """Call the command line; `recipe.yaml` in the arguments stands for the world's recipe."""

    def call(*arguments: object, stdin: str | bytes | None = None) -> Result:
        words = [str(here / "recipe.yaml") if a == "recipe.yaml" else str(a) for a in arguments]
        return CliRunner().invoke(app, words, input=stdin, prog_name="counterpoint")

    return call
