"""Rules: how next-token distributions combine. One file a rule; a new file in this folder is a new rule.

A rule is a pure function `rule(evidence, weights) -> log scores`. It knows no model. The scores need not be
normalised: `combine` does that, and the normaliser is the log-partition log Z.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from counterpoint.composition.evidence import Evidence

Rule = Callable[[Evidence, Float[Tensor, " component"]], Float[Tensor, "*position vocab"]]
Objection = Callable[[Sequence[float]], str | None]

RULES: dict[str, Rule] = {}
OBJECTIONS: dict[str, Objection] = {}


def rule(function: Rule | None = None, *, objection: Objection | None = None) -> Any:
    """Register a function as the rule of its name, with `@rule` or `@rule(objection=...)`.

    Args:
        function: the rule.
        objection: says in words what is wrong with some weights under this rule, or None; asked before anything runs.
    """
    if function is None:
        return partial(rule, objection=objection)
    RULES[function.__name__] = function
    if objection is not None:
        OBJECTIONS[function.__name__] = objection
    return function


for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
