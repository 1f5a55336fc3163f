"""Contexts: every row must be, token for token, what its voice alone would be given; anything else is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from counterpoint import ComposedModel
from counterpoint.composition.contexts import Openings, encode_one, openings
from counterpoint.errors import ContextError
from worlds import CHATML, tiny_model, tiny_tokenizer

Messages = list[dict[str, str]]

QWEN = (
    "{% if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] != 'system' or not loop.first %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_DEFAULT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | "
    "trim + '<|eot_id|>' %}{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_3_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n' + system }}"
    "{{ '<|eot_id|>' }}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
    "'<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') + m['content'] | trim + "
    "' [/INST]' }}{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
    "m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA_3 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    "{{ (system if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL_LAST = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + (system if loop.last else '') + m['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_7 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}"
    "{% elif m['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}"
    "{% else %}{{ '<|Assistant|>' + m['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"
)
VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set messages = messages[1:] %}"
    "{% else %}{{ 'A chat with a helpful assistant. ' }}{% endif %}{% for m in messages %}"
    "{{ ('USER: ' if m['role'] == 'user' else 'ASSISTANT: ') + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
SYSTEM_NEEDED = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}" + NO_DEFAULT
ONE_TURN = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + NO_DEFAULT
DEAF = "{% for m in messages if m['role'] != 'system' %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
RIGHT = {
    "qwen": QWEN, "no default": NO_DEFAULT, "llama 3": LLAMA_3, "llama 3.2": LLAMA_3_2, "gemma 3": GEMMA_3,
    "mistral 7": MISTRAL_7, "deepseek": DEEPSEEK,
}  # fmt: skip
"""Right for every conversation; the others, for all that is accepted."""
TEMPLATES = RIGHT | {"llama 2": LLAMA_2, "mistral, last turn": MISTRAL_LAST, "vicuna": VICUNA, "one turn": ONE_TURN}
MARKS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|User|>", "<|Assistant|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
]  # fmt: skip
PIRATE = "You are a pirate."


@cache
def tokenizer_for(template: str, merges: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte or a mark; with `merges`, tokens also cross line breaks and spaces, as hardly any real one's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["\n\nx", ".\n\n", "user\n", "> \n\n<<SYS>>", "\n<</SYS>>\n\n", " tell me", ". USER: ", ".\n", "y ", "  "]
    trainer = trainers.BpeTrainer(
        vocab_size=400 if merges else 256,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 9, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    fast.name_or_path = "the-model"
    return fast


def say(*turns: str) -> Messages:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


def alone(tokenizer: PreTrainedTokenizerFast, context: str | None, messages: Messages) -> list[int]:
    """What the voice would be given by itself."""
    system = [{"role": "system", "content": context}] if context else []
    return tokenizer.apply_chat_template(system + messages, add_generation_prompt=True, return_dict=False)


def error_of(function: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(ContextError) as caught:
        function(*arguments, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


OPENINGS = {
    "qwen": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
        "<|im_start|>system\nYou are a pirate.<|im_end|>\n",
        "<|im_start|>system\n",
    ),
    "no default": ("", "<|im_start|>system\nYou are a pirate.<|im_end|>\n", "<|im_start|>system\n"),
    "llama 3": (
        "<s>",
        "<s><|start_header_id|>system<|end_header_id|>\n\nYou are a pirate.<|eot_id|>",
        "<s><|start_header_id|>system<|end_header_id|>\n\n",
    ),
    "llama 3.2": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n<|eot_id|>",
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nYou are a pirate.<|eot_id|>",
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n",
    ),
    "mistral 7": ("<s>", "<s>[SYSTEM_PROMPT]You are a pirate.[/SYSTEM_PROMPT]", "<s>[SYSTEM_PROMPT]"),
    "deepseek": ("<s>", "<s>You are a pirate.", ""),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_rows_open_with_their_own_system_block(name: str) -> None:
    tokenizer = tokenizer_for(TEMPLATES[name])
    default, pirate, system = OPENINGS[name]
    opening = openings(tokenizer, [None, PIRATE, None])
    assert opening.format == "chat"
    assert [tokenizer.decode(ids) for ids in opening.ids] == [default, pirate, default]
    assert tokenizer.decode(opening.default) == default
    assert tokenizer.decode(opening.system) == system


def test_without_contexts_nothing_opens_and_prompts_are_rendered_whole() -> None:
    tokenizer = tokenizer_for(QWEN)
    opening = openings(tokenizer, [None, None])
    assert opening == Openings(((), ()), "chat")
    assert not opening.any
    assert encode_one(tokenizer, "ahoy", opening) == alone(tokenizer, None, say("ahoy"))
    system = [{"role": "system", "content": PIRATE}]
    assert encode_one(tokenizer, system + say("ahoy"), opening) == alone(tokenizer, PIRATE, say("ahoy"))


CONVERSATIONS = [
    say("x"),
    say("tell me about the sea"),
    say("hi", "ahoy", "y"),
    say("tell me", "no.", "why?", "so.\n", "x"),
    say("<<SYS>>\nx"),
    say("\n\nx", " ", ".\n\n"),
    say("  x  ", "\u2460", "zebra"),
]
CONTEXTS: list[list[str | None]] = [
    [None, PIRATE],
    ["Be brief.", PIRATE, "Be brief."],
    [PIRATE, None, "Speak in verse,\nsoftly. \n\n"],
    ["\u2460", "x"],
    [" USER: ", None],
]


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_opening_and_prompt_are_what_the_voice_alone_would_be_given(name: str, merges: bool) -> None:
    check = {"right": 0, "refused": 0}
    for contexts in CONTEXTS:
        for conversation in CONVERSATIONS:
            check[_checked(name, contexts, conversation, merges)] += 1
    if name in RIGHT and not merges:
        assert check == {"right": len(CONTEXTS) * len(CONVERSATIONS), "refused": 0}
    if name == "mistral, last turn":
        assert check["right"] == 0


def _checked(name: str, contexts: list[str | None], conversation: Messages, merges: bool = False) -> str:
    tokenizer = tokenizer_for(TEMPLATES[name], merges)
    try:
        opening = openings(tokenizer, contexts)
        ids = encode_one(tokenizer, conversation, opening)
    except ContextError:
        return "refused"
    for before, context in zip(opening.ids, contexts, strict=True):
        assert [*before, *ids] == alone(tokenizer, context, conversation)
    if len(conversation) == 1:
        assert encode_one(tokenizer, conversation[0]["content"], opening) == ids
    return "right"


TEXT = st.text("ax.\n <>/[]SY:", min_size=1, max_size=9)


@given(
    st.sampled_from(sorted(TEMPLATES)), st.lists(st.none() | TEXT, min_size=1, max_size=3), st.lists(TEXT, min_size=1)
)
@settings(max_examples=60, deadline=None)
@example("gemma 3", [None, "a"], ["\nx"])
@example("llama 2", [None, "a"], ["x"])
@example("mistral, last turn", ["a", "a"], ["x", "x", "x"])
@example("deepseek", ["a", "a\n"], ["x"])
def test_no_conversation_is_ever_silently_wrong(name: str, contexts: list[str | None], turns: list[str]) -> None:
    for merges in (False, True):
        _checked(name, contexts, say(*turns[: len(turns) - (len(turns) + 1) % 2]), merges)


def test_a_template_may_put_the_system_prompt_into_the_first_turn() -> None:
    for name, first in (("gemma 3", "<s><start_of_turn>user"), ("llama 2", "<s>[INST] ")):
        tokenizer = tokenizer_for(TEMPLATES[name])
        opening = openings(tokenizer, [None, "a", "b"])
        assert tokenizer.decode(opening.ids[0]) == tokenizer.decode(opening.default) == first
        assert _checked(name, [None, "a", "b"], say("tell me", "no", "x")) == "right"


RAW = "use `context_format: raw`"
REFUSED = {
    "gemma 2": (GEMMA_2, f"refuses system prompts (System role not supported); {RAW}"),
    "mistral": (MISTRAL_LAST, f"has no place for a system prompt before the conversation; {RAW}"),
    "deaf": (DEAF, f"leaves system prompts out; {RAW}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_templates_without_a_place_for_contexts_are_refused_with_the_mend(name: str) -> None:
    template, message = REFUSED[name]
    tokenizer = tokenizer_for(template)
    for contexts in ([None, PIRATE], [PIRATE, PIRATE], [PIRATE, "Be brief."]):
        assert error_of(openings, tokenizer, contexts) == f"the chat template of 'the-model' {message}"
    opening = openings(tokenizer, [None, PIRATE], "raw")
    assert opening.ids == ((), tuple(tokenizer(PIRATE).input_ids))
    assert openings(tokenizer, [None, None]).format == "chat"


def test_a_template_that_needs_a_system_prompt_serves_where_every_voice_has_one() -> None:
    tokenizer = tokenizer_for(SYSTEM_NEEDED)
    opening = openings(tokenizer, [PIRATE, "Be brief."])
    assert [tokenizer.decode(ids) for ids in opening.ids] == [
        f"<|im_start|>system\n{text}<|im_end|>\n" for text in (PIRATE, "Be brief.")
    ]
    assert opening.default == ()
    assert [*opening.ids[1], *encode_one(tokenizer, "x", opening)] == alone(tokenizer, "Be brief.", say("x"))
    assert error_of(openings, tokenizer, [None, PIRATE]) == (
        f"the chat template of 'the-model' refuses system prompts (no system); {RAW}"
    )


def test_a_conversation_that_the_template_cannot_keep_apart_is_refused() -> None:
    tokenizer = tokenizer_for("{% if messages | length > 4 %}{{ messages[0]['content'] }}{% endif %}" + NO_DEFAULT)
    opening = openings(tokenizer, [None, "a"])
    assert encode_one(tokenizer, say("x", "z", "y"), opening)
    assert error_of(encode_one, tokenizer, say("x", "z", "y", "z", "y"), opening) == (
        f"the chat template of 'the-model' does not keep the system prompt apart from this conversation; {RAW}"
    )


def test_what_the_template_itself_refuses_is_passed_on() -> None:
    tokenizer = tokenizer_for(LLAMA_2)
    opening = openings(tokenizer, [None, "a"])
    twice = [*say("x"), *say("y")]
    assert error_of(encode_one, tokenizer, twice, opening) == (
        "the chat template refuses these messages: roles must alternate"
    )


def test_a_date_in_the_template_may_change_after_loading() -> None:
    tokenizer = tokenizer_for(LLAMA_3_2)
    opening = openings(tokenizer, [None, PIRATE])
    today = encode_one(tokenizer, "x", opening)
    try:
        tokenizer.chat_template = LLAMA_3_2.replace("26 Jul 2024", "1 January 2031")
        assert encode_one(tokenizer, "x", opening) == today
    finally:
        tokenizer.chat_template = LLAMA_3_2


@pytest.mark.parametrize("bos", [True, False])
def test_raw_rows_begin_with_one_bos_where_the_tokenizer_has_one(bos: bool) -> None:
    tokenizer = tiny_tokenizer(None, bos=bos)
    begin = [1] * bos
    for contexts in ([None, "be brief"], ["be brief", None]):
        opening = openings(tokenizer, contexts)
        assert opening.format == "raw"
        for context, before in zip(contexts, opening.ids, strict=True):
            row = [*before, *encode_one(tokenizer, "hi", opening)]
            assert row == begin + tokenizer((context or "") + "hi", add_special_tokens=False).input_ids
        assert opening.default == tuple(begin)
    bare = openings(tokenizer, [None, None])
    assert encode_one(tokenizer, "hi", bare) == [*begin, 12, 13]
    assert encode_one(tokenizer, "<s>hi", bare) == [1, 12, 13]
    assert openings(tokenizer, ["<s>hi", None]).ids == ((1, 12, 13), tuple(begin))


def composed(
    contexts: list[str | None], template: str | None = CHATML, bos: bool = False, window: int = 256, **fields: Any
) -> ComposedModel:
    """A base and components x0, x1, ... on one tiny model, the base's context first."""
    components = {f"x{i}": {"model": "m", "context": context} for i, context in enumerate(contexts[1:])}
    models = {"m": (tiny_model(max_position_embeddings=window), tiny_tokenizer(template, bos=bos))}
    base = {"model": "m", "context": contexts[0]}
    return ComposedModel.from_recipe(base=base, components=components, models=models, **fields)


