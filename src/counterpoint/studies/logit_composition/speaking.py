"""What the experiments on a language model share: its contexts, its voices composed, and a judge that reads texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from counterpoint.composition.loading import load_backbone
from counterpoint.composition.model import ComposedModel
from counterpoint.diagnostics.results import Text
from counterpoint.intervals import Interval

MODEL = "smollm2-135m-instruct"

STYLES = {
    "pirate": "You are a pirate. Talk like a pirate.",
    "poet": "You are a poet. Answer in rhyming verse.",
    "scientist": "You are a scientist. Speak in precise scientific terms.",
    "child": "You are a five-year-old child. Talk like a little kid.",
    "seller": "You are an excited salesperson. Always sell something, with great enthusiasm!",
    "lawyer": "You are a lawyer. Always use formal legal language, with parties and clauses.",
}
TOPICS = {
    "sea": "Your favourite topic is the sea. Always talk about waves, ships and fish.",
    "food": "Your favourite topic is food. Always talk about cooking, recipes and meals.",
    "space": "Your favourite topic is space. Always talk about stars, planets and rockets.",
    "music": "Your favourite topic is music. Always talk about songs, bands and concerts.",
    "animals": "Your favourite topic is animals. Always talk about dogs, cats and birds.",
    "sports": "Your favourite topic is sports. Always talk about games, teams and players.",
}
CONTEXTS = {**STYLES, **TOPICS}
PARAPHRASES = {
    "pirate": "Use the slang of buccaneers: ahoy, matey, arr.",
    "poet": "Write your reply as a short poem with rhymes.",
    "scientist": "Reply as a research paper would, with technical vocabulary.",
    "child": "Speak the way a very young kid does, in tiny simple words.",
    "seller": "Sound like a loud TV advert that wants people to buy now!",
    "lawyer": "Reply in the stiff wording of a contract or a court.",
    "sea": "Every answer is about the ocean, sailing and the beach.",
    "food": "Every answer is about cuisine, eating and restaurants.",
    "space": "Every answer is about astronomy and the universe.",
    "music": "Every answer is about melodies, instruments and singers.",
    "animals": "Every answer is about pets and wildlife.",
    "sports": "Every answer is about athletes, matches and championships.",
}
"""The same styles and topics in other words: what judges a text must not be what wrote it."""


@cache
def backbone(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, loaded once."""
    return load_backbone(name)


def voices(name: str, contexts: Mapping[str, str]) -> ComposedModel:
    """The model without a context of its own as the base, and one component for each context; the product rule."""
    components = {component: {"context": context} for component, context in contexts.items()}
    return ComposedModel.from_recipe(base=name, components=components, models={name: backbone(name)})


def spelled(model: ComposedModel, text: Text) -> str:
    """A text without the token that ends it."""
    assert model.tokenizer is not None
    ends: Any = model.generation_config.eos_token_id
    marks = [str(model.tokenizer.decode([end])) for end in (ends if isinstance(ends, list) else [ends]) if end]
    joined = "".join(text.tokens)
    return next((joined.removesuffix(mark) for mark in marks if mark and joined.endswith(mark)), joined)


@torch.inference_mode()
def log_odds(judge: ComposedModel, prompts: Sequence[str], texts: Sequence[str]) -> dict[str, list[float | None]]:
    """How much more likely each component of `judge` finds the texts than its base does, and what the base finds.

    The judge reads the text as text: it is split into tokens anew.

    Args:
        judge: a model as `voices` makes it.
        prompts: what each text answers.
        texts: the answers.

    Returns:
        By component, and by `base`, one figure a text: log-odds against the base in nats a token; for `base` the
        log-probability in nats a token. None for an empty text.
    """
    assert judge.tokenizer is not None
    names = ["base", *judge.voice_names[1:]]
    before: list[list[int]] = [judge.encode(prompt)["input_ids"][0].tolist() for prompt in prompts]
    after: list[list[int]] = [judge.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    longest = max(len(one) + len(other) for one, other in zip(before, after, strict=True))
    kept = max(map(len, after)) + 1
    pads = [longest - len(one) - len(other) for one, other in zip(before, after, strict=True)]
    rows = [[0] * pad + one + other for pad, one, other in zip(pads, before, after, strict=True)]
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    ids = torch.tensor(rows)
    output: Any = judge(ids, attention_mask=mask, use_cache=False, logits_to_keep=kept, output_voices=True)
    said: Tensor = output.voice_log_probs[:, :, :-1]
    of_tokens = said.gather(-1, ids[None, :, -kept + 1 :, None].expand(len(names), -1, -1, 1))[..., 0].double()
    found: dict[str, list[float | None]] = {name: [] for name in names}
    for row, tokens in enumerate(after):
        means = of_tokens[:, row, kept - 1 - len(tokens) :].mean(-1).tolist() if tokens else []
        for name, mean in zip(names, means or [None] * len(names), strict=True):
            found[name].append(None if mean is None else mean - (0.0 if name == "base" else means[0]))
    return found


def distinct(texts: Sequence[Sequence[str]], length: int = 2) -> float | None:
    """Different n-grams of tokens as a share of all, over all texts together; None where there are none."""
    grams = [tuple(text[i : i + length]) for text in texts for i in range(len(text) - length + 1)]
    return len(set(grams)) / len(grams) if grams else None


def repeated(text: Sequence[str], length: int = 4) -> float | None:
    """The share of a text's n-grams that were there before; None for a text too short to have any."""
    share = distinct([text], length)
    return None if share is None else 1 - share


def spearman(first: Any, second: Any) -> Any:
    """Spearman's rank correlation along the last axis, ties with their mean rank; 0 where one side is constant."""
    one, other = _centred_ranks(first), _centred_ranks(second)
    scale = numpy.sqrt((one**2).sum(-1) * (other**2).sum(-1))
    return numpy.divide((one * other).sum(-1), scale, out=numpy.zeros_like(scale), where=scale > 0)


def _centred_ranks(values: Any) -> Any:
    """Ranks less their mean: half of how many are smaller less how many are larger."""
    values = numpy.asarray(values, dtype=numpy.float64)
    return numpy.sign(values[..., :, None] - values[..., None, :]).sum(-1) / 2


def side_of_zero(interval: Interval) -> int:
    """1 or -1 where the interval lies on one side of 0, else 0."""
    if interval.low is None or interval.high is None:
        return 0
    return (interval.low > 0) - (interval.high < 0)
