"""What weights are fitted to is what the composed model says: every reference, temperature and held weight counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from counterpoint import ComposedModel
from counterpoint.composition import gathering
from counterpoint.composition.continuations import encode_with_answer
from counterpoint.composition.fitted import FitSettings, check_fittable, fit_to_answers, split
from counterpoint.composition.fitting import log_likelihoods
from counterpoint.composition.gathering import default_tokens, gather, spread
from counterpoint.errors import CounterpointError, NumericsError, RecipeError
from worlds import random_table, tables, tiny_model, tiny_tokenizer

EXAMPLES = [(prompt, answer) for prompt in ("hi", "who are you") for answer in ("a pirate", "no", "the sea.")]
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {"base": "m", "components": {"a": {"context": "be brief", "weight": 0.7}, "b": {"model": "n"}}},
    "no base": {"components": {"a": {"model": "m", "context": "be brief"}, "b": {"model": "n", "weight": 0.3}}},
    "temperatures": {
        "base": {"model": "m", "temperature": 2.0},
        "components": {"a": {"context": "be brief", "temperature": 0.5}, "b": {"model": "n", "temperature": 3}},
    },
    "references": {
        "base": "m",
        "components": {
            "a": {"context": "be brief", "relative_to": "b", "weight": -0.5},
            "b": {"model": "n", "relative_to": "uniform", "weight": 0.4},
        },
    },
}


def composed(**recipe: Any) -> ComposedModel:
    models = {"m": (tiny_model(), tiny_tokenizer()), "n": (tiny_model(seed=1), tiny_tokenizer())}
    return ComposedModel.from_recipe(models=models, **recipe)


def expected(model: ComposedModel, encoded: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """log p̂ of the answers, from the model's own forward."""
    found = []
    with torch.no_grad():
        for ids, labels in encoded:
            here = (labels[0] != -100).nonzero()[:, 0]
            found.append(model(ids).logits[0, here - 1, ids[0, here]])
    return torch.cat(found)


@pytest.mark.parametrize("fitted", [[0, 1], [0], [1]])
@pytest.mark.parametrize("name", RECIPES)
def test_the_gathered_give_the_models_own_likelihoods(name: str, fitted: list[int]) -> None:
    model = composed(**RECIPES[name])
    encoded = [encode_with_answer(model, *example) for example in EXAMPLES]
    counts = [int((labels != -100).sum()) for _, labels in encoded]
    told: list[int] = []
    found = gather(model, encoded, [range(count) for count in counts], fitted, lambda: told.append(1))
    weights = model.weights.detach()[fitted][None]
    likelihoods = log_likelihoods(found.log_base, found.log_ratios, found.target, weights)[0]
    torch.testing.assert_close(likelihoods.float(), expected(model, encoded), atol=1e-4, rtol=1e-4)
    assert len(told) == len(EXAMPLES)
    if "base" in RECIPES[name]:
        model.solo("base")
        torch.testing.assert_close(found.base, expected(model, encoded), atol=1e-4, rtol=1e-4)
    else:
        torch.testing.assert_close(found.base, torch.full_like(found.base, -torch.tensor(64.0).log()))


def test_chosen_tokens_and_small_pieces_are_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = composed(**RECIPES["references"])
    encoded = [encode_with_answer(model, *example) for example in EXAMPLES[:2]]
    whole = gather(model, encoded, [range(9), range(3)], [0, 1])
    monkeypatch.setattr(gathering, "MOST_SCORES_AT_ONCE", 2 * 64 * 3)
    some = gather(model, encoded, [[1, 4, 8], [0, 2]], [0, 1])
    rows = [1, 4, 8, 9, 11]
    for one, all_ in ((some.log_base, whole.log_base[rows]), (some.log_ratios, whole.log_ratios[:, rows])):
        torch.testing.assert_close(one, all_, atol=1e-4, rtol=1e-4)
    assert torch.equal(some.target, whole.target[rows])


def test_rule_plausibility_and_weights_leave_the_gathered_alone() -> None:
    recipe = {**RECIPES["plain"], "plausibility": 0.9}
    model, plain = composed(**recipe), composed(**RECIPES["plain"])
    encoded = [encode_with_answer(model, *EXAMPLES[0])]
    one, other = (gather(m, encoded, [range(9)], [0, 1]) for m in (model, plain))
    assert torch.equal(one.log_ratios, other.log_ratios)
    assert torch.equal(one.log_base, other.log_base)


def test_an_impossible_answer_is_named() -> None:
    base, a, b = (random_table(5, seed) for seed in range(3))
    base[:, 4], a[:, 3] = -torch.inf, -torch.inf
    models = tables(["base", "a", "b"], 5)
    for name, table in (("base", base), ("a", a), ("b", b)):
        models[name][0].table.data = table
    components = {"a": {"model": "a"}, "b": {"model": "b"}}
    model = ComposedModel.from_recipe(base="base", components=components, models=models)

    def said(token: int, fitted: list[int]) -> str:
        pairs = [(torch.tensor([[0, t]]), torch.tensor([[-100, t]])) for t in (1, token)]
        with pytest.raises(NumericsError) as caught:
            gather(model, pairs, [[0], [0]], fitted)
        return str(caught.value)

    end = "of its answer probability 0, and {} make it likely; leave the example out"
    assert said(4, [0, 1]) == f"example 2: the base gives the token 4 {end.format('no weights can')}"
    assert said(3, [0, 1]) == f"example 2: a gives the token 3 {end.format('no positive weight of it can')}"
    assert said(3, [1]) == (
        f"example 2: a component held at its weight gives the token 3 {end.format('no weights of the others can')}"
    )


