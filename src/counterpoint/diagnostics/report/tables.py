"""The figures of a diagnosis as HTML: overall, by component, by pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from counterpoint.diagnostics.report.charts import HUES, whisker
from counterpoint.diagnostics.report.escape import escaped
from counterpoint.diagnostics.report.figures import (
    NOTHING,
    Write,
    ceiling,
    finite,
    interval,
    letter,
    plain,
    share,
    signed,
)
from counterpoint.diagnostics.report.words import COLUMNS, TOGETHER, UNDEFINED
from counterpoint.diagnostics.results import Diagnosis, Estimate, OfComponent

UNDERLINES = 5
"""Kinds of underline in page.css. With `HUES` colours, 40 components look different from each other."""

_STEPS = 5
_INTERVALS_IN_CELLS = 6
"""Up to how many components a cell of the matrix has room for its interval."""


@dataclass(frozen=True)
class _Column:
    title: str
    of: Callable[[OfComponent], Estimate]
    write: Write
    reference: float | None = None


_COLUMNS = [
    _Column(COLUMNS[0], lambda c: c.activity, plain),
    _Column(COLUMNS[1], lambda c: c.active_share, share),
    _Column(COLUMNS[2], lambda c: c.gap, plain),
    _Column(COLUMNS[3], lambda c: c.bin_distance, plain),
    _Column(COLUMNS[4], lambda c: c.retained_evidence, plain, reference=1.0),
    _Column(COLUMNS[5], lambda c: c.moved_share, share),
]


def badge(component: int) -> str:
    """A component's letter in its colour, underlined as its tokens are."""
    return f'<span class="badge c{component % HUES} u{component % UNDERLINES}">{letter(component)}</span>'


def named(component: int, name: str) -> str:
    return f"{badge(component)} <bdi>{escaped(name)}</bdi>"


def glance(diagnosis: Diagnosis) -> str:
    """The four figures of all components together."""
    figures = (
        (diagnosis.log_partition, signed),
        (diagnosis.abs_log_partition, plain),
        (diagnosis.both_active_share, share),
        (diagnosis.orphan_share, share),
    )
    tiles = []
    for (title, meaning), (estimate, write) in zip(TOGETHER.items(), figures, strict=True):
        value, ends = _value(estimate, write, "no positions measured")
        tiles.append(f"<div><dt>{title}</dt><dd><b>{value}</b> <small>{ends}</small><p>{meaning}</p></dd></div>")
    return f'<dl class="glance">{"".join(tiles)}</dl>'


