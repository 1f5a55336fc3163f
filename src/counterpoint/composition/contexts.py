"""Contexts before the prompt: what each row begins with, and how prompts are encoded to follow it.

With a chat template a voice's context is its system prompt. A row is the voice's own opening (its system block)
followed by the conversation, which is the same in every row and is what `input_ids` holds:

    base     <system: template's default, if any> | <user: hi> <assistant>
    pirate   <system: You are a pirate.>          | <user: hi> <assistant>
             openings, kept by the model          | input_ids, made by encode()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from counterpoint.errors import ContextError

Messages = list[dict[str, str]]
_PROBE: Messages = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class Openings:
    """How the rows of a recipe begin.

    Attributes:
        ids: the token ids before the conversation, one list a voice; all empty where no voice has a context.
        format: `chat` if prompts go through the chat template, `raw` if they are taken as they are.
        first_context: the context of the first voice, whose opening `encode_one` takes off again.
        default: how a row begins in the ordinary rendering, without any context: a default system block, BOS, or
            nothing.
        system: the ids that begin a system block in this template; empty where that cannot be told.
    """

    ids: tuple[tuple[int, ...], ...]
    format: Literal["chat", "raw"]
    first_context: str | None = None
    default: tuple[int, ...] = ()
    system: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        return any(self.ids)


def chat_or_raw(tokenizer: PreTrainedTokenizerBase | None, wanted: str | None) -> Literal["chat", "raw"]:
    """The context format: the one asked for, else `chat` where the tokenizer has a template.

    Raises:
        ContextError: `chat` is asked for and there is no template.
    """
    has_template = tokenizer is not None and bool(tokenizer.chat_template)
    if wanted == "chat" and not has_template:
        raise ContextError("context_format: chat, but the tokenizer has no chat template; use `context_format: raw`")
    return "chat" if has_template and wanted != "raw" else "raw"


def openings(
    tokenizer: PreTrainedTokenizerBase | None, contexts: Sequence[str | None], wanted: str | None = None
) -> Openings:
    """The openings of all voices.

    Args:
        tokenizer: the one that all voices share.
        contexts: one for each voice, None for a voice without.
        wanted: the recipe's `context_format`.

    Raises:
        ContextError: the template has no place for a system prompt before the conversation.
    """
    format_ = chat_or_raw(tokenizer, wanted)
    if not any(contexts):
        return Openings(tuple(() for _ in contexts), format_)
    if tokenizer is None:
        raise ContextError("contexts need a tokenizer, and the models have none")
    if format_ == "raw":
        ids = tuple(tuple(tokenizer(context or "")["input_ids"]) for context in contexts)
        return Openings(ids, "raw", contexts[0], default=tuple(tokenizer("")["input_ids"]))
    conversation = _conversation(tokenizer, next(context for context in contexts if context))
    blocks = []
    for context in [*contexts, None]:
        full = render(tokenizer, _system(context) + _PROBE)
        if full[-len(conversation) :] != conversation:
            raise ContextError(_no_place(tokenizer))
        blocks.append(tuple(full[: -len(conversation)]))
    probes = [render(tokenizer, _system(text) + _PROBE) for text in ("\u2460", "zebra")]
    system = _common_prefix(*probes)
    tells = system and conversation[: len(system)] != system
    return Openings(tuple(blocks[:-1]), "chat", contexts[0], blocks[-1], tuple(system) if tells else ())


def encode_one(tokenizer: PreTrainedTokenizerBase, prompt: str | Messages, opening: Openings) -> list[int]:
    """The token ids of one prompt, as they follow the openings.

    Raises:
        ContextError: an empty prompt, one of special tokens only, or a system message beside a recipe's own contexts.
    """
    if not prompt:
        raise ContextError("the prompt is empty; say something, or pass messages")
    if isinstance(prompt, str) and set(tokenizer(prompt, add_special_tokens=False)["input_ids"]) <= set(
        tokenizer.all_special_ids
    ):
        raise ContextError(f"the prompt {prompt!r:.60} holds nothing but special tokens; add some text")
    if isinstance(prompt, str) and opening.format == "raw":
        return list(tokenizer(prompt, add_special_tokens=not opening.any)["input_ids"])
    messages: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if opening.format == "raw":
        raise ContextError("messages need a chat template; this recipe's context_format is raw: pass plain text")
    if opening.any and any(message.get("role") == "system" for message in messages):
        raise ContextError(
            "the prompt has a system message, but this recipe gives every row its own; put it in the recipe as "
            "`base: {model: ..., context: ...}` or as a component's context"
        )
    if not opening.any:
        return render(tokenizer, messages)
    full = render(tokenizer, _system(opening.first_context) + messages)
    before = opening.ids[0]
    if tuple(full[: len(before)]) != before:
        raise ContextError(_no_place(tokenizer))
    return full[len(before) :]


def render(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """The chat template's token ids for some messages, ready for the assistant to answer.

    Raises:
        ContextError: the template refuses the messages; its own reason is given.
    """
    try:
        text: Any = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise ContextError(f"the chat template refuses these messages: {str(error).splitlines()[0]}") from None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _system(context: str | None) -> Messages:
    return [{"role": "system", "content": context}] if context else []


def _conversation(tokenizer: PreTrainedTokenizerBase, context: str) -> list[int]:
    """What follows the system block of a probe conversation: after the block if it can be rendered alone, else after
    all that depends on the system prompt."""
    full = render(tokenizer, _system(context) + _PROBE)
    try:
        text: Any = tokenizer.apply_chat_template(_system(context), tokenize=False)
        block = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception:
        block = []
    if block and full[: len(block)] == block and len(block) < len(full):
        return full[len(block) :]
    others = [render(tokenizer, _system(text) + _PROBE) for text in ("\u2460", "zebra")]
    conversation = _common_prefix(*(list(reversed(ids)) for ids in [full, *others]))
    probe = render(tokenizer, [*_system(context), {"role": "user", "content": "y"}])
    if not conversation or full[: -len(conversation)] != probe[: len(full) - len(conversation)]:
        raise ContextError(_no_place(tokenizer))
    return list(reversed(conversation))


def _common_prefix(*sequences: list[int]) -> list[int]:
    shortest = min(sequences, key=len)
    for index, token in enumerate(shortest):
        if any(sequence[index] != token for sequence in sequences):
            return shortest[:index]
    return shortest


def _no_place(tokenizer: PreTrainedTokenizerBase) -> str:
    return (
        f"the chat template of {tokenizer.name_or_path!r} has no place for a system prompt before the conversation; "
        "use `context_format: raw`"
    )
