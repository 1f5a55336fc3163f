"""What an experiment found, as results.json has it: figures with intervals, by settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoint.intervals import Interval, bootstrap, student
from counterpoint.studies.study import Measure

MANY_UNITS = 20
"""From so many units on, an interval is a bootstrap over them; below, Student's."""
EXPLAINED = (
    "95 %: Student's t over seeds (and over fewer than 20 units), else percentile bootstrap over units, seed 0, "
    "2,000 resamples; one without width says that all agree"
)


@dataclass(frozen=True)
class Finding:
    """The figures of one point of a grid.

    Attributes:
        settings: the point.
        seeds: which were run.
        figures: by measure, as `summarise` returns them.
    """

    settings: Mapping[str, Any]
    seeds: Sequence[int]
    figures: Mapping[str, Mapping[str, Any]]

    def number(self, measure: str) -> Interval:
        """A measure that is one figure."""
        figure = self.figures[measure]
        return Interval(figure["mean"], figure["low"], figure["high"])

    def along(self, measure: str) -> list[Interval]:
        """A measure that is a list of figures, each with its own interval."""
        figure = self.figures[measure]
        return [Interval(*ends) for ends in zip(figure["mean"], figure["low"], figure["high"], strict=True)]

    def values(self, measure: str) -> list[Any]:
        """What each seed's cell gave."""
        return list(self.figures[measure]["values"])


@dataclass(frozen=True)
class Findings:
    """All points of a grid, in the grid's order, and the figures that compare them."""

    points: Sequence[Finding]
    compared: Mapping[str, Interval]

    def where(self, **settings: Any) -> Finding:
        """The only point with these settings.

        Raises:
            LookupError: there is none, or several.
        """
        found = [point for point in self.points if all(point.settings.get(k) == v for k, v in settings.items())]
        if len(found) != 1:
            raise LookupError(f"{len(found)} points of the grid have {settings}")
        return found[0]


def summarise(values: Sequence[Any], measure: Measure) -> dict[str, Any]:
    """The values of all seeds and their mean with its interval; undefined (None) values are left out of the latter.

    Args:
        values: of each seed, a number or a list of numbers.
        measure: says what the interval is over.

    Returns:
        `mean`, `low`, `high`, each a number, or a list where the measure runs along something, and `values`.
    """
    shown = [_rounded(value) for value in values]
    if measure.each == "unit":
        columns: list[Any] = [[unit for units in shown for unit in units]]
    elif shown and isinstance(shown[0], list):
        columns = list(map(list, zip(*shown, strict=True)))
    else:
        columns = [shown]
    intervals = [_interval(column, measure) for column in columns]
    listed = measure.each == "seed" and bool(shown) and isinstance(shown[0], list)
    ends = {name: [_rounded(getattr(interval, name)) for interval in intervals] for name in ("mean", "low", "high")}
    return {**(ends if listed else {name: both[0] for name, both in ends.items()}), "values": shown}


def read_findings(entry: Mapping[str, Any]) -> Findings:
    """An experiment's part of results.json."""
    points = [Finding(point["settings"], entry["seeds"], point["figures"]) for point in entry["points"]]
    compared = {name: Interval(**figure) for name, figure in entry["compared"].items()}
    return Findings(points, compared)


def _interval(column: Sequence[float | None], measure: Measure) -> Interval:
    units = [unit for unit in column if unit is not None]
    if measure.each == "unit" and len(units) >= MANY_UNITS:
        return bootstrap(units, seed=0)
    return student(units, within=measure.within)


def _rounded(value: Any) -> Any:
    """Numbers to six digits: results.json is to be read, and to be the same on every machine that agrees so far."""
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value if value is None or isinstance(value, bool | int) else float(f"{value:.6g}")
