"""Line charts and small marks as inline SVG; colours come from classes, so that both themes and print can set them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from counterpoint.diagnostics.report.escape import escaped
from counterpoint.diagnostics.report.figures import ceiling, finite, letter, plain
from counterpoint.diagnostics.results import Estimate

Scale = Callable[[float], float]
_WIDTH, _HEIGHT = 400, 214
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 372, 10, 150
_STRIP_TOP, _STRIP_BOTTOM = 182, 204
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
HUES = 8
"""Colours for components in page.css; with more components they begin again, and letters tell them apart."""


@dataclass(frozen=True)
class Line:
    """One measure along the position; `component` is None for what belongs to all of them."""

    component: int | None
    values: Sequence[Estimate]


def line_chart(title: str, note: str, lines: Sequence[Line], texts: Sequence[int], most: float | None = None) -> str:
    """A figure: the lines with their intervals as bands, over the number of texts at each position.

    Args:
        title: HTML.
        note: HTML below the title, such as how far the measure drifts.
        lines: drawn over each other, on one scale.
        texts: how many texts reach each position; its length is the scale's.
        most: the scale's end where charts share it.
    """
    count = len(texts)
    low, high = scale_of(lines, texts)
    high = max(high, most or 0.0)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def x(position: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (position / (count - 1) if count > 1 else 0.5)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (min(max(value, low), high) - low) / (high - low)

    parts = [_grid(ticks, y), _positions(count, x), _strip(texts, x)]
    for line in lines:
        parts.append(_band(line, x, y))
    for number, line in enumerate(lines):
        parts.append(_path(line, _DASHES[number % len(_DASHES)] if len(lines) > 1 else "", x, y))
    parts.append(_letters(lines, x, y))
    return (
        f'<figure class="chart"><figcaption><b>{title}</b> <span>{note}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_described(lines)}">{"".join(parts)}</svg>'
        f"</figure>"
    )


def drift(values: Sequence[Estimate]) -> str:
    """The measure's mean over the first and over the last quarter of the positions."""
    quarter = math.ceil(len(values) / 4)
    first, last = _mean(values[:quarter]), _mean(values[-quarter:])
    if first is None and last is None:
        return "undefined"
    ends = ["undefined" if end is None else plain(end) for end in (first, last)]
    return f'<span class="drift">{ends[0]} → {ends[1]}</span>' if len(values) > 1 else ends[0]


def reached(values: Sequence[Estimate]) -> str:
    """Where a sum along the positions ends."""
    last = next((p for p in reversed(range(len(values))) if finite(values[p].mean) is not None), None)
    return "undefined" if last is None else f"{plain(values[last].mean or 0.0)} after {last + 1:,} tokens"


def scale_of(lines: Sequence[Line], texts: Sequence[int]) -> tuple[float, float]:
    """The least and the largest value to be drawn, with 0 among them.

    Intervals count where at least a tenth as many texts are left as at most, so that the thin end does not flatten
    everything else; there they are cut off at the edge.
    """
    enough = max(texts, default=0) / 10
    values = [0.0]
    for line in lines:
        for estimate, number in zip(line.values, texts, strict=True):
            ends = (estimate.low, estimate.mean, estimate.high) if number >= enough else (estimate.mean,)
            values += [value for value in map(finite, ends) if value is not None]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)


def whisker(estimate: Estimate, low: float, high: float, reference: float | None = None) -> str:
    """A dot with its interval on a line from low to high, which a column of a table shares; empty where undefined."""
    mean = finite(estimate.mean)
    if mean is None or high <= low:
        return ""

    def x(value: float) -> float:
        return round(3 + 90 * (min(max(value, low), high) - low) / (high - low), 1)

    ends = [x(value) for value in map(finite, (estimate.low, estimate.high)) if value is not None]
    bar = f'<path class="span" d="M{ends[0]} 6H{ends[1]}"/>' if len(ends) == 2 else ""
    mark = "" if reference is None else f'<path class="reference" d="M{x(reference)} 0V12"/>'
    return (
        f'<svg class="whisker" viewBox="0 0 96 12" aria-hidden="true"><path class="rail" d="M3 6H93"/>{mark}{bar}'
        f'<circle cx="{x(mean)}" cy="6" r="3"/></svg>'
    )


def bullet(value: float, threshold: float) -> str:
    """A value as a bar, with a mark at its threshold."""
    value, threshold = abs(value), abs(threshold)
    most = 1.15 * max(value, threshold) if math.isfinite(value) else 1.15 * threshold
    if not most or math.isnan(value):
        return ""
    length, mark = round(160 * min(value / most, 1), 1), round(160 * threshold / most, 1)
    return (
        f'<svg class="bullet" viewBox="0 0 160 14" aria-hidden="true"><path class="rail" d="M0 7H160"/>'
        f'<rect y="4" width="{length}" height="6"/><path class="reference" d="M{mark} 0V14"/></svg>'
    )


