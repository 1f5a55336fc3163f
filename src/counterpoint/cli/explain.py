"""`counterpoint explain`: what a recipe amounts to, without loading weights."""

import json as jsonlib
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, busy, hush, read_recipe
from counterpoint.cli._options import Composing, Loading, RecipeArgument
from counterpoint.cli._words import number, size

if TYPE_CHECKING:
    from counterpoint.composition.explain import Explanation

LONGEST_CONTEXT = 60


@grouped
def explain(
    recipe: RecipeArgument = None,
    json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
    *,
    composing: Composing,
    loading: Loading,
) -> None:
    """Say what a recipe computes, what it costs, and which defaults apply.

    No weights are loaded: sizes come from the models' configs and the adapters'
    files. What is not on this machine is said to be missing.

    Examples:

      counterpoint explain pirate.yaml
      counterpoint explain pirate.yaml --rule mixture --dtype bfloat16
      counterpoint explain pirate.yaml --json
    """
    (recipe,) = arguments(composing, [recipe], ["RECIPE"])
    composed = read_recipe(recipe, composing)
    with busy("Starting"):
        from counterpoint.composition.explain import explain as explanation_of
        from counterpoint.composition.loading import LoadOptions
    hush()
    explanation = explanation_of(composed, LoadOptions(**loading.as_dict()))
    if json:
        typer.echo(jsonlib.dumps(explanation.as_dict(), ensure_ascii=False, indent=2))
    else:
        _print(explanation)


def _print(explanation: "Explanation") -> None:
    from rich.console import Console

    wide = None if sys.stdout.isatty() else max(shutil.get_terminal_size().columns, 120)
    console = Console(markup=False, highlight=False, emoji=False, width=wide)
    console.print(explanation.formula, soft_wrap=True)
    console.print()
    console.print(_voices(explanation))
    console.print()
    console.print(_backbones(explanation))
    console.print()
    for line in _memory(explanation):
        console.print(line, soft_wrap=True)
    notes = [f"{x.name}: {x.note}" for x in explanation.voices if x.note]
    notes += [f"{x.model}: {x.note}" for x in explanation.backbones if x.note]
    for title, lines in (
        ("What applies", [f"{topic}: {words}" for topic, words in explanation.defaults.items()]),
        ("Notes", notes),
    ):
        if lines:
            console.print(f"\n{title}")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)


def _voices(explanation: "Explanation") -> Any:
    columns = ["voice", "model", "adapter", "rank", "context", "weight", "temperature", "measured against"]
    rows = [
        [
            voice.name,
            voice.model,
            voice.adapter or "",
            (voice.rank or "unknown") if voice.adapter else "",
            _short(voice.context or ""),
            "" if voice.weight is None else f"{voice.weight:g}",
            f"{voice.temperature:g}",
            voice.measured_against or "",
        ]
        for voice in explanation.voices
    ]
    empty = {i for i in range(len(columns)) if not any(row[i] for row in rows)}
    return _table(
        [c for i, c in enumerate(columns) if i not in empty],
        [[x for i, x in enumerate(r) if i not in empty] for r in rows],
    )


def _backbones(explanation: "Explanation") -> Any:
    columns = ["backbone", "voices", "parameters", "type", "weights", "cache a token", "window"]
    return _table(
        columns,
        [
            [
                backbone.model,
                ", ".join(backbone.voices),
                number(backbone.parameters),
                backbone.dtype or "unknown",
                size(backbone.weight_bytes),
                size(backbone.cache_bytes),
                "unknown" if backbone.window is None else str(backbone.window),
            ]
            for backbone in explanation.backbones
        ],
    )


def _memory(explanation: "Explanation") -> list[str]:
    with_base = explanation.voices[0].weight is None
    components = len(explanation.voices) - with_base
    who = f"{'the base and ' if with_base else ''}{components} component{'s' * (components != 1)}"
    adapters = "" if not explanation.adapter_bytes else f", {size(explanation.adapter_bytes)} for adapters"
    if explanation.adapter_bytes is None:
        adapters = ", adapters unknown"
    memory = (
        f"about {size(explanation.weight_bytes)} for weights{adapters}, and {size(explanation.cache_bytes)} "
        "for each token of each sequence (all rows)"
    )
    if explanation.weight_bytes is None:
        memory = "unknown until every model is on this machine"
    return [
        f"Rows: {explanation.rows} for each sequence ({who})",
        f"Memory: {memory}",
        f"Recipe digest: {explanation.digest}",
    ]


def _table(columns: list[str], rows: list[list[str]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), collapse_padding=True, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_CONTEXT else f"{line[: LONGEST_CONTEXT - 1]}…"
