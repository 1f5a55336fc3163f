"""The product rule, the paper's logit composition."""

from jaxtyping import Float
from torch import Tensor, einsum

from counterpoint.composition.evidence import Evidence
from counterpoint.composition.rules import rule


@rule
def product(evidence: Evidence, weights: Float[Tensor, " component"]) -> Float[Tensor, "*position vocab"]:
    """log p_b + sum_i w_i r_i (arXiv 2605.28304, the composition operator; there every w_i = 1).

    With no base p_b is uniform, so this is the weighted geometric mean of the components.
    """
    return evidence.log_base + einsum("c,c...->...", weights, evidence.log_ratios)
