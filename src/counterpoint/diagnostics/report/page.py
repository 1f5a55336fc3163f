"""The page as a whole: a template filled section by section."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable
from importlib.resources import files
from string import Template
from typing import Any

from counterpoint.diagnostics.report.charts import HUES, Line, bullet, drift, line_chart, reached, scale_of
from counterpoint.diagnostics.report.escape import embedded, escaped, visible
from counterpoint.diagnostics.report.figures import NOTHING, letter, plain, signed
from counterpoint.diagnostics.report.tables import (
    UNDERLINES,
    badge,
    components_table,
    glance,
    interference_matrix,
    named,
)
from counterpoint.diagnostics.report.texts import BUDGET, Chosen, Position, choose
from counterpoint.diagnostics.report.words import ALONG, COMPONENTS, INTERFERENCE, LEVELS, MEASURES
from counterpoint.diagnostics.results import Diagnosis, Reason, Text

_TOGETHER_AT_MOST = 4
"""Up to how many components share one chart; more get one each."""

_ICONS = {
    "clear": '<circle cx="16" cy="16" r="14"/><path d="M9.5 16.5l4.5 4.5 9-10"/>',
    "caution": '<path class="body" d="M16 2.5L30.5 29H1.5Z"/><path d="M16 12v8.5M16 24.2v1.3"/>',
    "interference": '<path class="body" d="M10 2h12l8 8v12l-8 8H10l-8-8V10Z"/><path d="M11 11l10 10M21 11L11 21"/>',
}


def render(diagnosis: Diagnosis, texts: Iterable[Text], budget: int = BUDGET) -> str:
    """The diagnosis as one self-contained HTML page, in UTF-8; it asks nothing of a network.

    Args:
        diagnosis: what the texts amount to.
        texts: read once, one by one.
        budget: bytes of texts that the page may hold. Where it is full, the texts with the worst positions stay, and
            the page says how many were left out.
    """
    style, script = _asset("page.css"), _asset("page.js")
    chosen = choose(texts, budget)
    return Template(_asset("page.html")).substitute(
        policy=_policy(style, script),
        style=style,
        script=script,
        level=diagnosis.verdict.level,
        level_name=LEVELS[diagnosis.verdict.level],
        icon=_ICONS[diagnosis.verdict.level],
        headline=escaped(diagnosis.verdict.headline),
        reasons=_reasons(diagnosis),
        settings=_settings(diagnosis),
        formula=escaped(diagnosis.formula),
        details=_details(diagnosis),
        glance=glance(diagnosis),
        components=components_table(diagnosis),
        meanings="".join(f"<div><dt>{term}</dt><dd>{words}</dd></div>" for term, words in COMPONENTS.items()),
        interference=interference_matrix(diagnosis),
        interference_meaning=INTERFERENCE,
        along=_along(diagnosis),
        along_meaning=ALONG,
        legend=_legend(diagnosis),
        worst=_worst(chosen.worst),
        left_out=_left_out(chosen, budget),
        data=_data(diagnosis, chosen),
    )


def _asset(name: str) -> str:
    return (files("counterpoint.diagnostics.report") / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A content security policy: this style and this script, and nothing else from anywhere."""

    def allowed(text: str) -> str:
        return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {allowed(style)}; script-src {allowed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _reasons(diagnosis: Diagnosis) -> str:
    if not diagnosis.verdict.reasons:
        return '<p class="no-reason">No measure crossed its threshold.</p>'
    return f'<ul class="reasons">{"".join(_reason(r, diagnosis.components) for r in diagnosis.verdict.reasons)}</ul>'


def _reason(reason: Reason, components: list[str]) -> str:
    about = "".join(badge(components.index(name)) for name in reason.about if name in components)
    measure = MEASURES.get(reason.measure, reason.measure.replace("_", " "))
    value = "undefined" if reason.value is None else plain(reason.value)
    picture = "" if reason.value is None else bullet(reason.value, reason.threshold)
    return (
        f"<li><p>{about} {escaped(reason.text)}</p>"
        f'<p class="evidence"><span>{escaped(measure)} <b>{value}</b></span>{picture}'
        f"<span>threshold {plain(reason.threshold)}</span></p></li>"
    )


def _settings(diagnosis: Diagnosis) -> str:
    """One line: what was composed, on how much, by which version."""
    settings = diagnosis.settings
    recipe = settings.get("recipe")
    rule = settings.get("rule", recipe.get("rule") if isinstance(recipe, dict) else None)
    facts = []
    if rule is not None:
        facts.append(f"rule {_written(rule)}")
    facts.append(f"{diagnosis.texts:,} {'text' if diagnosis.texts == 1 else 'texts'}")
    facts.append(f"{diagnosis.positions:,} {'position' if diagnosis.positions == 1 else 'positions'}")
    if "continuations" in settings:
        facts.append(f"continuations: {_written(settings['continuations'])}")
    if "counterpoint" in diagnosis.versions:
        facts.append(f"counterpoint {_written(diagnosis.versions['counterpoint'])}")
    return "".join(f"<span>{fact}</span> " for fact in facts)


def _details(diagnosis: Diagnosis) -> str:
    versions = {f"version of {name}": version for name, version in diagnosis.versions.items()}
    return "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{_written(value)}</dd></div>"
        for name, value in {**diagnosis.settings, **versions}.items()
    )


