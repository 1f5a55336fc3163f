"""`counterpoint fit`: the weights that make given answers likeliest."""

import json as jsonlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoint.cli._errors import UsageError
from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, busy, load, read_recipe
from counterpoint.cli._options import Composing, Loading, RecipeArgument, version
from counterpoint.cli._prompts import EXAMPLE_FORMS, Prompt, read_examples
from counterpoint.cli._recipe_file import check_writable, write_recipe
from counterpoint.errors import ContextError

if TYPE_CHECKING:
    from counterpoint.composition.fitted import FitReport, FitSettings
    from counterpoint.intervals import Interval

FITTING, OUTPUT = "The fit", "Results"


def _option(panel: str, text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=text, metavar=metavar)


@grouped
def fit(
    recipe: RecipeArgument = None,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA.jsonl",
            help='JSON lines: {"prompt": "text", "answer": "text"}, or {"messages": ...} that end with the answer; '
            '"-" reads stdin.',
        ),
    ] = None,
    out: Annotated[
        str | None, _option(OUTPUT, "Write the recipe with the fitted weights there.", metavar="FILE.yaml")
    ] = None,
    overwrite: Annotated[bool, _option(OUTPUT, "Replace the --out file.", "--overwrite")] = False,
    json: Annotated[bool, _option(OUTPUT, "Everything as one JSON object.", "--json")] = False,
    held_out: Annotated[
        float, _option(FITTING, "Share of the examples kept for the figures; 0 fits to all and gives none.")
    ] = 0.3,
    hold: Annotated[
        list[str] | None, _option(FITTING, "Leave this component's weight as it is. Repeatable.", metavar="NAME")
    ] = None,
    l2: Annotated[float, _option(FITTING, "The pull of every weight towards 1.", "--l2")] = 0.01,
    lower: Annotated[float, _option(FITTING, "No weight below this.")] = -1.0,
    upper: Annotated[float, _option(FITTING, "No weight above this.")] = 5.0,
    max_tokens: Annotated[
        int | None,
        _option(FITTING, "Fit to so many tokens, drawn evenly; by default as many as 2 GiB of memory hold."),
    ] = None,
    seed: Annotated[int, _option(FITTING, "Of the split, the tokens drawn, and the intervals.")] = 0,
    *,
    composing: Composing,
    loading: Loading,
) -> None:
    """Fit a recipe's weights to answers that you like.

    Give examples of prompts with answers. The weights that make the answers
    likeliest under the product rule are found exactly, in seconds: the problem
    is convex. Some examples are held out, and say whether the fitted weights
    are any better than the recipe's own on answers they were not fitted to.

    Examples:

      counterpoint fit pirate.yaml answers.jsonl
      counterpoint fit pirate.yaml answers.jsonl --out fitted.yaml
      counterpoint fit pirate.yaml answers.jsonl --hold pirate --l2 0.1
      counterpoint fit --base smollm2-135m-instruct answers.jsonl
          --context pirate="You are a pirate." --context poet="You are a poet."

    A line of the file is {"prompt": "Why?", "answer": "So."}, or a conversation
    {"messages": [...]} whose last message is the assistant's.
    """
    recipe, data = arguments(composing, [recipe, data], ["RECIPE", "DATA"])
    _check(held_out, l2, lower, upper, max_tokens, seed)
    if overwrite and out is None:
        raise UsageError("--overwrite goes with --out FILE.yaml")
    if data is None and (recipe is not None or composing.base is not None):
        raise UsageError('no examples: give a file of them after the recipe, or "-" to read them from stdin')
    target = None if out is None else Path(out).expanduser()
    if target is not None:
        check_writable(target, overwrite)
    answered, numbers, left_out = _answered(str(data))
    composed = read_recipe(recipe, composing)
    with busy("Starting"):
        from counterpoint.composition.fitted import FitSettings, check_fittable, fit_to_answers, split
    settings = FitSettings(held_out, l2, lower, upper, max_tokens, seed, tuple(hold or ()))
    check_fittable(composed, settings)
    split(len(answered), held_out, seed)
    model = load(composed, loading)
    with _progress(len(answered)) as done:
        report = fit_to_answers(model, answered, settings, done, numbers)
    if target is not None:
        write_recipe(target, report.recipe, recipe, _comments(report, settings, str(data)), overwrite)
    if json:
        typer.echo(
            jsonlib.dumps(
                _as_dict(report, settings, str(data), left_out, composed.digest(), loading), ensure_ascii=False
            )
        )
    else:
        _print(report, left_out)
    if target is not None:
        typer.echo(f"{target}: the recipe with the fitted weights", err=True)


def _check(held_out: float, l2: float, lower: float, upper: float, max_tokens: int | None, seed: int) -> None:
    if not 0 <= held_out < 1:
        raise UsageError(f"--held-out {held_out:g}: use a share of at least 0 and below 1, such as 0.3")
    if not 0 <= l2 < math.inf:
        raise UsageError(f"--l2 {l2:g}: use a number of at least 0")
    if not -math.inf < lower < upper < math.inf:
        raise UsageError(f"--lower {lower:g} --upper {upper:g}: use two numbers, the lower one first")
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens}: use 1 or more")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: use a whole number from 0 to 2**63 - 1")


