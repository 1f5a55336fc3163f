"""Every measure against sums in plain Python, and against the theory where it says what must come out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.diagnostics import measures as ms


def draw(components: int, vocabulary: int, seed: int, spread: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    """log p_b (vocab), log p_i (component, vocab) and log p̂ of the product."""
    generator = torch.Generator().manual_seed(seed)
    log_base = (2 * torch.randn(vocabulary, generator=generator)).log_softmax(-1)
    ratio = spread * torch.randn(components, vocabulary, generator=generator)
    log_components = (log_base + ratio).log_softmax(-1)
    return log_base, log_components, (log_base + (log_components - log_base).sum(0)).log_softmax(-1)


def factorised(components: int, sizes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens are tuples of features; each component changes the law of its own. Also gives each token's features."""
    generator = torch.Generator().manual_seed(seed)
    base = [(2 * torch.randn(sizes, generator=generator).double()).softmax(0) for _ in range(components)]
    own = [(2 * torch.randn(sizes, generator=generator).double()).softmax(0) for _ in range(components)]
    features = torch.cartesian_prod(*[torch.arange(sizes)] * components).view(-1, components)

    def law(parts: list[Tensor]) -> Tensor:
        return torch.stack([part[features[:, i]].log() for i, part in enumerate(parts)]).sum(0)

    log_components = torch.stack([law([*base[:i], own[i], *base[i + 1 :]]) for i in range(components)])
    return law(base), log_components, law(own), features


@given(st.integers(1, 3), st.integers(2, 40), st.integers(0, 10_000), st.floats(0.1, 3))
@settings(max_examples=40, deadline=None)
def test_every_measure_is_its_formula(components: int, vocabulary: int, seed: int, spread: float) -> None:
    log_base, log_components, _ = draw(components, vocabulary, seed, spread)
    log_hat = draw(1, vocabulary, seed + 1)[0]  # any distribution, not only the product
    found = ms.measure(log_base, log_components, log_hat)
    b, hat = log_base.double().exp().tolist(), log_hat.double().exp().tolist()
    ps = log_components.double().exp().tolist()
    r = [[math.log(p / q) for p, q in zip(one, b, strict=True)] for one in ps]
    vs = range(vocabulary)
    z = sum(b[v] * math.exp(sum(one[v] for one in r)) for v in vs)
    assert found.log_partition.item() == pytest.approx(math.log(z), abs=1e-4)
    for n, (i, j) in enumerate(ms.pairs_of(components)):
        expected = math.log(sum(b[v] * math.exp(r[i][v] + r[j][v]) for v in vs))
        assert found.interference[n].item() == pytest.approx(expected, abs=1e-4)
    for i in range(components):
        assert found.activity[i].item() == pytest.approx(sum(ps[i][v] * r[i][v] for v in vs), abs=1e-4)
        assert found.evidence[i].item() == pytest.approx(sum(hat[v] * r[i][v] for v in vs), abs=1e-4)
        order = sorted(vs, key=lambda v: r[i][v])
        distance, ahead = 0.0, 0.0
        for v, following in itertools.pairwise(order):
            ahead += hat[v] - ps[i][v]
            distance += abs(ahead) * (r[i][following] - r[i][v])
        assert found.gap[i].item() == pytest.approx(distance, abs=1 / 64)
    tops = [max(vs, key=one.__getitem__) for one in [b, *ps]]
    assert found.orphan.item() == (max(vs, key=hat.__getitem__) not in tops)


