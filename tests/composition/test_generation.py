"""A composed model is a Hugging Face model: every way of generating, and the tools that take a model, work with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, TextIteratorStreamer, pipeline

from counterpoint import ComposedModel
from counterpoint.errors import ContextError
from worlds import random_table, save_adapter, save_model, tables, tiny_model, tiny_tokenizer

PROMPTS = ["the sea is", "hi", "a boat made of"]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> ComposedModel:
    folder: Path = tmp_path_factory.mktemp("composed")
    base, other = save_model(folder / "base"), save_model(folder / "other", "gpt2", seed=7)
    model = ComposedModel.from_recipe(
        base=base,
        components={
            "x": {"adapter": save_adapter(folder / "a", base), "context": "speak in verse"},
            "y": {"model": other, "weight": 0.5},
        },
    )
    model.generation_config.eos_token_id = None
    return model


def scores_of(composed: ComposedModel, prompt: Tensor, answer: Tensor) -> float:
    """log p̂(answer | prompt), by one forward without a cache."""
    with torch.no_grad():
        log_probs = composed(torch.cat([prompt, answer])[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    return log_probs.gather(1, answer[:, None]).sum().item()


def test_beam_search_finds_what_it_scores(composed: ComposedModel) -> None:
    """Beam search over a batch: the scores it reports are those of the sequences, and beat greedy."""
    batch = composed.encode(PROMPTS)
    length = batch.input_ids.shape[1]
    beams = composed.generate(
        **batch, num_beams=4, max_new_tokens=6, output_scores=True, return_dict_in_generate=True, length_penalty=0.0
    )
    greedy = composed.generate(**batch, do_sample=False, max_new_tokens=6)
    for row, prompt in enumerate(PROMPTS):
        ids = composed.encode(prompt).input_ids[0]
        found = scores_of(composed, ids, beams.sequences[row, length:])
        assert found == pytest.approx(beams.sequences_scores[row].item(), abs=1e-3)
        assert found >= scores_of(composed, ids, greedy[row, length:]) - 1e-4


def test_several_samples_of_a_left_padded_batch(composed: ComposedModel) -> None:
    batch = composed.encode(PROMPTS)
    torch.manual_seed(3)
    many = composed.generate(**batch, do_sample=True, max_new_tokens=5, num_return_sequences=3)
    assert many.shape == (9, batch.input_ids.shape[1] + 5)
    torch.manual_seed(3)
    assert (
        composed.generate(**batch, do_sample=True, max_new_tokens=5, num_return_sequences=3).tolist() == many.tolist()
    )
    assert len({tuple(row) for row in many.tolist()}) == 9


def test_streamer_gives_the_text_as_it_comes(composed: ComposedModel) -> None:
    batch = composed.encode(PROMPTS[0])
    streamer = TextIteratorStreamer(composed.tokenizer, skip_prompt=True)
    whole = composed.generate(**batch, do_sample=False, max_new_tokens=8, streamer=streamer)
    assert "".join(streamer) == composed.tokenizer.decode(whole[0, batch.input_ids.shape[1] :])


def test_stopping_criteria_and_stop_strings(composed: ComposedModel) -> None:
    batch = composed.encode(PROMPTS[0])
    start = batch.input_ids.shape[1]
    free = composed.generate(**batch, do_sample=False, max_new_tokens=20)[0, start:]
    third = composed.tokenizer.decode(free[2])
    stopped = composed.generate(
        **batch, do_sample=False, max_new_tokens=20, stop_strings=third, tokenizer=composed.tokenizer
    )[0, start:]
    assert stopped.tolist() == free[: free.tolist().index(free[2].item()) + 1].tolist()


def test_end_of_sequence_ids_are_all_respected(composed: ComposedModel) -> None:
    batch = composed.encode(PROMPTS[0])
    start = batch.input_ids.shape[1]
    free = composed.generate(**batch, do_sample=False, max_new_tokens=20)[0, start:].tolist()
    for end in (free[1], free[4]):
        stopped = composed.generate(**batch, do_sample=False, max_new_tokens=20, eos_token_id=[63, end])
        assert stopped[0, start:].tolist() == free[: free.index(end) + 1]


def test_repetition_penalty_acts_on_the_composed_logits(composed: ComposedModel) -> None:
    batch = composed.encode(PROMPTS[0])
    plain = composed.generate(**batch, do_sample=False, max_new_tokens=24)
    penalised = composed.generate(**batch, do_sample=False, max_new_tokens=24, repetition_penalty=5.0)
    assert len(set(penalised[0].tolist())) > len(set(plain[0].tolist()))


@pytest.mark.parametrize("sample", [False, True])
def test_assisted_decoding_with_the_composed_model_as_target(composed: ComposedModel, sample: bool) -> None:
    """Greedy: the same text. With an assistant that is wrong most of the time, so that the cache is cropped often."""
    batch = composed.encode(PROMPTS[0])
    assistant = tiny_model("llama", seed=42)
    torch.manual_seed(1)
    text = composed.generate(**batch, do_sample=sample, max_new_tokens=24, assistant_model=assistant)
    if not sample:
        assert text.tolist() == composed.generate(**batch, do_sample=False, max_new_tokens=24).tolist()
    assert text.shape[1] == batch.input_ids.shape[1] + 24


def test_prompt_lookup_decoding_gives_the_same_text(composed: ComposedModel) -> None:
    batch = composed.encode("a b a b a b a b")
    expected = composed.generate(**batch, do_sample=False, max_new_tokens=16)
    assert composed.generate(**batch, do_sample=False, max_new_tokens=16, prompt_lookup_num_tokens=3).tolist() == (
        expected.tolist()
    )


def test_chunked_prefill_and_continuing_a_cache(composed: ComposedModel) -> None:
    batch = composed.encode("a long enough prompt to cut")
    expected = composed.generate(**batch, do_sample=False, max_new_tokens=8)
    assert (
        composed.generate(**batch, do_sample=False, max_new_tokens=8, prefill_chunk_size=5).tolist()
        == expected.tolist()
    )
    first = composed.generate(**batch, do_sample=False, max_new_tokens=4, return_dict_in_generate=True)
    more = composed.generate(
        first.sequences,
        attention_mask=torch.ones_like(first.sequences),
        do_sample=False,
        max_new_tokens=4,
        cache=first.cache,
    )
    assert more.tolist() == expected.tolist()


def test_text_generation_pipeline(composed: ComposedModel) -> None:
    """With messages the pipeline applies the template itself, default system block included."""
    pipe = pipeline("text-generation", model=composed, tokenizer=composed.tokenizer)
    answer = pipe([{"role": "user", "content": "the sea"}], max_new_tokens=6, do_sample=False)[0]["generated_text"]
    batch = composed.encode("the sea")
    expected = composed.generate(**batch, max_new_tokens=6, do_sample=False)[0, batch.input_ids.shape[1] :]
    assert answer[-1]["content"] == composed.tokenizer.decode(expected, skip_special_tokens=True)


def test_bfloat16_is_close_and_its_output_float32(composed: ComposedModel) -> None:
    recipe, ids = composed.recipe, composed.encode(PROMPTS[1]).input_ids
    half = ComposedModel.from_recipe(recipe, dtype="bfloat16")
    assert {p.dtype for p in half.backbones[0].parameters()} == {torch.bfloat16}
    with torch.no_grad():
        output = half(ids)
        assert output.logits.dtype == torch.float32
        assert (output.logits.exp() - composed(ids).logits.exp()).abs().sum(-1).max() < 0.3
    text = half.generate(**half.encode(PROMPTS), do_sample=True, max_new_tokens=5)
    assert text.shape[0] == 3


def test_device_map_and_a_closed_device_choice(composed: ComposedModel) -> None:
    ids = composed.encode(PROMPTS[1]).input_ids
    placed = ComposedModel.from_recipe(composed.recipe, device_map="cpu")
    torch.testing.assert_close(placed(ids).logits, composed(ids).logits)


def test_solo_rule_and_weights_can_change_while_it_runs(composed: ComposedModel) -> None:
    ids = composed.encode(PROMPTS[0]).input_ids
    with torch.no_grad():
        before = composed(ids, output_voices=True)
        composed.solo("y")
        alone = composed(ids).logits
        composed.solo(None)
        composed.rule = "mixture"
        mixed = composed(ids).logits
        composed.rule = "product"
        composed.set_weight("x", 0.0)
        composed.set_weight("y", 0.0)
        base = composed(ids).logits
        composed.set_weight("x", 1.0)
        composed.set_weight("y", 0.5)
        torch.testing.assert_close(composed(ids).logits, before.logits)
    torch.testing.assert_close(alone, before.voice_log_probs[2])
    torch.testing.assert_close(base, before.voice_log_probs[0], atol=1e-5, rtol=1e-5)
    expected = (before.voice_log_probs[1].exp() + 0.5 * before.voice_log_probs[2].exp()).div(1.5).log()
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-5)


def test_logits_to_keep_and_labels(composed: ComposedModel) -> None:
    ids = composed.encode(PROMPTS[0]).input_ids
    with torch.no_grad():
        whole = composed(ids, labels=ids)
        torch.testing.assert_close(composed(ids, logits_to_keep=2).logits, whole.logits[:, -2:])
        torch.testing.assert_close(composed(ids, logits_to_keep=torch.tensor([0, 3])).logits, whole.logits[:, [0, 3]])
    picked = whole.logits[0, :-1].gather(1, ids[0, 1:, None])
    assert whole.loss.item() == pytest.approx(-picked.mean().item(), abs=1e-5)
    assert isinstance(composed(ids, return_dict=False), tuple)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs_embeds": torch.zeros(1, 2, 32)}, "takes input_ids, not inputs_embeds"),
        ({"input_ids": torch.tensor([[5]]), "cache": tiny_model()(torch.tensor([[5]])).cache}, "keeps its own cache"),
    ],
)
def test_what_cannot_be_composed_says_so(composed: ComposedModel, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ContextError, match=message):
        composed(**{"input_ids": None, **arguments})
    with pytest.raises(ContextError, match="leave the setting out"):
        composed.generate(torch.tensor([[5]]), cache_implementation="static", max_new_tokens=1)


def test_models_in_memory_are_used_as_they_are() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    composed = ComposedModel.from_recipe(
        base="mine", components={"x": {"context": "in verse"}}, models={"mine": (model, tokenizer)}
    )
    assert composed.backbones[0].model is model
    assert composed.generate(**composed.encode("hi"), max_new_tokens=2).shape[0] == 1


def test_training_mode_leaves_dropout_off_and_learns_the_weights() -> None:
    """Plain gradient descent on w finds the mixture of experts that made the text."""
    models = tables(["b", "x", "y"], 8)
    composed = ComposedModel.from_recipe(
        base="b", components={"x": {"model": "x", "weight": 0.0}, "y": {"model": "y", "weight": 0.0}}, models=models
    ).train()
    truth = ComposedModel.from_recipe(
        base="b", components={"x": {"model": "x", "weight": 1.0}, "y": {"model": "y", "weight": -0.5}}, models=models
    )
    ids = truth.generate(torch.zeros(200, 1, dtype=torch.long), do_sample=True, top_k=0, max_new_tokens=30)
    optimizer = torch.optim.Adam(composed.parameters(), lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        composed(ids, labels=ids).loss.backward()
        optimizer.step()
    assert composed.weights.tolist() == pytest.approx([1.0, -0.5], abs=0.1)
    assert composed.recipe.components["x"].weight == pytest.approx(composed.weights[0].item())
    assert torch.equal(models["x"][0].table.data, random_table(8, 1))


def test_auto_classes_know_composed_models(tmp_path: Path, composed: ComposedModel) -> None:
    composed.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = composed.encode(PROMPTS[0]).input_ids
    torch.testing.assert_close(again(ids).logits, composed(ids).logits)
