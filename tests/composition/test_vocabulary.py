"""One vocabulary: padding rows are cut, other meanings refused, added tokens reported, every end of sequence kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from counterpoint import ComposedModel
from counterpoint.composition.vocabulary import Vocabulary, common_vocabulary, end_of_sequence_ids
from counterpoint.errors import VocabularyError
from worlds import tiny_model, tiny_tokenizer

Models = dict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase | None]]
X = {"x": {"model": "x"}}


def test_padding_beyond_the_narrowest_model_is_cut_off() -> None:
    tokens = {"a": 0, "b": 1}
    assert common_vocabulary({"m": 64, "n": 72, "o": 80}, {"m": tokens, "n": tokens}) == Vocabulary(64, {})
    assert common_vocabulary({"m": 64}, {}) == Vocabulary(64, {})


@pytest.mark.parametrize(("base_width", "x_width"), [(64, 72), (72, 64)])
def test_models_of_unequal_width_compose_on_what_they_share(base_width: int, x_width: int) -> None:
    base, x = tiny_model(seed=1, vocab_size=base_width), tiny_model("qwen2", seed=2, vocab_size=x_width)
    models: Models = {"b": (base, tiny_tokenizer()), "x": (x, tiny_tokenizer())}
    composed = ComposedModel.from_recipe(base="b", components={"x": {"model": "x", "weight": 0.7}}, models=models)
    ids = torch.randint(5, 50, (2, 6))
    with torch.no_grad():
        log_b, log_x = (model(ids).logits[..., :64].log_softmax(-1) for model in (base, x))
        logits = composed(ids).logits
    assert logits.shape == (2, 6, 64)
    assert composed.config.vocab_size == 64
    torch.testing.assert_close(logits, (log_b + 0.7 * (log_x - log_b)).log_softmax(-1), atol=1e-5, rtol=1e-5)


def mismatch(**tokens: dict[str, int]) -> str:
    with pytest.raises(VocabularyError) as caught:
        common_vocabulary(dict.fromkeys(tokens, 64), tokens)
    return str(caught.value)


ONE = "composed models must share one vocabulary"


def test_an_id_with_two_meanings_is_refused_by_its_first_token() -> None:
    assert mismatch(m={"a": 0, "b": 1, "c": 2, "d": 3}, n={"a": 0, "B": 1, "c": 2, "D": 3}) == (
        f"the tokenizers of 'm' and 'n' differ in 2 tokens, first at id 1: 'b' in 'm', 'B' in 'n'; {ONE}"
    )


def test_a_token_with_two_ids_is_refused() -> None:
    assert mismatch(m={"a": 0, "b": 1}, n={"a": 0, "b": 5}) == (
        f"the tokenizers of 'm' and 'n' differ in 1 token, first at id 1: 'b' in 'm', nothing (there 'b' has id 5) "
        f"in 'n'; {ONE}"
    )


def test_tokens_that_two_models_added_are_compared_though_the_first_lacks_them() -> None:
    assert mismatch(m={"a": 0}, n={"a": 0, "<x>": 1}, o={"a": 0, "<y>": 1}) == (
        f"the tokenizers of 'n' and 'o' differ in 1 token, first at id 1: '<x>' in 'n', '<y>' in 'o'; {ONE}"
    )


def test_other_tokenizers_are_refused_when_composing() -> None:
    other = tiny_tokenizer(size=60)
    other.add_tokens(["<other>"])
    models: Models = {"b": (tiny_model(), tiny_tokenizer()), "x": (tiny_model(seed=1), other)}
    with pytest.raises(VocabularyError) as caught:
        ComposedModel.from_recipe(base="b", components=X, models=models)
    assert str(caught.value) == (
        "the tokenizers of 'b' and 'x' differ in 1 token, first at id 60: '<f7>' in 'b', '<other>' in 'x'; "
        "composed models must share one vocabulary"
    )


def test_added_tokens_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    grown = tiny_tokenizer(size=58)
    grown.add_tokens([f"<new{i}>" for i in range(6)])
    models: Models = {"b": (tiny_model(), tiny_tokenizer(size=58)), "x": (tiny_model(seed=1), grown)}
    with caplog.at_level(logging.WARNING, "counterpoint"):
        ComposedModel.from_recipe(base="b", components=X, models=models)
    assert [record.getMessage() for record in caplog.records] == [
        "x has 6 tokens that not all models know: '<new0>', '<new1>', '<new2>', '<new3>', '<new4>', ..."
    ]


def test_a_token_that_only_the_wider_model_has_is_refused_in_prompts_and_contexts() -> None:
    grown = tiny_tokenizer()
    grown.add_tokens(["<new>"])
    models: Models = {"b": (tiny_model(vocab_size=72), grown), "x": (tiny_model(), tiny_tokenizer())}
    composed = ComposedModel.from_recipe(base="b", components=X, models=models)
    unknown = "the text holds the token '<new>' (id 64), which not all models of the recipe know: they share the ids "
    with pytest.raises(VocabularyError) as caught:
        composed.encode("a <new> b")
    assert str(caught.value) == f"{unknown}below 64"
    with pytest.raises(VocabularyError) as caught:
        ComposedModel.from_recipe(base="b", components={"x": {"model": "x", "context": "<new>"}}, models=models)
    assert str(caught.value) == f"{unknown}below 64"


def test_ends_of_sequence_are_joined_in_order() -> None:
    assert end_of_sequence_ids([2, 7], None, 2, 0, [9, 7]) == [2, 7, 0, 9]
    assert end_of_sequence_ids(None) == []


def ending(b: Any, x: Any) -> ComposedModel:
    base, other = tiny_model(seed=1), tiny_model(seed=2)
    base.generation_config.eos_token_id, other.generation_config.eos_token_id = b, x
    models: Models = {"b": (base, tiny_tokenizer()), "x": (other, tiny_tokenizer())}
    return ComposedModel.from_recipe(base="b", components=X, models=models)


def test_generation_stops_at_the_end_of_sequence_of_every_model() -> None:
    without = ending(None, None)
    assert without.generation_config.eos_token_id == [2]  # the tokenizer's own
    prompt = torch.tensor([[5, 6, 7]])
    free = without.generate(prompt, do_sample=False, max_new_tokens=12, eos_token_id=None)[0].tolist()
    firsts = [token for i, token in enumerate(free) if i >= 3 and token not in free[3:i]][:3]
    assert len(firsts) == 3
    unused = next(i for i in range(64) if i not in free)
    for stop in firsts:
        upto = free[: free.index(stop, 3) + 1]
        for ends in ([[unused, stop], None], [[stop], unused], [[unused], stop], [unused, [unused, stop]]):
            composed = ending(*ends)
            assert set(composed.generation_config.eos_token_id) == {unused, stop}
            assert composed.generate(prompt, do_sample=False, max_new_tokens=12)[0].tolist() == upto


def test_an_end_of_sequence_with_id_0_counts() -> None:
    assert ending(0, None).generation_config.eos_token_id == [0]
    assert ending([0, 5], 0).generation_config.eos_token_id == [0, 5]
