"""The verdict in words: which measures cross their thresholds, and what that means for the recipe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterpoint.diagnostics.results import Estimate, Level, OfComponent, Reason, Verdict


@dataclass(frozen=True)
class Threshold:
    """Below `caution` all is clear; from `interference` on the components get in each other's way.

    The figures come from the study logit-composition, experiment `worlds`: they tell worlds where the worst component's
    feature is off by less than 5 %, and by more than 15 %, from those where it is not (docs/studies).
    """

    caution: float
    interference: float

    def level(self, value: float) -> Level:
        return "clear" if value < self.caution else "caution" if value < self.interference else "interference"

    def crossed(self, value: float) -> float:
        return self.caution if value < self.interference else self.interference


BIN_DISTANCE = Threshold(0.05, 0.15)
LOG_PARTITION = Threshold(0.1, 0.5)
ORDER: tuple[Level, ...] = ("clear", "caution", "interference")


def judge(
    *,
    components: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    log_partition: Estimate,
    abs_log_partition: Estimate,
    both_active_share: Estimate,
    orphan_share: Estimate,
    interference: Sequence[Estimate],
    by_component: Mapping[str, OfComponent],
) -> Verdict:
    """The level is that of the worst component's bin distance; log Z and the pairs say why, never how bad.

    Args:
        components: their names.
        pairs: the pairs of `interference`.
        others: the aggregates of a `Diagnosis`.
    """
    reasons = [_kept(name, figures) for name, figures in by_component.items() if figures.bin_distance.mean is not None]
    levels = [BIN_DISTANCE.level(reason.value or 0.0) for reason in reasons]
    level: Level = max(levels, key=ORDER.index) if levels else "clear"
    reasons.sort(key=lambda reason: -(reason.value or 0.0))
    silent = [name for name, figures in by_component.items() if figures.bin_distance.mean is None]
    for name in silent:
        text = f"{name} is nowhere active: on these prompts it says what the base says, and cannot be judged."
        reasons.append(
            Reason(measure="activity", about=[name], value=by_component[name].activity.mean, threshold=0.1, text=text)
        )
    reasons += _pairs(components, pairs, interference)
    return Verdict(level=level, headline=_headline(level, reasons, silent, len(components)), reasons=reasons)


def _kept(name: str, figures: OfComponent) -> Reason:
    value, retained = figures.bin_distance.mean or 0.0, figures.retained_evidence.mean
    how = ""
    if retained is not None:
        how = f"it keeps {retained:.0%} of its evidence"
        how += " (drowned out)" if retained < 0.9 else " (overshoot)" if retained > 1.1 else ""
    level = BIN_DISTANCE.level(value)
    says = {"clear": "is heard as when it speaks alone", "caution": "is bent", "interference": "is not itself"}[level]
    text = f"{name} {says}: the law of its evidence is off by {value:.0%}{'; ' + how if how else ''}."
    return Reason(measure="bin_distance", about=[name], value=value, threshold=BIN_DISTANCE.crossed(value), text=text)


def _pairs(
    components: Sequence[str], pairs: Sequence[tuple[int, int]], interference: Sequence[Estimate]
) -> list[Reason]:
    reasons = []
    for (i, j), estimate in zip(pairs, interference, strict=True):
        value = estimate.mean
        if value is None or LOG_PARTITION.level(abs(value)) == "clear":
            continue
        one, other = components[i], components[j]
        what = "push the same way, so the product counts what they share twice" if value > 0 else "pull apart"
        text = f"{one} and {other} {what} (interference {value:+.2f} nats)."
        reasons.append(
            Reason(
                measure="interference",
                about=[one, other],
                value=value,
                threshold=LOG_PARTITION.crossed(abs(value)),
                text=text,
            )
        )
    return sorted(reasons, key=lambda reason: -abs(reason.value or 0.0))


def _headline(level: Level, reasons: Sequence[Reason], silent: Sequence[str], count: int) -> str:
    if len(silent) == count:
        return "No component is active on these prompts: there is nothing to interfere, and nothing to hear."
    if level == "clear":
        return "Clear: every component that speaks is heard as when it speaks alone."
    worst = next(reason for reason in reasons if reason.measure == "bin_distance").about[0]
    if level == "caution":
        return f"Caution: {worst} is bent by the others; compare rule raking before you rely on this recipe."
    return f"Interference: {worst} is not itself in this composition; try rule raking, other weights or another base."
