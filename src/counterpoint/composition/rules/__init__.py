"""Rules: how next-token distributions combine. One file a rule; a new file in this folder is a new rule.

A rule is a pure function `rule(evidence, weights) -> log scores`. It knows no model. The scores need not be
normalised: `compose` does that, and the normaliser is the log-partition log Z.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from counterpoint.composition.evidence import Evidence

Rule = Callable[[Evidence, Float[Tensor, " component"]], Float[Tensor, "*position vocab"]]

RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a function as the rule of its name."""
    RULES[function.__name__] = function
    return function


for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
