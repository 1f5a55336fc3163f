"""The mixture rule: average probabilities instead of multiplying them."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, logsumexp

from counterpoint.composition.evidence import Evidence
from counterpoint.composition.rules import rule
from counterpoint.errors import NumericsError


def _objection(weights: Sequence[float]) -> str | None:
    if min(weights) >= 0 and any(weights):
        return None
    given = ", ".join(f"{weight:g}" for weight in weights)
    return f"rule mixture: weights must be >= 0 and not all zero, not ({given})"


@rule(objection=_objection)
def mixture(evidence: Evidence, weights: Float[Tensor, " component"]) -> Float[Tensor, "*position vocab"]:
    """log sum_i w_i p_i / sum_i w_i. The base has no share of its own, and `relative_to` plays no part.

    Raises:
        NumericsError: a weight is negative, or all are zero: the average is not defined.
    """
    if objection := _objection(weights.tolist()):
        raise NumericsError(objection)
    shares = (weights / weights.sum()).log()
    return logsumexp(evidence.log_probs + shares.view(-1, *[1] * (evidence.log_probs.dim() - 1)), dim=0)
