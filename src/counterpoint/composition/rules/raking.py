"""Raking: the product, reweighted until every component's evidence has the law that it has when it speaks alone."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from counterpoint.composition.bins import cell_count, cells_of, mass_in, quantile_bins
from counterpoint.composition.evidence import Evidence, normalise, ratios, tilted
from counterpoint.composition.rules import Scored, rule

LEAST = 1e-9
"""Bins with less mass are left as they are: there is nothing to rescale."""


@rule
def raking(
    evidence: Evidence,
    weights: Float[Tensor, " component"],
    *,
    bins: Annotated[int, Field(ge=1, le=256)] = 8,
    width: Annotated[float, Field(ge=1 / 64, le=32)] = 1.0,
    damping: Annotated[float, Field(gt=0, le=1)] = 1.0,
    sweeps: Annotated[int, Field(ge=0, le=1000)] = 5,
    tolerance: Annotated[float, Field(ge=0, le=1)] = 1e-3,
) -> Scored:
    """Iterative proportional fitting (Deming and Stephan 1940) of p̂ to each component's binned law of r_i.

    The tokens are sorted into bins of r_i, quantiles under the average of p_i and p_b but not narrower than `width`
    nats. Starting from the product, p̂ is
    rescaled so that every bin of every r_i comes to hold the mass that it has under p_i. Under factorised conditionals
    nothing changes. p_i stands for the component with its weight, see `evidence.tilted`.

    All k components are rescaled at once, by their factors to the power 1.5/k, so that their order does not matter
    (generalised iterative scaling, Darroch and Ratcliff 1972, whose 1/k is slower; beyond 2/k identical components
    would oscillate). Where the targets contradict each other this settles between them.

    Args:
        bins: at most so many; 1 gives the product, many narrow ones force p̂ towards every single p_i at once.
        width: of a bin, at least, in nats.
        damping: a further factor on that power, for smaller steps.
        sweeps: at most so many rounds.
        tolerance: end when no law is off by more than this total variation.

    Returns:
        scores whose normaliser is the product's log Z, and the note `residual`, (*position): the largest total
        variation that remains between a component's binned law under p̂ and its target.
    """
    log_components = tilted(evidence, weights)
    ratio = ratios(log_components, evidence.log_base)
    log_product, log_partition = normalise(evidence.log_base + ratio.sum(0))
    with torch.no_grad():
        cells, count, base = cells_of(ratio, width), cell_count(width), evidence.log_base.exp()
        laws = torch.stack(
            [mass_in(c, (base + q.exp()) / 2, count) for c, q in zip(cells, log_components, strict=True)]
        )
        places = quantile_bins(laws, bins).gather(-1, cells)
    targets = mass_in(places, log_components.exp(), bins)
    table, digits = _joint(log_product.exp(), places, bins)
    log_factors, residual = _fit(table, digits, targets, damping, sweeps, tolerance)
    log_raked, _ = normalise(log_product + log_factors.gather(-1, places).sum(0))
    return Scored(log_raked + log_partition.unsqueeze(-1), {"residual": residual})


def _joint(
    mass: Float[Tensor, "*position vocab"], places: Int[Tensor, "component *position vocab"], bins: int
) -> tuple[Float[Tensor, "*position item"], Int[Tensor, "component *position item"]]:
    """Tokens that share all their bins, taken together: what fitting has to know of them, and often far less.

    Returns:
        the mass of each combination of bins, and its bin for each component; or the tokens themselves, where there are
        fewer of them than combinations.
    """
    count = bins ** len(places)
    if count > mass.shape[-1]:
        return mass, places
    powers = [bins**i for i in range(len(places))]
    combination = sum(place * power for place, power in zip(places, powers, strict=True))
    numbers = torch.arange(count, device=mass.device)
    digits = torch.stack([numbers // power % bins for power in powers])
    shape = (len(places), *mass.shape[:-1], count)
    return mass_in(combination, mass, count), digits.view(-1, *[1] * (mass.dim() - 1), count).expand(shape)


def _fit(
    mass: Float[Tensor, "*position item"],
    places: Int[Tensor, "component *position item"],
    targets: Float[Tensor, "component *position bin"],
    damping: float,
    sweeps: int,
    tolerance: float,
) -> tuple[Float[Tensor, "component *position bin"], Float[Tensor, "*position"]]:
    """Log factors of every component's bins, and the largest total variation left."""
    count, bins = len(places), targets.shape[-1]
    power = damping * min(1.0, 1.5 / count)
    log_factors = torch.zeros_like(targets)
    for sweep in range(sweeps + 1):
        log_mass = mass.log() + log_factors.gather(-1, places).sum(0)
        current = mass_in(places, log_mass.softmax(-1).expand(places.shape), bins)
        residual = (current - targets).abs().sum(-1).amax(0) / 2
        if sweep == sweeps or bool((residual <= tolerance).all()):
            break
        log_factors = log_factors + power * ((targets + LEAST) / (current + LEAST)).log()
    return log_factors, residual
