"""The texts that the page holds in full, within a budget, and the single positions that are worst."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterpoint.diagnostics.report.escape import embedded, visible, visible_token
from counterpoint.diagnostics.report.words import VOICES
from counterpoint.diagnostics.results import Number, Text

BUDGET = 15_000_000
"""Bytes of texts in one page."""

_WORST = 12
_BEFORE, _AFTER = 8, 3
_FINENESS = 1000


@dataclass(frozen=True)
class Position:
    """One token among its neighbours.

    Attributes:
        key: the text's name on the page, as in `#text=KEY`.
        at: the token's number in its text, from 0.
        gap: mean over components of the projectivity gap.
        embedded: whether the page holds the text.
    """

    key: str
    at: int
    before: str
    token: str
    after: str
    gap: float
    log_partition: Number
    embedded: bool


@dataclass(frozen=True)
class Chosen:
    """What of the texts is on the page: records in the file's order, as JSON, and the worst positions first."""

    records: list[str]
    worst: list[Position]
    read: int

    @property
    def left_out(self) -> int:
        return self.read - len(self.records)


@dataclass
class _Kept:
    """The texts with the worst positions that fit; a heap with the mildest of them on top."""

    budget: int
    heap: list[tuple[float, int, str, int]] = field(default_factory=list)
    size: int = 0

    def add(self, gap: float, number: int, record: str) -> None:
        size = len(record.encode()) + 1
        heapq.heappush(self.heap, (gap, -number, record, size))
        self.size += size
        while self.size > self.budget and len(self.heap) > 1:
            self.size -= heapq.heappop(self.heap)[3]


def choose(texts: Iterable[Text], budget: int = BUDGET) -> Chosen:
    """Reads texts one by one, and keeps those with the largest gap anywhere until the budget is full.

    At least one is kept, whatever its size. A text's key is its index, and `index.2` where the index comes again.
    """
    seen: Counter[int] = Counter()
    kept = _Kept(budget)
    positions: list[tuple[float, int, int, Text, str]] = []
    number = 0
    for number, text in enumerate(texts, 1):
        seen[text.index] += 1
        key = str(text.index) if seen[text.index] == 1 else f"{text.index}.{seen[text.index]}"
        gaps = [_mean(row) for row in _over_time(text.gap, len(text.tokens))]
        kept.add(max((gap for gap in gaps if gap is not None), default=-1.0), number, _record(key, text, gaps))
        for at, gap in enumerate(gaps):
            if gap is not None and (len(positions) < _WORST or gap > positions[0][0]):
                entry = (gap, -number, -at, text, key)
                (heapq.heappush if len(positions) < _WORST else heapq.heapreplace)(positions, entry)
    order = sorted((-entry[1], entry[2]) for entry in kept.heap)
    held = {position for position, _ in order}
    worst = [
        _position(text, key, -at, gap, -negative in held)
        for gap, negative, at, text, key in sorted(positions, key=lambda entry: entry[:3], reverse=True)
    ]
    return Chosen([record for _, record in order], worst, number)


def _record(key: str, text: Text, gaps: Sequence[Number]) -> str:
    """A text as page.js reads it; log-probabilities and the like in thousandths of a nat."""
    defined = [(gap, at) for at, gap in enumerate(gaps) if gap is not None]
    gap, at = max(defined, key=lambda pair: pair[0], default=(None, 0))
    sizes = [abs(value) for value in text.log_partition if value is not None and value == value]
    return embedded(
        {
            "key": key,
            "index": text.index,
            "voice": VOICES.get(text.voice) or f"written by {visible(text.voice)}",
            "prompt": _turns(text.prompt),
            "tokens": [visible_token(token) for token in text.tokens],
            "logP": _fine(text.log_probs),
            "logB": _fine(text.base_log_probs),
            "moved": [_fine(row) for row in text.moved],
            "logZ": _fine(text.log_partition),
            "activity": [_fine(row) for row in text.activity],
            "gap": [_fine(row) for row in text.gap],
            "orphans": [at for at, orphan in enumerate(text.orphan) if orphan],
            "worstGap": _fine([gap])[0],
            "worstAt": at,
            "worstLogZ": _fine([max(sizes, default=None)])[0],
        }
    )


def _turns(prompt: str | list[dict[str, str]]) -> list[list[str]]:
    """(role, content) of each message; a text is one turn without a role."""
    if isinstance(prompt, str):
        return [["", visible(prompt)]]
    return [[visible(message.get("role", "")), visible(message.get("content", ""))] for message in prompt]


def _fine(values: Sequence[Number]) -> list[Any]:
    """Whole thousandths; None where undefined; "∞" and "−∞" as such, since JSON has no word for them."""
    return [None if v is None or v != v else round(v * _FINENESS) if math.isfinite(v) else _endless(v) for v in values]


def _endless(value: float) -> str:
    return "∞" if value > 0 else "−∞"


def _over_time(rows: Sequence[Sequence[Number]], length: int) -> Iterable[tuple[Number, ...]]:
    return zip(*rows, strict=True) if rows else iter([()] * length)


def _mean(values: Sequence[Number]) -> Number:
    defined = [value for value in values if value is not None and value == value]
    return sum(defined) / len(defined) if defined else None


def _position(text: Text, key: str, at: int, gap: float, held: bool) -> Position:
    return Position(
        key=key,
        at=at,
        before="".join(text.tokens[max(0, at - _BEFORE) : at]),
        token=visible_token(text.tokens[at]),
        after="".join(text.tokens[at + 1 : at + 1 + _AFTER]),
        gap=gap,
        log_partition=text.log_partition[at],
        embedded=held,
    )
