"""Budgets: the divergence stays within its limit, and nothing nearer to the composed distribution would do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint import ComposedModel
from counterpoint.composition.budgets import within_budgets
from counterpoint.errors import RecipeError
from worlds import tables


def draw(seed: int, count: int, spread: float = 2.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(spread * torch.randn(3, 20, generator=generator)).log_softmax(-1) for _ in range(count)]


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.double().exp() * (log_p.double() - log_q.double())).sum(-1)


@given(st.integers(0, 1000), st.floats(0.01, 3))
@settings(max_examples=30, deadline=None)
def test_one_budget_is_met_exactly_where_it_binds(seed: int, limit: float) -> None:
    log_hat, log_q = draw(seed, 2)
    log_p, reached = within_budgets(log_hat, log_q.unsqueeze(0), torch.tensor([limit]))
    free = divergence(log_hat, log_q)
    torch.testing.assert_close(reached[0].double(), divergence(log_p, log_q), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(reached[0].double(), free.clamp(max=limit), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(log_p[free <= limit], log_hat[free <= limit])


@given(st.integers(0, 300))
@settings(max_examples=15, deadline=None)
def test_no_other_distribution_within_the_budgets_is_nearer(seed: int) -> None:
    """Against many distributions inside both balls, found by pulling random ones towards the answer."""
    log_hat, one, two = draw(seed, 3, spread=1.0)
    limits = torch.tensor([0.4, 0.5])
    log_p, reached = within_budgets(log_hat, torch.stack([one, two]), limits)
    feasible = (reached <= limits.view(2, 1) + 2e-3).all(0)
    best = divergence(log_p, log_hat)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(200):
        other = torch.randn(3, 20, generator=generator).softmax(-1)
        share = torch.rand(3, 1, generator=generator) * 0.2
        mixed = ((1 - share) * log_p.exp() + share * other).log()
        inside = (divergence(mixed, one) <= limits[0]) & (divergence(mixed, two) <= limits[1]) & feasible
        assert (divergence(mixed, log_hat)[inside] >= best[inside] - 3e-3).all()


def test_no_budget_at_all_and_a_budget_of_nothing() -> None:
    log_hat, log_q = draw(0, 2)
    log_p, reached = within_budgets(log_hat, log_q.unsqueeze(0), torch.tensor([0.0]))
    torch.testing.assert_close(log_p.exp(), log_q.exp(), atol=1e-3, rtol=1e-3)
    assert reached.abs().max() < 1e-3
    torch.testing.assert_close(within_budgets(log_hat, log_q.unsqueeze(0), torch.tensor([1e3]))[0], log_hat)


def test_budgets_that_contradict_each_other_settle_between() -> None:
    """Two distributions that hardly overlap cannot both be nearer than half their distance: the Chernoff point."""
    q = torch.tensor([[[0.98, 0.01, 0.01]], [[0.01, 0.98, 0.01]]]).log()
    hat = torch.tensor([[0.2, 0.2, 0.6]]).log()
    log_p, reached = within_budgets(hat, q, torch.tensor([0.05, 0.05]))
    assert log_p.isfinite().all()
    assert reached[0].item() == pytest.approx(reached[1].item(), rel=0.1)


@pytest.mark.parametrize("vocabulary", [2, 150_000])
def test_extremes_are_finite(vocabulary: int) -> None:
    log_hat = torch.full((1, vocabulary), -1e4).index_fill(1, torch.tensor([1]), 0.0).log_softmax(-1)
    log_q = torch.full((1, vocabulary), 0.0).index_fill(1, torch.tensor([1]), -math.inf).log_softmax(-1)
    even = torch.zeros(1, vocabulary).log_softmax(-1)
    for q in (log_q, even, log_hat):
        log_p, reached = within_budgets(log_hat, q.unsqueeze(0), torch.tensor([0.5]))
        assert not log_p.isnan().any()
        assert reached.isfinite().all()
        assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-3)


def test_a_recipe_with_budgets() -> None:
    models = tables(["b", "x", "y"], 15, spread=2.0)
    fields = {"base": "b", "components": {"x": {"model": "x"}, "y": {"model": "y"}}, "models": models}
    free = ComposedModel.from_recipe(**fields)(torch.arange(15)[None]).logits
    composed = ComposedModel.from_recipe(**fields, budgets={"base": 0.3, "x": 9.0})
    output = composed(torch.arange(15)[None])
    table = models["b"][0].table
    assert divergence(free[0], table).max() > 0.5
    assert divergence(output.logits[0], table).max() < 0.31
    assert output.notes["divergence"].shape == (2, 1, 15)
    for budgets, text in (
        ({"z": 1.0}, "budgets.z: no component is called 'z'; name one of base, x, y"),
        ({"base": -1.0}, "budgets.base: must be at least 0, not -1.0"),
        ({"base": True}, "budgets.base: must be a number, not true"),
    ):
        with pytest.raises(RecipeError) as error:
            ComposedModel.from_recipe(**fields, budgets=budgets)
        assert str(error.value) == f"recipe: {text}"
