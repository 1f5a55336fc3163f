"""The cache: after every operation that decoding uses, going on equals starting afresh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterpoint import ComposedCache, ComposedModel
from counterpoint.composition.cache import STEP, appended, rows_of
from counterpoint.errors import ContextError
from worlds import save_adapter, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ComposedModel:
    """Two backbones, one with three voices, two contexts of unequal length."""
    folder: Path = tmp_path_factory.mktemp("cache")
    base = save_model(folder / "base")
    return ComposedModel.from_recipe(
        base=base,
        components={
            "x": {"adapter": save_adapter(folder / "x", base), "context": "be brief"},
            "other": {"model": save_model(folder / "other", "qwen2", seed=5), "weight": 0.5},
            "y": {"context": "you are a pirate, and a poet"},
        },
    )


PROMPTS = ["hi", "tell me about the sea", "what is it"]


def alone(model: ComposedModel, ids: Tensor, mask: Tensor) -> list[Tensor]:
    """The last position's log-probabilities of each sequence run afresh, without its padding and without a cache."""
    with torch.no_grad():
        return [
            model(row[seen.bool()][None], use_cache=False).logits[0, -1] for row, seen in zip(ids, mask, strict=True)
        ]


def check(model: ComposedModel, cache: ComposedCache, ids: Tensor, mask: Tensor) -> None:
    """Feed two more tokens to each sequence, one at a time, and compare with sequences run afresh."""
    assert cache.get_seq_length() == ids.shape[1]
    assert cache.batch_size == len(ids)
    for _ in range(2):
        new = torch.randint(5, 50, (len(ids), 1))
        ids, mask = torch.cat([ids, new], dim=1), torch.cat([mask, torch.ones_like(new)], dim=1)
        with torch.no_grad():
            output = model(new, attention_mask=mask, cache=cache)
        assert output.cache is cache
        for got, expected in zip(output.logits[:, -1], alone(model, ids, mask), strict=True):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def filled(model: ComposedModel, prompts: list[str] = PROMPTS) -> tuple[ComposedCache, Tensor, Tensor]:
    batch = model.encode(prompts)
    cache = model.new_cache()
    with torch.no_grad():
        model(**batch, cache=cache)
    return cache, batch.input_ids, batch.attention_mask


def test_a_left_padded_batch_goes_on(model: ComposedModel) -> None:
    cache, ids, mask = filled(model)
    assert not mask.all()
    assert [part.get_seq_length() for part in cache.parts] == [ids.shape[1] + b.opening_length for b in model.backbones]
    check(model, cache, ids, mask)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 0]])
def test_reordered_beams_go_on(model: ComposedModel, order: list[int]) -> None:
    cache, ids, mask = filled(model)
    cache.reorder_cache(torch.tensor(order))
    check(model, cache, ids[order], mask[order])


@pytest.mark.parametrize("chosen", [[0], [2, 0], [1, 2, 2, 0]])
def test_selected_sequences_go_on(model: ComposedModel, chosen: list[int]) -> None:
    cache, ids, mask = filled(model)
    cache.batch_select_indices(torch.tensor(chosen))
    check(model, cache, ids[chosen], mask[chosen])
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.batch_size == 1
    assert [part.layers[0].keys.shape[0] for part in cache.parts] == [b.voices for b in model.backbones]


def test_repeated_sequences_go_on(model: ComposedModel) -> None:
    cache, ids, mask = filled(model)
    cache.batch_repeat_interleave(2)
    check(model, cache, ids.repeat_interleave(2, 0), mask.repeat_interleave(2, 0))


@pytest.mark.parametrize("removed", [1, 3])
def test_cropped_sequences_go_on(model: ComposedModel, removed: int) -> None:
    cache, ids, mask = filled(model)
    cache.crop(0)
    cache.crop(-removed)
    check(model, cache, ids[:, :-removed], mask[:, :-removed])


