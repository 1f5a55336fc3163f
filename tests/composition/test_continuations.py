"""Answers as token ids: what the template makes of the assistant's turn, up to the token that ends it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_contexts import (
    CONTEXTS,
    CONVERSATIONS,
    DEEPSEEK,
    GEMMA_3,
    LLAMA_2,
    LLAMA_3,
    PIRATE,
    QWEN,
    TEMPLATES,
    VICUNA,
    say,
    tokenizer_for,
)  # fmt: skip

from counterpoint import ComposedModel
from counterpoint.composition.continuations import IGNORED, encode_with_answer
from counterpoint.errors import ContextError, VocabularyError
from worlds import CHATML, tiny_model, tiny_tokenizer


def composed(tokenizer: Any, context: str | None = None, vocabulary: int = 512, **fields: Any) -> ComposedModel:
    models = {"m": (tiny_model(vocab_size=vocabulary, max_position_embeddings=fields.pop("window", 1024)), tokenizer)}
    return ComposedModel.from_recipe(
        base="m", components={"x": {"model": "m", "context": context}}, models=models, **fields
    )


def answered(model: ComposedModel, prompt: Any, answer: str) -> str:
    """The labelled tokens as text, after checks of what holds for all."""
    ids, labels = encode_with_answer(model, prompt, answer)
    before = model.encode(prompt)["input_ids"]
    length = before.shape[1]
    assert ids.shape == labels.shape
    assert torch.equal(ids[:, :length], before)
    assert labels[0, :length].tolist() == [IGNORED] * length
    assert torch.equal(ids[:, length:], labels[:, length:])
    return model.tokenizer.decode(ids[0, length:])


TURNS = {
    "qwen": (QWEN, " so \n<|im_end|>"),
    "llama 3": (LLAMA_3, "so<|eot_id|>"),
    "gemma 3": (GEMMA_3, "so<end_of_turn>"),
    "deepseek": (DEEPSEEK, " so \n</s>"),
    "llama 2": (LLAMA_2, " so </s>"),
    "vicuna": (VICUNA, "  so \n"),
}


@pytest.mark.parametrize("context", [None, PIRATE])
@pytest.mark.parametrize("name", TURNS)
def test_an_answer_is_the_templates_turn_up_to_its_end(name: str, context: str | None) -> None:
    template, turn = TURNS[name]
    model = composed(tokenizer_for(template), context)
    for prompt in ("hi", say("hi"), say("hi", "ho", "hey")):
        assert answered(model, prompt, " so \n") == turn


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_whole_row_is_a_beginning_of_the_rendered_conversation(name: str, merges: bool) -> None:
    """For every template, context and conversation that is accepted; token for token where nothing merges."""
    tokenizer, seen = tokenizer_for(TEMPLATES[name], merges), 0
    for context in dict.fromkeys(context for contexts in CONTEXTS for context in contexts):
        try:
            model = composed(tokenizer, context)
        except ContextError:
            continue
        for conversation in CONVERSATIONS:
            try:
                ids, _ = encode_with_answer(model, conversation, "ay, the sea.\n\n")
            except ContextError:
                continue
            system = [{"role": "system", "content": context}] if context else []
            turns = [*system, *conversation, {"role": "assistant", "content": "ay, the sea.\n\n"}]
            row = [*model.openings.ids[1], *ids[0].tolist()]
            if name != "mistral, last turn":
                text = tokenizer.apply_chat_template(turns, tokenize=False)
                assert text.startswith(tokenizer.decode(row))
                whole = tokenizer(text, add_special_tokens=False).input_ids
                assert merges or whole[: len(row)] == row
            seen += 1
    assert seen


def test_a_turn_that_does_not_follow_its_own_generation_prompt_is_plain_text_with_the_end() -> None:
    template = CHATML.replace("'<|start|>assistant '", "'<|start|>assistant A'")
    model = composed(tiny_tokenizer(template), "be brief", 64)
    assert answered(model, "hi", "so") == "so<|end|>"


def test_white_space_that_is_a_token_of_its_own_does_not_end_a_turn() -> None:
    tokenizer = tiny_tokenizer(CHATML.replace("m['content'] + '", "m['content'] + ' "))
    tokenizer.add_tokens([" "])
    assert answered(composed(tokenizer, "be brief", 64), "hi", "so") == "so <|end|>"


def test_what_the_template_refuses_is_said() -> None:
    template = "{% if messages[-1]['role'] != 'user' %}{{ raise_exception('no answers') }}{% endif %}" + CHATML
    with pytest.raises(ContextError, match=r"^the chat template refuses these messages: no answers$"):
        encode_with_answer(composed(tiny_tokenizer(template), None, 64), "hi", "so")


@pytest.mark.parametrize("context", [None, "be brief"])
def test_raw_answers_follow_as_they_are_and_do_not_end(context: str | None) -> None:
    model = composed(tiny_tokenizer(None, bos=True), context, 64)
    assert answered(model, "hi", " so ") == " so "
    assert encode_with_answer(model, "hi", " so")[0].tolist() == [
        [1] * (context is None) + model.tokenizer("hi so", add_special_tokens=False).input_ids
    ]


def test_raw_prompts_keep_their_ids_where_a_token_would_cross_the_border() -> None:
    model = composed(tokenizer_for(QWEN, merges=True), context_format="raw")
    for prompt, answer in (("tell", " me"), (".", "\n\nx"), ("x.\n", "\nx")):
        assert answered(model, prompt, answer) == answer


def test_the_loss_is_that_of_the_answer() -> None:
    model = composed(tiny_tokenizer(), "be brief", 64)
    ids, labels = encode_with_answer(model, "hi", "so")
    with torch.no_grad():
        output = model(ids, labels=labels)
    first = len(model.encode("hi")["input_ids"][0])
    expected = -sum(output.logits[0, t - 1, ids[0, t]] for t in range(first, first + 3)) / 3
    torch.testing.assert_close(output.loss, expected)
    assert ids.shape[1] == first + 3


def test_answers_that_cannot_be_are_refused_with_the_mend() -> None:
    model = composed(tiny_tokenizer(None), window=8, vocabulary=64)
    for answer in ("", " \n"):
        with pytest.raises(ContextError) as caught:
            encode_with_answer(model, "hi", answer)
        assert str(caught.value) == "the answer is empty; say what should follow the prompt, or leave the example out"
    encode_with_answer(model, "hi", "abcdef")
    with pytest.raises(ContextError) as caught:
        encode_with_answer(model, "hi", "abcdefg")
    assert str(caught.value) == (
        "prompt and answer come to 9 tokens, and 8 fit into the model's window behind the contexts; "
        "shorten the answer or the prompt"
    )
    with pytest.raises(VocabularyError, match=r"holds the token '9' \(id 52\)"):
        encode_with_answer(composed(tiny_tokenizer(None), vocabulary=52), "hi", "9")


@pytest.mark.embedded
def test_the_embedded_model_ends_its_turns() -> None:
    model = ComposedModel.from_recipe(
        base="smollm2-135m-instruct", components={"pirate": {"context": PIRATE}}, device="cpu"
    )
    assert answered(model, "Why is the sky blue?", "Arr, the air scatters blue.") == (
        "Arr, the air scatters blue.<|im_end|>"
    )
    ids, _ = encode_with_answer(model, "Why?", "So.")
    assert int(ids[0, -1]) in (model.generation_config.eos_token_id, model.tokenizer.eos_token_id)
