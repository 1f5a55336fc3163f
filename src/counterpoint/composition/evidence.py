"""What a rule sees: log-probabilities of the base and the components, and the log-ratios between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.errors import NumericsError

NEVER = -1e30
"""Stands for log 0 in a log-ratio: finite, so that a zero weight times it is zero and gradients stay finite."""


@dataclass(frozen=True)
class Evidence:
    """Log-probabilities (float32, natural logarithm) at some positions.

    Attributes:
        log_base: log p_b, shape (*position, vocab); -log(vocab) everywhere where there is no base.
        log_probs: log p_i, shape (component, *position, vocab).
        log_refs: log p_ref(i), what each component is measured against, same shape.
        against_base: every component is measured against the base.
    """

    log_base: Float[Tensor, "*position vocab"]
    log_probs: Float[Tensor, "component *position vocab"]
    log_refs: Float[Tensor, "component *position vocab"]
    against_base: bool = False

    @property
    def log_ratios(self) -> Float[Tensor, "component *position vocab"]:
        """r_i = log p_i - log p_ref(i). Where p_ref(v) = 0, r_i(v) = 0: the product keeps to the base's support."""
        return ratios(self.log_probs, self.log_refs)


def gather_evidence(
    log_voices: Float[Tensor, "voice *position vocab"], base: int | None, refs: Sequence[int | None]
) -> Evidence:
    """Sort the voices' log-probabilities into the roles that a recipe gives them.

    Args:
        log_voices: log-probabilities of all voices, the base first where there is one, then the components.
        base: 0, or None where there is no base.
        refs: the voice each component is measured against, None for the uniform distribution.
    """
    uniform = log_voices.new_full((), -math.log(log_voices.shape[-1])).expand(log_voices.shape[1:])
    log_base = uniform if base is None else log_voices[base]
    log_probs = log_voices if base is None else log_voices[1:]
    if all(ref == base for ref in refs):  # the usual case, without a copy
        return Evidence(log_base, log_probs, log_base.expand(log_probs.shape), against_base=True)
    return Evidence(log_base, log_probs, torch.stack([uniform if ref is None else log_voices[ref] for ref in refs]))


def tilted(evidence: Evidence, weights: Float[Tensor, " component"]) -> Float[Tensor, "component *position vocab"]:
    """log q_i: what each component makes of the base alone, with its own weight, q_i ∝ p_b exp(w_i r_i).

    With weight 1, measured against the base, q_i = p_i. The product of any recipe is p_b Π (q_i / p_b), normalised, so
    whatever is said of components with weight 1 (the rules that repair, the measures) holds for any weights through q.
    """
    plain = evidence.against_base and bool((weights == 1).all())
    if plain and not (weights.requires_grad and torch.is_grad_enabled()):
        return evidence.log_probs
    shape = (-1, *[1] * (evidence.log_probs.dim() - 1))
    return (evidence.log_base + weights.view(shape) * evidence.log_ratios).log_softmax(-1)


def ratios(
    log_probs: Float[Tensor, "*any vocab"], log_refs: Float[Tensor, "*fewer vocab"]
) -> Float[Tensor, "*any vocab"]:
    """log p_i - log p_ref, finite everywhere: 0 where p_ref(v) = 0, `NEVER` where only p_i(v) = 0."""
    return torch.nan_to_num(log_probs - log_refs, nan=0.0, posinf=0.0, neginf=NEVER)


def log_probabilities(
    logits: Float[Tensor, "voice *position vocab"], temperatures: Float[Tensor, " voice"]
) -> Float[Tensor, "voice *position vocab"]:
    """log softmax(logits / T), in float32."""
    scaled = logits.float() / temperatures.view(-1, *[1] * (logits.dim() - 1))
    return scaled.log_softmax(-1)


def normalise(
    scores: Float[Tensor, "*position vocab"],
) -> tuple[Float[Tensor, "*position vocab"], Float[Tensor, "*position"]]:
    """(log p_hat, log Z): scores minus their log-sum-exp, and that log-sum-exp, the log-partition."""
    log_partition = scores.logsumexp(-1)
    return scores - log_partition.unsqueeze(-1), log_partition


def plausible(log_voices: Float[Tensor, "judge *position vocab"], alpha: float) -> Float[Tensor, "*position vocab"]:
    """0 for tokens that some judge gives at least alpha times its largest probability, -inf for all others.

    Contrastive decoding's mask (arXiv 2210.15097, eq. 4) with the expert as the only judge.
    """
    kept = log_voices >= log_voices.amax(-1, keepdim=True) + math.log(alpha)
    return torch.zeros_like(log_voices[0]).masked_fill(~kept.any(0), -math.inf)


def check_numbers(
    log_voices: Float[Tensor, "voice *position vocab"], real: Bool[Tensor, "*position"], names: Sequence[str]
) -> None:
    """Raise NumericsError naming the first voice whose log-probabilities hold NaN at a position that is not padding.

    One NaN or +inf among a row's logits makes its whole log-softmax NaN, so one token of each row tells.
    """
    bad = (log_voices[..., 0].isnan() & real).flatten(1).any(1)
    if bad.any():
        name = names[int(bad.nonzero()[0])]
        raise NumericsError(f"{name}: its logits hold NaN or infinity; the checkpoint is broken, or float16 overflowed")
