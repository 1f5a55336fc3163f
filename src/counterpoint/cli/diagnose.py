"""`counterpoint diagnose`: will the components interfere?"""

import json as json_module
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoint.cli._errors import INTERRUPTED, UsageError
from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, busy, load, read_recipe
from counterpoint.cli._options import Composing, Loading, RecipeArgument, version
from counterpoint.cli._progress import progress
from counterpoint.cli._prompts import Example, read_examples
from counterpoint.cli._results import ResultsFile

if TYPE_CHECKING:
    from counterpoint.composition.model import ComposedModel
    from counterpoint.composition.recipe import Recipe
    from counterpoint.diagnostics.probing import Task
    from counterpoint.diagnostics.results import Diagnosis, Estimate, Text

PROBING = "Probing"


class Continuations(StrEnum):
    """Who writes the text that is measured."""

    COMPOSED = "composed"
    BASE = "base"
    COMPONENT = "component"
    GIVEN = "given"


@grouped
def diagnose(
    recipe: RecipeArgument = None,
    prompts: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPTS",
            help='JSON lines: "text", {"prompt": "text"}, {"messages": ...}, or {"prompt": ..., "answer": ...}.',
        ),
    ] = None,
    continuations: Annotated[
        Continuations,
        typer.Option(
            rich_help_panel=PROBING,
            help="Who continues: the composed model, the base, each component in turn, or the given answers.",
        ),
    ] = Continuations.COMPOSED,
    max_new_tokens: Annotated[int, typer.Option(rich_help_panel=PROBING, help="Tokens measured a text.")] = 64,
    temperature: Annotated[
        float, typer.Option(rich_help_panel=PROBING, help="Of drawing the continuations; 0 is greedy.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(rich_help_panel=PROBING, help="Where drawing begins.")] = 0,
    batch_size: Annotated[int, typer.Option(rich_help_panel=PROBING, help="Texts continued at once.")] = 8,
    limit: Annotated[
        int | None, typer.Option(rich_help_panel=PROBING, help="Only so many prompts, from the first on.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", rich_help_panel=PROBING, help="Where the files go; run again to go on.")
    ] = "diagnosis",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=PROBING, help="Begin DIR's files again.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", rich_help_panel=PROBING, help="Print diagnosis.json, not words.")
    ] = False,
    *,
    composing: Composing,
    loading: Loading,
) -> None:
    """Find out, before you rely on a recipe, whether its components interfere.

    Texts are continued from your prompts, and at every token it is measured
    whether each component still has the say that it has when it speaks alone.
    No labels are needed. DIR gets diagnosis.json (every figure with its
    interval), texts.jsonl (every token) and report.html, to look at.

    Examples:

      counterpoint diagnose pirate.yaml prompts.jsonl
      counterpoint diagnose pirate.yaml prompts.jsonl --rule raking --out raked
      counterpoint diagnose pirate.yaml answers.jsonl --continuations given

    A run that was stopped goes on where it was when the same command is run again.
    """
    recipe, prompts = arguments(composing, [recipe, prompts], ["RECIPE", "PROMPTS"])
    _check(max_new_tokens, temperature, seed, batch_size, limit)
    if prompts is None:
        raise UsageError("no prompts: name a file of JSON lines after the recipe")
    examples = _examples(prompts, continuations, limit)
    composed = read_recipe(recipe, composing)
    settings = {
        "seed": seed,
        "recipe": composed.digest(),
        "version": version(),
        "settings": {
            "continuations": continuations.value,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "batch_size": batch_size,
            "dtype": loading.dtype,
            "device": loading.device,
        },
    }
    folder = Path(out).expanduser()
    tasks = _tasks(examples, continuations, composed)
    if folder.is_file():
        raise UsageError(f"--out {out}: is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    asked = [task["prompt"] for task in tasks]
    with ResultsFile(folder / "texts.jsonl", asked, settings, overwrite, "diagnose") as file:
        probing = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "batch_size": batch_size}
        device = _probe(file, tasks, composed, loading, probing)
    with busy("Summing up"):
        diagnosis = _sum_up(folder, tasks, composed, {**settings, "prompts": prompts, "device": device})
    if json:
        typer.echo(diagnosis.model_dump_json(indent=1))
    else:
        _print(diagnosis, folder)


def _check(max_new_tokens: int, temperature: float, seed: int, batch_size: int, limit: int | None) -> None:
    if max_new_tokens < 1:
        raise UsageError(f"nothing to measure: --max-new-tokens is {max_new_tokens}; use 1 or more")
    if not 0 <= temperature < float("inf"):
        raise UsageError(f"--temperature {temperature:g}: use a number above 0, or 0 for greedy")
    if not 0 <= seed < 2**62:
        raise UsageError(f"--seed {seed}: use a whole number from 0 to 2**62 - 1")
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: use 1 or more")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: use 1 or more")


