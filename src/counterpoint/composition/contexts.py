"""Contexts before the prompt: what each row begins with, and how prompts are encoded to follow it.

With a chat template a voice's context is its system prompt. A row is the voice's own opening (its system block)
followed by the conversation, which is the same in every row and is what `input_ids` holds:

    base     <system: template's default, if any> | <user: hi> <assistant>
    pirate   <system: You are a pirate.>          | <user: hi> <assistant>
             openings, kept by the model          | input_ids, made by encode()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from counterpoint.errors import ContextError, one_line

Messages = list[dict[str, str]]
_PROBES: list[Messages] = [
    [{"role": role, "content": text} for role, text in turns]
    for turns in ([("user", "x")], [("user", "y")], [("user", "x"), ("assistant", "z"), ("user", "y")])
]
_SAMPLES = "\u2460", "zebra"
"""System prompts that begin and end differently, to find out where a template puts one."""


@dataclass(frozen=True)
class Openings:
    """How the rows of a recipe begin.

    Attributes:
        ids: the token ids before the conversation, one list a voice; all empty where no voice has a context.
        format: `chat` if prompts go through the chat template, `raw` if they are taken as they are.
        contexts: the contexts of the voices, whose openings `encode_one` takes off again.
        default: how a row begins in the ordinary rendering, without any context: a default system block, BOS, or
            nothing.
        system: the ids that begin a system block in this template; empty where that cannot be told.
    """

    ids: tuple[tuple[int, ...], ...]
    format: Literal["chat", "raw"]
    contexts: tuple[str | None, ...] = ()
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
        ids = tuple(tuple(_raw(tokenizer, context or "")) for context in contexts)
        return Openings(ids, "raw", tuple(contexts), default=tuple(_raw(tokenizer, "")))
    try:
        blocks, turn = _blocks(tokenizer, [*contexts, None])
    except ContextError:
        if None in contexts:
            raise
        blocks, turn = _blocks(tokenizer, contexts)  # a template that cannot do without a system prompt
    default, system = blocks.get(None, ()), _common_prefix(*(blocks[sample] for sample in _SAMPLES))
    own = system[len(default) :] if system[: len(default)] == default else system
    tells = own and turn[: len(own)] != own and turn[: len(system)] != system
    return Openings(
        tuple(blocks[context] for context in contexts), "chat", tuple(contexts), default, system if tells else ()
    )


def encode_one(tokenizer: PreTrainedTokenizerBase, prompt: str | Messages, opening: Openings) -> list[int]:
    """The token ids of one prompt, as they follow the openings.

    Raises:
        ContextError: an empty prompt, one of special tokens only, or a system message beside a recipe's own contexts.
    """
    if not prompt:
        raise ContextError("the prompt is empty; say something, or pass messages")
    if isinstance(prompt, str) and set(tokenizer(prompt, add_special_tokens=False)["input_ids"]) <= _special(tokenizer):
        raise ContextError(f"the prompt {prompt!r:.60} holds nothing but special tokens; add some text")
    if isinstance(prompt, str) and opening.format == "raw":
        return _raw(tokenizer, prompt, begins=not opening.any)
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
    blocks = dict(zip(opening.contexts, opening.ids, strict=True))
    rows = {context: tuple(render(tokenizer, _system(context) + messages)) for context in blocks}
    behind = _behind(rows, blocks)
    if behind is None:  # a template that writes the date begins otherwise today than when the openings were made
        behind = _behind(rows, _blocks(tokenizer, opening.contexts)[0])
    if behind is None:
        raise ContextError(
            f"the chat template of {tokenizer.name_or_path!r} does not keep the system prompt apart from this "
            "conversation; use `context_format: raw`"
        )
    return list(behind)


def own_blocks_masked(
    openings: Openings, input_ids: Int[Tensor, "batch time"], attention_mask: Int[Tensor, "batch time"]
) -> Int[Tensor, "batch time"]:
    """The mask with a default system block (or BOS) at the start of a sequence taken for padding.

    Tools that apply the chat template themselves put it there; every row has its own opening instead.

    Raises:
        ContextError: a sequence begins with another system block.
    """
    if not openings.any:
        return attention_mask
    default, system = openings.default, openings.system
    own = system[len(default) :] if system[: len(default)] == default else ()
    mask = attention_mask.clone()
    for ids, seen in zip(input_ids.tolist(), mask, strict=True):
        start = int((seen.cumsum(0) == 0).sum())
        begins = [bool(block) and tuple(ids[start : start + len(block)]) == block for block in (default, system)]
        if begins[0] and not (begins[1] and len(system) > len(default)):
            seen[start : start + len(default)] = 0
        elif begins[1] or (own and tuple(ids[start : start + len(own)]) == own):
            raise ContextError(
                "input_ids begin with a system block, but this recipe gives every row its own; make them with "
                "model.encode(messages), or put the system prompt in the recipe as the base's context"
            )
    return mask


def render(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """The chat template's token ids for some messages, ready for the assistant to answer.

    Raises:
        ContextError: the template refuses the messages; its own reason is given.
    """
    try:
        return _ids(tokenizer, messages)
    except Exception as error:
        raise ContextError(f"the chat template refuses these messages: {one_line(error)}") from None


def _ids(tokenizer: PreTrainedTokenizerBase, messages: Messages, answer: bool = True) -> list[int]:
    text: Any = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _raw(tokenizer: PreTrainedTokenizerBase, text: str, begins: bool = True) -> list[int]:
    """The ids of a plain text, with BOS (where the tokenizer has one) if it begins a row and does not spell BOS out."""
    spelt = tokenizer.bos_token is not None and text.startswith(str(tokenizer.bos_token))
    return list(tokenizer(text, add_special_tokens=begins and not spelt)["input_ids"])


def _special(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added: Any = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(index for index, token in added.items() if token.special)}


def _system(context: str | None) -> Messages:
    return [{"role": "system", "content": context}] if context else []


def _blocks(
    tokenizer: PreTrainedTokenizerBase, contexts: Sequence[str | None]
) -> tuple[dict[str | None, tuple[int, ...]], tuple[int, ...]]:
    """How a conversation begins with each context (and each of `_SAMPLES`), and the probe turn that follows.

    Raises:
        ContextError: the template refuses or drops system prompts, or puts them elsewhere than before all turns.
    """
    rendered: list[dict[str | None, tuple[int, ...]]] = []
    for probe in _PROBES:
        try:
            rendered.append({c: tuple(_ids(tokenizer, _system(c) + probe)) for c in (*contexts, *_SAMPLES)})
        except Exception as error:
            if rendered:  # a template for one turn only
                continue
            raise ContextError(
                f"the chat template of {tokenizer.name_or_path!r} refuses system prompts ({one_line(error)}); "
                "use `context_format: raw`"
            ) from None
    turn = _turn(tokenizer, rendered[0])
    blocks = {context: row[: len(row) - len(turn)] for context, row in rendered[0].items()}
    if blocks[_SAMPLES[0]] == blocks[_SAMPLES[1]]:
        raise ContextError(
            f"the chat template of {tokenizer.name_or_path!r} leaves system prompts out; use `context_format: raw`"
        )
    if any(_behind(rows, blocks) is None for rows in rendered):
        raise ContextError(
            f"the chat template of {tokenizer.name_or_path!r} has no place for a system prompt before the "
            "conversation; use `context_format: raw`"
        )
    return blocks, turn


def _turn(tokenizer: PreTrainedTokenizerBase, rows: Mapping[str | None, tuple[int, ...]]) -> tuple[int, ...]:
    """What follows the system block: after the block if it can be rendered alone, else all that the rows share."""
    context = next(context for context in rows if context)
    try:
        block = _ids(tokenizer, _system(context), answer=False)
    except Exception:
        block = []
    rest = rows[context][len(block) :]
    if block and rest and all(row[-len(rest) :] == rest for row in rows.values()):
        return rest
    return _common_prefix(*(row[::-1] for row in rows.values()))[::-1]


def _behind(
    rows: Mapping[str | None, tuple[int, ...]], blocks: Mapping[str | None, tuple[int, ...]]
) -> tuple[int, ...] | None:
    """What follows the blocks, if every row begins with its own block and goes on as all the others do."""
    rests = {row[len(blocks[context]) :] for context, row in rows.items()}
    begins = all(row[: len(blocks[context])] == blocks[context] for context, row in rows.items())
    return rests.pop() if begins and len(rests) == 1 else None


def _common_prefix(*sequences: tuple[int, ...]) -> tuple[int, ...]:
    shortest = min(sequences, key=len)
    for index, token in enumerate(shortest):
        if any(sequence[index] != token for sequence in sequences):
            return shortest[:index]
    return shortest
