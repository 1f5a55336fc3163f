"""Every rule against sums over all sequences of small worlds, written out in plain Python."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint import ComposedModel
from worlds import TableModel, random_table, tables

NAMES = ["b", "x", "y", "z"]


def by_hand(tables_: dict[str, list[list[float]]], fields: dict, previous: int) -> list[float]:
    """p̂(. | previous), from the formula, one token at a time, in double precision."""
    vocabulary = len(tables_["b"])

    def p(name: str, v: int) -> float:
        voice = fields["base"] if name == "base" else fields["components"][name]
        row = [math.exp(value / voice.get("temperature", 1.0)) for value in tables_[voice["model"]][previous]]
        return row[v] / sum(row)

    components = fields["components"]
    total = sum(c.get("weight", 1.0) for c in components.values())
    scores = []
    for v in range(vocabulary):
        if fields["rule"] == "mixture":
            scores.append(sum(c.get("weight", 1.0) / total * p(n, v) for n, c in components.items()))
            continue
        score = p("base", v) if fields.get("base") else 1.0
        for name, component in components.items():
            against = component.get("relative_to", "base" if fields.get("base") else "uniform")
            reference = 1.0 if against == "uniform" else p(against, v)
            score *= (p(name, v) / reference) ** component.get("weight", 1.0)
        scores.append(score)
    return [score / sum(scores) for score in scores]


RECIPES = {
    "product": {"rule": "product", "base": {"model": "b"}, "components": {"x": {"model": "x"}, "y": {"model": "y"}}},
    "weights": {
        "rule": "product",
        "base": {"model": "b"},
        "components": {"x": {"model": "x", "weight": 1.7}, "y": {"model": "y", "weight": -0.6}},
    },
    "temperatures": {
        "rule": "product",
        "base": {"model": "b", "temperature": 1.5},
        "components": {"x": {"model": "x", "temperature": 0.7}, "y": {"model": "y", "weight": 0.3}},
    },
    "relative": {
        "rule": "product",
        "base": {"model": "b"},
        "components": {
            "x": {"model": "x", "relative_to": "y", "weight": 2.0},
            "y": {"model": "y", "weight": 0.0},
            "z": {"model": "z", "relative_to": "x"},
        },
    },
    "uniform": {
        "rule": "product",
        "base": {"model": "b"},
        "components": {"x": {"model": "x", "relative_to": "uniform", "weight": 0.5}},
    },
    "geometric mean": {
        "rule": "product",
        "components": {"x": {"model": "x", "weight": 0.3}, "y": {"model": "y", "weight": 0.7}},
    },
    "mixture": {
        "rule": "mixture",
        "base": {"model": "b"},
        "components": {"x": {"model": "x", "weight": 2.0}, "y": {"model": "y", "temperature": 0.5}},
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_sequence_has_the_probability_of_the_formula(name: str) -> None:
    vocabulary, length, start = 5, 3, 2
    models = tables(NAMES, vocabulary, spread=1.5)
    written = {n: m.table.double().tolist() for n, (m, _) in models.items()}
    composed = ComposedModel.from_recipe(**RECIPES[name], models=models)
    sequences = list(itertools.product(range(vocabulary), repeat=length))
    ids = torch.tensor([(start, *sequence) for sequence in sequences])
    with torch.no_grad():
        log_probs = composed(ids).logits[:, :-1].gather(2, ids[:, 1:, None]).sum((1, 2))
    for sequence, log_prob in zip(sequences, log_probs.tolist(), strict=True):
        expected = 1.0
        for previous, token in itertools.pairwise((start, *sequence)):
            expected *= by_hand(written, RECIPES[name], previous)[token]
        assert math.exp(log_prob) == pytest.approx(expected, rel=1e-4)
    assert log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_sampling_follows_the_formula(name: str) -> None:
    """Frequencies of sampled two-token texts against exact probabilities: chi-squared below its 0.1 % point."""
    vocabulary, start, draws = 4, 1, 4000
    models = tables(NAMES, vocabulary)
    written = {n: m.table.double().tolist() for n, (m, _) in models.items()}
    composed = ComposedModel.from_recipe(**RECIPES[name], models=models)
    texts = composed.generate(
        torch.tensor([[start]]),
        do_sample=True,
        max_new_tokens=2,
        num_return_sequences=draws,
        top_k=0,
        eos_token_id=None,
    )
    counts = torch.bincount(texts[:, 1] * vocabulary + texts[:, 2], minlength=vocabulary**2).tolist()
    chi_squared = 0.0
    for (first, second), count in zip(itertools.product(range(vocabulary), repeat=2), counts, strict=True):
        one, two = by_hand(written, RECIPES[name], start)[first], by_hand(written, RECIPES[name], first)[second]
        chi_squared += (count - draws * one * two) ** 2 / (draws * one * two)
    assert chi_squared < 37.7  # 15 degrees of freedom


def test_factorised_conditionals_give_projective_composition_and_no_partition() -> None:
    """Under FC (tokens are pairs, each component changes one half), log Z = 0 and each half has its owner's law."""
    generator = torch.Generator().manual_seed(3)
    halves = [torch.rand(6, generator=generator).softmax(0) for _ in range(4)]
    base = torch.einsum("i,j->ij", halves[0], halves[1]).flatten()
    first = torch.einsum("i,j->ij", halves[2], halves[1]).flatten()
    second = torch.einsum("i,j->ij", halves[0], halves[3]).flatten()
    models = {n: (TableModel(p.log().expand(36, 36)), None) for n, p in (("b", base), ("x", first), ("y", second))}
    composed = ComposedModel.from_recipe(base="b", components={"x": {"model": "x"}, "y": {"model": "y"}}, models=models)
    output = composed(torch.tensor([[7]]))
    p_hat = output.logits[0, 0].exp().view(6, 6)
    torch.testing.assert_close(p_hat.sum(1), halves[2])
    torch.testing.assert_close(p_hat.sum(0), halves[3])
    assert output.log_partition.abs().max() < 1e-5


