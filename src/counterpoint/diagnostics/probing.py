"""Probing a recipe: texts are generated, or given ones followed, and every measure is taken at every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from counterpoint.composition.contexts import Messages
from counterpoint.composition.continuations import encode_with_answer
from counterpoint.composition.evidence import gather_evidence, ratios, tilted
from counterpoint.composition.model import ComposedModel, ComposedOutput
from counterpoint.diagnostics.measures import Measures, measure
from counterpoint.diagnostics.results import Text

COMPOSED, GIVEN = "composed", "given"
CHUNK = 32
"""Tokens of a given answer that are measured at once."""


@dataclass(frozen=True)
class Task:
    """One text to measure: a prompt, and who continues it.

    Attributes:
        index: the prompt's number.
        voice: `composed`, `base`, a component's name, or `given`.
        answer: the continuation, for `given`.
    """

    index: int
    prompt: str | Messages
    voice: str
    answer: str | None = None


@torch.inference_mode()
def probe(
    model: ComposedModel, tasks: Sequence[Task], *, max_new_tokens: int = 64, temperature: float = 1.0, seed: int = 0
) -> Iterator[Text]:
    """One record for each task, in order. Each token is measured in the forward that it is drawn from.

    Args:
        model: the composed model.
        tasks: what to measure.
        max_new_tokens: a continuation ends there at the latest; given answers are cut there.
        temperature: of drawing from the voice that continues; 0 is greedy.
        seed: every text is drawn with a generator of its own, so it does not depend on those before it.

    Raises:
        CounterpointError: a prompt or an answer does not fit the recipe, see `ComposedModel.encode`.
    """
    for task in tasks:
        record = _Record(model)
        if task.voice == GIVEN:
            ids, labels = encode_with_answer(model, task.prompt, task.answer or "")
            start = int((labels[0] < 0).sum())
            _follow(model, record, ids[:, :start], ids[:, start : start + max_new_tokens])
        else:
            generator = torch.Generator().manual_seed(seed + 1_000_003 * task.index)
            _speak(
                model,
                record,
                model.encode(task.prompt)["input_ids"],
                task.voice,
                max_new_tokens,
                temperature,
                generator,
            )
        yield record.text(task)


def _follow(model: ComposedModel, record: _Record, prompt: Tensor, answer: Int[Tensor, "1 time"]) -> None:
    """Measure every token of an answer that is given."""
    cache = model.new_cache()
    output = _forward(model, prompt, cache, last=1)
    for piece in answer.split(CHUNK, dim=1):
        record.add(output, piece[:, :1])
        output = _forward(model, piece, cache, last=piece.shape[1])
        if piece.shape[1] > 1:
            record.add(_positions(output, slice(None, -1)), piece[:, 1:])
        output = _positions(output, slice(-1, None))


def _speak(
    model: ComposedModel,
    record: _Record,
    prompt: Tensor,
    voice: str,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> None:
    """Let one voice, or the composed model, continue, and measure every token."""
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    cache, tokens = model.new_cache(), prompt
    for _ in range(max_new_tokens):
        output = _forward(model, tokens, cache, last=1)
        assert output.logits is not None
        assert output.voice_log_probs is not None
        speaks = output.logits if voice == COMPOSED else output.voice_log_probs[model.voice_names.index(voice)]
        if temperature == 0:
            tokens = speaks[:, -1].argmax(-1, keepdim=True)
        else:
            law = (speaks[:, -1] / temperature).softmax(-1).cpu()
            tokens = torch.multinomial(law, 1, generator=generator).to(prompt.device)
        record.add(output, tokens)
        if tokens.item() in ends:
            return


def _forward(model: ComposedModel, tokens: Tensor, cache: Any, last: int) -> ComposedOutput:
    output: Any = model(tokens, cache=cache, use_cache=True, logits_to_keep=last, output_voices=True)
    return output


def _positions(output: ComposedOutput, which: slice) -> ComposedOutput:
    assert output.logits is not None
    assert output.voice_log_probs is not None
    return ComposedOutput(logits=output.logits[:, which], voice_log_probs=output.voice_log_probs[:, :, which])


@dataclass
class _Record:
    """The measures of one text as it grows."""

    model: ComposedModel
    measures: list[Measures] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    base_log_probs: list[float] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)

    def add(self, output: ComposedOutput, tokens: Int[Tensor, "1 time"]) -> None:
        """Measure the distributions that some tokens came from."""
        log_hat, voices = output.logits, output.voice_log_probs
        assert log_hat is not None
        assert voices is not None
        evidence = gather_evidence(voices[:, 0], self.model.plan.base, self.model.plan.refs)
        log_components = tilted(evidence, self.model.weights)
        self.measures.append(measure(evidence.log_base, log_components, log_hat[0]))
        chosen = tokens.view(-1, 1)
        of_base = evidence.log_base.gather(-1, chosen)
        own = log_components.gather(-1, chosen.expand(len(log_components), -1, 1))
        self.tokens += tokens[0].tolist()
        self.log_probs += log_hat[0].gather(-1, chosen)[:, 0].tolist()
        self.base_log_probs += of_base[:, 0].tolist()
        self.moved.append(ratios(own, of_base)[..., 0])

    def text(self, task: Task) -> Text:
        found = Measures.joined(self.measures)
        assert self.model.tokenizer is not None
        return Text(
            index=task.index,
            prompt=[dict(message) for message in task.prompt] if not isinstance(task.prompt, str) else task.prompt,
            voice=task.voice,
            tokens=pieces(self.model.tokenizer, self.tokens),
            log_probs=_numbers(torch.tensor(self.log_probs)),
            base_log_probs=_numbers(torch.tensor(self.base_log_probs)),
            moved=_table(torch.cat(self.moved, -1)),
            log_partition=_numbers(found.log_partition),
            activity=_table(found.activity),
            evidence=_table(found.evidence),
            gap=_table(found.gap),
            bin_distance=_table(found.bin_distance),
            interference=_table(found.interference),
            orphan=found.orphan.tolist(),
        )


def pieces(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    """Each token's part of the text; joined, they spell it. A character of several tokens belongs to the last."""
    found, before = [], ""
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(tokens[:end], clean_up_tokenization_spaces=False))
        whole = text if end == len(tokens) or not text.endswith("\ufffd") else before
        found.append(whole[len(before) :])
        before = whole
    return found


def _numbers(values: Float[Tensor, " time"]) -> list[float | None]:
    """Rounded to 1e-4 nats; None for what is not finite or stands for it."""
    return [round(v, 4) if abs(v) < 1e6 else None for v in values.tolist()]


def _table(values: Float[Tensor, "row time"]) -> list[list[float | None]]:
    return [_numbers(row) for row in values]