def _grid(ticks: Sequence[float], y: Scale) -> str:
    lines = []
    for tick in ticks:
        at = y(tick)
        lines.append(f'<path class="{"zero" if tick == 0 else "grid"}" d="M{_LEFT} {at:.1f}H{_RIGHT}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="end">{_tick_label(tick, ticks)}</text>')
    return "".join(lines)


def _positions(count: int, x: Scale) -> str:
    """Ticks below the plot: the first position, round ones, and the last."""
    step = max(1, round(ceiling(count / 5)))
    round_ones = [p for p in range(step, count, step) if p > 1 + step / 2 and count - p >= step / 2]
    labels = [1, *round_ones, count] if count > 1 else [1]
    return "".join(
        f'<path class="tick" d="M{x(p - 1):.1f} {_BOTTOM}v4"/>'
        f'<text x="{x(p - 1):.1f}" y="{_BOTTOM + 16}" class="middle">{p:,}</text>'
        for p in labels
    )


def _strip(texts: Sequence[int], x: Scale) -> str:
    """How many texts there are at each position, as an area below the plot."""
    most = max(texts, default=0)
    if not most:
        return ""

    def y(number: int) -> float:
        return _STRIP_BOTTOM - (_STRIP_BOTTOM - _STRIP_TOP) * number / most

    if len(texts) == 1:
        outline = f"M{_LEFT} {_STRIP_TOP}H{_RIGHT}"
    else:
        outline = "M" + "L".join(f"{x(p):.1f} {y(number):.1f}" for p, number in enumerate(texts))
    return (
        f'<path class="strip" d="{outline}V{_STRIP_BOTTOM}H{_LEFT}Z"/>'
        f'<text x="{_LEFT - 6}" y="{_STRIP_BOTTOM - 7}" class="end">texts</text>'
        f'<text x="{_LEFT + 4}" y="{_STRIP_BOTTOM - 7}" class="count">{texts[0]:,}</text>'
        f'<text x="{_RIGHT + 4}" y="{_STRIP_BOTTOM - 7}">{texts[-1]:,}</text>'
    )


def _path(line: Line, dashes: str, x: Scale, y: Scale) -> str:
    parts = []
    for run in _runs([finite(estimate.mean) for estimate in line.values]):
        points = [(x(p), y(finite(line.values[p].mean) or 0.0)) for p in run]
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>')
        else:
            dash = f' stroke-dasharray="{dashes}"' if dashes else ""
            parts.append(f'<path class="line"{dash} d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}"/>')
    return f'<g class="{_hue(line.component)}">{"".join(parts)}</g>'


def _band(line: Line, x: Scale, y: Scale) -> str:
    ends = [(finite(estimate.low), finite(estimate.high)) for estimate in line.values]
    parts = []
    for run in _runs([low if high is not None else None for low, high in ends]):
        if len(run) > 1:
            upper = [f"{x(p):.1f} {y(ends[p][1] or 0.0):.1f}" for p in run]
            lower = [f"{x(p):.1f} {y(ends[p][0] or 0.0):.1f}" for p in reversed(run)]
            parts.append(f'<path class="band" d="M{"L".join(upper + lower)}Z"/>')
    return f'<g class="{_hue(line.component)}">{"".join(parts)}</g>'


def _letters(lines: Sequence[Line], x: Scale, y: Scale) -> str:
    """The components' letters where their lines end, moved apart where they would cover each other."""
    ends = []
    for line in lines:
        last = next((p for p in reversed(range(len(line.values))) if finite(line.values[p].mean) is not None), None)
        if line.component is not None and last is not None:
            ends.append((y(line.values[last].mean or 0.0), x(last), line.component))
    texts, above = [], -math.inf
    for at, end, component in sorted(ends):
        above = max(at, above + 12)
        texts.append(
            f'<text x="{end + 6:.1f}" y="{above + 4:.1f}" class="{_hue(component)} letter">{letter(component)}</text>'
        )
    return "".join(texts)


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Positions that follow each other without an undefined one between them."""
    runs: list[list[int]] = [[]]
    for position, value in enumerate(values):
        if value is not None:
            runs[-1].append(position)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _ticks(low: float, high: float) -> list[float]:
    step = ceiling((high - low) / 4)
    return [number * step for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _tick_label(tick: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    return f"{tick:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}".replace("-", "−")


def _described(lines: Sequence[Line]) -> str:
    """What a screen reader says in place of the drawing."""
    described = []
    for line in lines:
        means = [value for value in (finite(estimate.mean) for estimate in line.values) if value is not None]
        name = "" if line.component is None else f"{letter(line.component)}: "
        if not means:
            described.append(f"{name}undefined everywhere")
        else:
            described.append(f"{name}from {plain(means[0])} at the first to {plain(means[-1])} at the last position")
    return escaped("; ".join(described))


def _mean(values: Sequence[Estimate]) -> float | None:
    means = [value for value in (finite(estimate.mean) for estimate in values) if value is not None]
    return sum(means) / len(means) if means else None


def _hue(component: int | None) -> str:
    return "all" if component is None else f"c{component % HUES}"
