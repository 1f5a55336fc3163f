"""Raking and projective: what they promise holds, on laws small enough to check by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint import ComposedModel
from counterpoint.composition.evidence import Evidence, normalise
from counterpoint.composition.rules import RULES, Scored
from counterpoint.errors import RecipeError
from worlds import TableModel, random_table, tables

REPAIRING = ["raking", "projective"]


def voices(components: int, vocabulary: int, seed: int, spread: float = 1.0, positions: int = 1) -> Evidence:
    generator = torch.Generator().manual_seed(seed)
    log_base = (2 * torch.randn(positions, vocabulary, generator=generator)).log_softmax(-1)
    ratio = spread * torch.randn(components, positions, vocabulary, generator=generator)
    return of(log_base, (log_base + ratio).log_softmax(-1))


def of(log_base: Tensor, log_components: Tensor) -> Evidence:
    return Evidence(log_base, log_components, log_base.expand(log_components.shape), against_base=True)


def run(rule: str, evidence: Evidence, weights: list[float] | Tensor | None = None, **options: float) -> Scored:
    weights = torch.ones(len(evidence.log_probs)) if weights is None else torch.as_tensor(weights)
    found = RULES[rule](evidence, weights, **options)
    assert isinstance(found, Scored)
    return found


def log_hat(found: Scored) -> Tensor:
    return normalise(found.scores)[0]


def product(evidence: Evidence, weights: list[float] | None = None) -> Tensor:
    weights = torch.ones(len(evidence.log_probs)) if weights is None else torch.tensor(weights)
    return normalise(RULES["product"](evidence, weights))[0]


def level_sets(values: list[list[float]], seed: int) -> tuple[Evidence, Tensor]:
    """Correlated features: tokens are pairs, p_i moves feature i's law; each r_i has as many values as feature i."""
    sizes = [len(one) for one in values]
    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(sizes, generator=generator).pow(2) + 0.02
    base = base / base.sum()
    first = base * (torch.tensor(values[0]).exp() / 1).unsqueeze(1)
    second = base * torch.tensor(values[1]).exp().unsqueeze(0)
    laws = torch.stack([first / first.sum(), second / second.sum()])
    features = torch.cartesian_prod(*(torch.arange(n) for n in sizes))
    return of(base.flatten().log().unsqueeze(0), laws.flatten(1).log().unsqueeze(1)), features


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_raking_gives_every_feature_its_owners_law(seed: int) -> None:
    """With correlated features the product errs; raked over the level sets of r_i, both marginals are exact."""
    evidence, features = level_sets([[0.0, 1.0, 2.5], [-1.0, 0.0, 1.5, 2.0]], seed)
    found = run("raking", evidence, bins=64, width=1 / 64, sweeps=500, tolerance=1e-6)
    assert found.notes["residual"].max() < 1e-4
    for i, owner in enumerate(evidence.log_probs):
        for value in features[:, i].unique():
            chosen = features[:, i] == value
            ours = log_hat(found).exp()[0, chosen].sum()
            assert ours.item() == pytest.approx(owner.exp()[0, chosen].sum().item(), abs=2e-4)


def test_raking_against_proportional_fitting_in_plain_python() -> None:
    evidence, features = level_sets([[0.0, 1.5], [-1.0, 2.0]], 3)
    p = product(evidence).exp()[0].tolist()
    for _ in range(200):
        for i in (0, 1):
            for value in (0, 1):
                chosen = [v for v in range(4) if features[v, i] == value]
                target = sum(math.exp(evidence.log_probs[i, 0, v].item()) for v in chosen)
                now = sum(p[v] for v in chosen)
                for v in chosen:
                    p[v] *= target / now
    found = run("raking", evidence, width=1 / 64, sweeps=300, tolerance=1e-7)
    assert log_hat(found).exp()[0].tolist() == pytest.approx(p, abs=1e-4)


