"""From results.json to a page and its plots. Nothing is computed here, and nothing on the page is typed by hand."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoint.errors import StudyError
from counterpoint.files import write_whole
from counterpoint.intervals import Interval
from counterpoint.studies.findings import read_findings
from counterpoint.studies.study import Block, Experiment, Plot, Study, Table

WIDTH = 120
FORMATS = ("svg", "png")


def page(study: Study, results: Mapping[str, Any], pictures: str) -> str:
    """The page of a study as Markdown.

    Args:
        study: declares the sections.
        results: the content of results.json.
        pictures: the folder of the plots, as the page's links name it.
    """
    lines = [
        f"<!-- Written by `counterpoint study {study.name} --render` from results.json: do not edit. -->",
        f"# {study.title}",
        study.about,
        f"Made by `{_command(study, results)}`; the numbers are in [results.json]({pictures}/results.json).",
    ]
    for experiment in study.experiments:
        entry = results["experiments"].get(experiment.name)
        if entry is None:
            continue
        lines += [f"## {experiment.title}"]
        if entry["revision"] != experiment.revision:
            lines += [_outdated(experiment, entry)]
            continue
        lines += [_markdown(block, pictures) for block in experiment.report(read_findings(entry))]
        lines += [_made(study, experiment, entry)]
    return "\n\n".join(_wrapped(line) for line in lines) + "\n"


def plots(study: Study, results: Mapping[str, Any]) -> list[Plot]:
    """The plots of all sections."""
    return [
        block
        for experiment in study.experiments
        if (entry := results["experiments"].get(experiment.name)) and entry["revision"] == experiment.revision
        for block in experiment.report(read_findings(entry))
        if isinstance(block, Plot)
    ]


def write_plots(study: Study, results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw every plot as SVG and PNG; the same results give the same bytes."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    written = []
    with matplotlib.rc_context({"svg.hashsalt": study.name, "svg.fonttype": "path", "font.size": 9}):
        for plot in plots(study, results):
            figure = Figure(figsize=plot.size, layout="constrained")
            plot.draw(figure)
            for kind in FORMATS:
                content = io.BytesIO()
                metadata = {"Date": None} if kind == "svg" else {"Software": None}
                figure.savefig(content, format=kind, dpi=150, metadata=metadata)
                written.append(folder / f"{plot.name}.{kind}")
                write_whole(written[-1], content.getvalue())
    return written


def write_page(study: Study, results: Mapping[str, Any], folder: Path, path: Path) -> None:
    """Write the page to `path`, with links to the plots in `folder`."""
    pictures = Path(os.path.relpath(folder, path.parent)).as_posix()
    write_whole(path, page(study, results, pictures))


def require_matplotlib() -> None:
    """Raises StudyError, naming the extra, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise StudyError("plots need matplotlib; install it with: pip install 'counterpoint[study]'") from None


def share(interval: Interval) -> str:
    """A share in per cent with its interval: 97.3 % (95.1–99.0)."""
    return _shown(interval, lambda x: f"{100 * x:.1f}", " %")


def figure(interval: Interval, digits: int = 3, unit: str = "") -> str:
    """A figure to so many significant digits, with its interval."""
    return _shown(interval, lambda x: f"{x:.{digits}g}", f" {unit}" if unit else "")


def _shown(interval: Interval, form: Any, unit: str) -> str:
    if interval.mean is None:
        return "undefined"
    if interval.low is None or interval.high is None:
        return f"{form(interval.mean)}{unit}"
    low, high = form(interval.low), form(interval.high)
    return f"{form(interval.mean)}{unit} ({low}{' to ' if low.startswith('-') else '–'}{high})"


def _markdown(block: Block, pictures: str) -> str:
    if isinstance(block, Plot):
        picture = f"![{block.text}]({pictures}/{block.name}.svg)"
        return f"{picture}\n\n*{block.caption}* ([PNG]({pictures}/{block.name}.png))"
    if isinstance(block, Table):
        head = [list(block.columns), ["---"] * len(block.columns)]
        table = "\n".join("| " + " | ".join(row) + " |" for row in [*head, *map(list, block.rows)])
        return f"**{block.caption}**\n\n{table}"
    return block


def _made(study: Study, experiment: Experiment, entry: Mapping[str, Any]) -> str:
    seeds = entry["seeds"]
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    minutes = entry["seconds"] / 60
    took = f"{minutes:.0f} minutes" if minutes >= 2 else f"{entry['seconds']} seconds"
    settings = "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in _settings(entry).items())
    lines = [
        f"`{_command(study, {'experiments': {experiment.name: entry}})} --only {experiment.name}`, "
        f"{len(seeds)} seed{'s' * (len(seeds) != 1)}, {took} of computing; intervals are {entry['intervals']}.",
        f"Revision {entry['revision']}; {versions}.",
        f"Settings: {settings}." if settings else "",
    ]
    return "\n\n".join(
        ["<details><summary>How this was made</summary>", *(line for line in lines if line), "</details>"]
    )


def _outdated(experiment: Experiment, entry: Mapping[str, Any]) -> str:
    return (
        f"The results at hand are of revision {entry['revision']} of this experiment, which is at revision "
        f"{experiment.revision} now: it has to be run again."
    )


def _command(study: Study, results: Mapping[str, Any]) -> str:
    """What to type for these results."""
    entries = results["experiments"].values()
    options: dict[str, Any] = next(iter(entries))["options"] if entries else {}
    words = ["counterpoint", "study", study.name]
    words += ["--quick"] if options.get("quick") else []
    seeds = {entry["options"]["seeds"] for entry in entries}
    words += ["--seeds", str(*seeds)] if len(seeds) == 1 and seeds != {None} else []
    words += ["--scale", str(options["scale"])] if options.get("scale", "small") != "small" else []
    words += ["--data", str(options["data"])] if options.get("data") else []
    return " ".join(words)


def _settings(entry: Mapping[str, Any]) -> dict[str, str]:
    """Every setting with its values at the points of the grid."""
    points = [point["settings"] for point in entry["points"]]
    keys = dict.fromkeys(key for point in points for key in point)
    return {key: " or ".join(dict.fromkeys(_value(point[key]) for point in points if key in point)) for key in keys}


def _value(value: Any) -> str:
    whole = isinstance(value, list) and len(value) > 3 and all(type(item) is int for item in value)
    if whole and value == list(range(value[0], value[0] + len(value))):
        return f"{value[0]} to {value[-1]}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wrapped(text: str) -> str:
    """Paragraphs wrapped; tables, pictures, headings, lists and code as they are."""
    return "\n\n".join(_one_wrapped(paragraph) for paragraph in text.split("\n\n"))


def _one_wrapped(paragraph: str) -> str:
    if paragraph.startswith(("#", "|", "!", "<", "* ", "- ", "```")):
        return paragraph
    together = paragraph.replace(" %", "\u00a0%")  # a number and its sign stay on one line
    lines = textwrap.wrap(together, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0%", " %")
