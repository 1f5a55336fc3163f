"""Label-free measures of interference, from log-probabilities that decoding has in hand anyway. Pure.

Everything here takes components with weight 1 measured against the base: log q_i as `evidence.tilted` gives it for any
recipe, r_i = log q_i - log p_b, and the product p_b exp Σ r_i / Z. Under factorised conditionals (arXiv 2605.28304)
log Z, every interference and every gap is 0, and every component retains its evidence.

Log-probabilities are float32 and in nats; all functions work on any leading axes, (*position, vocab), and need O(V) for
each component, O(V) for each pair.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from counterpoint.composition.bins import CELL, cell_count, cells_of, mass_in, quantile_bins
from counterpoint.composition.evidence import ratios

ACTIVE = 0.1
"""A component is active where its activity exceeds so many nats; below, retained evidence is undefined."""
BINS, WIDTH = 8, 1.0
"""Of the bin distance: quantile bins, each at least so many nats wide."""


@dataclass(frozen=True)
class Measures:
    """All measures at some positions.

    Attributes:
        log_partition: log Z of the product, (*position).
        interference: I_ij for every pair i < j, (pair, *position).
        activity: KL(q_i‖p_b), (component, *position).
        evidence: E_p̂[r_i], (component, *position).
        gap: Wasserstein distance between the laws of r_i under p̂ and q_i, in nats, (component, *position).
        bin_distance: total variation between them over quantile bins at least 1 nat wide, (component, *position).
        orphan: p̂'s top token is no model's top token, (*position).
    """

    log_partition: Float[Tensor, "*position"]
    interference: Float[Tensor, "pair *position"]
    activity: Float[Tensor, "component *position"]
    evidence: Float[Tensor, "component *position"]
    gap: Float[Tensor, "component *position"]
    bin_distance: Float[Tensor, "component *position"]
    orphan: Bool[Tensor, "*position"]


def measure(
    log_base: Float[Tensor, "*position vocab"],
    log_components: Float[Tensor, "component *position vocab"],
    log_hat: Float[Tensor, "*position vocab"],
) -> Measures:
    """All measures of a composition p̂ of the components q_i on the base p_b; p̂ may come from any rule."""
    p_hat = log_hat.exp()
    activities, evidences, gaps, distances = [], [], [], []
    total = log_base.clone()
    for log_component in log_components:
        ratio, component = ratios(log_component, log_base), log_component.exp()
        total += ratio
        activities.append((component * ratio).sum(-1))
        evidences.append((p_hat * ratio).sum(-1))
        fine = cells_of(ratio)
        gaps.append(wasserstein(*(mass_in(fine, p, cell_count()) for p in (component, p_hat))))
        wide = cells_of(ratio, WIDTH)
        own, under, base = (mass_in(wide, p, cell_count(WIDTH)) for p in (component, p_hat, log_base.exp()))
        bins = quantile_bins((own + base) / 2, BINS)
        distances.append((mass_in(bins, own, BINS) - mass_in(bins, under, BINS)).abs().sum(-1) / 2)
    return Measures(
        log_partition=total.logsumexp(-1),
        interference=interference(log_base, log_components),
        activity=torch.stack(activities),
        evidence=torch.stack(evidences),
        gap=torch.stack(gaps),
        bin_distance=torch.stack(distances),
        orphan=orphan(log_base, log_components, log_hat),
    )


def pairs_of(components: int) -> list[tuple[int, int]]:
    """The pairs i < j, in the order of `Measures.interference`."""
    return list(itertools.combinations(range(components), 2))


def interference(
    log_base: Float[Tensor, "*position vocab"], log_components: Float[Tensor, "component *position vocab"]
) -> Float[Tensor, "pair *position"]:
    """I_ij = log E_{p_b}[exp(r_i + r_j)] for every pair i < j.

    Positive: both push the same way, and the product counts it twice. Negative: they conflict.
    """
    pairs = pairs_of(len(log_components))
    found = [(log_components[i] + ratios(log_components[j], log_base)).logsumexp(-1) for i, j in pairs]
    return torch.stack(found) if found else log_base.new_zeros(0, *log_base.shape[:-1])


def wasserstein(one: Float[Tensor, "*row cell"], other: Float[Tensor, "*row cell"]) -> Float[Tensor, "*row"]:
    """W_1 in nats between two laws over the cells of `bins.cells_of`, right to half a cell (1/128 nat) a side."""
    laws = (law / law.sum(-1, keepdim=True) for law in (one, other))  # what rounding leaves would cost the whole reach
    return torch.sub(*laws).cumsum(-1).abs().sum(-1) * CELL


def retained_evidence(
    evidence: Float[Tensor, "component *position"], activity: Float[Tensor, "component *position"]
) -> Float[Tensor, "component *position"]:
    """E_p̂[r_i] / KL(q_i‖p_b); NaN, undefined, where the component is not active.

    1: the component keeps its whole say. Less: it is drowned out. More: overshoot.
    """
    return torch.where(activity > ACTIVE, evidence / activity, torch.nan)


def both_active(activity: Float[Tensor, "component *position"]) -> Bool[Tensor, "*position"]:
    """Two components or more are active: the theory's simplest case, one at a time, does not hold here."""
    return (activity > ACTIVE).sum(0) >= 2


def orphan(
    log_base: Float[Tensor, "*position vocab"],
    log_components: Float[Tensor, "component *position vocab"],
    log_hat: Float[Tensor, "*position vocab"],
) -> Bool[Tensor, "*position"]:
    """p̂'s top token is the top token neither of the base nor of any component."""
    top = log_hat.argmax(-1)
    return (top != log_base.argmax(-1)) & (top != log_components.argmax(-1)).all(0)


def marginal_errors(
    log_hat: Float[Tensor, "*position vocab"],
    log_owner: Float[Tensor, "*position vocab"],
    classes: Int[Tensor, " vocab"],
) -> Float[Tensor, "*position"]:
    """Total variation between the laws of a labelled feature under p̂ and under the component that owns it.

    For users who do have labels: under factorised conditionals this is 0 for every owner's feature.

    Args:
        log_hat: log p̂.
        log_owner: the log-probabilities of the component (or the base) that owns the feature.
        classes: the feature's class, 0, 1, ..., of every token.
    """
    count = int(classes.max()) + 1
    places = classes.expand(log_hat.shape)
    return (mass_in(places, log_hat.exp(), count) - mass_in(places, log_owner.exp(), count)).abs().sum(-1) / 2


def cumulative(log_partition: Float[Tensor, "*row time"]) -> Float[Tensor, "*row time"]:
    """Σ_{s ≤ t} log Z_s: the log-weight between sampling token by token and the sequence-level product."""
    return log_partition.cumsum(-1)
