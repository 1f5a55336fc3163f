"""Figures as the page writes them."""

from __future__ import annotations

import math
from collections.abc import Callable

from counterpoint.diagnostics.results import Estimate, Number

Write = Callable[[float], str]
NOTHING = Estimate(mean=None, low=None, high=None)


def plain(value: float) -> str:
    """About three digits, with a true minus sign: 0.042, 1.31, −12.4, 1,204."""
    size = abs(value)
    if math.isnan(size):
        return "not a number"
    if math.isinf(size):
        text = "∞"
    else:
        text = f"{size:,.{3 if size < 0.0995 else 2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
    return f"−{text}" if value < 0 and text.strip("0.") else text


def signed(value: float) -> str:
    """As `plain`, with a plus sign before what is above 0."""
    text = plain(value)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def share(value: float) -> str:
    """A share in per cent, with a digit after the point where there would be few otherwise."""
    percent = 100 * value
    return f"{percent:.{1 if 0 < percent < 9.95 else 0}f}\u202f%"


def interval(estimate: Estimate, write: Write) -> str:
    """The ends of the interval, or empty where it has none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{write(estimate.low)} to {write(estimate.high)}"


def finite(value: Number) -> float | None:
    """The value, or None where it cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None


def ceiling(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def letter(component: int) -> str:
    """A, B, ... Z, AA, AB, ...: the sign of a component on the page."""
    text, rest = "", component + 1
    while rest:
        rest, digit = divmod(rest - 1, 26)
        text = chr(ord("A") + digit) + text
    return text