def _examples(file: str, continuations: Continuations, limit: int | None) -> list[Example]:
    examples = read_examples(file)[:limit]
    if continuations is Continuations.GIVEN:
        for number, example in enumerate(examples, 1):
            if example.answer is None:
                raise UsageError(
                    f"{file}: example {number} has no answer, which --continuations given measures; add "
                    '"answer": "text", or let the composed model continue'
                )
    return examples


def _tasks(examples: list[Example], continuations: Continuations, recipe: "Recipe") -> list[dict[str, Any]]:
    voices = list(recipe.components) if continuations is Continuations.COMPONENT else [continuations.value]
    if voices == ["base"] and recipe.base is None:
        raise UsageError("--continuations base: the recipe has no base; use composed or component")
    given = continuations is Continuations.GIVEN
    return [
        {"index": index, "prompt": example.prompt, "voice": voice, "answer": example.answer if given else None}
        for index, example in enumerate(examples)
        for voice in voices
    ]


def _probe(
    file: ResultsFile,
    tasks: list[dict[str, Any]],
    recipe: "Recipe",
    loading: Loading,
    probing: dict[str, Any],
) -> str | None:
    """Measure what is not measured yet; gives the device, None where nothing was left to do."""
    total = len(tasks)
    if file.done == total:
        return None
    try:
        model = load(recipe, loading)
        from counterpoint.diagnostics.probing import Task, probe

        wanted = [Task(**task) for task in tasks]
        _check_prompts(model, wanted)
        with progress("Measuring", file.done, total) as advance:
            for text in probe(model, wanted, **probing, done=file.done):
                file.add(file.done, text.model_dump(exclude={"index"}))
                advance()
    except KeyboardInterrupt:
        again = "run the same command again to go on"
        typer.echo(f"\nstopped: {file.done} of {total} texts are measured in {file.path}; {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    return str(model.device)


def _check_prompts(model: "ComposedModel", tasks: list["Task"]) -> None:
    """Encode everything once, so that a bad prompt is found before hours of work and not after."""
    from counterpoint.cli._decoding import check_prompts
    from counterpoint.composition.continuations import encode_with_answer
    from counterpoint.errors import ContextError

    first = {task.index: task for task in tasks}
    check_prompts(model, [task.prompt for task in first.values()])
    for task in first.values():
        if task.answer is not None:
            try:
                encode_with_answer(model, task.prompt, task.answer)
            except ContextError as error:
                raise ContextError(f"example {task.index + 1}: {error}") from None


def _sum_up(folder: Path, tasks: list[dict[str, Any]], recipe: "Recipe", settings: dict[str, Any]) -> "Diagnosis":
    """Write diagnosis.json and report.html from texts.jsonl."""

    from counterpoint.composition.plan import formula
    from counterpoint.diagnostics.report import render
    from counterpoint.diagnostics.summary import diagnose
    from counterpoint.files import versions, write_whole

    diagnosis = diagnose(
        _texts(folder, tasks),
        list(recipe.components),
        formula=formula(recipe),
        settings={**settings, "recipe": recipe.as_dict(), "digest": recipe.digest()},
        versions=versions(),
    )
    write_whole(folder / "diagnosis.json", diagnosis.model_dump_json(indent=1) + "\n")
    write_whole(folder / "report.html", render(diagnosis, _texts(folder, tasks)))
    return diagnosis


def _texts(folder: Path, tasks: list[dict[str, Any]]) -> Iterator["Text"]:
    from counterpoint.diagnostics.results import Text

    with (folder / "texts.jsonl").open(encoding="utf-8") as lines:
        for line, task in zip(lines, tasks, strict=True):
            found = json_module.loads(line)
            kept = {name: found[name] for name in Text.model_fields if name != "index"}
            yield Text(index=task["index"], **kept)


def _print(diagnosis: "Diagnosis", folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]{diagnosis.verdict.headline}[/bold]")
    for reason in diagnosis.verdict.reasons:
        console.print(f"  {reason.text}", markup=False)
    table = Table("component", box=None, pad_edge=False)
    for name in ("activity, nats", "active", "gap, nats", "off where active", "keeps"):
        table.add_column(name, justify="right")
    for name, found in diagnosis.by_component.items():
        table.add_row(
            name,
            _number(found.activity, "{:.2f}"),
            _number(found.active_share, "{:.0%}"),
            _number(found.gap, "{:.2f}"),
            _number(found.bin_distance, "{:.0%}"),
            _number(found.retained_evidence, "{:.0%}"),
        )
    console.print()
    console.print(table)
    console.print(
        f"\n{diagnosis.texts} texts, {diagnosis.positions} tokens; log Z {_number(diagnosis.log_partition, '{:+.2f}')}"
        f" nats a token; two active at once {_number(diagnosis.both_active_share, '{:.0%}')} of the time",
        markup=False,
    )
    console.print(f"Look at {folder / 'report.html'}", markup=False)


def _number(estimate: "Estimate", form: str) -> str:
    """A figure and its interval in words."""
    if estimate.mean is None:
        return "undefined"
    if estimate.low is None or estimate.high is None:
        return form.format(estimate.mean)
    return f"{form.format(estimate.mean)} ({form.format(estimate.low)} to {form.format(estimate.high)})"
