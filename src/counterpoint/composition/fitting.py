"""The product rule's weights that make given tokens likeliest: a convex problem, from log-probabilities. Pure.

The product is log-linear in its weights, log p̂_w(v) = log p_b(v) + Σ_i w_i r_i(v) − log Z(w), so with T tokens v_t

    F(w)  =  (1/T) Σ_t [ log Z_t(w) − log p_b(v_t) − Σ_i w_i r_i(v_t) ]  +  (l2/2) ‖w − 1‖²
    ∇F    =  (1/T) Σ_t [ E_p̂_w[r] − r(v_t) ]  +  l2 (w − 1)
    ∇²F   =  (1/T) Σ_t Cov_p̂_w[r]  +  l2 I

is convex. It is the exponential family's maximum likelihood (its mean is matched to the data's), drawn to the paper's
weights, 1 (arXiv 2605.28304).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.errors import NumericsError

L2, LOWER, UPPER = 0.01, -1.0, 5.0
"""Defaults. The pull moves a weight by a few hundredths and makes it unique. Beyond 5 a component's tail decides alone;
below −1 the text is more unlike it than the base itself is like it."""

CONVERGED = 1e-6
MOST_STEPS = 100
MOST_AT_ONCE = 2**22
"""Numbers of one piece of the log-ratios in float64 (32 MiB); a few such pieces are held at a time."""
FLOOR = -1e3
"""Of a log-ratio, in nats: a token that a component rules out altogether keeps the problem smooth at weight 0."""
LEAST_VARIANCE = 1e-6
LEAST_EIGENVALUE = 1e-2


@dataclass(frozen=True)
class Fit:
    """The weights that minimise F within bounds, in float64.

    Attributes:
        weights: w.
        standard_errors: sqrt diag((T ∇²F)⁻¹) over the weights that are not at a bound, as if tokens were independent;
            NaN at a bound.
        before: F at the start (moved into the bounds), in nats a token.
        after: F at `weights`.
        gradient_norm: of the gradient's part that does not push against a bound; nats a token for a unit of weight.
        steps: Newton steps taken.
        covariance: (1/T) Σ_t Cov[r], what the tokens know of the weights; nats².
    """

    weights: Float[Tensor, " component"]
    standard_errors: Float[Tensor, " component"]
    before: float
    after: float
    gradient_norm: float
    steps: int
    covariance: Float[Tensor, "component component"]


@dataclass(frozen=True)
class Moments:
    """F, and the mean and covariance of r under p̂_w, averaged over positions.

    Attributes:
        value: F(w); gradient: ∇F(w); hessian: ∇²F(w).
        covariance: the Hessian without l2.
    """

    value: float
    gradient: Float[Tensor, " component"]
    hessian: Float[Tensor, "component component"]
    covariance: Float[Tensor, "component component"]


def fit_weights(
    log_base: Float[Tensor, "position vocab"],
    log_ratios: Float[Tensor, "component position vocab"],
    target: Int[Tensor, " position"],
    start: Float[Tensor, " component"] | None = None,
    l2: float = L2,
    lower: float = LOWER,
    upper: float = UPPER,
) -> Fit:
    """Minimise F by Newton's method, each step's quadratic model minimised within the bounds, with backtracking.

    Args:
        log_base: log p_b, up to a constant a position; -inf allowed except at the targets.
        log_ratios: r_i = log p_i - log p_ref(i), in nats; below `FLOOR` they count as `FLOOR`.
        target: the token v_t that was given at each position.
        start: where to begin; 1 by default. Where it ends does not depend on it.
        l2: the pull towards weight 1, in nats a token for a squared unit of weight.
        lower, upper: bounds of every weight.

    Raises:
        NumericsError: no positions, or a target that p_b gives probability 0, so that no weights can give it.
    """
    if not len(target):
        raise NumericsError("there are no tokens to fit weights to")
    given = log_base.gather(-1, target[:, None])[:, 0]
    if not bool(given.isfinite().all()):
        position = int((~given.isfinite()).nonzero()[0])
        raise NumericsError(f"position {position}: the base gives its token probability 0, and so do all weights")
    weights = torch.ones_like(log_ratios[:, 0, 0], dtype=torch.float64) if start is None else start.double()
    weights = weights.clamp(lower, upper)
    at = moments(log_base, log_ratios, target, weights, l2)
    before, steps = at.value, 0
    while steps < MOST_STEPS and float(_inward(at.gradient, weights, lower, upper).norm()) > CONVERGED * (1 + l2):
        step = _bounded_step(at.gradient, at.hessian, lower - weights, upper - weights)
        promised, share = float(at.gradient @ step), 1.0
        tried = moments(log_base, log_ratios, target, weights + step, l2)
        while tried.value > at.value + 1e-4 * share * promised and share > 1e-6:
            share /= 2
            tried = moments(log_base, log_ratios, target, weights + share * step, l2)
        if tried.value >= at.value:  # nothing left but rounding
            break
        weights, at, steps = _within(weights + share * step, lower, upper), tried, steps + 1
    norm = float(_inward(at.gradient, weights, lower, upper).norm())
    errors = _standard_errors(at.hessian, (weights > lower) & (weights < upper), len(target))
    return Fit(weights, errors, before, at.value, norm, steps, at.covariance)


def objective(
    log_base: Float[Tensor, "position vocab"],
    log_ratios: Float[Tensor, "component position vocab"],
    target: Int[Tensor, " position"],
    weights: Float[Tensor, " component"],
    l2: float = L2,
) -> float:
    """F(w), in nats a token."""
    likelihood = log_likelihoods(log_base, log_ratios, target, weights[None]).mean()
    return float(l2 / 2 * (weights.double() - 1).square().sum() - likelihood)


def log_likelihoods(
    log_base: Float[Tensor, "position vocab"],
    log_ratios: Float[Tensor, "component position vocab"],
    target: Int[Tensor, " position"],
    weights: Float[Tensor, "setting component"],
) -> Float[Tensor, "setting position"]:
    """log p̂_w(v_t) for several settings of the weights, in nats, float64."""
    found = []
    for base, ratios, one in _pieces(log_base, log_ratios, target):
        settings = []
        for w in weights.double():
            scores = base + torch.einsum("c,cpv->pv", w, ratios)
            settings.append(scores.gather(-1, one[:, None])[:, 0] - scores.logsumexp(-1))
        found.append(torch.stack(settings))
    return torch.cat(found, dim=1)


def moments(
    log_base: Float[Tensor, "position vocab"],
    log_ratios: Float[Tensor, "component position vocab"],
    target: Int[Tensor, " position"],
    weights: Float[Tensor, " component"],
    l2: float = L2,
) -> Moments:
    """F with its gradient and Hessian at w, float64."""
    weights = weights.double()
    value, gradient = weights.new_zeros(()), torch.zeros_like(weights)
    covariance = weights.new_zeros(len(weights), len(weights))
    for base, ratios, one in _pieces(log_base, log_ratios, target):
        scores = base + torch.einsum("c,cpv->pv", weights, ratios)
        log_partition = scores.logsumexp(-1)
        index = one[:, None]
        value += (log_partition - scores.gather(-1, index)[:, 0]).sum()
        weighted = ratios * (scores - log_partition[:, None]).exp_()
        mean = weighted.sum(-1)
        gradient += (mean - ratios.gather(-1, index.expand(len(weights), -1, -1))[..., 0]).sum(-1)
        covariance += weighted.flatten(1) @ ratios.flatten(1).T - mean @ mean.T
    value, gradient, covariance = (part / len(target) for part in (value, gradient, covariance))
    covariance = (covariance + covariance.T) / 2
    identity = torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    away = weights - 1
    return Moments(
        float(value + l2 / 2 * away.square().sum()), gradient + l2 * away, covariance + l2 * identity, covariance
    )


def unidentified(covariance: Float[Tensor, "component component"]) -> list[int]:
    """Components whose log-ratio is constant wherever p̂ has any mass: the tokens say nothing of their weights."""
    return [i for i, variance in enumerate(covariance.diagonal().tolist()) if variance < LEAST_VARIANCE]


def collinear(covariance: Float[Tensor, "component component"]) -> list[int]:
    """Components whose log-ratios go up and down together (or against each other), so that l2 alone tells them apart.

    Where the correlations' smallest eigenvalue is below `LEAST_EIGENVALUE`, those that take part in its eigenvector.
    """
    empty = unidentified(covariance)
    rest = [i for i in range(len(covariance)) if i not in empty]
    if len(rest) < 2:
        return []
    within = covariance[rest][:, rest]
    scale = within.diagonal().rsqrt()
    values, vectors = torch.linalg.eigh(within * scale * scale[:, None])
    part = vectors[:, values < LEAST_EIGENVALUE].abs().amax(1) if values[0] < LEAST_EIGENVALUE else None
    return [] if part is None else [i for i, share in zip(rest, part.tolist(), strict=True) if share > 0.1]


def _pieces(log_base: Tensor, log_ratios: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(log_base, log_ratios, target) for some positions at a time, in float64."""
    step = max(1, MOST_AT_ONCE // max(1, log_ratios[:, :1].numel()))
    for base, ratios, one in zip(log_base.split(step), log_ratios.split(step, dim=1), target.split(step), strict=True):
        yield base.double(), ratios.double().clamp(min=FLOOR), one


def _within(weights: Tensor, lower: float, upper: float) -> Tensor:
    """The weights with those exactly at a bound that rounding has put beside it."""
    weights = torch.where(weights < lower + 1e-12, lower, weights)
    return torch.where(weights > upper - 1e-12, upper, weights)


def _inward(gradient: Tensor, weights: Tensor, lower: float, upper: float) -> Tensor:
    """The gradient without what pushes a weight against its bound."""
    against = ((weights <= lower) & (gradient > 0)) | ((weights >= upper) & (gradient < 0))
    return gradient.masked_fill(against, 0)


def _bounded_step(
    gradient: Float[Tensor, " component"],
    hessian: Float[Tensor, "component component"],
    low: Float[Tensor, " component"],
    high: Float[Tensor, " component"],
) -> Float[Tensor, " component"]:
    """The d that minimises g·d + ½ d·H d within low ≤ d ≤ high (low ≤ 0 ≤ high), by an active set.

    A trace of damping stands in where H is singular; the step stays a descent.
    """
    step = torch.zeros_like(gradient)
    held: Bool[Tensor, " component"] = ((low == 0) & (gradient > 0)) | ((high == 0) & (gradient < 0))
    held |= (hessian.diagonal() < LEAST_VARIANCE) & (gradient.abs() < CONVERGED)  # flat: stays where it is
    hessian = hessian + 1e-10 * (1 + hessian.diagonal().max()) * torch.eye(len(gradient)).to(hessian)
    for _ in range(10 + 10 * len(gradient)):
        slope, move, free = gradient + hessian @ step, torch.zeros_like(gradient), ~held
        if bool(free.any()):
            move[free] = torch.linalg.solve(hessian[free][:, free], -slope[free])
        room = torch.where(move > 0, high - step, low - step) / move.where(move != 0, torch.ones_like(move))
        room = room.masked_fill(move == 0, math.inf)
        first = int(room.argmin())
        if float(room[first]) < 1:
            bound = (high if move[first] > 0 else low)[first]
            step = step + float(room[first]) * move
            step[first], held[first] = bound, True
            continue
        step = step + move
        slope = gradient + hessian @ step
        gain = torch.where(step <= low, -slope, slope).masked_fill(~held | ((step > low) & (step < high)), 0)
        if float(gain.max()) <= 1e-14:
            break
        held[int(gain.argmax())] = False
    return step


def _standard_errors(hessian: Tensor, free: Tensor, positions: int) -> Tensor:
    errors = torch.full_like(hessian.diagonal(), math.nan)
    if bool(free.any()):
        within = hessian[free][:, free]
        within = within + 1e-10 * torch.eye(len(within)).to(within)
        errors[free] = (torch.linalg.inv(within).diagonal() / positions).sqrt()
    return errors