def test_tokens_are_spread_evenly() -> None:
    counts = [100, 3, 0, 57, 40]
    assert spread(counts, 200, 0) == [list(range(count)) for count in counts]
    drawn = spread(counts, 50, 1)
    assert [len(tokens) for tokens in drawn] == pytest.approx([25, 0.75, 0, 14.25, 10], abs=1.01)
    assert sum(map(len, drawn)) == 50
    for tokens, count in zip(drawn, counts, strict=True):
        assert tokens == sorted(set(tokens))
        assert all(0 <= token < count for token in tokens)
    assert spread(counts, 50, 1) == drawn != spread(counts, 50, 2)
    often = torch.zeros(10)
    for seed in range(2000):
        often[spread([4, 6], 3, seed)[0]] += 1
        often[[4 + token for token in spread([4, 6], 3, seed)[1]]] += 1
    torch.testing.assert_close(often / 2000, torch.tensor([1 / 3] * 6 + [1 / 4] * 4), atol=0.05, rtol=0)


def test_the_cache_stays_within_two_gigabytes() -> None:
    model = composed(**RECIPES["plain"])
    assert default_tokens(model, 2) * 3 * 64 * 4 <= 2**31 < (default_tokens(model, 2) + 1) * 3 * 64 * 4


def test_splits() -> None:
    for examples, share, out in ((10, 0.3, 3), (2, 0.01, 1), (2, 0.99, 1), (12, 0.5, 6), (4, 0.0, 0)):
        chosen, held_out = split(examples, share, 0)
        assert (len(held_out), sorted(chosen + held_out)) == (out, list(range(examples)))
    assert split(20, 0.5, 0) == split(20, 0.5, 0) != split(20, 0.5, 1)
    with pytest.raises(CounterpointError) as caught:
        split(1, 0.3, 0)
    assert str(caught.value) == (
        "one example cannot be both fitted to and held out; give more examples, or --held-out 0 (held_out=0) to fit "
        "to all there is, without figures on answers that the fit has not seen"
    )
    with pytest.raises(CounterpointError, match=r"^there are no examples with answers to fit to$"):
        split(0, 0.3, 0)


def test_references_and_components_on_hold_keep_their_weights() -> None:
    expert = {"context": "be brief", "relative_to": "anti"}
    recipe = {"base": "m", "components": {"expert": expert, "anti": {"model": "n", "weight": 0}}}
    model = composed(**recipe)
    assert check_fittable(model.recipe, FitSettings()) == [0]
    report = fit_to_answers(model, EXAMPLES)
    assert [(c.name, c.after, c.held) for c in report.components][1] == ("anti", 0.0, True)
    assert report.components[0].after != 1
    assert check_fittable(composed(**RECIPES["plain"]).recipe, FitSettings(hold=("a",))) == [1]
    for settings, message in (
        (FitSettings(hold=("ex",)), "no component is called 'ex'; did you mean 'expert'?"),
        (FitSettings(hold=("expert",)), "every component is held at its weight, so nothing is left to fit; hold fewer"),
    ):
        with pytest.raises(RecipeError) as caught:
            check_fittable(model.recipe, settings)
        assert str(caught.value) == message


def test_the_report_is_the_models_own_figures() -> None:
    """Held-out means before and after are what the models with these weights say, all tokens of those examples."""
    model = composed(**RECIPES["plain"])
    settings = FitSettings(held_out=0.5, seed=3, max_tokens=10)
    report = fit_to_answers(model, EXAMPLES, settings)
    _, held_out = split(len(EXAMPLES), 0.5, 3)
    assert (report.tokens_used, report.held_out.examples, report.examples) == (10, 3, 3)
    encoded = [encode_with_answer(model, *EXAMPLES[i]) for i in held_out]
    assert model.recipe.components["a"].weight == 0.7  # the model is left as it is
    before = expected(model, encoded)
    fitted = composed(**report.recipe.as_dict())
    after = expected(fitted, encoded)
    assert report.held_out.tokens == len(before)
    assert report.held_out.before.mean == pytest.approx(float(before.mean()), abs=1e-4)
    assert report.held_out.after.mean == pytest.approx(float(after.mean()), abs=1e-4)
    assert report.held_out.difference.mean == pytest.approx(float((after - before).mean()), abs=1e-4)
    assert report.held_out.ones is not None
    assert report.held_out.difference.low < report.held_out.difference.mean < report.held_out.difference.high
    assert report == fit_to_answers(model, EXAMPLES, settings)
