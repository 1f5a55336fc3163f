"""`counterpoint study`: test a paper's claims, and write down what was found."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoint.cli._errors import INTERRUPTED, UsageError
from counterpoint.cli._models import busy, hush
from counterpoint.studies import STUDIES, load_study

if TYPE_CHECKING:
    from counterpoint.studies.run import Task
    from counterpoint.studies.study import Options, Study

PAGES = Path("docs/studies")


def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(STUDIES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version, done within minutes.")] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="How many seeds, instead of each experiment's own number.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Data, for the studies that take some.")] = None,
    scale: Annotated[str, typer.Option(metavar="SCALE", help="small, or large where a study has it.")] = "small",
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where results are kept; results/NAME, or results/NAME-quick with --quick."),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="EXPERIMENT", help="Run one experiment of the study.")] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Run nothing: draw plots and write the page, from results.json alone.")
    ] = False,
) -> None:
    """Run a study: its experiments, their figures with intervals, and plots.

    Every finished part is kept, so a run that was stopped goes on where it was.
    --render writes docs/studies/NAME.md, or DIR/NAME.md where DIR is another.

    Examples:

      counterpoint study logit-composition --quick
      counterpoint study logit-composition --only toy --seeds 3
      counterpoint study logit-composition --render
    """
    chosen = _load(name)
    with busy("Starting"):
        from counterpoint.studies.study import Options
    options = Options(quick=quick, seeds=seeds, data=data, scale=scale)
    _check(chosen, options, only)
    usual = Path("results") / (f"{name}-quick" if quick else name)
    folder = usual if out is None else Path(out).expanduser()
    if folder.is_file():
        raise UsageError(f"--out {folder}: is a file; name a folder")
    if not render:
        _run(chosen, options, folder, only)
    _write(chosen, folder, PAGES if (folder, quick) == (usual, False) else folder, render)


def _run(chosen: "Study", options: "Options", folder: Path, only: str | None) -> None:
    with busy("Starting"):
        from counterpoint.studies.render import require_matplotlib
        from counterpoint.studies.run import plan, run
    require_matplotlib()
    hush()
    tasks = plan(chosen, options, folder, only)
    try:
        with _progress(sum(task.done for task in tasks), len(tasks)) as tell:
            notices = run(chosen, options, folder, only, tell)
    except KeyboardInterrupt:
        done, again = sum(task.done for task in tasks), "run the same command again to go on"
        typer.echo(f"\nstopped: {done} of {len(tasks)} cells are done in {folder}; {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    for notice in notices:
        typer.echo(notice, err=True)


def _write(chosen: "Study", folder: Path, pages: Path, render: bool) -> None:
    from counterpoint.studies.render import write_page, write_plots
    from counterpoint.studies.run import RESULTS, read_results

    results = read_results(folder, chosen.name)
    with busy("Drawing"):
        written = write_plots(chosen, results, folder)
    if render:
        written.append(pages / f"{chosen.name}.md")
        write_page(chosen, results, folder, written[-1])
    else:
        written.insert(0, folder / RESULTS)
    for path in written:
        typer.echo(path)


def _load(name: str) -> "Study":
    if name not in STUDIES:
        from counterpoint.composition.recipe import nearest

        raise UsageError(f"unknown study {name!r}{nearest(name, STUDIES, 'the studies are')}")
    with busy("Starting"):
        return load_study(name)


def _check(chosen: "Study", options: "Options", only: str | None) -> None:
    from counterpoint.composition.recipe import nearest

    names = [experiment.name for experiment in chosen.experiments]
    if only is not None and only not in names:
        raise UsageError(f"--only {only}: no such experiment{nearest(only, names, 'the experiments are')}")
    if options.seeds is not None and options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds}: use 1 or more")
    if options.scale not in chosen.scales:
        raise UsageError(f"--scale {options.scale}: {chosen.name} has {' and '.join(chosen.scales)}")
    if options.data is not None and chosen.data is None:
        raise UsageError(f"--data: {chosen.name} takes no data")
    if options.data is not None and not Path(options.data).expanduser().exists():
        raise UsageError(f"--data {options.data}: no such file or folder (looked in {Path.cwd()})")


@contextlib.contextmanager
def _progress(done: int, total: int) -> Iterator[Callable[["Task"], None]]:
    """A bar on a terminal's stderr, and a line a cell elsewhere; yields what is told of each cell before it runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    terminal = sys.stderr.isatty()
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), disable=not terminal) as bar:
        shown = bar.add_task("", total=total, completed=done)
        begun = 0

        def tell(task: "Task") -> None:
            nonlocal begun
            words = f"{task.experiment.name}{f' {task.label}' if task.label else ''}, seed {task.seed}"
            bar.update(shown, description=words, completed=done + begun)
            begun += 1
            if not terminal:
                typer.echo(f"{done + begun} of {total}: {words}", err=True)

        yield tell
        bar.update(shown, completed=total)
