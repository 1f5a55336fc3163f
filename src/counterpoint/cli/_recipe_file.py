"""A recipe as a file: written whole or not at all, and meaning the same models from where it lies."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoint.errors import CounterpointError

if TYPE_CHECKING:
    from counterpoint.composition.recipe import Recipe

MEND = "use another file, or --overwrite to replace it"


def check_writable(path: Path, overwrite: bool) -> None:
    """Raise CounterpointError where a recipe cannot be written, before there is any work to lose."""
    if path.is_dir() or not path.parent.is_dir():
        raise CounterpointError(
            f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; name a file"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise CounterpointError(f"{path}: a recipe is a YAML file; name it {path.name}.yaml")
    if path.exists() and not overwrite:
        raise CounterpointError(f"{path}: is there already; {MEND}")


def write_recipe(path: Path, recipe: Recipe, source: str | None, comments: Sequence[str], overwrite: bool) -> None:
    """Write a recipe under some lines of comment, and check that it reads back as it is.

    Args:
        path: where to; its folder exists.
        recipe: with local folders as absolute paths, as `Recipe.read` gives them.
        source: the file it comes from; what was a relative path there is one here too, from the new file's folder.
        comments: one line each.
        overwrite: replace what is there.

    Raises:
        CounterpointError: something is there, or the recipe cannot be written as a file.
    """
    from counterpoint.composition.recipe import Recipe

    folder = path.parent.resolve()
    printable = ("".join(c if c.isprintable() else "?" for c in " ".join(line.split())) for line in comments)
    text = "".join(f"# {line}\n" for line in printable) + _yaml(_relative(recipe, source, folder))
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".yaml", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if Recipe.read(draft) != recipe:
            raise CounterpointError(f"{path}: the recipe does not read back as it is, so it is not written")
        os.chmod(draft, 0o666 & ~_umask())
        check_writable(path, overwrite)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _yaml(recipe: Recipe) -> str:
    import yaml

    return yaml.safe_dump(recipe.as_dict(), sort_keys=False, allow_unicode=True, width=110)


def _relative(recipe: Recipe, source: str | None, folder: Path) -> Recipe:
    """The recipe with those paths relative to `folder` that are relative in the file it comes from."""
    from counterpoint.composition.recipe import Recipe
    from counterpoint.composition.strict_yaml import read_yaml

    if source is None or not Path(source).expanduser().is_file():
        return recipe
    copy, written = recipe.model_copy(deep=True), Recipe.read(read_yaml(Path(source).expanduser()))
    for voice, before in zip(copy.voices.values(), written.voices.values(), strict=True):
        for key in ("model", "adapter"):
            now, name = getattr(voice, key), getattr(before, key)
            if now != name and not name.startswith(("/", "~")):
                found = os.path.relpath(now, folder)
                setattr(voice, key, found if found.startswith(".") else f"./{found}")
    return copy


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
