"""From the voices' logits to the composed distribution: temperatures, roles, rule, plausibility, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from counterpoint.composition import evidence as ev
from counterpoint.composition.budgets import within_budgets
from counterpoint.composition.plan import Plan
from counterpoint.composition.recipe import ANY, Recipe
from counterpoint.composition.rules import RULES, Scored

MOST_SCORES_AT_ONCE = 2**28
"""Positions are composed in pieces of at most this many log-probabilities (1 GiB), so long prompts fit."""


@dataclass(frozen=True)
class Combined:
    """The composed distribution at some positions.

    Attributes:
        log_probs: log p̂, float32, (batch, time, vocab).
        log_partition: log Z of the rule, (batch, time); 0 for a voice alone.
        voices: on request, log-probabilities of every voice, (voice, batch, time, vocab).
        notes: what the rule has to say of how it went, and `divergence`, the KL(p̂‖q) that the budgets left, in nats:
            name -> (batch, time) or (component or budget, batch, time).
    """

    log_probs: Tensor
    log_partition: Tensor
    voices: Tensor | None
    notes: Mapping[str, Tensor] = field(default_factory=dict)


def combine(
    logits: Float[Tensor, "voice batch time vocab"],
    real: Bool[Tensor, "batch time"],
    recipe: Recipe,
    layout: Plan,
    weights: Float[Tensor, " component"],
    temperatures: Float[Tensor, " voice"],
    solo: int | None = None,
    keep_voices: bool = False,
) -> Combined:
    """Compose next-token distributions by a recipe's rule.

    Args:
        logits: of every voice, in the order of the plan, in any floating type.
        real: False at padding, where numbers do not matter.
        recipe: gives the rule, its options, the plausibility mask and the budgets.
        layout: the recipe's plan.
        weights: w, one a component.
        temperatures: one a voice.
        solo: the only voice to hear, or None.
        keep_voices: return every voice too; otherwise they live for one piece of the positions only.

    Raises:
        NumericsError: a voice's logits are NaN, or the rule is not defined for these weights.
    """

    def piece(logits: Tensor, real: Tensor) -> Combined:
        voices = ev.log_probabilities(logits, temperatures)
        ev.check_numbers(voices, real, layout.names)
        kept = voices if keep_voices else None
        if solo is not None:
            return Combined(voices[solo], torch.zeros_like(voices[solo, :, :, 0]), kept)
        evidence = ev.gather_evidence(voices, layout.base, layout.refs)
        found = RULES[recipe.rule](evidence, weights, **recipe.all_rule_options)
        scores, notes = (found.scores, dict(found.notes)) if isinstance(found, Scored) else (found, {})
        log_probs, log_partition = ev.normalise(scores)
        if recipe.plausibility is not None:
            of = recipe.plausibility.of
            judges = voices if of == ANY else voices[layout.names.index(of)].unsqueeze(0)
            log_probs, _ = ev.normalise(log_probs + ev.plausible(judges, recipe.plausibility.alpha))
        if recipe.budgets:
            log_probs, notes["divergence"] = within_budgets(
                log_probs,
                voices[[layout.names.index(name) for name in recipe.budgets]],
                weights.new_tensor(list(recipe.budgets.values())),
            )
        return Combined(log_probs, log_partition, kept, notes)

    step = max(1, MOST_SCORES_AT_ONCE // max(1, logits[:, :, :1].numel()))
    pieces = [piece(*both) for both in zip(logits.split(step, dim=2), real.split(step, dim=1), strict=True)]
    if len(pieces) == 1:
        return pieces[0]
    return Combined(
        torch.cat([p.log_probs for p in pieces], dim=1),
        torch.cat([p.log_partition for p in pieces], dim=1),
        torch.cat([p.voices for p in pieces if p.voices is not None], dim=2) if keep_voices else None,
        {name: torch.cat([p.notes[name] for p in pieces], dim=-1) for name in pieces[0].notes},
    )