def components_table(diagnosis: Diagnosis) -> str:
    """A row a component, a column a measure; dots and intervals of a column share a scale that begins at 0."""
    rows = [diagnosis.by_component[name] for name in diagnosis.components]
    scales = [_scale([column.of(row) for row in rows], column.reference) for column in _COLUMNS]
    head = "".join(f'<th scope="col">{column.title}</th>' for column in _COLUMNS)
    body = []
    for number, (name, row) in enumerate(zip(diagnosis.components, rows, strict=True)):
        cells = []
        for column, (low, high) in zip(_COLUMNS, scales, strict=True):
            estimate = column.of(row)
            value, ends = _value(estimate, column.write, UNDEFINED.get(column.title, "nothing measured"))
            picture = whisker(estimate, low, high, column.reference)
            cells.append(f"<td><b>{value}</b> <small>{ends}</small>{picture}</td>")
        body.append(f'<tr><th scope="row">{named(number, name)}</th>{"".join(cells)}</tr>')
    return (
        '<div class="wide" role="region" aria-label="Figures by component" tabindex="0"><table class="components">'
        f'<thead><tr><th scope="col">Component</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def interference_matrix(diagnosis: Diagnosis) -> str:
    """The lower triangle of the matrix as a table: values in cells, sign by a plus or minus and by hatching."""
    count = len(diagnosis.components)
    if not diagnosis.pairs:
        return "<p>Interference is between two components; this recipe has fewer.</p>"
    pairs = dict(zip(diagnosis.pairs, diagnosis.interference, strict=True))
    sizes = [abs(value) for value in (finite(estimate.mean) for estimate in pairs.values()) if value is not None]
    most = max(ceiling(max(sizes, default=0.0)), 0.1)
    head = "".join(f'<th scope="col">{badge(column)}</th>' for column in range(count - 1))
    body = []
    for row in range(1, count):
        cells = [_cell(pairs.get((column, row), NOTHING), most, count) for column in range(row)]
        rest = '<td class="blank"></td>' * (count - 1 - row)
        name = named(row, diagnosis.components[row])
        body.append(f'<tr><th scope="row">{name}</th>{"".join(cells)}{rest}</tr>')
    small = " small" if count > _INTERVALS_IN_CELLS else ""
    first = f'<tr class="first"><th scope="row">{named(0, diagnosis.components[0])}</th></tr>'
    return (
        '<div class="wide" role="region" aria-label="Interference of each pair" tabindex="0">'
        f'<table class="matrix{small}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{first}{''.join(body)}</tbody></table></div>{_legend(most)}{_strongest(diagnosis)}"
    )


def _value(estimate: Estimate, write: Write, why: str) -> tuple[str, str]:
    if estimate.mean is None:
        return '<span class="undefined">undefined</span>', why
    return write(estimate.mean), interval(estimate, write) or "no interval"


def _scale(estimates: Sequence[Estimate], reference: float | None) -> tuple[float, float]:
    ends = [reference, *(value for e in estimates for value in (e.low, e.mean, e.high))]
    values = [0.0, *(value for value in map(finite, ends) if value is not None)]
    return min(values), max(values)


def _cell(estimate: Estimate, most: float, count: int) -> str:
    if estimate.mean is None:
        return '<td class="undefined">undef.</td>'
    value = finite(estimate.mean)
    step = _STEPS if value is None else min(_STEPS, round(_STEPS * abs(value) / most + 0.3))
    kind = f"{'plus' if estimate.mean > 0 else 'minus'}{step}" if step else "even"
    ends = interval(estimate, signed)
    beneath = f"<small>{ends}</small>" if ends and count <= _INTERVALS_IN_CELLS else ""
    return f'<td class="{kind}" title="{ends}">{signed(estimate.mean)}{beneath}</td>'


def _legend(most: float) -> str:
    steps = [f"minus{step}" for step in range(_STEPS, 0, -1)] + ["even"] + [f"plus{s}" for s in range(1, _STEPS + 1)]
    swatches = "".join(f'<i class="{step}"></i>' for step in steps)
    return (
        f'<p class="scale"><span>−{most:g}<br>pull apart</span><span class="steps" aria-hidden="true">{swatches}</span>'
        f"<span>+{most:g} nats<br>count twice</span></p>"
    )


def _strongest(diagnosis: Diagnosis) -> str:
    """Every pair with its interval, where the cells have no room for that; the strongest first."""
    if len(diagnosis.components) <= _INTERVALS_IN_CELLS:
        return ""
    both = list(zip(diagnosis.pairs, diagnosis.interference, strict=True))
    both.sort(key=lambda pair: -1.0 if pair[1].mean is None else abs(pair[1].mean), reverse=True)
    rows = "".join(
        f"<tr><td>{named(i, diagnosis.components[i])}</td><td>{named(j, diagnosis.components[j])}</td>"
        f"<td>{'undefined' if e.mean is None else signed(e.mean)}</td><td>{interval(e, signed)}</td></tr>"
        for (i, j), e in both
    )
    return (
        f"<details><summary>All {len(both)} pairs with their intervals</summary>"
        f'<div class="wide" role="region" aria-label="All pairs" tabindex="0"><table class="pairs"><thead><tr>'
        f'<th scope="col" colspan="2">Pair</th><th scope="col">Interference</th>'
        f'<th scope="col">95\u202f% interval</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
    )
