"""From the command line to a recipe and a model, quietly, with a word about what takes long."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.cli._errors import UsageError
from counterpoint.cli._options import Composing, Loading

if TYPE_CHECKING:
    from counterpoint.composition.model import ComposedModel
    from counterpoint.composition.recipe import Recipe


def arguments(composing: Composing, given: list[str | None], names: list[str]) -> list[str | None]:
    """The positional arguments, the recipe first; with --base there is none, and the others move up to its place."""
    if composing.base is None:
        return given
    if given[-1] is not None:
        wanted = " and ".join(names[1:])
        raise UsageError(
            f"with --base the recipe is on the command line: give {f'only {wanted}' if wanted else 'no RECIPE'}"
        )
    return [None, *given[:-1]]


def read_recipe(path: str | None, composing: Composing) -> Recipe:
    """The recipe of a file, a saved folder or the options, with --rule and --weight applied.

    Raises:
        UsageError: no recipe is named, or nothing is there.
        RecipeError: what the recipe says cannot be.
    """
    given, weights, rule_options = composing.recipe(), composing.weights(), composing.rule_options()
    if path is None and composing.base is None:
        raise UsageError(
            "no recipe: name a file or a saved folder, or compose without one: --base MODEL --context NAME=TEXT"
        )
    if path is not None and not Path(path).expanduser().exists():
        raise UsageError(
            f"{path}: no such recipe file or folder (looked in {Path.cwd()}); without one, use --base MODEL"
        )
    with busy("Starting"):
        from counterpoint.composition.recipe import Recipe
    recipe = Recipe.read(path if path is not None else given)
    if composing.rule is not None:
        recipe = recipe.with_rule(composing.rule, **rule_options)
    return recipe.with_weights(weights)


def load(recipe: Recipe, loading: Loading) -> ComposedModel:
    """The composed model, with transformers' own chatter and progress bars off."""
    with busy("Starting"):
        import counterpoint.composition.assembly
    hush()
    return counterpoint.composition.model.ComposedModel.from_recipe(recipe, **loading.as_dict())


def hush() -> None:
    """Turn off the log lines, warnings and bars of the libraries below."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")


@contextlib.contextmanager
def busy(message: str) -> Iterator[None]:
    """A turning sign on the terminal; nothing where stderr is a file."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield
