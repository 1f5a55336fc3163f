"""Budgets: the distribution nearest to the composed one that stays within so many nats of some voices. Pure."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.composition.evidence import normalise, ratios

NEARLY = 1 - 1e-5
"""A budget is met by leaning on its voice at most this much: all the way, up to rounding."""
SWEEPS, STEPS = 20, 40
TOLERANCE = 1e-4


def within_budgets(
    log_probs: Float[Tensor, "*position vocab"],
    log_voices: Float[Tensor, "budget *position vocab"],
    limits: Float[Tensor, " budget"],
) -> tuple[Float[Tensor, "*position vocab"], Float[Tensor, "budget *position"]]:
    """The p that minimises KL(p‖p̂) subject to KL(p‖q_j) ≤ ε_j for every budget j.

    p ∝ (p̂ Π q_j^{λ_j})^{1 / (1 + Σ λ)}, each λ_j ≥ 0 found by dual ascent, one at a time in turn, each exactly. With a
    single budget that is p̂^{1-t} q^t (arXiv 2508.19104 has the diffusion form): the weights of a product are scaled
    down just so far that it stays in reach of the base. Where budgets contradict each other, p settles between them.
    The multipliers count as constants in derivatives.

    Args:
        log_probs: log p̂, normalised.
        log_voices: log q_j.
        limits: ε_j ≥ 0, in nats a position.

    Returns:
        log p, and the divergences KL(p‖q_j) reached.
    """
    with torch.no_grad():
        multipliers = _multipliers(log_probs, log_voices, limits)
    log_p = _lean(log_probs, log_voices, multipliers)
    return log_p, torch.stack([_divergence(log_p, q) for q in log_voices])


def _multipliers(log_probs: Tensor, log_voices: Tensor, limits: Tensor) -> Float[Tensor, "budget *position"]:
    multipliers = log_voices.new_zeros(log_voices.shape[:-1])
    for _ in range(SWEEPS if len(limits) > 1 else 1):
        before = multipliers.clone()
        for j, (log_voice, limit) in enumerate(zip(log_voices, limits.tolist(), strict=True)):
            multipliers[j] = 0
            others = 1 + multipliers.sum(0)
            share = _share(_lean(log_probs, log_voices, multipliers), log_voice, limit)
            multipliers[j] = (share / (1 - share) * others).clamp(max=NEARLY / (1 - NEARLY))
        if bool(((multipliers - before).abs() <= TOLERANCE * (1 + before)).all()):
            break
    return multipliers


def _lean(log_probs: Tensor, log_voices: Tensor, multipliers: Tensor) -> Float[Tensor, "*position vocab"]:
    differences = ratios(log_voices, log_probs)
    shares = multipliers / (1 + multipliers.sum(0))
    return normalise(log_probs + (shares.unsqueeze(-1) * differences).sum(0))[0]


def _divergence(log_p: Tensor, log_q: Tensor) -> Float[Tensor, "*position"]:
    return -(log_p.exp() * ratios(log_q, log_p)).sum(-1)


def _share(log_a: Tensor, log_q: Tensor, limit: float) -> Float[Tensor, "*position"]:
    """The smallest t in [0, 1] with KL(p_t‖q) ≤ limit, p_t ∝ a^{1-t} q^t: Newton's method, bisecting where it leaves.

    The divergence falls in t, with slope -(1-t) Var[log q - log a] under p_t.
    """
    difference = ratios(log_q, log_a).clamp(min=-1e4)
    low, high = torch.zeros_like(log_a[..., 0]), torch.full_like(log_a[..., 0], NEARLY)
    share = torch.zeros_like(low)
    for _ in range(STEPS):
        log_p, log_partition = normalise(log_a + share.unsqueeze(-1) * difference)
        p = log_p.exp()
        mean = (p * difference).sum(-1)
        excess = -(1 - share) * mean - log_partition - limit
        slope = -(1 - share) * (p * (difference - mean.unsqueeze(-1)).square()).sum(-1)
        above = excess > 0
        low, high = torch.where(above, share, low), torch.where(above, high, share)
        done = (excess.abs() <= TOLERANCE * max(limit, TOLERANCE)) | ((share == 0) & ~above) | (high - low < 1e-7)
        if bool(done.all()):
            break
        newton = share - excess / slope.clamp(max=-torch.finfo(p.dtype).tiny)
        inside = (newton > low) & (newton < high)
        share = torch.where(done, share, torch.where(inside, newton, (low + high) / 2))
    return share
