"""A study without models: two experiments whose cells are arithmetic, and count how often they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterpoint.intervals import Interval, bootstrap_difference
from counterpoint.studies.findings import Findings
from counterpoint.studies.plots import Panel, curves
from counterpoint.studies.render import share
from counterpoint.studies.study import Block, Experiment, Measure, Options, Plot, Table


@dataclass
class Counting:
    """A cell function that records its calls, and stops or fails where it is told to."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    stop_at: int | None = None
    error: Exception | None = None

    def __call__(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        if len(self.calls) == self.stop_at:
            raise self.error or KeyboardInterrupt
        self.calls.append((settings["rule"], seed))
        score = {"product": 0.9, "mixture": 0.5}[settings["rule"]] + seed / 100
        return {
            "score": score,
            "score/by length": [score, score / 2, None],
            "gap": [seed + unit / 10 for unit in range(12)],
        }


def report(findings: Findings) -> Sequence[Block]:
    rows = [[str(p.settings["rule"]), share(p.number("score"))] for p in findings.points]
    lines = {str(p.settings["rule"]): p.along("score/by length") for p in findings.points}
    draw = curves([Panel("all", [1, 2, 3], lines, {"trained": 2})], "length", "score", (0, 1))
    return [
        f"The product scores {share(findings.where(rule='product').number('score'))}.",
        Table("Scores", ["rule", "score"], rows),
        Plot("scores", "Scores by length.", "Two falling curves", draw),
    ]


def compare(findings: Findings) -> dict[str, Interval]:
    one, other = (findings.where(rule=rule).values("gap")[0] for rule in ("product", "mixture"))
    return {"product - mixture": bootstrap_difference(one, other, 0)}


def experiment(cell: Any, name: str = "main", revision: int = 1, **changes: Any) -> Experiment:
    def grid(options: Options) -> list[dict[str, Any]]:
        return [{"rule": rule, "quick": options.quick, "steps": 3} for rule in ("product", "mixture")]

    measures = {
        "score": Measure("share of right answers", within=(0, 1)),
        "gap": Measure("projectivity gap, nats", each="unit"),
    }
    fields = {"grid": grid, "cell": cell, "measures": measures, "report": report, "compare": compare, "seeds": 3}
    return Experiment(name, f"The {name} one", revision, **{**fields, **changes})
