"""What a study declares: experiments, each with a grid, a cell function, and a report on what was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from counterpoint.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterpoint.studies.findings import Findings

Settings = Mapping[str, Any]
"""All that decides what a cell computes, besides its seed: plain JSON values."""
Outcome = Mapping[str, "float | Sequence[float | None] | None"]
"""What a cell found, by measure: `exact` or `exact/composed`; None where a measure is undefined."""


@dataclass(frozen=True)
class Options:
    """What a user asks of a study.

    Attributes:
        quick: a small version, within minutes.
        seeds: how many seeds, instead of the experiments' own number.
        data: a file or folder for the studies that take one.
        scale: `small`, or `large` for studies that have a larger version.
    """

    quick: bool = False
    seeds: int | None = None
    data: str | None = None
    scale: str = "small"


@dataclass(frozen=True)
class Measure:
    """What a number of a cell means, and what its interval is over.

    Attributes:
        text: in words, with the unit; stands in results.json.
        each: `seed`, and a cell gives one number, or a list of them along something, such as one a length; every place
            in the list has its own interval over seeds. `unit`, and a cell gives a list with one number a unit (a
            prompt, a text); the units of all seeds are pooled and have one interval.
        within: the range of the measure, (0, 1) for a share; Student's intervals are cut to it.
    """

    text: str
    each: Literal["seed", "unit"] = "seed"
    within: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True)
class Table:
    """A table of a page; cells are Markdown."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """A picture: `draw` fills an empty figure; `name` becomes the files' name, `text` what stands for the picture."""

    name: str
    caption: str
    text: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (8.0, 3.6)


Block = str | Table | Plot
"""A piece of a page: a paragraph (or any Markdown), a table, a plot."""


def _nothing(findings: Findings) -> dict[str, Interval]:
    return {}


@dataclass(frozen=True)
class Experiment:
    """One question of a study, with its grid.

    Attributes:
        name: a word, as in `--only`.
        title: the heading of its section.
        revision: raise it whenever cells come to mean something else; cells of other revisions are not used.
        grid: from the options to the settings of the grid's points. Everything that matters must be in the settings.
        cell: (settings, seed) → what was found. Draws nothing at random but from the seed.
        measures: what the numbers mean, by the part of their name before the slash.
        report: pure: from the findings to the section. All its numbers come from the findings.
        compare: pure: further figures with intervals, computed from the findings, such as paired differences.
        seeds: how many, in a full run.
        quick_seeds: how many with --quick.
    """

    name: str
    title: str
    revision: int
    grid: Callable[[Options], Sequence[Settings]]
    cell: Callable[[Any, int], Outcome]
    measures: Mapping[str, Measure]
    report: Callable[[Findings], Sequence[Block]]
    compare: Callable[[Findings], Mapping[str, Interval]] = _nothing
    seeds: int = 5
    quick_seeds: int = 2

    def seeds_for(self, options: Options) -> range:
        return range(options.seeds or (self.quick_seeds if options.quick else self.seeds))


@dataclass(frozen=True)
class Study:
    """A paper's claims and the experiments that test them.

    Attributes:
        name: as users call it.
        title: the page's heading.
        about: what the page begins with: the paper, its claims.
        experiments: in the page's order.
        data: what --data is, in words, or None where the study takes none.
        scales: what --scale may be.
    """

    name: str
    title: str
    about: str
    experiments: Sequence[Experiment]
    data: str | None = None
    scales: Sequence[str] = field(default=("small",))
