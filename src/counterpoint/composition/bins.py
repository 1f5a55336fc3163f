"""The law of a log-ratio: how much probability lies where r takes which values, and bins of equal weight. Pure."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CELL = 1 / 64
"""Width in nats of the cells by which log-ratios are told apart."""
REACH = 32.0
"""Log-ratios beyond ± so many nats count as these."""
CELLS = int(2 * REACH / CELL) + 1


def cells_of(ratios: Float[Tensor, "*any vocab"]) -> Int[Tensor, "*any vocab"]:
    """The cell, 0 to `CELLS` - 1, of every log-ratio; equal ones share a cell."""
    return ratios.clamp(-REACH, REACH).add(REACH).div_(CELL).round_().long()


def mass_in(
    places: Int[Tensor, "*row item"], mass: Float[Tensor, "*row item"], count: int
) -> Float[Tensor, "*row place"]:
    """How much of `mass` lies in each of `count` places, summed over the last axis."""
    return mass.new_zeros(*mass.shape[:-1], count).scatter_add(-1, places, mass)


def quantile_bins(law: Float[Tensor, "*row cell"], bins: int) -> Int[Tensor, "*row cell"]:
    """Bins, 0 to `bins` - 1, of about equal mass under a law over cells; a cell is never divided.

    Args:
        law: mass in each cell.
        bins: how many; fewer are in use where single cells hold more than a bin's share.
    """
    below = law.cumsum(-1) - law
    share = below / law.sum(-1, keepdim=True).clamp(min=torch.finfo(law.dtype).tiny)
    return (share * bins + 1e-6).long().clamp_(0, bins - 1)
