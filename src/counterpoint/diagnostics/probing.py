"""Probing a recipe: texts are generated, or given ones followed, and every measure is taken at every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
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
    model: ComposedModel,
    tasks: Sequence[Task],
    *,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 1,
    done: int = 0,
) -> Iterator[Text]:
    """One record for each task, in order. Each token is measured in the forward that it is drawn from.

    Args:
        model: the composed model.
        tasks: what to measure.
        max_new_tokens: a continuation ends there at the latest, or where the window is full; given answers are cut.
        temperature: of drawing from the voice that continues; 0 is greedy.
        seed: every text is drawn with a generator of its own, so it does not depend on those before it.
        batch_size: texts that are generated at once; given answers are followed one by one.
        done: leave out so many tasks; batches begin at multiples of `batch_size` all the same.

    Raises:
        CounterpointError: a prompt or an answer does not fit the recipe, see `ComposedModel.encode`.
    """
    for first in range(done - done % batch_size, len(tasks), batch_size):
        batch = tasks[first : first + batch_size]
        given = [number for number, task in enumerate(batch) if task.voice == GIVEN]
        spoken = [number for number, task in enumerate(batch) if task.voice != GIVEN]
        records = {number: _follow(model, batch[number], max_new_tokens) for number in given if first + number >= done}
        if spoken:
            said = _speak(model, [batch[number] for number in spoken], max_new_tokens, temperature, seed)
            records |= dict(zip(spoken, said, strict=True))
        yield from (records[n].text(model, task) for n, task in enumerate(batch) if first + n >= done)


def _follow(model: ComposedModel, task: Task, max_new_tokens: int) -> _Record:
    """Measure every token of an answer that is given."""
    ids, labels = encode_with_answer(model, task.prompt, task.answer or "")
    start = int((labels[0] < 0).sum())
    prompt, answer = ids[:, :start], ids[:, start : start + max_new_tokens]
    cache, record = model.new_cache(), _Record()
    output = _forward(model, prompt, None, cache, last=1)
    for piece in answer.split(CHUNK, dim=1):
        _add([record], _measured(model, output, piece[:, :1]))
        output = _forward(model, piece, None, cache, last=piece.shape[1])
        if piece.shape[1] > 1:
            _add([record], _measured(model, _positions(output, slice(None, -1)), piece[:, 1:]))
        output = _positions(output, slice(-1, None))
    return record


def _speak(
    model: ComposedModel, tasks: Sequence[Task], max_new_tokens: int, temperature: float, seed: int
) -> list[_Record]:
    """Let each task's voice, or the composed model, continue, and measure every token."""
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    generators = [torch.Generator().manual_seed(seed + 1_000_003 * task.index) for task in tasks]
    records, running = [_Record() for _ in tasks], list(range(len(tasks)))
    prompts: Any = [task.prompt for task in tasks]
    encoded = model.encode(prompts)
    tokens: Tensor = encoded["input_ids"]
    mask: Tensor = encoded["attention_mask"]
    cache, room = model.new_cache(), model.config.max_position_embeddings
    steps = max_new_tokens if room is None else min(max_new_tokens, room - int(mask.sum(1).max()) + 1)
    for _ in range(steps):
        output = _forward(model, tokens, mask, cache, last=1)
        tokens = tokens.new_zeros(len(tasks), 1)
        for row in running:
            log_law = _law(model, output, tasks[row].voice, row)
            if temperature == 0:
                tokens[row] = log_law.argmax()
            else:
                law = (log_law / temperature).softmax(-1).cpu()
                tokens[row] = torch.multinomial(law, 1, generator=generators[row]).to(tokens.device)
        _add(records, _measured(model, output, tokens), running)
        running = [row for row in running if tokens[row].item() not in ends]
        if not running:
            break
        spoken = torch.zeros_like(tokens)
        spoken[running] = 1
        mask = torch.cat([mask, spoken], 1)
    return records


def _law(model: ComposedModel, output: ComposedOutput, voice: str, row: int) -> Float[Tensor, " vocab"]:
    assert output.logits is not None
    assert output.voice_log_probs is not None
    if voice == COMPOSED:
        return output.logits[row, -1]
    return output.voice_log_probs[model.voice_names.index(voice), row, -1]


def _forward(model: ComposedModel, tokens: Tensor, mask: Tensor | None, cache: Any, last: int) -> ComposedOutput:
    output: Any = model(
        tokens, attention_mask=mask, cache=cache, use_cache=True, logits_to_keep=last, output_voices=True
    )
    return output


def _positions(output: ComposedOutput, which: slice) -> ComposedOutput:
    assert output.logits is not None
    assert output.voice_log_probs is not None
    return ComposedOutput(logits=output.logits[:, which], voice_log_probs=output.voice_log_probs[:, :, which])


@dataclass(frozen=True)
class _Measured:
    """The measures of some sequences at some positions, and what became of the tokens there; (..., batch, time)."""

    measures: Measures
    tokens: Tensor
    log_probs: Tensor
    base_log_probs: Tensor
    moved: Tensor


def _measured(model: ComposedModel, output: ComposedOutput, tokens: Int[Tensor, "batch time"]) -> _Measured:
    log_hat, voices = output.logits, output.voice_log_probs
    assert log_hat is not None
    assert voices is not None
    evidence = gather_evidence(voices, model.plan.base, model.plan.refs)
    log_components = tilted(evidence, model.weights)
    chosen = tokens.unsqueeze(-1)
    of_base = evidence.log_base.gather(-1, chosen)
    own = log_components.gather(-1, chosen.expand(len(log_components), *chosen.shape))
    return _Measured(
        measures=measure(evidence.log_base, log_components, log_hat),
        tokens=tokens,
        log_probs=log_hat.gather(-1, chosen)[..., 0],
        base_log_probs=of_base[..., 0],
        moved=ratios(own, of_base)[..., 0],
    )


def _add(records: Sequence[_Record], measured: _Measured, rows: Sequence[int] | None = None) -> None:
    for row in range(len(records)) if rows is None else rows:
        parts = {f.name: getattr(measured.measures, f.name)[..., row, :] for f in fields(Measures)}
        others = {name: getattr(measured, name)[..., row, :] for name in ("log_probs", "base_log_probs", "moved")}
        records[row].parts.append({**parts, **others})
        records[row].tokens += measured.tokens[row].tolist()


@dataclass
class _Record:
    """The measures of one text as it grows: pieces by name, time last."""

    parts: list[dict[str, Tensor]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def text(self, model: ComposedModel, task: Task) -> Text:
        found = {name: torch.cat([part[name] for part in self.parts], -1) for name in self.parts[0]}
        assert model.tokenizer is not None
        return Text(
            index=task.index,
            prompt=task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt],
            voice=task.voice,
            tokens=pieces(model.tokenizer, self.tokens),
            orphan=found.pop("orphan").tolist(),
            **{name: _rounded(values) for name, values in found.items()},
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


def _rounded(values: Tensor) -> list[Any]:
    """To 1e-4 nats; None for what is not finite, or stands for it."""
    if values.dim() > 1:
        return [_rounded(row) for row in values]
    return [round(value, 4) if abs(value) < 1e6 else None for value in values.tolist()]