def test_encode_takes_texts_messages_and_lists_of_both() -> None:
    model = composed([None, "be brief"])
    turns = model.tokenizer("<|start|>user hi<|end|><|start|>assistant ").input_ids
    longer = model.tokenizer("<|start|>user hello<|end|><|start|>assistant ").input_ids
    for prompt in ("hi", say("hi"), ["hi"], [say("hi")]):
        batch = model.encode(prompt)
        assert batch.input_ids.tolist() == [turns]
        assert batch.attention_mask.tolist() == [[1] * len(turns)]
    for prompts in (["hi", "hello"], [say("hi"), say("hello")], (say("hi"), "hello")):
        batch = model.encode(prompts)
        assert batch.input_ids.tolist() == [[0, 0, 0, *turns], longer]
        assert batch.attention_mask.tolist() == [[0, 0, 0] + [1] * len(turns), [1] * len(longer)]


EMPTY = "the prompt is empty; say something, or pass messages"


def test_prompts_that_do_not_fit_are_refused() -> None:
    model = composed([None, "be brief"])
    for prompt in ("", [], ["hi", ""], [[]]):
        assert error_of(model.encode, prompt) == EMPTY
    assert error_of(model.encode, "<s><|start|><|end|>") == (
        "the prompt '<s><|start|><|end|>' holds nothing but special tokens; add some text"
    )
    assert error_of(model.encode, [{"role": "system", "content": "be bold"}, *say("hi")]) == (
        "the prompt has a system message, but this recipe gives every row its own; put it in the recipe as "
        "`base: {model: ..., context: ...}` or as a component's context"
    )
    assert error_of(composed([None, "be brief"], context_format="raw").encode, say("hi")) == (
        "messages need a chat template; this recipe's context_format is raw: pass plain text"
    )


