"""`counterpoint save`: a composed model as a folder that transformers loads."""

from pathlib import Path
from typing import Annotated

import typer

from counterpoint.cli._errors import UsageError
from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, busy, load, read_recipe
from counterpoint.cli._options import Composing, Loading, RecipeArgument
from counterpoint.cli._words import size


@grouped
def save(
    recipe: RecipeArgument = None,
    folder: Annotated[
        str | None, typer.Argument(metavar="DIR", help="A new or empty folder, or an earlier save.")
    ] = None,
    include_backbones: Annotated[
        bool, typer.Option("--include-backbones", help="Copy the models' weights too, not only their names.")
    ] = False,
    *,
    composing: Composing,
    loading: Loading,
) -> None:
    """Save a composed model: recipe, adapters, tokenizer, settings and model card.

    The folder loads like any other Hugging Face model. Models are named in it,
    not copied, unless --include-backbones is given.

    Examples:

      counterpoint save pirate.yaml ./pirate
      counterpoint save pirate.yaml ./pirate --weight pirate=0.5
      counterpoint save pirate.yaml ./pirate --include-backbones
    """
    recipe, folder = arguments(composing, [recipe, folder], ["RECIPE", "DIR"])
    if folder is None and (recipe is not None or composing.base is not None):
        raise UsageError("no folder: name one to save to, after the recipe")
    model = load(read_recipe(recipe, composing), loading)
    target = Path(str(folder)).expanduser()
    with busy(f"Saving to {target}"):
        model.save_pretrained(target, include_backbones=include_backbones)
    typer.echo(f"Saved to {target}:")
    for file in sorted(path for path in target.rglob("*") if path.is_file()):
        typer.echo(f"  {file.relative_to(target)}  {size(file.stat().st_size)}")
    typer.echo(f"""
Load it with:

  import counterpoint  # makes transformers know composed models
  from transformers import AutoModelForCausalLM
  model = AutoModelForCausalLM.from_pretrained({str(target)!r})""")
