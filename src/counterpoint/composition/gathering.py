"""What the voices say at the tokens of given answers: the log-probabilities that weights are fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from counterpoint.composition import evidence as ev
from counterpoint.composition.combine import MOST_SCORES_AT_ONCE
from counterpoint.composition.continuations import IGNORED
from counterpoint.composition.model import ComposedModel
from counterpoint.errors import NumericsError

CACHE_BYTES = 2**31
"""What the log-probabilities may take in memory, unless a number of tokens is asked for."""


@dataclass(frozen=True)
class Gathered:
    """Log-probabilities at some tokens of the answers, float32, temperatures applied.

    Attributes:
        log_base: log p_b, plus w_i r_i of every component that is held at its weight; not normalised.
        log_ratios: r_i of the components that are fitted.
        target: the tokens that were given.
        base: log p_b of these tokens alone.
    """

    log_base: Float[Tensor, "position vocab"]
    log_ratios: Float[Tensor, "component position vocab"]
    target: Int[Tensor, " position"]
    base: Float[Tensor, " position"]


def default_tokens(model: ComposedModel, fitted: int) -> int:
    """How many tokens `CACHE_BYTES` hold, with `fitted` components and the base."""
    return max(1, CACHE_BYTES // ((fitted + 1) * model.config.vocab_size * 4))


def spread(counts: Sequence[int], at_most: int, seed: int) -> list[list[int]]:
    """For each answer the tokens to use, by their place in it: all, or `at_most` in all, drawn evenly.

    All answers are laid end to end and cut into `at_most` stretches of equal length, and one token is drawn from each,
    so that every answer gives the same share of its tokens.
    """
    total = sum(counts)
    if total <= at_most:
        return [list(range(count)) for count in counts]
    edges = numpy.arange(at_most + 1) * total // at_most
    drawn = numpy.random.default_rng(seed).integers(edges[:-1], edges[1:])
    begins = numpy.cumsum([0, *counts])
    return [(drawn[(drawn >= a) & (drawn < b)] - a).tolist() for a, b in pairwise(begins.tolist())]


@torch.no_grad()
def gather(
    model: ComposedModel,
    encoded: Sequence[tuple[Tensor, Tensor]],
    tokens: Sequence[Sequence[int]],
    fitted: Sequence[int],
    done: Callable[[], None] = lambda: None,
    numbers: Sequence[int] | None = None,
) -> Gathered:
    """The log-probabilities of all voices at some tokens of some answers, one forward an example.

    Args:
        model: gives the voices, what they are measured against, and the weights of the components that are held.
            Its rule, plausibility and budgets play no part.
        encoded: (input_ids, labels), (1, time) each, as `encode_with_answer` gives them.
        tokens: for each example, which tokens of its answer.
        fitted: the components, by position, whose weights are to be fitted; the others are held.
        done: called after each example.
        numbers: what messages call the examples; 1, 2, ... by default.

    Raises:
        NumericsError: a model returned NaN, or a given token is impossible for the base or a fitted component.
    """
    total, vocab = sum(map(len, tokens)), model.config.vocab_size
    device = torch.device("cpu") if model.weights.device.type == "mps" else model.weights.device  # MPS has no float64
    log_base = torch.empty(total, vocab, device=device)
    log_ratios = torch.empty(len(fitted), total, vocab, device=device)
    target, base = torch.empty(total, dtype=torch.long, device=device), torch.empty(total, device=device)
    held = [i for i, weight in enumerate(model.weights.tolist()) if i not in fitted and weight != 0]
    at_once, first = max(1, MOST_SCORES_AT_ONCE // (vocab * model.plan.rows)), 0
    numbers = range(1, len(encoded) + 1) if numbers is None else numbers
    for number, (ids, labels), chosen in zip(numbers, encoded, tokens, strict=True):
        places = (labels[0] != IGNORED).nonzero()[:, 0][list(chosen)]
        for piece in places.split(at_once) if len(places) else ():
            voices = model(ids, use_cache=False, logits_to_keep=piece - 1, output_voices=True).voice_log_probs[:, 0]
            evidence = ev.gather_evidence(voices, model.plan.base, model.plan.refs)
            here = slice(first, first + len(piece))
            first = here.stop
            target[here] = ids[0, piece]
            log_base[here] = evidence.log_base
            base[here] = log_base[here].gather(1, target[here, None])[:, 0]
            ratios = evidence.log_ratios
            for place, component in enumerate(fitted):
                log_ratios[place, here] = ratios[component]
            for component in held:
                log_base[here] += model.weights[component].to(device) * ratios[component].to(device)
            one = target[here]
            folded = log_base[here].gather(1, one[:, None])[:, 0]
            given = log_ratios[:, here].gather(2, one[None, :, None].expand(len(fitted), -1, 1))[..., 0]
            _check_possible(model, torch.stack([base[here], folded, *given]), one, fitted, number)
        done()
    return Gathered(log_base, log_ratios, target, base)


def _check_possible(
    model: ComposedModel, given: Float[Tensor, "part position"], target: Tensor, fitted: Sequence[int], number: int
) -> None:
    """Raise NumericsError for a token that the base, the held components or a fitted one rule out altogether."""
    names = list(model.recipe.components)
    wrong = [("the base", "no weights can"), ("a component held at its weight", "no weights of the others can")]
    wrong += [(names[i], "no positive weight of it can") for i in fitted]
    for (who, what), impossible in zip(wrong, given < ev.NEVER / 1e6, strict=True):
        if bool(impossible.any()):
            token = int(target[impossible.nonzero()[0]])
            word = repr(model.tokenizer.decode([token])) if model.tokenizer is not None else str(token)
            raise NumericsError(
                f"example {number}: {who} gives the token {word} of its answer probability 0, and {what} make it "
                "likely; leave the example out"
            )
