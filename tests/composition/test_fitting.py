"""Fitting weights: against grids, finite differences and known truths, at every extreme that users may bring."""

from __future__ import annotations

import math
from itertools import product

import numpy
import pytest
import torch
from torch import Tensor

from counterpoint import ComposedModel
from counterpoint.composition import fitting
from counterpoint.composition.evidence import NEVER
from counterpoint.composition.fitting import collinear, fit_weights, log_likelihoods, moments, objective, unidentified
from counterpoint.composition.gathering import gather
from counterpoint.errors import NumericsError
from worlds import tables

World = tuple[Tensor, Tensor, Tensor]
FREE = {"l2": 0.0, "lower": -50.0, "upper": 50.0}


def world(components: int, positions: int = 40, vocab: int = 7, seed: int = 0, truth: float | None = 1.0) -> World:
    """Random log-probabilities, float64; targets drawn with every weight `truth`, or uniformly for None."""
    generator = torch.Generator().manual_seed(seed)
    voices = torch.randn(1 + components, positions, vocab, generator=generator, dtype=torch.float64).log_softmax(-1)
    base, ratios = voices[0], voices[1:] - voices[0]
    scores = torch.zeros_like(base) if truth is None else base + truth * ratios.sum(0)
    return base, ratios, torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]


def by_hand(data: World, weights: list[float], l2: float) -> float:
    """F(w), written out token by token."""
    base, ratios, target = (part.numpy() for part in data)
    total = 0.0
    for t in range(len(target)):
        scores = [base[t, v] + sum(w * ratios[i, t, v] for i, w in enumerate(weights)) for v in range(base.shape[1])]
        total += math.log(sum(math.exp(s) for s in scores)) - scores[target[t]]
    return total / len(target) + l2 / 2 * sum((w - 1) ** 2 for w in weights)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.3, -2.0], [0.0, 0.0], [10.0, 4.0]])
def test_value_gradient_and_hessian_against_differences(weights: list[float]) -> None:
    data, l2, step = world(2), 0.3, 1e-4
    found = moments(*data, torch.tensor(weights, dtype=torch.float64), l2)
    assert found.value == pytest.approx(by_hand(data, weights, l2), rel=1e-12)
    assert objective(*data, torch.tensor(weights, dtype=torch.float64), l2) == pytest.approx(found.value, rel=1e-12)

    def at(*moves: tuple[int, float]) -> float:
        moved = list(weights)
        for i, by in moves:
            moved[i] += by
        return by_hand(data, moved, l2)

    for i in range(2):
        slope = (at((i, step)) - at((i, -step))) / (2 * step)
        assert float(found.gradient[i]) == pytest.approx(slope, abs=1e-6)
        for j in range(2):
            signs = [(a, b) for a in (1, -1) for b in (1, -1)]
            bend = sum(a * b * at((i, a * step), (j, b * step)) for a, b in signs) / (4 * step**2)
            assert float(found.hessian[i, j]) == pytest.approx(bend, abs=1e-5)
    torch.testing.assert_close(found.hessian - found.covariance, 0.3 * torch.eye(2, dtype=torch.float64))