@given(st.integers(2, 4), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_factorised_conditionals_leave_nothing_to_measure(components: int, seed: int) -> None:
    log_base, log_components, log_hat, features = factorised(components, 4, seed)
    exact = ms.measure(log_base, log_components, log_hat)
    log_base, log_components, log_hat = log_base.float(), log_components.float(), log_hat.float()
    product = (log_base + (log_components - log_base).sum(0)).log_softmax(-1)
    torch.testing.assert_close(product, log_hat, atol=1e-3, rtol=1e-3)
    found = ms.measure(log_base, log_components, product)
    for name in ("log_partition", "interference", "gap", "bin_distance"):
        assert getattr(exact, name).abs().max() < 1e-9
        # in float32, equal log-ratios may come to lie on either side of a cell's edge
        assert getattr(found, name).abs().max() < (1 / 64 if name == "gap" else 1e-3)
    torch.testing.assert_close(found.evidence, found.activity, atol=1e-3, rtol=1e-3)
    for i in range(components):
        assert ms.marginal_errors(product, log_components[i], features[:, i]) < 1e-4


def test_the_sign_of_interference() -> None:
    """Identical components are counted twice; components that exclude each other's tokens conflict."""
    log_base = torch.full((4,), 0.25).log()
    up, down = torch.tensor([0.7, 0.1, 0.1, 0.1]).log(), torch.tensor([0.04, 0.32, 0.32, 0.32]).log()
    assert ms.interference(log_base, torch.stack([up, up]))[0] > 0.5
    assert ms.interference(log_base, torch.stack([up, down]))[0] < -0.3
    chi_squared = ((up.exp() - 0.25) * (down.exp() - 0.25) / 0.25).sum()
    assert ms.interference(log_base, torch.stack([up, down]))[0].expm1().item() == pytest.approx(
        chi_squared.item(), abs=1e-6
    )


def test_the_gap_grows_with_what_is_moved() -> None:
    """Moving mass m from one log-ratio to another costs m times their distance, whatever else there is."""
    law, other = torch.zeros(3, 4097), torch.zeros(3, 4097)
    law[:, 100], law[:, 300] = 0.5, 0.5
    other[:, 100] = torch.tensor([0.5, 0.25, 0.0])
    other[:, 300] = 1 - other[:, 100]
    assert ms.wasserstein(law, other).tolist() == pytest.approx([0.0, 0.25 * 200 / 64, 0.5 * 200 / 64])


def test_retained_evidence_is_undefined_where_a_component_is_silent() -> None:
    activity, evidence = torch.tensor([[2.0, 0.01]]), torch.tensor([[1.0, 0.5]])
    found = ms.retained_evidence(evidence, activity)[0]
    assert found[0] == 0.5
    assert found[1].isnan()
    assert ms.both_active(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).tolist() == [True, False, False]


def test_positions_are_independent_of_each_other() -> None:
    each = [draw(3, 50, seed) for seed in range(6)]
    log_base, log_hat = (torch.stack([one[n] for one in each]).view(2, 3, 50) for n in (0, 2))
    log_components = torch.stack([one[1] for one in each], 1).view(3, 2, 3, 50)
    together = ms.measure(log_base, log_components, log_hat)
    for n, (b, c, h) in enumerate(each):
        alone = ms.measure(b, c, h)
        for name in ("log_partition", "interference", "activity", "evidence", "gap", "bin_distance", "orphan"):
            torch.testing.assert_close(getattr(together, name)[..., n // 3, n % 3], getattr(alone, name))


@pytest.mark.parametrize("vocabulary", [2, 150_000])
@pytest.mark.parametrize("components", [1, 16])
def test_extremes_are_finite(vocabulary: int, components: int) -> None:
    """One token with all the mass, tokens that a model excludes, identical and opposite components."""
    log_base, log_components, _ = draw(components, vocabulary, 0, spread=0.3)
    log_components[0] = torch.full((vocabulary,), -1e4).index_fill(0, torch.tensor([1]), 0.0).log_softmax(-1)
    if components > 1:
        log_components[1] = log_components[0]
        log_components[2] = (2 * log_base - log_components[3]).log_softmax(-1)
        log_components[4, 0] = -math.inf
        log_components[4] = log_components[4].log_softmax(-1)
    log_hat = log_components[0]
    found = ms.measure(log_base, log_components, log_hat)
    for name in ("log_partition", "interference", "activity", "evidence", "gap", "bin_distance"):
        assert getattr(found, name).isfinite().all(), name
    assert found.gap[0] < 1e-5
    assert found.activity[0].item() == pytest.approx(-log_base[1].item(), rel=1e-4)
