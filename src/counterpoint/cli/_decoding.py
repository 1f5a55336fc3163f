"""Generating with a loaded model: streamed to the terminal, or in fixed batches with a seed each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextStreamer

from counterpoint.cli._options import Decoding
from counterpoint.cli._prompts import Prompt
from counterpoint.composition.model import ComposedModel
from counterpoint.errors import ContextError


@dataclass(frozen=True)
class Answer:
    """One answer: the prompt's index, the text, its new tokens, and whether it ended by itself."""

    index: int
    text: str
    tokens: int
    finish: str


class Printer(TextStreamer):
    """Prints an answer word by word, and keeps it in `text`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        sys.stdout.write(text + ("\n" if stream_end else ""))
        sys.stdout.flush()


def stream(model: ComposedModel, prompt: Prompt, decoding: Decoding, printer: Printer) -> None:
    """Print the answer to one prompt as it comes. The caller seeds."""
    model.generate(**model.encode(prompt), **decoding.arguments(), streamer=printer)


def check_prompts(model: ComposedModel, prompts: Sequence[Prompt]) -> None:
    """Encode every prompt once, so that a bad one is found before hours of work and not after.

    Raises:
        ContextError: names the prompt.
    """
    for index, prompt in enumerate(prompts):
        try:
            length, room = model.encode(prompt)["input_ids"].shape[1], model.config.max_position_embeddings
            if room is not None and length >= room:
                raise ContextError(
                    f"{length} tokens, and {room} fit into the model's window behind the contexts, an answer included; "
                    "shorten the prompt or the contexts"
                )
        except ContextError as error:
            where = f"prompt {index + 1}: " if len(prompts) > 1 else ""
            raise ContextError(f"{where}{error}") from None


def answer(
    model: ComposedModel, prompts: Sequence[Prompt], decoding: Decoding, batch_size: int, done: int = 0
) -> Iterator[list[Answer]]:
    """Answers, a batch at a time, without the first `done` ones.

    Batches begin at multiples of `batch_size`, and each is seeded by where it begins, so an answer does not depend on
    what was answered before in the same run.
    """
    for first in range(done - done % batch_size, len(prompts), batch_size):
        batch: Any = prompts[first : first + batch_size]
        torch.manual_seed(decoding.seed + first)
        encoded = model.encode(batch)
        output: Any = model.generate(**encoded, **decoding.arguments())
        new = output[:, encoded["input_ids"].shape[1] :].tolist()
        yield [_answer(model, first + i, ids) for i, ids in enumerate(new) if first + i >= done]


def _answer(model: ComposedModel, index: int, ids: list[int]) -> Answer:
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    length = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
    assert model.tokenizer is not None
    text: Any = model.tokenizer.decode(ids[:length], skip_special_tokens=True)
    return Answer(index, text, len(ids[:length]), "length" if length is None else "stop")