def of_grid(data: World, grid: numpy.ndarray, l2: float) -> numpy.ndarray:
    """F at every row of (setting, component)."""
    base, ratios, target = (part.numpy() for part in data)
    scores = base + numpy.einsum("gc,cpv->gpv", grid, ratios)
    given = scores[:, numpy.arange(len(target)), target]
    return (numpy.log(numpy.exp(scores).sum(-1)) - given).mean(1) + l2 / 2 * ((grid - 1) ** 2).sum(1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("l2", [0.01, 0.5])
def test_the_minimum_is_that_of_a_grid(seed: int, l2: float) -> None:
    data = world(2, positions=25, vocab=5, seed=seed)
    fit = fit_weights(*data, l2=l2, lower=-1.0, upper=3.0)
    steps = numpy.arange(-1, 3.0001, 0.01)
    grid = numpy.array(list(product(steps, steps)))
    values = numpy.concatenate([of_grid(data, part, l2) for part in numpy.array_split(grid, 50)])
    best = grid[values.argmin()].tolist()
    assert fit.weights.tolist() == pytest.approx(best, abs=0.02)
    assert fit.after <= values.min() + 1e-12
    assert values.min() == pytest.approx(by_hand(data, best, l2), rel=1e-9)
    assert fit.after == pytest.approx(by_hand(data, fit.weights.tolist(), l2), rel=1e-9)
    assert fit.before == pytest.approx(by_hand(data, [1.0, 1.0], l2), rel=1e-9)
    assert fit.gradient_norm < 1e-5


def test_known_weights_are_recovered_from_what_they_wrote() -> None:
    """Text of a composed model of plain tables with w = (0.6, 1.7): standard errors are of the right size."""
    models = tables(["base", "a", "b"], 12, spread=1.2)
    components = {"a": {"model": "a", "weight": 0.6}, "b": {"model": "b", "weight": 1.7}}
    model, misses = ComposedModel.from_recipe(base="base", components=components, models=models), []
    table = model(torch.arange(12)[None]).logits[0].exp()
    for seed in range(12):
        torch.manual_seed(100 + seed)  # the tables have the first few
        written = [0]
        for _ in range(1200):
            written.append(int(torch.multinomial(table[written[-1]], 1)))
        ids = torch.tensor([written])
        found = gather(model, [(ids, ids.masked_fill(torch.arange(1201) == 0, -100))], [range(1200)], [0, 1])
        fit = fit_weights(found.log_base, found.log_ratios, found.target, l2=0.0)
        misses += ((fit.weights - torch.tensor([0.6, 1.7])) / fit.standard_errors).tolist()
        assert fit.after < fit.before
    assert max(map(abs, misses)) < 4  # of 24: 3 is passed by one in 16 such lists
    assert sum(abs(miss) < 2 for miss in misses) >= 20
    assert 0.7 < float(numpy.std(misses)) < 1.4


def test_a_bound_holds_and_the_other_weights_make_the_best_of_it() -> None:
    data = world(3, positions=300, truth=1.0)
    free = fit_weights(*data, **FREE)
    assert (free.weights > 0.4).all()
    held = fit_weights(*data, l2=0.0, lower=-1.0, upper=0.4)
    assert held.weights.tolist() == [0.4] * 3
    assert held.standard_errors.isnan().all()
    assert held.gradient_norm == 0
    data = (data[0], data[1], world(3, positions=300, truth=2.0)[2])
    mixed = fit_weights(data[0], data[1] * torch.tensor([1.0, 10.0, -1.0])[:, None, None], data[2], l2=0.0, upper=1.5)
    assert mixed.weights[0] == 1.5
    assert mixed.weights[2] == -1
    assert 0.1 < mixed.weights[1] < 0.3
    assert mixed.standard_errors.isnan().tolist() == [True, False, True]
    scaled = (data[0], data[1] * torch.tensor([1.0, 10.0, -1.0])[:, None, None], data[2])
    for by in (-1e-3, 1e-3):
        moved = mixed.weights + torch.tensor([0, by, 0])
        assert objective(*scaled, moved, 0.0) > mixed.after
    for i, by in ((0, -1e-3), (2, 1e-3)):
        moved = mixed.weights.clone()
        moved[i] += by
        assert objective(*scaled, moved, 0.0) > mixed.after


def test_a_strong_pull_gives_one_and_a_weaker_one_less() -> None:
    data = world(2, truth=3.0)
    away = [float((fit_weights(*data, l2=l2, upper=50.0).weights - 1).norm()) for l2 in (0.0, 0.01, 1.0, 100.0, 1e8)]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 1e-6
    assert away[0] > 1


@pytest.mark.parametrize("start", [[0.0, 0.0, 0.0], [-1.0, -1.0, -1.0], [10.0, 10.0, -10.0], [5.0, -1.0, 5.0]])
def test_it_ends_in_the_same_place_from_everywhere(start: list[float]) -> None:
    data = world(3)
    for l2 in (0.01, 0.0):
        expected = fit_weights(*data, l2=l2)
        fit = fit_weights(*data, torch.tensor(start), l2=l2)
        torch.testing.assert_close(fit.weights, expected.weights, atol=1e-5, rtol=0)
        assert fit.steps < 20


def test_the_order_of_components_does_not_matter() -> None:
    base, ratios, target = world(4)
    order = [2, 0, 3, 1]
    one, other = fit_weights(base, ratios, target), fit_weights(base, ratios[order], target)
    torch.testing.assert_close(one.weights[order], other.weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(one.standard_errors[order], other.standard_errors, atol=1e-6, rtol=1e-5)


def test_constants_of_a_position_and_the_size_of_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    base, ratios, target = world(3)
    expected = fit_weights(base, ratios, target)
    shifted = fit_weights(base + torch.randn(40, 1), ratios + torch.randn(3, 40, 1), target)
    torch.testing.assert_close(shifted.weights, expected.weights, atol=1e-6, rtol=0)
    monkeypatch.setattr(fitting, "MOST_AT_ONCE", 50)
    torch.testing.assert_close(fit_weights(base, ratios, target).weights, expected.weights, atol=1e-9, rtol=0)
    single = fit_weights(base.float(), ratios.float(), target)
    torch.testing.assert_close(single.weights, expected.weights, atol=1e-5, rtol=0)


def test_sixteen_components() -> None:
    data = world(16, positions=4000, vocab=5, truth=1.0)
    fit = fit_weights(*data, **FREE)
    assert ((fit.weights - 1).abs() < 4 * fit.standard_errors).all()
    assert collinear(fit.covariance) == unidentified(fit.covariance) == []
    few = fit_weights(*world(16, positions=3), lower=-1.0, upper=2.0)
    assert few.gradient_norm < 1e-5
    assert ((few.weights >= -1) & (few.weights <= 2)).all()


def test_a_vocabulary_of_two_by_hand() -> None:
    """One component that doubles the odds; 3 of 4 tokens are that one: odds 3 = 2^w, and the curvature is p(1-p)."""
    base = torch.full((4, 2), -math.log(2))
    ratios = torch.tensor([math.log(2), 0.0]).expand(1, 4, 2)
    fit = fit_weights(base, ratios, torch.tensor([0, 0, 1, 0]), l2=0.0)
    assert fit.weights.tolist() == pytest.approx([math.log2(3)])
    assert fit.standard_errors.tolist() == pytest.approx([1 / math.sqrt(4 * 3 / 16 * math.log(2) ** 2)])
    always = fit_weights(base, ratios, torch.zeros(4, dtype=torch.long), l2=0.0)
    assert always.weights.tolist() == [fitting.UPPER]
    never = fit_weights(base, ratios, torch.ones(4, dtype=torch.long), l2=0.0)
    assert never.weights.tolist() == [fitting.LOWER]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("l2", [0.01, 0.0])
def test_components_that_say_the_same_or_the_opposite_are_told(sign: int, l2: float) -> None:
    base, ratios, target = world(2, positions=400)
    alone = fit_weights(base, ratios[:1], target, l2=0.0)
    both = fit_weights(base, torch.cat([ratios[:1], sign * ratios[:1], ratios[1:]]), target, l2=l2)
    assert collinear(both.covariance) == [0, 1]
    assert unidentified(both.covariance) == []
    if sign == 1:
        assert both.weights[0] == pytest.approx(float(both.weights[1]), abs=1e-4)
    again = fit_weights(base, ratios[:1], target, l2=0.0, start=alone.weights)
    assert again.steps == 0
    pair = fit_weights(base, torch.cat([ratios[:1], sign * ratios[:1]]), target, l2=l2)
    together = float(pair.weights[0] + sign * pair.weights[1])
    assert together == pytest.approx(float(alone.weights[0]), abs=0.03)


def test_a_component_that_says_nothing_is_told_and_left_at_one() -> None:
    base, ratios, target = world(1)
    silent = torch.cat([ratios, 1e-7 * torch.randn_like(ratios), torch.full_like(ratios, 3.0)])
    for l2 in (0.01, 0.0):
        fit = fit_weights(base, silent, target, l2=l2)
        assert unidentified(fit.covariance) == [1, 2]
        assert collinear(fit.covariance) == []
        torch.testing.assert_close(fit.weights[1:], torch.ones(2, dtype=torch.float64), atol=1e-3, rtol=0)
        assert fit.weights[0] == pytest.approx(float(fit_weights(base, ratios, target, l2=l2).weights[0]), abs=1e-5)


def test_tokens_without_probability() -> None:
    base, ratios, target = world(2, vocab=6)
    for token in (4, 5):
        target[target == token] = 0
    base[:, 5], ratios[:, :, 5] = -math.inf, 0.0
    plain = fit_weights(base[:, :5], ratios[:, :, :5], target)
    torch.testing.assert_close(fit_weights(base, ratios, target).weights, plain.weights)
    ratios[0, :, 4] = NEVER
    without = [0, 1, 2, 3]
    expected = fit_weights(base[:, without], ratios[:, :, without], target, l2=0.0, lower=0.2)
    fit = fit_weights(base, ratios, target, l2=0.0, lower=-1.0)
    torch.testing.assert_close(fit.weights, expected.weights, atol=1e-5, rtol=0)
    unlike = ratios[0, :, :4].argmin(-1)  # asks for a negative weight, under which token 4 would be all there is
    fit = fit_weights(base, ratios[:1], unlike, l2=0.0)
    assert 0 < float(fit.weights[0]) < 0.05
    assert fit.gradient_norm < 1e-5
    with pytest.raises(NumericsError) as caught:
        fit_weights(base, ratios, torch.full_like(target, 5))
    assert str(caught.value) == "position 0: the base gives its token probability 0, and so do all weights"
    with pytest.raises(NumericsError, match=r"^there are no tokens to fit weights to$"):
        fit_weights(base[:0], ratios[:, :0], target[:0])


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_the_best_within_its_bounds(seed: int) -> None:
    """Against all 3^k ways to have components free or at a bound."""
    generator = torch.Generator().manual_seed(seed)
    count = 4
    root = torch.randn(count, count, generator=generator, dtype=torch.float64)
    hessian, gradient = root @ root.T, 3 * torch.randn(count, generator=generator, dtype=torch.float64)
    low, high = -torch.rand(2, count, generator=generator, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]])
    low[0] = high[1] = 0.0

    def value(step: Tensor) -> float:
        return float(gradient @ step + step @ hessian @ step / 2)

    best = math.inf
    for places in product(("free", "low", "high"), repeat=count):
        step = torch.zeros_like(gradient)
        free = torch.tensor([place == "free" for place in places])
        for i, place in enumerate(places):
            step[i] = {"free": 0.0, "low": float(low[i]), "high": float(high[i])}[place]
        if free.any():
            step[free] = torch.linalg.solve(hessian[free][:, free], -(gradient + hessian @ step)[free])
        if bool(((step >= low) & (step <= high)).all()):
            best = min(best, value(step))
    found = fitting._bounded_step(gradient, hessian, low, high)
    assert bool(((found >= low) & (found <= high)).all())
    assert value(found) == pytest.approx(best, abs=1e-7)


def test_log_likelihoods_of_several_settings() -> None:
    data = world(2, positions=9)
    settings = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, -2.0]])
    found = log_likelihoods(*data, settings)
    assert found.shape == (3, 9)
    index = data[2][:, None]
    torch.testing.assert_close(found[0], data[0].gather(1, index)[:, 0])
    torch.testing.assert_close(found[1], (data[0] + data[1][0]).gather(1, index)[:, 0])
    assert -found[2].mean() == pytest.approx(by_hand(data, [0.5, -2.0], 0), rel=1e-6)
