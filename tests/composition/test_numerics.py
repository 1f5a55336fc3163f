"""Numbers: broken checkpoints are named, padding may be anything, and what is composed is float32 and exact."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint import ComposedModel, Recipe
from counterpoint.errors import NumericsError, RecipeError
from worlds import TableModel, random_table, save_model, tables, tiny_model, tiny_tokenizer

BROKEN = "its logits hold NaN or infinity; the checkpoint is broken, or float16 overflowed"


def of_tables(**fields: Any) -> ComposedModel:
    components = {"x": {"model": "x", "weight": 1.2}, "y": {"model": "y", "weight": 0.7, "temperature": 0.7}}
    return ComposedModel.from_recipe(**{"base": "b", "components": components, "models": tables("bxy", 6), **fields})


def test_a_checkpoint_with_nan_is_named(tmp_path: Path) -> None:
    good = save_model(tmp_path / "good")
    bad = tiny_model(seed=1)
    with torch.no_grad():
        bad.model.layers[1].mlp.up_proj.weight[3, 4] = math.nan
    bad.save_pretrained(tmp_path / "bad")
    tiny_tokenizer().save_pretrained(tmp_path / "bad")
    components = {"fine": {"model": good, "context": "hi"}, "poet": {"model": str(tmp_path / "bad")}}
    composed = ComposedModel.from_recipe(base=good, components=components)
    with pytest.raises(NumericsError) as caught:
        composed(torch.tensor([[5, 6]]))
    assert str(caught.value) == f"poet: {BROKEN}"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("token", range(3))
def test_one_bad_logit_anywhere_in_the_vocabulary_is_enough(value: float, token: int) -> None:
    models = {"b": (TableModel(random_table(3, 0)), None), "x": (TableModel(random_table(3, 1)), None)}
    models["x"][0].table.data[1, token] = value
    composed = ComposedModel.from_recipe(base="b", components={"x": {"model": "x"}}, models=models)
    assert composed(torch.tensor([[0, 2]])).logits.isfinite().all()
    with pytest.raises(NumericsError, match=f"^x: {BROKEN}$"):
        composed(torch.tensor([[0, 1, 2]]))


class MaskedTable(TableModel):
    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(input_ids)


def test_nan_at_padding_is_no_error() -> None:
    models = {name: (MaskedTable(random_table(6, seed)), None) for seed, name in enumerate("bxy")}
    models["y"][0].table.data[0] = math.nan
    composed = of_tables(models=models)
    ids, mask = torch.tensor([[0, 0, 3, 4], [5, 1, 2, 3]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    logits = composed(ids, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, 2:], composed(ids[:1, 2:]).logits[0])
    assert logits[1].isfinite().all()
    with pytest.raises(NumericsError, match=f"^y: {BROKEN}$"):
        composed(ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_compose_in_float32(dtype: torch.dtype) -> None:
    base, x = tiny_model(seed=1).to(dtype), tiny_model("qwen2", seed=2).to(dtype)
    models = {"b": (base, tiny_tokenizer()), "x": (x, tiny_tokenizer())}
    components = {"x": {"model": "x", "weight": 1.2}}
    composed = ComposedModel.from_recipe(base="b", components=components, models=models)
    ids = torch.randint(5, 50, (2, 6))
    with torch.no_grad():
        output = composed(ids, output_voices=True)
        log_b, log_x = (model(ids).logits.float().log_softmax(-1) for model in (base, x))
    assert composed.dtype == dtype
    assert {output.logits.dtype, output.log_partition.dtype, output.voice_log_probs.dtype} == {torch.float32}
    torch.testing.assert_close(output.voice_log_probs, torch.stack([log_b, log_x]), atol=0.05, rtol=0.01)
    expected = (output.voice_log_probs[0] + 1.2 * (output.voice_log_probs[1] - output.voice_log_probs[0])).log_softmax(
        -1
    )
    torch.testing.assert_close(output.logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.logits.exp().sum(-1), torch.ones(2, 6), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "given"), [((-1.0, 2.0), "-1, 2"), ((0.0, 0.0), "0, 0"), ((0.5, -0.5), "0.5, -0.5")]
)
def test_a_mixture_of_negative_or_no_weights_is_not_defined(weights: tuple[float, float], given: str) -> None:
    """Found when the recipe is read, when weights or rule change, and at the latest when the weights were learned."""
    message = f"rule mixture: weights must be >= 0 and not all zero, not ({given})"
    product = of_tables()
    for name, weight in zip("xy", weights, strict=True):
        product.set_weight(name, weight)
    refusals = [
        lambda: Recipe.read({**product.recipe.as_dict(), "rule": "mixture"}),
        lambda: of_tables(rule="mixture").recipe.with_weights(dict(zip("xy", weights, strict=True))),
        lambda: setattr(product, "rule", "mixture"),
    ]
    for refuse in refusals:
        with pytest.raises(RecipeError) as caught:
            refuse()
        assert message in str(caught.value)
    assert product.rule == "product"
    learned = of_tables(rule="mixture")
    learned.weights.data = torch.tensor(weights)
    with pytest.raises(NumericsError) as caught_late:
        learned(torch.tensor([[1]]))
    assert str(caught_late.value) == message


def test_weights_and_temperatures_stay_exact_whatever_the_models_are_cast_to() -> None:
    composed = of_tables()
    digest = composed.recipe.digest()
    for cast in (composed.to(torch.bfloat16), composed.half(), composed.double(), composed.to(dtype=torch.float16)):
        assert cast is composed
        assert (composed.weights.dtype, composed.temperatures.dtype) == (torch.float32, torch.float32)
        assert composed.weights.tolist() == torch.tensor([1.2, 0.7]).tolist()
        assert composed.temperatures.tolist() == torch.tensor([1.0, 1.0, 0.7]).tolist()
    assert composed.dtype == torch.float16
    assert [(c.weight, c.temperature) for c in composed.recipe.components.values()] == [(1.2, 1.0), (0.7, 0.7)]
    assert composed.recipe.digest() == digest


def test_the_recipe_has_the_weights_as_they_were_written() -> None:
    components = {"x": {"model": "x", "weight": 0.123456789012345}, "y": {"model": "y", "weight": -1e-3}}
    composed = of_tables(components=components)
    assert composed.recipe.as_dict() == {"base": "b", "components": components}
    composed.set_weight("y", 0.1)
    assert composed.recipe.components["y"].weight == 0.1
    composed.weights.data[0] = 1 / 3
    assert composed.recipe.components["x"].weight == 0.33333334


@pytest.mark.parametrize("weight", [1e6, -1e6])
@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_the_largest_weights_and_temperatures_give_a_distribution(weight: float, temperature: float) -> None:
    voice = {"model": "x", "weight": weight, "temperature": temperature}
    logits = of_tables(components={"x": voice})(torch.arange(6)[None]).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1, 6))
