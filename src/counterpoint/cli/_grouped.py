"""Verbs whose parameters are dataclasses of options."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as typer sees it: a parameter that is a dataclass becomes the options that are its fields."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    plain = [p.replace(annotation=hints[n]) for n, p in inspect.signature(verb).parameters.items() if n not in groups]
    spread = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for group in groups.values()
        for field in fields(group)
    ]

    def called(**values: Any) -> None:
        filled = {n: g(**{f.name: values.pop(f.name) for f in fields(g)}) for n, g in groups.items()}
        verb(**values, **filled)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in plain] + spread
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    called.__name__, called.__doc__ = verb.__name__, verb.__doc__
    return called
