"""The projective rule: weights chosen anew at every step, so that each component keeps its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.composition.evidence import Evidence, ratios, tilted
from counterpoint.composition.rules import Scored, rule

LEAST_RATIO = -1e4
"""Log-ratios below it count as it, so that squares stay finite."""


@rule
def projective(
    evidence: Evidence,
    weights: Float[Tensor, " component"],
    *,
    rho: Annotated[float, Field(gt=0, le=1e6)] = 0.3,
    steps: Annotated[int, Field(ge=0, le=1000)] = 20,
    tolerance: Annotated[float, Field(ge=0)] = 1e-3,
) -> Scored:
    """p_b exp Σ u_i r_i with the u, one a component and position, that solve E_p̂[r_i] = E_{p_i}[r_i], regularised.

        minimise over u   log Z(u) - Σ_i u_i E_{p_i}[r_i] + (ρ/2) ‖u - 1‖²

    A convex problem with gradient E_p̂[r] - m + ρ(u - 1) and Hessian Cov_p̂[r] + ρI, solved by Newton's method, the
    step halved while it does not descend. Under factorised conditionals u = 1. p_i and r_i stand for the component
    with its weight, see `evidence.tilted`.

    Args:
        rho: ρ; large ones give the product, small ones the information projection of p_b on all components' evidence
            (and weights above 10 where a component has next to none).
        steps: at most so many steps.
        tolerance: end when no gradient exceeds it, in nats.

    Returns:
        scores, and the notes `weights`, (component, *position), each u times the component's own weight; and
        `residual`, (*position), the largest gradient left. Derivatives with respect to the weights are those of the
        exact solution (implicit differentiation).
    """
    log_components = tilted(evidence, weights)
    ratio = ratios(log_components, evidence.log_base).clamp(min=LEAST_RATIO)
    wanted = (log_components.exp() * ratio).sum(-1)
    with torch.no_grad():
        found = _minimise(evidence.log_base, ratio, wanted, rho, steps, tolerance)
    factors = found.factors
    if torch.is_grad_enabled() and wanted.requires_grad:
        here = _tilt(evidence.log_base, ratio, factors)
        gradient = here.mean - wanted + rho * (factors - 1)
        factors = factors - _solve(found.covariance, rho, gradient - gradient.detach())
    scores = evidence.log_base + (factors.unsqueeze(-1) * ratio).sum(0)
    shape = (-1, *[1] * (factors.dim() - 1))
    return Scored(scores, {"weights": factors.detach() * weights.detach().view(shape), "residual": found.residual})


@dataclass(frozen=True)
class _Tilt:
    """The base tilted by factors u: log Z(u), E[r] and Cov[r], over positions."""

    log_partition: Float[Tensor, "*position"]
    mean: Float[Tensor, "component *position"]
    covariance: Float[Tensor, "component component *position"]


@dataclass(frozen=True)
class _Found:
    factors: Float[Tensor, "component *position"]
    covariance: Float[Tensor, "component component *position"]
    residual: Float[Tensor, "*position"]


def _tilt(log_base: Tensor, ratio: Tensor, factors: Tensor) -> _Tilt:
    scores = log_base + torch.einsum("c...,c...v->...v", factors, ratio)
    log_partition = scores.logsumexp(-1)
    weighted = (scores - log_partition.unsqueeze(-1)).exp() * ratio
    mean = weighted.sum(-1)
    square = torch.einsum("c...v,d...v->cd...", weighted, ratio)
    return _Tilt(log_partition, mean, square - mean.unsqueeze(0) * mean.unsqueeze(1))


def _solve(covariance: Tensor, rho: float, vector: Tensor) -> Float[Tensor, "component *position"]:
    """(Cov + ρI)⁻¹ vector, at every position."""
    hessian = covariance.movedim((0, 1), (-2, -1)) + rho * torch.eye(len(vector), device=vector.device)
    return torch.linalg.solve(hessian, vector.movedim(0, -1)).movedim(-1, 0)


def _minimise(log_base: Tensor, ratio: Tensor, wanted: Tensor, rho: float, steps: int, tolerance: float) -> _Found:
    factors = torch.ones_like(wanted)
    here = _tilt(log_base, ratio, factors)

    def height(at: _Tilt, factors: Tensor) -> Float[Tensor, "*position"]:
        return at.log_partition - (factors * wanted).sum(0) + rho / 2 * (factors - 1).square().sum(0)

    length = torch.ones_like(here.log_partition)
    for _ in range(steps):
        gradient = here.mean - wanted + rho * (factors - 1)
        if bool((gradient.abs() <= tolerance).all()):
            break
        step = -_solve(here.covariance, rho, gradient)
        trial = factors + length * step
        there = _tilt(log_base, ratio, trial)
        enough = height(here, factors) + 1e-4 * length * (gradient * step).sum(0) + 1e-6
        better = height(there, trial) <= enough
        factors = torch.where(better, trial, factors)
        here = _Tilt(*(torch.where(better, getattr(there, n), getattr(here, n)) for n in _Tilt.__annotations__))
        length = torch.where(better, (2 * length).clamp(max=1.0), length / 2)
    residual = (here.mean - wanted + rho * (factors - 1)).abs().amax(0)
    return _Found(factors, here.covariance, residual)
