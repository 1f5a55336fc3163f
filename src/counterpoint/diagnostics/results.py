"""What probing a recipe finds: one record a text, and what they amount to. Plain data, as the files have it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["clear", "caution", "interference"]
Number = float | None
"""None where a measure is undefined."""


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Text(_Plain):
    """One continuation of one prompt, measured token by token; a line of `texts.jsonl`.

    Lists over time have one entry for each token of the continuation, in order. Log-probabilities and log-ratios are
    in nats; `component` and `pair` run as in the diagnosis.

    Attributes:
        index: the prompt's number, from 0.
        prompt: a text, or chat messages.
        voice: who wrote the continuation: `composed`, `base`, `given`, or a component's name.
        tokens: the continuation in pieces that spell it when joined.
        log_probs: log p̂ of each token.
        base_log_probs: log p_b of each token.
        moved: w_i r_i of each token, how far each component moved it; (component, time).
        log_partition: log Z of the product; (time).
        activity: E_{p_i}[r_i], KL(p_i‖p_b) against the base; (component, time).
        evidence: E_p̂[r_i]; (component, time).
        gap: the projectivity gap, Wasserstein distance in nats; (component, time).
        bin_distance: the same as total variation over quantile bins at least 1 nat wide; (component, time).
        interference: I_ij; (pair, time), empty with one component.
        orphan: p̂'s top token is no model's top token; (time).
    """

    index: int
    prompt: str | list[dict[str, str]]
    voice: str
    tokens: list[str]
    log_probs: list[Number]
    base_log_probs: list[Number]
    moved: list[list[Number]]
    log_partition: list[Number]
    activity: list[list[Number]]
    evidence: list[list[Number]]
    gap: list[list[Number]]
    bin_distance: list[list[Number]]
    interference: list[list[Number]]
    orphan: list[bool]


class Estimate(_Plain):
    """A figure with its 95 % bootstrap interval over prompts; all None where it is undefined."""

    mean: Number
    low: Number
    high: Number


class Reason(_Plain):
    """One ground of a verdict: the measure, its threshold, which component or pair, and the sentence that says so."""

    measure: str
    about: list[str]
    value: Number
    threshold: float
    text: str


class Verdict(_Plain):
    level: Level
    headline: str
    reasons: list[Reason]


class OfComponent(_Plain):
    """One component's figures.

    Attributes:
        activity: mean E_{p_i}[r_i] a position, nats.
        active_share: share of positions where it exceeds `ACTIVE`.
        gap: mean projectivity gap a position, nats.
        bin_distance: the same as total variation, 0 to 1, over the positions where the component is active.
        retained_evidence: Σ E_p̂[r_i] / Σ E_{p_i}[r_i] over those positions; 1 keeps its say, less is drowned out,
            more is overshoot; None where it is nowhere active.
        moved_share: share of tokens that it moved most (and by more than 0.1 nats).
    """

    activity: Estimate
    active_share: Estimate
    gap: Estimate
    bin_distance: Estimate
    retained_evidence: Estimate
    moved_share: Estimate


class Along(_Plain):
    """Means over prompts at each position of the continuation, each with its interval."""

    texts: list[int]
    log_partition: list[Estimate]
    cumulative_log_partition: list[Estimate]
    gap: dict[str, list[Estimate]]
    activity: dict[str, list[Estimate]]


class Diagnosis(_Plain):
    """The content of `diagnosis.json`.

    Attributes:
        settings: recipe, digest, continuations, seed, dtype, device and so on.
        versions: of this package and those below it.
        formula: the composed distribution in words.
        components: names, in the recipe's order.
        pairs: the pairs (i, j) of component positions, i < j, as `Text.interference` has them.
        texts, positions: how many were measured.
        log_partition: mean log Z; `abs_log_partition` the mean of |log Z|.
        both_active_share: share of positions where two components or more are active.
        orphan_share: share of positions where p̂'s top token is no model's top token.
        interference: one estimate a pair.
    """

    format: Literal["counterpoint-diagnosis/1"] = "counterpoint-diagnosis/1"
    settings: dict[str, Any]
    versions: dict[str, str]
    formula: str
    components: list[str]
    pairs: list[tuple[int, int]]
    texts: int
    positions: int
    verdict: Verdict
    log_partition: Estimate
    abs_log_partition: Estimate
    both_active_share: Estimate
    orphan_share: Estimate
    interference: list[Estimate]
    by_component: dict[str, OfComponent]
    along: Along
