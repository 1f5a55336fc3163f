"""The mixture rule: average probabilities instead of multiplying them."""

from jaxtyping import Float
from torch import Tensor, logsumexp

from counterpoint.composition.evidence import Evidence
from counterpoint.composition.rules import rule
from counterpoint.errors import NumericsError


@rule
def mixture(evidence: Evidence, weights: Float[Tensor, " component"]) -> Float[Tensor, "*position vocab"]:
    """log sum_i w_i p_i / sum_i w_i. The base has no share of its own, and `relative_to` plays no part.

    Raises:
        NumericsError: a weight is negative, or all are zero: the average is not defined.
    """
    if (weights < 0).any() or not weights.any():
        given = ", ".join(f"{weight:g}" for weight in weights.tolist())
        raise NumericsError(f"rule mixture: weights must be >= 0 and not all zero, not ({given})")
    shares = (weights / weights.sum()).log()
    return logsumexp(evidence.log_probs + shares.view(-1, *[1] * (evidence.log_probs.dim() - 1)), dim=0)