def _answered(data: str) -> tuple[list[tuple[Prompt, str]], list[int], int]:
    """The examples with an answer, which ones of the file they are, and how many have none."""
    examples = read_examples(data)
    answered = [(x.prompt, x.answer) for x in examples if x.answer is not None]
    if not answered:
        raise ContextError(f"{data}: no line has an answer to fit to; {EXAMPLE_FORMS}")
    numbers = [number for number, x in enumerate(examples, 1) if x.answer is not None]
    return answered, numbers, len(examples) - len(answered)


def _print(report: "FitReport", left_out: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 120)
    weights = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in ("component", "weight before", "after", "standard error"):
        weights.add_column(column, justify="left" if column == "component" else "right")
    for c in report.components:
        error = "held" if c.held else "at its bound" if c.bound else "unknown"
        error = error if c.standard_error is None else f"{c.standard_error:.4f}"
        weights.add_row(c.name, f"{c.before:g}", f"{c.after:g}", error)
    console.print(weights)
    of = "all" if report.tokens_used == report.tokens else f"{report.tokens_used} of"
    console.print(
        f"\nFitted to {of} {report.tokens} answer tokens of {_examples(report.examples)}: "
        f"{report.before:.4f} nats a token before, {report.after:.4f} after.",
        soft_wrap=True,
    )
    if report.held_out is not None:
        held = report.held_out
        figures = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        figures.add_column(f"{_examples(held.examples)} held out, {held.tokens} tokens")
        figures.add_column("nats a token", justify="right")
        figures.add_column("95 % interval", justify="right")
        rows = {"base alone": held.base, "all weights 1": held.ones, "recipe's weights": held.before}
        for name, interval in {**rows, "fitted weights": held.after, "difference": held.difference}.items():
            if interval is not None:
                figures.add_row(name, *_figure(interval, signed=name == "difference"))
        console.print()
        console.print(figures)
    lines = "1 line has no answer and is" if left_out == 1 else f"{left_out} lines have no answer and are"
    console.print()
    for remark in (*report.remarks, *([f"{lines} left out."] if left_out else [])):
        console.print(remark, soft_wrap=True)


def _figure(interval: "Interval", signed: bool) -> tuple[str, str]:
    sign = "+" if signed else ""
    if interval.low is None or interval.high is None:
        return f"{interval.mean:{sign}.4f}", "unknown"
    return f"{interval.mean:{sign}.4f}", f"{interval.low:{sign}.4f} to {interval.high:{sign}.4f}"


def _examples(count: int) -> str:
    return f"{count} example{'s' * (count != 1)}"


def _comments(report: "FitReport", settings: "FitSettings", data: str) -> list[str]:
    """How the recipe came about, for whoever opens the file."""
    name = "stdin" if data == "-" else Path(data).name
    held = report.held_out
    errors = ", ".join(f"{c.name} {c.standard_error:.2g}" for c in report.components if c.standard_error is not None)
    hold = f", hold {', '.join(settings.hold)}" if settings.hold else ""
    lines = [
        f"Weights fitted by counterpoint fit {version()} to {name}: {_examples(report.examples)}, {report.tokens_used} "
        f"of {report.tokens} answer tokens.",
        f"Settings: seed {settings.seed}, held-out {settings.held_out:g}, l2 {settings.l2:g}, "
        f"bounds {settings.lower:g} to {settings.upper:g}{hold}.",
        f"Standard errors: {errors or 'none'}.",
    ]
    if held is not None:
        parts = {"base alone": held.base, "weights before": held.before, "fitted": held.after}
        said = ", ".join(f"{part} {_figure(interval, False)[0]}" for part, interval in parts.items())
        difference = " (95 % interval ".join(_figure(held.difference, True))
        lines.append(f"Held out, {_examples(held.examples)}, nats a token: {said}; difference {difference}).")
    return lines


def _as_dict(
    report: "FitReport", settings: "FitSettings", data: str, left_out: int, before: str, loading: Loading
) -> dict[str, Any]:
    held = report.held_out
    figures: dict[str, Any] | None = None
    if held is not None:
        names = ("base", "ones", "before", "after", "difference")
        intervals: dict[str, Interval | None] = {name: getattr(held, name) for name in names}
        figures = {"examples": held.examples, "tokens": held.tokens}
        figures |= {name: None if found is None else found._asdict() for name, found in intervals.items()}
    return {
        "components": [asdict(component) for component in report.components],
        "examples": report.examples,
        "tokens": report.tokens,
        "tokens_used": report.tokens_used,
        "before": report.before,
        "after": report.after,
        "steps": report.steps,
        "gradient_norm": report.gradient_norm,
        "held_out": figures,
        "remarks": list(report.remarks),
        "recipe": report.recipe.as_dict(),
        "digest": {"before": before, "after": report.recipe.digest()},
        "data": data,
        "left_out": left_out,
        "settings": {**asdict(settings), "dtype": loading.dtype, "device": loading.device},
        "version": version(),
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's stderr; yields what moves it on by one example."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = [TextColumn("Reading answers"), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