def test_chat_needs_a_template_and_contexts_need_a_tokenizer() -> None:
    assert error_of(composed, [None, "be brief"], template=None, context_format="chat") == (
        "context_format: chat, but the tokenizer has no chat template; use `context_format: raw`"
    )
    assert composed([None, "be brief"], template=None).openings.format == "raw"
    models = {"m": (tiny_model(), None)}
    components = {"x": {"context": "be brief"}}
    assert error_of(ComposedModel.from_recipe, base="m", components=components, models=models) == (
        "contexts need a tokenizer, and the models have none"
    )
    bare = ComposedModel.from_recipe(base="m", components={"x": {"model": "m"}}, models=models)
    assert error_of(bare.encode, "hi") == "encoding needs a tokenizer, and the models have none"


BOS_FIRST = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m['role'] + ' ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant ' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "format_", "own"),
    [(CHATML, "chat", "<|start|>system be nice<|end|>"), (BOS_FIRST, "chat", "<s>"), (None, "raw", "<s>")],
)
@pytest.mark.parametrize("contexts", [[None, "be brief", "you are a pirate"], ["be bold", "be brief"]])
def test_a_default_block_before_the_ids_changes_nothing(
    template: str | None, format_: str, own: str, contexts: list[str | None]
) -> None:
    """As tools give them that render the chat template, or put BOS first, themselves; padded on the left, too."""
    model = composed(contexts, template, bos=True, context_format=format_)
    ids = model.encode("what is the sea").input_ids
    block = torch.tensor([model.tokenizer(own, add_special_tokens=False).input_ids])
    with torch.no_grad():
        without = model(ids).logits
        following = model(torch.cat([block, ids], dim=1)).logits[:, block.shape[1] :]
        torch.testing.assert_close(following, without, atol=1e-5, rtol=1e-5)
        padding = torch.zeros(1, 3, dtype=torch.long)
        padded = torch.cat([torch.cat([padding, block, ids], dim=1), torch.cat([padding, block, ids], dim=1)])
        mask = torch.ones_like(padded)
        mask[:, :3] = 0
        following = model(padded, attention_mask=mask).logits[:, 3 + block.shape[1] :]
        torch.testing.assert_close(following, without.expand(2, -1, -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("template", [CHATML, BOS_FIRST])
def test_another_system_block_before_the_ids_is_refused(template: str) -> None:
    model = composed([None, "be brief"], template)
    refused = (
        "input_ids begin with a system block, but this recipe gives every row its own; make them with "
        "model.encode(messages), or put the system prompt in the recipe as the base's context"
    )
    ids = torch.tensor([alone(model.tokenizer, "be bold", say("hi"))])
    assert error_of(model, ids) == refused
    assert error_of(model, ids[:, 1:] if template == BOS_FIRST else ids) == refused
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 2, dtype=torch.long), torch.ones_like(ids)], dim=1)
    assert error_of(model, padded, attention_mask=mask) == refused
    model(torch.tensor([alone(model.tokenizer, None, say("hi"))]))
    composed([None, None], template)(ids)


