"""Given answers as token ids: a prompt and what should follow it, exactly as the model would have to say it."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from counterpoint.composition.contexts import Messages
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.vocabulary import check_known
from counterpoint.errors import ContextError, one_line

IGNORED = -100
"""Stands in labels for tokens that are not predicted."""
_SAMPLES = "\u2460", "zebra"
"""Answers that end differently, to find out what a template puts after one."""


def encode_with_answer(
    model: ComposedModel, prompt: str | Messages, answer: str
) -> tuple[Int[Tensor, "1 time"], Int[Tensor, "1 time"]]:
    """(input_ids, labels) of one prompt and its answer, on the model's device; labels are -100 except for the answer.

    The ids are those of `model.encode(prompt)`, then the answer's. In chat format the answer is what the chat template
    makes of the assistant's turn, up to and including the token that ends it, such as `<|im_end|>`; what the template
    puts after that (a line break) is not the model's to say. A template whose turn does not go on from its own
    generation prompt gives the answer's plain text, and the end of the turn. In raw format the answer is the text that
    follows the prompt, a space included if one is meant, without an end of sequence.

    Raises:
        ContextError: an empty answer, one that does not fit the window behind contexts and prompt, or a prompt that
            `model.encode` refuses.
        VocabularyError: a token that not all models know.
    """
    if not answer.strip():
        raise ContextError("the answer is empty; say what should follow the prompt, or leave the example out")
    before: Tensor = model.encode(prompt)["input_ids"]
    assert model.tokenizer is not None
    if model.openings.format == "raw":
        after = _ids_after(model.tokenizer, str(prompt), answer)
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        after = _turn(model.tokenizer, messages, answer, model.openings.contexts or (None,))
    check_known(after, model.config.vocab_size, model.tokenizer)
    room, needed = model.config.max_position_embeddings, before.shape[1] + len(after)
    if room is not None and needed > room:
        raise ContextError(
            f"prompt and answer come to {needed} tokens, and {room} fit into the model's window behind the contexts; "
            "shorten the answer or the prompt"
        )
    answered = torch.tensor([after], device=before.device)
    return torch.cat([before, answered], 1), torch.cat([torch.full_like(before, IGNORED), answered], 1)


def _turn(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, answer: str, contexts: tuple[str | None, ...]
) -> list[int]:
    """The ids of the assistant's turn, the same in every row, else those of the answer's plain text."""
    turns, plain = set(), ""
    for context in contexts:
        system = [{"role": "system", "content": context}] if context else []
        asked = _rendered(tokenizer, system + messages, ready=True)
        whole, *samples = (
            _rendered(tokenizer, [*system, *messages, {"role": "assistant", "content": text}], ready=False)
            for text in (answer, *_SAMPLES)
        )
        tail = _common_suffix(*samples)
        end = _end_of_turn(tokenizer, tail)
        plain = answer + end
        goes_on = whole.startswith(asked) and whole[len(asked) :].endswith(tail)
        said = whole[len(asked) : len(whole) - len(tail)] + end if goes_on else plain
        turns.add(tuple(_ids_after(tokenizer, asked, said)))
    return list(turns.pop() if len(turns) == 1 else tokenizer(plain, add_special_tokens=False)["input_ids"])


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Messages, ready: bool) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ready))
    except Exception as error:
        raise ContextError(f"the chat template refuses these messages: {one_line(error)}") from None


def _end_of_turn(tokenizer: PreTrainedTokenizerBase, tail: str) -> str:
    """What follows an answer, up to and including the first mark in it; nothing where there is none."""
    marks = {*tokenizer.all_special_tokens, *map(str, tokenizer.get_added_vocab())}
    ends = [(tail.find(mark), -len(mark)) for mark in marks if mark.strip() and mark in tail]
    return tail[: min(ends)[0] - min(ends)[1]] if ends else ""


def _ids_after(tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> list[int]:
    """The ids of a text as it stands behind another, whose own ids stay as they are."""
    first, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, before + after))
    if whole[: len(first)] == first:
        return list(whole[len(first) :])
    return list(tokenizer(after, add_special_tokens=False)["input_ids"])


def _common_suffix(*texts: str) -> str:
    shortest = min(texts, key=len)
    for index in range(1, len(shortest) + 1):
        if any(text[-index] != shortest[-index] for text in texts):
            return shortest[len(shortest) - index + 1 :]
    return shortest