def test_log_partition_is_the_expectation_under_the_base() -> None:
    models = tables(NAMES, 8)
    composed = ComposedModel.from_recipe(
        base="b", components={"x": {"model": "x", "weight": 0.8}, "y": {"model": "y", "weight": 1.3}}, models=models
    )
    b, x, y = (models[n][0].table[3].double() for n in "bxy")
    expected = (b.exp() * (0.8 * (x - b) + 1.3 * (y - b)).exp()).sum().log()
    assert composed(torch.tensor([[3]])).log_partition.item() == pytest.approx(expected.item(), abs=1e-5)


@given(
    st.integers(0, 10_000),
    st.sampled_from(["product", "mixture"]),
    st.lists(st.floats(0.1, 2.0), min_size=2, max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_order_of_components_and_names_of_tokens_do_not_matter(seed: int, rule: str, weights: list[float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: random_table(7, seed + i) for i, name in enumerate(NAMES)}
    models = {name: (TableModel(table), None) for name, table in drawn.items()}
    x, y = {"model": "x", "weight": weights[0]}, {"model": "y", "weight": weights[1]}
    ids = torch.arange(7)[None]
    one = ComposedModel.from_recipe(base="b", components={"x": x, "y": y}, rule=rule, models=models)(ids).logits
    other = ComposedModel.from_recipe(base="b", components={"y": y, "x": x}, rule=rule, models=models)(ids).logits
    torch.testing.assert_close(one, other)
    renamed = torch.randperm(7, generator=generator)
    shuffled = {name: (TableModel(table[renamed][:, renamed]), None) for name, table in drawn.items()}
    composed = ComposedModel.from_recipe(base="b", components={"x": x, "y": y}, rule=rule, models=shuffled)
    torch.testing.assert_close(composed(ids).logits, one[:, renamed][:, :, renamed])


@given(st.integers(0, 10_000), st.floats(-3, 3))
@settings(max_examples=20, deadline=None)
def test_the_base_as_its_own_component_changes_nothing(seed: int, weight: float) -> None:
    model = (TableModel(random_table(6, seed)), None)
    composed = ComposedModel.from_recipe(
        base="b", components={"same": {"model": "again", "weight": weight}}, models={"b": model, "again": model}
    )
    torch.testing.assert_close(composed(torch.arange(6)[None]).logits[0], model[0].table.data, atol=1e-5, rtol=1e-5)


def test_zero_probabilities_stay_zero_and_never_become_nan() -> None:
    base, one = random_table(4, 0), random_table(4, 1)
    base[:, 0] = one[:, 0] = one[:, 1] = -math.inf
    models = {"b": (TableModel(base.log_softmax(-1)), None), "x": (TableModel(one.log_softmax(-1)), None)}
    for weight in (0.0, 1.0, 2.5):
        composed = ComposedModel.from_recipe(
            base="b", components={"x": {"model": "x", "weight": weight}}, models=models
        )
        p = composed(torch.tensor([[2]])).logits[0, 0].exp()
        assert p[0] == 0
        assert (p[1] == 0) == (weight > 0)
        assert p.sum().item() == pytest.approx(1.0)


def test_plausibility_drops_what_its_judges_find_implausible() -> None:
    models = {
        name: (TableModel(torch.tensor(p).log().expand(4, 4)), None)
        for name, p in {"b": [0.6, 0.3, 0.07, 0.03], "x": [0.02, 0.08, 0.3, 0.6]}.items()
    }
    components = {"x": {"model": "x", "weight": 0.5}}

    def kept(**fields: object) -> list[bool]:
        composed = ComposedModel.from_recipe(base="b", components=components, models=models, **fields)
        probabilities = composed(torch.tensor([[0]])).logits[0, 0].exp()
        assert probabilities.sum().item() == pytest.approx(1.0)
        return (probabilities > 0).tolist()

    assert kept() == [True, True, True, True]
    assert kept(plausibility={"alpha": 0.2, "of": "base"}) == [True, True, False, False]
    assert kept(plausibility={"alpha": 0.2, "of": "x"}) == [False, False, True, True]
    assert kept(plausibility=0.2) == [True, True, True, True]
    assert kept(plausibility=0.6) == [True, False, False, True]


def test_gradients_reach_the_weights_and_nothing_else() -> None:
    models = tables(NAMES, 6)
    composed = ComposedModel.from_recipe(base="b", components={"x": {"model": "x"}, "y": {"model": "y"}}, models=models)
    ids = torch.tensor([[1, 4, 2, 5]])
    composed(ids, labels=ids).loss.backward()
    assert [name for name, parameter in composed.named_parameters() if parameter.requires_grad] == ["weights"]
    step = 1e-3
    for i, name in enumerate(("x", "y")):
        losses = []
        for sign in (1, -1):
            composed.set_weight(name, 1.0 + sign * step)
            losses.append(composed(ids, labels=ids).loss.item())
        composed.set_weight(name, 1.0)
        assert composed.weights.grad[i].item() == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-3)
