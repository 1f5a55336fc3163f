"""The law of a log-ratio: how much probability lies where r takes which values, and bins of equal weight. Pure."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CELL = 1 / 64
"""Width in nats of the cells by which log-ratios are told apart."""
REACH = 32.0
"""Log-ratios beyond ± so many nats count as these."""


def cells_of(ratios: Float[Tensor, "*any vocab"], width: float = CELL) -> Int[Tensor, "*any vocab"]:
    """The cell of every log-ratio, 0 to `cell_count(width)` - 1: `width` nats wide, one with 0 in its middle."""
    return ratios.clamp(-REACH, REACH).div_(width).round_().long().add_(cell_count(width) // 2)


def cell_count(width: float = CELL) -> int:
    """How many cells of this width there are."""
    return 2 * round(REACH / width) + 1


def mass_in(
    places: Int[Tensor, "*row item"], mass: Float[Tensor, "*row item"], count: int
) -> Float[Tensor, "*row place"]:
    """How much of `mass` lies in each of `count` places, summed over the last axis."""
    return mass.new_zeros(*mass.shape[:-1], count).scatter_add(-1, places, mass)


def quantile_bins(law: Float[Tensor, "*row cell"], bins: int) -> Int[Tensor, "*row cell"]:
    """Bins, 0 to `bins` - 1, of about equal mass under a law over cells; a cell is never divided.

    So a bin is at least as wide as a cell. That matters: quantiles alone split log-ratios that differ by a hundredth of
    a nat, and then take noise for structure (docs/studies/logit-composition.md).

    Args:
        law: mass in each cell.
        bins: how many; fewer are in use where single cells hold more than a bin's share.
    """
    below = law.cumsum(-1) - law
    share = below / law.sum(-1, keepdim=True).clamp(min=torch.finfo(law.dtype).tiny)
    return (share * bins + 1e-6).long().clamp_(0, bins - 1)
