"""The verdict in words: which measures cross their thresholds, and what that means for the recipe. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterpoint.diagnostics.measures import ACTIVE
from counterpoint.diagnostics.results import Estimate, Level, OfComponent, Reason, Verdict


@dataclass(frozen=True)
class Threshold:
    """Below `caution` all is clear; from `interference` on the components get in each other's way.

    The figures come from the study logit-composition, experiment `worlds`: in random worlds whose truth is known they
    tell best whether the worst component's feature is off by less than 5 %, and by more than 15 %. The gap and log Z
    predict about equally well and better than the bin distance or the retained evidence; a warning light, not a gauge.
    """

    caution: float
    interference: float

    def level(self, value: float) -> Level:
        return "clear" if value < self.caution else "caution" if value < self.interference else "interference"

    def crossed(self, value: float) -> float:
        return self.caution if value < self.interference else self.interference


GAP = Threshold(0.10, 0.18)
LOG_PARTITION = Threshold(0.07, 0.29)
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
    """The level is that of the worst component's projectivity gap; the pairs say why, not how bad.

    Args:
        components: their names.
        pairs: the pairs of `interference`.
        others: the aggregates of a `Diagnosis`.
    """
    silent = [name for name, figures in by_component.items() if not figures.active_share.mean]
    reasons = [_kept(name, figures) for name, figures in by_component.items() if name not in silent]
    reasons.sort(key=lambda reason: -(reason.value or 0.0))
    level: Level = GAP.level(reasons[0].value or 0.0) if reasons else "clear"
    for name in silent:
        text = f"{name} is nowhere active: on these prompts it says what the base says, and cannot be judged."
        value = by_component[name].activity.mean
        reasons.append(Reason(measure="activity", about=[name], value=value, threshold=ACTIVE, text=text))
    headline = _headline(level, reasons, len(silent) == len(components))
    return Verdict(level=level, headline=headline, reasons=reasons + _pairs(components, pairs, interference))


def _kept(name: str, figures: OfComponent) -> Reason:
    value, retained = figures.gap.mean or 0.0, figures.retained_evidence.mean
    how = ""
    if retained is not None:
        how = f"; it keeps {retained:.0%} of its evidence"
        how += " (drowned out)" if retained < 0.9 else " (overshoot)" if retained > 1.1 else ""
    level = GAP.level(value)
    says = {"clear": "is heard as when it speaks alone", "caution": "is bent", "interference": "is not itself"}[level]
    text = f"{name} {says}: its log-ratios are off by {value:.2f} nats a token{how}."
    return Reason(measure="gap", about=[name], value=value, threshold=GAP.crossed(value), text=text)


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


def _headline(level: Level, reasons: Sequence[Reason], all_silent: bool) -> str:
    if all_silent:
        return "No component is active on these prompts: there is nothing to interfere, and nothing to hear."
    if level == "clear":
        return "Clear: every component that speaks is heard as when it speaks alone."
    worst = reasons[0].about[0]
    if level == "caution":
        return f"Caution: {worst} is bent by the others; compare rule projective before you rely on this recipe."
    return f"Interference: {worst} is not itself here; try rule projective or raking, other weights or another base."