def test_generation_from_bos_alone_continues_the_contexts() -> None:
    model = composed([None, "be brief"], None, bos=True)
    with torch.no_grad():
        logits = model(torch.tensor([[1]])).logits[0, -1]
        plain = model.backbones[0].model
        base, x = (plain(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for ids in model.openings.ids)
    torch.testing.assert_close(logits, (base + x - base).log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_a_context_that_fills_the_window_names_its_component() -> None:
    long = "a b c d e f g h i j k l m n"
    assert error_of(composed, [None, "hi", long, "ho"], window=24) == (
        "x1: a context of 36 tokens leaves no room in the model's window of 24; shorten it"
    )
    assert error_of(composed, [long, "hi"], window=36).startswith("base: a context of 36 tokens")
    assert composed([long, "hi"], window=37).config.max_position_embeddings == 1


def test_a_prompt_that_does_not_fit_behind_the_contexts_is_refused() -> None:
    model = composed([None, "hi"], None, window=20)
    assert model.config.max_position_embeddings == 18
    ids = torch.randint(5, 50, (1, 18))
    model(ids)
    message = "and the model's window is 20; shorten the prompt or the contexts, or ask for fewer new tokens"
    assert error_of(model, torch.randint(5, 50, (1, 19))) == f"contexts, prompt and answer come to 21 tokens, {message}"
    cache = model(ids, use_cache=True).cache
    assert error_of(model, ids[:, :1], cache=cache) == f"contexts, prompt and answer come to 21 tokens, {message}"
    padded = torch.cat([torch.zeros(1, 9, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 9, dtype=torch.long), torch.ones_like(ids)], dim=1)
    torch.testing.assert_close(
        model(padded, attention_mask=mask).logits[:, 9:], model(ids).logits, atol=1e-5, rtol=1e-5
    )