def test_all_operations_after_one_another_go_on(model: ComposedModel) -> None:
    cache, ids, mask = filled(model)
    cache.crop(-2)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([5, 4, 3, 2, 1, 0]))
    cache.batch_select_indices(torch.tensor([0, 3, 4]))
    expected = [2, 1, 0]
    check(model, cache, ids[expected, :-2], mask[expected, :-2])


def test_a_batch_without_padding_keeps_no_mask_where_no_context_needs_one(model: ComposedModel) -> None:
    cache, ids, mask = filled(model, ["hi", "ho"])
    assert mask.all()
    assert cache.masks[0] is not None  # openings of unequal length
    assert cache.masks[1] is None
    check(model, cache, ids, mask)
    cache, ids, mask = filled(model, ["hi", "ho"])
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.crop(-1)
    check(model, cache, ids[[1, 0], :-1], mask[:, :-1])


def test_padding_that_first_comes_after_the_prompt_is_masked(model: ComposedModel) -> None:
    """A sequence that has ended is padded while others go on; then only its own positions may look away."""
    cache, ids, mask = filled(model, ["hi", "ho"])
    new, seen = torch.tensor([[7], [0]]), torch.tensor([[1], [0]])
    ids, mask = torch.cat([ids, new], dim=1), torch.cat([mask, seen], dim=1)
    with torch.no_grad():
        model(new, attention_mask=mask, cache=cache)
    check(model, cache, ids, mask)


def test_a_reset_cache_is_empty(model: ComposedModel) -> None:
    cache, _, _ = filled(model)
    cache.reset()
    assert (cache.get_seq_length(), cache.masks) == (0, [None, None])


def test_several_new_tokens_at_once_equal_one_after_another(model: ComposedModel) -> None:
    cache, ids, mask = filled(model)
    new = torch.randint(5, 50, (3, 4))
    whole = torch.cat([ids, new], dim=1)
    seen = torch.cat([mask, torch.ones_like(new)], dim=1)
    with torch.no_grad():
        logits = model(new, attention_mask=seen, cache=cache).logits
    for i in range(4):
        upto = ids.shape[1] + i + 1
        for got, expected in zip(logits[:, i], alone(model, whole[:, :upto], seen[:, :upto]), strict=True):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_rows_of_sequences_are_voice_major() -> None:
    assert rows_of(torch.tensor([2, 0]), voices=3, batch=4).tolist() == [2, 0, 6, 4, 10, 8]


def test_another_models_cache_is_refused(model: ComposedModel) -> None:
    from transformers import DynamicCache

    with pytest.raises(ContextError) as caught:
        model(torch.tensor([[5]]), past_key_values=DynamicCache())  # type: ignore[arg-type]
    assert str(caught.value) == "a composed model keeps its own cache (new_cache()), not a DynamicCache"


@pytest.mark.parametrize("heads", [1, 3])
def test_a_growing_layer_holds_what_concatenation_would(heads: int) -> None:
    """Through growth within its room and beyond it, cropping, and a choice of rows."""
    past, expected = torch.tensor([]), torch.zeros(2, heads, 0, 4)
    for time in (5, 1, STEP - 6, 1, 2 * STEP, 1):
        new = torch.randn(2, heads, time, 4)
        past, expected = appended(past, new), torch.cat([expected, new], dim=2)
        assert torch.equal(past, expected)
        past, expected = past[:, :, : past.shape[2] - time // 4], expected[:, :, : expected.shape[2] - time // 4]
    rows = torch.tensor([1, 0, 1])
    new = torch.randn(3, heads, 2, 4)
    assert torch.equal(appended(past.index_select(0, rows), new), torch.cat([expected[rows], new], dim=2))


def test_a_growing_layer_is_written_in_place() -> None:
    past = appended(None, torch.randn(2, 3, 5, 4))
    assert appended(past, torch.randn(2, 3, 1, 4)).data_ptr() == past.data_ptr()
