"""From texts measured token by token to a diagnosis: every aggregate with its interval over prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from counterpoint.diagnostics.measures import ACTIVE, pairs_of
from counterpoint.diagnostics.results import Along, Diagnosis, Estimate, OfComponent, Text
from counterpoint.diagnostics.verdict import judge
from counterpoint.intervals import Interval, bootstrap_ratio, student

Array = NDArray[numpy.float64]
MOVED = 0.1
"""A token counts as moved by a component if it moved it by more than so many nats."""


def diagnose(
    texts: Iterable[Text],
    components: Sequence[str],
    *,
    formula: str,
    settings: Mapping[str, Any],
    versions: Mapping[str, str],
    seed: int = 0,
) -> Diagnosis:
    """What the texts amount to.

    Figures are means over positions (of all texts together); intervals are 95 % bootstrap intervals over prompts, since
    the tokens of one text are not independent of each other. Along the position they are Student's t intervals.

    Raises:
        ValueError: no text, or a text of other components.
    """
    measured = [_Numbers(text, len(components)) for text in texts]
    if not measured:
        raise ValueError("nothing was measured: there is no text")
    pairs = pairs_of(len(components))

    def ratio(above: list[Array], below: list[Array]) -> Estimate:
        """Σ above / Σ below over all positions, resampling prompts."""
        sums: dict[int, list[float]] = {}
        for text, one, other in zip(measured, above, below, strict=True):
            total = sums.setdefault(text.index, [0.0, 0.0])
            total[0] += float(numpy.nansum(one))
            total[1] += float(numpy.nansum(other))
        return _estimate(bootstrap_ratio([s[0] for s in sums.values()], [s[1] for s in sums.values()], seed))

    def mean(values: list[Array]) -> Estimate:
        return ratio(values, [numpy.isfinite(one).astype(float) for one in values])

    def of_component(i: int) -> OfComponent:
        active = [text.active[i] for text in measured]
        return OfComponent(
            activity=mean([text.activity[i] for text in measured]),
            active_share=mean(active),
            gap=mean([text.gap[i] for text in measured]),
            bin_distance=ratio([text.bin_distance[i] * text.active[i] for text in measured], active),
            retained_evidence=ratio(
                [text.evidence[i] * text.active[i] for text in measured],
                [text.activity[i] * text.active[i] for text in measured],
            ),
            moved_share=mean([(text.mover == i).astype(float) for text in measured]),
        )

    figures: dict[str, Any] = {
        "log_partition": mean([text.log_partition for text in measured]),
        "abs_log_partition": mean([numpy.abs(text.log_partition) for text in measured]),
        "both_active_share": mean([(text.active.sum(0) >= 2).astype(float) for text in measured]),
        "orphan_share": mean([text.orphan for text in measured]),
        "interference": [mean([text.interference[n] for text in measured]) for n in range(len(pairs))],
        "by_component": {name: of_component(i) for i, name in enumerate(components)},
    }
    return Diagnosis(
        settings=dict(settings),
        versions=dict(versions),
        formula=formula,
        components=list(components),
        pairs=pairs,
        texts=len(measured),
        positions=sum(len(text.log_partition) for text in measured),
        verdict=judge(components=components, pairs=pairs, **figures),
        along=_along(measured, components),
        **figures,
    )


class _Numbers:
    """A text's measures as arrays; NaN where they are undefined."""

    def __init__(self, text: Text, components: int) -> None:
        time = len(text.tokens)

        def table(rows: list[list[float | None]], count: int) -> Array:
            if len(rows) != count or any(len(row) != time for row in rows):
                raise ValueError(f"text {text.index}: its measures are not those of {components} components")
            return numpy.array(rows, dtype=numpy.float64).reshape(count, time)

        self.index = text.index
        self.log_partition = table([text.log_partition], 1)[0]
        self.orphan = numpy.array(text.orphan, dtype=numpy.float64)
        self.activity = table(text.activity, components)
        self.evidence = table(text.evidence, components)
        self.gap = table(text.gap, components)
        self.bin_distance = table(text.bin_distance, components)
        self.interference = table(text.interference, len(pairs_of(components)))
        self.active = (self.activity > ACTIVE).astype(numpy.float64)
        moved = numpy.abs(numpy.nan_to_num(table(text.moved, components), nan=numpy.inf))
        self.mover = numpy.where(moved.max(0, initial=0.0) > MOVED, moved.argmax(0), -1)


def _along(texts: Sequence[_Numbers], components: Sequence[str]) -> Along:
    longest = max(len(text.log_partition) for text in texts)

    def curve(values: list[Array]) -> list[Estimate]:
        rows = numpy.full((len(texts), longest), numpy.nan)
        for row, found in zip(rows, values, strict=True):
            row[: len(found)] = found
        return [_estimate(student(column[numpy.isfinite(column)])) for column in rows.T]

    return Along(
        texts=[sum(len(text.log_partition) > t for text in texts) for t in range(longest)],
        log_partition=curve([text.log_partition for text in texts]),
        cumulative_log_partition=curve([numpy.cumsum(text.log_partition) for text in texts]),
        gap={name: curve([text.gap[i] for text in texts]) for i, name in enumerate(components)},
        activity={name: curve([text.activity[i] for text in texts]) for i, name in enumerate(components)},
    )


def _estimate(interval: Interval) -> Estimate:
    return Estimate(**{name: None if value is None else round(value, 6) for name, value in interval._asdict().items()})
