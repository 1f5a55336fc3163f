"""Intervals: known quantiles, coverage by simulation, and what happens where there is little to go by."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest

from counterpoint.intervals import (
    NOTHING,
    Interval,
    bootstrap,
    bootstrap_difference,
    bootstrap_ratio,
    student,
    student_quantile,
)


def coverage(draw, interval, truth: float, rounds: int = 400) -> float:
    generator = numpy.random.default_rng(0)
    found = [interval(draw(generator), round_) for round_ in range(rounds)]
    return sum(i.low <= truth <= i.high for i in found) / rounds


def test_bootstrap_covers_a_skewed_mean_nineteen_times_in_twenty() -> None:
    share = coverage(lambda g: g.exponential(2.0, 60), lambda v, seed: bootstrap(v, seed, resamples=500), truth=2.0)
    assert 0.90 <= share <= 0.97


def test_bootstrap_covers_a_median() -> None:
    share = coverage(
        lambda g: g.normal(1.0, 3.0, 60), lambda v, seed: bootstrap(v, seed, numpy.median, resamples=500), truth=1.0
    )
    assert 0.91 <= share <= 0.98


def test_with_five_units_student_covers_and_the_bootstrap_does_not() -> None:
    def draw(generator):
        return generator.normal(0.3, 1.0, 5)

    assert 0.93 <= coverage(draw, lambda v, _: student(v), truth=0.3, rounds=1500) <= 0.97
    assert 0.78 <= coverage(draw, lambda v, seed: bootstrap(v, seed, resamples=500), truth=0.3) <= 0.90


def test_ratio_of_sums_covers_where_the_mean_of_ratios_would_not() -> None:
    """Units with a small denominator have a high ratio: E[n]/E[d] = 1.5, E[n/d] is far from it."""

    def draw(generator):
        below = generator.uniform(0.1, 1.9, 80)
        return (below * generator.uniform(0.9, 1.1, 80) + 0.5, below)

    share = coverage(draw, lambda both, seed: bootstrap_ratio(*both, seed, resamples=500), truth=1.5)
    assert 0.90 <= share <= 0.98
    above, below = draw(numpy.random.default_rng(1))
    assert abs(numpy.mean(above / below) - 1.5) > 0.2


def test_pairing_removes_what_the_pairs_share() -> None:
    generator = numpy.random.default_rng(0)
    hard = generator.normal(0, 10, 50)
    first, second = hard + 1 + generator.normal(0, 0.1, 50), hard + generator.normal(0, 0.1, 50)
    paired = bootstrap_difference(first, second, seed=0)
    assert paired.low > 0.9
    assert paired.high < 1.1
    assert paired.mean == pytest.approx(first.mean() - second.mean())


def test_bootstrap_is_the_exact_one_in_the_limit() -> None:
    """Three units have 27 equally likely resamples; their quantiles can be listed."""
    values = [1.0, 2.0, 6.0]
    means = sorted(sum(drawn) / 3 for drawn in itertools.product(values, repeat=3))
    found = bootstrap(values, seed=0, level=0.6, resamples=20_000)
    assert found.mean == 3.0
    assert (found.low, found.high) == pytest.approx((means[int(0.2 * 27)], means[math.ceil(0.8 * 27) - 1]))


def test_a_seed_decides_everything() -> None:
    values = numpy.random.default_rng(0).normal(size=30)
    assert bootstrap(values, 5) == bootstrap(values, 5) != bootstrap(values, 6)


@pytest.mark.parametrize(
    ("freedom", "level", "t"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.95, 3.182), (4, 0.95, 2.776), (5, 0.99, 4.032), (30, 0.95, 2.042)],
)
def test_student_quantiles_are_those_of_the_printed_tables(freedom: int, level: float, t: float) -> None:
    assert student_quantile(level, freedom) == pytest.approx(t, abs=6e-4)


def test_student_by_hand() -> None:
    low, high = 3 - 2.776 * math.sqrt(2.5 / 5), 3 + 2.776 * math.sqrt(2.5 / 5)
    assert student([1, 2, 3, 4, 5]) == pytest.approx((3, low, high), abs=1e-3)
    assert student([1, 2, 3, 4, 5], within=(2, 4)) == (3, 2, 4)


def test_one_unit_has_no_interval_and_none_have_no_figure() -> None:
    alone = Interval(2.0, None, None)
    assert bootstrap([2.0], 0) == student([2.0]) == bootstrap_ratio([4.0], [2.0], 0) == alone
    assert bootstrap_difference([5.0], [3.0], 0) == alone
    assert bootstrap([], 0) == student([]) == bootstrap_ratio([], [], 0) == NOTHING


def test_units_that_agree_have_an_interval_without_width() -> None:
    assert bootstrap([0.25] * 9, 0) == student([0.25] * 9) == (0.25, 0.25, 0.25)


def test_a_ratio_without_a_denominator_is_undefined_and_empty_units_are_harmless() -> None:
    assert bootstrap_ratio([1.0, 2.0], [0.0, 0.0], 0) == NOTHING
    mostly_empty = bootstrap_ratio([2.0, 0.0, 0.0], [1.0, 0.0, 0.0], 0)
    assert mostly_empty == (2.0, 2.0, 2.0)


def test_many_units_are_resampled_in_pieces() -> None:
    values = numpy.random.default_rng(0).normal(size=30_000)
    found = bootstrap(values, 0, resamples=200)
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(30_000), rel=0.2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_undefined_units_are_refused(bad: float) -> None:
    for call in (
        lambda v: bootstrap(v, 0),
        student,
        lambda v: bootstrap_ratio([1.0, 1.0, 1.0], v, 0),
        lambda v: bootstrap_difference(v, [1.0, 1.0, 1.0], 0),
    ):
        with pytest.raises(ValueError, match="unit 1 is"):
            call([1.0, bad, 2.0])


def test_lengths_and_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="2 and 3 numbers"):
        bootstrap_ratio([1, 2], [1, 2, 3], 0)
    with pytest.raises(ValueError, match=r"shape \(1, 2\)"):
        bootstrap([[1, 2]], 0)
