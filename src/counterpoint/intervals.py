"""A figure with its interval: percentile bootstrap over units, and Student's t for a handful of seeds.

A **unit** is what was drawn independently: a prompt, a text, a seed. Tokens of one text are not units.

Which one: with some twenty units or more `bootstrap`, which assumes no shape. With fewer, such as five seeds, its
intervals are too narrow (about 84 % where 95 % is meant, for five normal units), and `student` is right as far as
seeds scatter normally. Either has zero width where all units agree; that says that none of them differed, not that none
ever will.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[numpy.float64]
Statistic = Callable[..., "numpy.float64 | Array"]
"""Called as `statistic(values, axis=-1)`, as numpy's mean, median and std may be."""

LEVEL = 0.95
RESAMPLES = 2000
_MOST_AT_ONCE = 2_000_000


class Interval(NamedTuple):
    """An estimate and the ends of its interval.

    Attributes:
        mean: the statistic of all units (the mean, unless another was asked for); None without units.
        low, high: None with fewer than two units, which say nothing about how units scatter.
    """

    mean: float | None
    low: float | None
    high: float | None


NOTHING = Interval(None, None, None)


def bootstrap(
    values: ArrayLike,
    seed: int,
    statistic: Statistic = numpy.mean,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Interval:
    """A statistic of the units with its percentile bootstrap interval (Efron 1979).

    Args:
        values: one number a unit.
        seed: where resampling begins; the same seed gives the same interval.
        statistic: called with `axis=-1` on (resample, unit).
        level: how often the interval should cover the truth.
        resamples: how often units are drawn with replacement.

    Raises:
        ValueError: a unit is NaN or infinite. Whether an undefined unit may be left out is the caller's to say.
    """
    units = _units(values)
    if not len(units):
        return NOTHING
    estimate = float(statistic(units, axis=-1))
    if len(units) == 1:
        return Interval(estimate, None, None)
    return Interval(estimate, *_ends(_resampled([units], lambda u: statistic(u, axis=-1), seed, resamples), level))


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    seed: int,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Interval:
    """Σ numerators / Σ denominators over units, each unit's two numbers drawn together; arguments as in `bootstrap`.

    All None where the denominators add up to 0, or there are no units. Resamples whose denominators add up to 0 are
    left out.

    Raises:
        ValueError: a number is NaN or infinite, or the lengths differ.
    """
    above, below = _paired(numerators, denominators)
    if not len(above) or below.sum() == 0:
        return NOTHING
    estimate = float(above.sum() / below.sum())
    if len(above) == 1:
        return Interval(estimate, None, None)

    def ratio(above: Array, below: Array) -> Array:
        total = below.sum(axis=-1)
        return numpy.divide(above.sum(axis=-1), total, out=numpy.full_like(total, numpy.nan), where=total != 0)

    drawn = _resampled([above, below], ratio, seed, resamples)
    return Interval(estimate, *_ends(drawn[~numpy.isnan(drawn)], level))


def bootstrap_difference(
    first: ArrayLike,
    second: ArrayLike,
    seed: int,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of first - second over units measured twice, such as two rules on the same prompts; as in `bootstrap`.

    Raises:
        ValueError: a number is NaN or infinite, or the lengths differ.
    """
    one, other = _paired(first, second)
    return bootstrap(one - other, seed, level=level, resamples=resamples)


def student(
    values: ArrayLike,
    *,
    level: float = LEVEL,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """The mean of a few units with Student's t interval.

    Args:
        values: one number a unit.
        level: how often the interval should cover the truth.
        within: the range the figure can have, (0, 1) for a share; the interval is cut to it.

    Raises:
        ValueError: a unit is NaN or infinite.
    """
    units = _units(values)
    if not len(units):
        return NOTHING
    mean = float(units.mean())
    if len(units) == 1:
        return Interval(mean, None, None)
    half = student_quantile(level, len(units) - 1) * float(units.std(ddof=1)) / math.sqrt(len(units))
    return Interval(mean, max(within[0], mean - half), min(within[1], mean + half))


def student_quantile(level: float, freedom: int) -> float:
    """The t with P(|T| < t) = level, for T of Student's law with whole degrees of freedom."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < level else (low, middle)
    return high


def _student_within(t: float, freedom: int) -> float:
    """P(|T| < t): Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even degrees of freedom)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _units(values: ArrayLike) -> Array:
    units = numpy.asarray(values, dtype=numpy.float64)
    if units.ndim != 1:
        raise ValueError(f"one number a unit is needed, not an array of shape {units.shape}")
    if not numpy.isfinite(units).all():
        where = int(numpy.flatnonzero(~numpy.isfinite(units))[0])
        raise ValueError(f"unit {where} is {units[where]}; leave out units that are undefined, and say so")
    return units


def _paired(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    one, other = _units(first), _units(second)
    if len(one) != len(other):
        raise ValueError(f"{len(one)} and {len(other)} numbers: each unit needs both")
    return one, other


def _resampled(units: list[Array], statistic: Callable[..., numpy.float64 | Array], seed: int, resamples: int) -> Array:
    """The statistic of `resamples` draws with replacement; arrays in `units` are drawn together."""
    generator, count = numpy.random.default_rng(seed), len(units[0])
    step = max(1, _MOST_AT_ONCE // count)
    pieces = []
    for start in range(0, resamples, step):
        drawn = generator.integers(0, count, size=(min(step, resamples - start), count))
        pieces.append(numpy.asarray(statistic(*(values[drawn] for values in units))))
    return numpy.concatenate(pieces)


def _ends(drawn: Array, level: float) -> tuple[float | None, float | None]:
    if not len(drawn):
        return None, None
    low, high = numpy.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