def _written(value: Any) -> str:
    """A setting in its own words, or as JSON where it has structure."""
    return escaped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _along(diagnosis: Diagnosis) -> str:
    along = diagnosis.along
    if not along.texts:
        return "<p>No positions were measured.</p>"
    one, total = along.log_partition, along.cumulative_log_partition
    charts = [
        line_chart("log Z at each position, nats", drift(one), [Line(None, one)], along.texts),
        line_chart("log Z summed up to each position, nats", reached(total), [Line(None, total)], along.texts),
    ]
    for title, measure in (("Projectivity gap, nats", along.gap), ("Activity, nats", along.activity)):
        lines = [
            Line(number, measure.get(name) or [NOTHING] * len(along.texts))
            for number, name in enumerate(diagnosis.components)
        ]
        if len(lines) <= _TOGETHER_AT_MOST:
            notes = ", ".join(f"{badge(line.component or 0)} {drift(line.values)}" for line in lines)
            charts.append(line_chart(title, notes, lines, along.texts))
        else:
            most = scale_of(lines, along.texts)[1]
            charts += [
                line_chart(f"{title}: {named(n, name)}", drift(line.values), [line], along.texts, most)
                for n, (name, line) in enumerate(zip(diagnosis.components, lines, strict=True))
            ]
    kind = "" if len(diagnosis.components) <= _TOGETHER_AT_MOST else " many"
    return f'<div class="charts{kind}">{"".join(charts)}</div>'


def _legend(diagnosis: Diagnosis) -> str:
    return "".join(
        f'<li><span class="tok c{n % HUES} u{n % UNDERLINES} s3"><span class="ink">{letter(n)}</span></span> '
        f"<bdi>{escaped(name)}</bdi></li>"
        for n, name in enumerate(diagnosis.components)
    )


def _worst(positions: list[Position]) -> str:
    if not positions:
        return "<p>No projectivity gap is defined anywhere.</p>"
    items = []
    for p in positions:
        place = f"text {p.key}, token {p.at + 1}"
        link = f'<a href="#text={p.key}&amp;token={p.at + 1}">{place}</a>' if p.embedded else f"<span>{place}</span>"
        log_partition = "undefined" if p.log_partition is None else signed(p.log_partition)
        items.append(
            f'<li>{link} <q dir="auto">…{_flat(p.before)}<mark>{_flat(p.token)}</mark>{_flat(p.after)}…</q>'
            f" <small>gap <b>{plain(p.gap)}</b>, log Z {log_partition}</small></li>"
        )
    return f'<ol class="worst">{"".join(items)}</ol>'


def _flat(text: str) -> str:
    return escaped(text.replace("\n", " "))


def _left_out(chosen: Chosen, budget: int) -> str:
    if not chosen.left_out:
        return ""
    many = f"{chosen.left_out:,} of {chosen.read:,} texts"
    return (
        f'<p class="left-out"><b>{many} are left out here</b>, those with the smallest gaps, so that the texts on the '
        f"page stay within {budget / 1e6:,.3g} MB. The figures above count them, and they are in "
        "<code>texts.jsonl</code>.</p>"
    )


def _data(diagnosis: Diagnosis, chosen: Chosen) -> str:
    names = embedded([visible(name) for name in diagnosis.components])
    return f'{{"components":{names},"letters":{embedded([letter(n) for n in range(len(diagnosis.components))])},' + (
        f'"hues":{HUES},"underlines":{UNDERLINES},"texts":[{",".join(chosen.records)}]}}'
    )