@pytest.mark.parametrize("rule", REPAIRING)
@given(st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_under_factorised_conditionals_nothing_changes(rule: str, components: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    base = [torch.randn(3, generator=generator).log_softmax(0) for _ in range(components)]
    own = [torch.randn(3, generator=generator).log_softmax(0) for _ in range(components)]
    features = torch.cartesian_prod(*[torch.arange(3)] * components).view(-1, components)

    def law(parts: list[Tensor]) -> Tensor:
        return torch.stack([part[features[:, i]] for i, part in enumerate(parts)]).sum(0)

    mixed = torch.stack([law([*base[:i], own[i], *base[i + 1 :]]) for i in range(components)])
    evidence = of(law(base).unsqueeze(0), mixed.unsqueeze(1))
    torch.testing.assert_close(log_hat(run(rule, evidence)), product(evidence), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("rule", REPAIRING)
@pytest.mark.parametrize("weight", [0.0, 0.6, 1.0, -0.5, 3.0])
def test_a_component_alone_is_itself(rule: str, weight: float) -> None:
    evidence = voices(1, 40, 0, positions=3)
    expected = product(evidence, [weight])
    torch.testing.assert_close(log_hat(run(rule, evidence, [weight])), expected, atol=1e-4, rtol=1e-4)
    silent = voices(2, 40, 0, positions=3)
    alone = of(silent.log_base, silent.log_probs[:1])
    found = run(rule, silent, [1.0, 0.0], **({"rho": 0.1} if rule == "projective" else {}))
    torch.testing.assert_close(log_hat(found), product(alone), atol=2e-3, rtol=2e-3)


def test_one_bin_and_a_large_rho_give_the_product() -> None:
    evidence = voices(3, 50, 1, positions=2)
    torch.testing.assert_close(log_hat(run("raking", evidence, bins=1)), product(evidence), atol=1e-4, rtol=1e-4)
    near = log_hat(run("projective", evidence, rho=1e6))
    torch.testing.assert_close(near, product(evidence), atol=1e-3, rtol=1e-3)


@given(st.integers(1, 4), st.integers(0, 1000), st.floats(0.05, 5.0))
@settings(max_examples=25, deadline=None)
def test_projective_solves_its_equation(components: int, seed: int, rho: float) -> None:
    """E_p̂[r] - E_p[r] + ρ(u - 1) = 0 in double precision, and the problem's value is below that of the product."""
    evidence = voices(components, 30, seed, positions=4)
    found = run("projective", evidence, rho=rho, steps=50, tolerance=1e-5)
    base, ps = evidence.log_base.double(), evidence.log_probs.double()
    ratio = ps - base
    p_hat = log_hat(found).double().exp()
    moments = (ps.exp() * ratio).sum(-1)
    u = found.notes["weights"].double()
    gradient = (p_hat * ratio).sum(-1) - moments + rho * (u - 1)
    assert gradient.abs().max() < 1e-3

    def value(u: Tensor) -> Tensor:
        scores = base + (u.unsqueeze(-1) * ratio).sum(0)
        return scores.logsumexp(-1) - (u * moments).sum(0) + rho / 2 * (u - 1).square().sum(0)

    assert (value(u) <= value(torch.ones_like(u)) + 1e-6).all()


def test_projective_retains_all_evidence_as_rho_vanishes() -> None:
    for seed in range(5):
        evidence, _ = level_sets([[0.0, 1.0, 2.5], [-1.0, 0.0, 1.5, 2.0]], seed)  # feasible: raking finds one that does
        ratio, activity = evidence.log_ratios, (evidence.log_probs.exp() * evidence.log_ratios).sum(-1)
        p_hat = log_hat(run("projective", evidence, rho=1e-4, steps=60, tolerance=1e-5)).exp()
        torch.testing.assert_close((p_hat * ratio).sum(-1), activity, atol=2e-3, rtol=0)
        assert ((product(evidence).exp() * ratio).sum(-1) - activity).abs().max() > 0.02


@pytest.mark.parametrize("rule", REPAIRING)
def test_positions_do_not_touch_each_other(rule: str) -> None:
    evidence = voices(3, 50, 2, positions=6)
    together = log_hat(run(rule, evidence, tolerance=0.0))
    for n in range(6):
        alone = log_hat(run(rule, of(evidence.log_base[n], evidence.log_probs[:, n]), tolerance=0.0))
        torch.testing.assert_close(together[n], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rule", REPAIRING)
def test_order_of_components_and_names_of_tokens_do_not_matter(rule: str) -> None:
    evidence, order, renamed = voices(3, 40, 4, positions=2), [2, 0, 1], torch.randperm(40)
    weights = torch.tensor([1.0, 0.7, 1.6])
    expected = log_hat(run(rule, evidence, weights))
    swapped = log_hat(run(rule, of(evidence.log_base, evidence.log_probs[order]), weights[order]))
    torch.testing.assert_close(swapped, expected, atol=1e-4, rtol=1e-4)
    shuffled = log_hat(run(rule, of(evidence.log_base[:, renamed], evidence.log_probs[..., renamed]), weights))
    torch.testing.assert_close(shuffled, expected[:, renamed], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rule", REPAIRING)
@pytest.mark.parametrize("vocabulary", [2, 150_000])
@pytest.mark.parametrize("weight", [0.0, -1.0, 1.0, 10.0])
def test_extremes_are_finite(rule: str, vocabulary: int, weight: float) -> None:
    """Sixteen components: one token with all the mass, excluded tokens, identical and opposite ones."""
    drawn = voices(16, vocabulary, 0, spread=0.5)
    log_components = drawn.log_probs.clone()
    log_components[0] = torch.full((vocabulary,), -1e4).index_fill(0, torch.tensor([1]), 0.0).log_softmax(-1)
    log_components[1] = log_components[2]
    log_components[3] = (2 * drawn.log_base - log_components[4]).log_softmax(-1)
    log_components[5, :, 0] = -math.inf
    found = run(rule, of(drawn.log_base, log_components.log_softmax(-1)), [weight] * 16)
    assert not log_hat(found).isnan().any()
    assert log_hat(found).exp().sum().item() == pytest.approx(1.0, abs=1e-3)
    assert all(note.isfinite().all() for note in found.notes.values())


@pytest.mark.parametrize("rule", REPAIRING)
def test_gradients_to_the_weights_are_those_of_finite_differences(rule: str) -> None:
    evidence = voices(2, 30, 7, positions=3)
    options = {"tolerance": 0.0, "sweeps": 30} if rule == "raking" else {"tolerance": 1e-6, "steps": 60}
    direction = torch.randn(3, 30)

    def value(weights: Tensor) -> Tensor:
        double = Evidence(*(part.double() for part in (evidence.log_base, evidence.log_probs, evidence.log_refs)))
        return (log_hat(RULES[rule](double, weights, **options)) * direction).sum()

    weights = torch.tensor([0.8, 1.3], dtype=torch.float64, requires_grad=True)
    value(weights).backward()
    step = 1e-5 if rule == "projective" else 1e-6
    for i in range(2):
        with torch.no_grad():
            sides = [value(weights + sign * step * torch.eye(2).double()[i]).item() for sign in (1, -1)]
        assert weights.grad[i].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-2, abs=1e-2)


def test_every_generation_works_with_them_and_notes_come_with_the_output() -> None:
    models = tables(["b", "x", "y"], 12)
    components = {"x": {"model": "x"}, "y": {"model": "y", "weight": 0.7}}
    for rule in REPAIRING:
        composed = ComposedModel.from_recipe(base="b", components=components, rule=rule, models=models)
        output = composed(torch.tensor([[1, 2, 3], [4, 5, 6]]))
        assert output.notes["residual"].shape == (2, 3)
        torch.testing.assert_close(output.logits.exp().sum(-1), torch.ones(2, 3))
        greedy = composed.generate(torch.tensor([[1]]), max_new_tokens=5, do_sample=False, eos_token_id=None)
        beams = composed.generate(torch.tensor([[1]]), max_new_tokens=5, num_beams=3, eos_token_id=None)
        assert greedy.shape == beams.shape == (1, 6)
    product_z = ComposedModel.from_recipe(base="b", components=components, models=models)(torch.tensor([[1]]))
    raked = ComposedModel.from_recipe(base="b", components=components, rule="raking", models=models)
    torch.testing.assert_close(
        raked(torch.tensor([[1]])).log_partition - product_z.log_partition,
        (models["b"][0].table[1] + 0.7 * (models["y"][0].table[1] - models["b"][0].table[1])).logsumexp(-1)[None, None]
        * -1,
        atol=1e-4,
        rtol=1e-4,
    )


def test_options_are_read_checked_and_kept() -> None:
    models = tables(["b", "x"], 6)
    fields = {"base": "b", "components": {"x": {"model": "x"}}, "models": models}
    composed = ComposedModel.from_recipe(**fields, rule="raking", rule_options={"bins": 4})
    assert composed.recipe.as_dict()["rule_options"] == {"bins": 4}
    composed.set_rule("projective", rho=0.5)
    assert composed.recipe.rule_options == {"rho": 0.5}
    composed.rule = "product"
    assert composed.recipe.rule_options == {}
    for options, text in (
        ({"bin": 4}, "rule_options.bin: unknown key; did you mean 'bins'?"),
        ({"bins": 0}, "rule_options.bins: must be at least 1, not 0"),
        ({"bins": 2.5}, "rule_options.bins: must be a whole number, not 2.5"),
        ({"damping": 0}, "rule_options.damping: must be above 0, not 0"),
    ):
        with pytest.raises(RecipeError) as error:
            ComposedModel.from_recipe(**fields, rule="raking", rule_options=options)
        assert str(error.value) == f"recipe: {text}"
    with pytest.raises(RecipeError, match=r"rule_options.bins: unknown key; rule product takes no options"):
        composed.set_rule("product", bins=3)


def test_the_same_model_twice_is_counted_once() -> None:
    """The product counts two identical components twice; raking and projective at a small ρ hardly do."""
    base, one = random_table(30, 0), random_table(30, 1)
    models = {name: (TableModel(table), None) for name, table in {"b": base, "x": one, "again": one}.items()}
    components = {"x": {"model": "x"}, "again": {"model": "again"}}
    ids = torch.tensor([[3]])

    def distance(**rule: object) -> float:
        composed = ComposedModel.from_recipe(base="b", components=components, models=models, **rule)
        return (composed(ids).logits[0, 0].exp() - one[3].exp()).abs().sum().item() / 2

    assert distance() > 0.2
    assert distance(rule="raking", rule_options={"bins": 64, "width": 0.1, "sweeps": 50}) < 0.02
    assert distance(rule="projective", rule_options={"rho": 0.01}) < 0.02
