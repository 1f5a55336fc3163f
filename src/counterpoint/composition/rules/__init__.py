"""Rules: how next-token distributions combine. One file a rule; a new file in this folder is a new rule.

A rule is a pure function `rule(evidence, weights, **options) -> log scores`. It knows no model. The scores need not be
normalised: `combine` does that, and the normaliser is the log-partition log Z. Its keyword-only parameters are the
options that a recipe may set with `rule_options`; their annotations are checked by pydantic.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """What a rule may give instead of bare scores: also notes on how it went.

    Attributes:
        scores: log scores, (*position, vocab).
        notes: name -> figures, (*position) or (component, *position), for `ComposedOutput.notes`.
    """

    scores: Tensor
    notes: Mapping[str, Tensor] = field(default_factory=dict)


Rule = Callable[..., Tensor | Scored]
Objection = Callable[[Sequence[float]], str | None]

RULES: dict[str, Rule] = {}
OBJECTIONS: dict[str, Objection] = {}
OPTIONS: dict[str, type[BaseModel]] = {}


def rule(function: Rule | None = None, *, objection: Objection | None = None) -> Any:
    """Register a function as the rule of its name, with `@rule` or `@rule(objection=...)`.

    Args:
        function: the rule.
        objection: says in words what is wrong with some weights under this rule, or None; asked before anything runs.
    """
    if function is None:
        return partial(rule, objection=objection)
    name = function.__name__
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    fields: Any = {p.name: (hints[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
    settings = ConfigDict(extra="forbid", allow_inf_nan=False)
    OPTIONS[name] = create_model(name, __config__=settings, **fields)
    RULES[name] = function
    if objection is not None:
        OBJECTIONS[name] = objection
    return function


for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
