"""From a composed model and examples to fitted weights, and what they are worth on answers that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch

from counterpoint.composition import fitting
from counterpoint.composition.contexts import Messages
from counterpoint.composition.continuations import IGNORED, encode_with_answer
from counterpoint.composition.gathering import default_tokens, gather, spread
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.recipe import Recipe, nearest
from counterpoint.errors import ContextError, CounterpointError, RecipeError
from counterpoint.intervals import Interval, bootstrap_ratio

Answered = tuple[str | Messages, str]
DECIMALS = 4
"""Of a fitted weight, in the recipe and in the figures alike; its standard error is hardly ever below 0.001."""
FEW = 20


@dataclass(frozen=True)
class FitSettings:
    """How weights are fitted.

    Attributes:
        held_out: the share of the examples that is kept for the figures; 0 fits to all of them and gives no figures.
        l2: the pull towards weight 1.
        lower, upper: bounds of every fitted weight.
        max_tokens: fit to so many tokens of the answers, drawn evenly; None for as many as fit into 2 GiB.
        seed: of the split, the tokens drawn, and the intervals.
        hold: components that keep their weight.
    """

    held_out: float = 0.3
    l2: float = fitting.L2
    lower: float = fitting.LOWER
    upper: float = fitting.UPPER
    max_tokens: int | None = None
    seed: int = 0
    hold: tuple[str, ...] = ()


@dataclass(frozen=True)
class FittedComponent:
    """One component before and after; a held one has no standard error, nor has one at a bound."""

    name: str
    before: float
    after: float
    standard_error: float | None
    held: bool = False
    bound: str | None = None


@dataclass(frozen=True)
class HeldOut:
    """Log-likelihoods of the held-out answers, in nats a token, with their 95 % bootstrap intervals over examples.

    Attributes:
        base: of the base alone (uniform where there is none).
        ones: with all weights 1, where the recipe says otherwise.
        before: with the recipe's weights.
        after: with the fitted ones.
        difference: after - before, the same answers with both weights; above 0 is better.
    """

    examples: int
    tokens: int
    base: Interval
    ones: Interval | None
    before: Interval
    after: Interval
    difference: Interval


@dataclass(frozen=True)
class FitReport:
    """What came of a fit.

    Attributes:
        recipe: with the fitted weights.
        components: all of them, in the recipe's order.
        examples: how many were fitted to; `tokens_used` of the `tokens` of their answers.
        before, after: mean log-likelihood of these tokens, nats a token; `after` before weights are rounded.
        steps, gradient_norm: of Newton's method.
        held_out: None where nothing was held out.
        remarks: what to know of these figures, in sentences, the most important first.
    """

    recipe: Recipe
    components: tuple[FittedComponent, ...]
    examples: int
    tokens: int
    tokens_used: int
    before: float
    after: float
    steps: int
    gradient_norm: float
    held_out: HeldOut | None
    remarks: tuple[str, ...]


def check_fittable(recipe: Recipe, settings: FitSettings) -> list[int]:
    """The components to fit, by position: all but those on hold and mere references (weight 0, others' `relative_to`).

    Raises:
        RecipeError: another rule than the product, no such component to hold, or nothing to fit.
    """
    if recipe.rule != "product":
        raise RecipeError(
            f"rule {recipe.rule}: weights are fitted for the product rule, where that is a convex problem; "
            "fit with --rule product (rule: product in the recipe)"
        )
    for name in settings.hold:
        if name not in recipe.components:
            raise RecipeError(f"no component is called {name!r}{nearest(name, recipe.components, 'there are')}")
    references = {c.relative_to for c in recipe.components.values()}
    fitted = [
        position
        for position, (name, component) in enumerate(recipe.components.items())
        if name not in settings.hold and not (component.weight == 0 and name in references)
    ]
    if not fitted:
        raise RecipeError("every component is held at its weight, so nothing is left to fit; hold fewer")
    return fitted


def fit_to_answers(
    model: ComposedModel,
    examples: Sequence[Answered],
    settings: FitSettings = FitSettings(),
    done: Callable[[], None] = lambda: None,
    numbers: Sequence[int] | None = None,
) -> FitReport:
    """Fit a composed model's weights to examples with answers; the model itself is left as it is.

    Args:
        model: of the product rule.
        examples: (prompt, answer) each.
        settings: see there.
        done: called once an example.
        numbers: what messages call the examples; 1, 2, ... by default.

    Raises:
        CounterpointError: too few examples, an example that cannot be encoded (named), or see `check_fittable`.
    """
    recipe = model.recipe
    fitted = check_fittable(recipe, settings)
    chosen, held_out = split(len(examples), settings.held_out, settings.seed)
    numbers = range(1, len(examples) + 1) if numbers is None else numbers
    encoded = [_encoded(model, number, *example) for number, example in zip(numbers, examples, strict=True)]
    counts = [int((labels != IGNORED).sum()) for _, labels in encoded]
    total = sum(counts[i] for i in chosen)
    most = settings.max_tokens or default_tokens(model, len(fitted))
    tokens = spread([counts[i] for i in chosen], most, settings.seed)
    cache = gather(model, [encoded[i] for i in chosen], tokens, fitted, done, [numbers[i] for i in chosen])
    data = (cache.log_base, cache.log_ratios, cache.target)
    before = torch.tensor([list(recipe.components.values())[i].weight for i in fitted], dtype=torch.float64)
    before = before.to(cache.log_base.device)
    fit = fitting.fit_weights(*data, before, settings.l2, settings.lower, settings.upper)
    was, now = fitting.log_likelihoods(*data, torch.stack([before, fit.weights])).mean(1).tolist()
    del cache, data
    names = list(recipe.components)
    after = {names[i]: round(weight, DECIMALS) + 0.0 for i, weight in zip(fitted, fit.weights.tolist(), strict=True)}
    components = _components(recipe, after, fit, settings)
    judged = None
    if held_out:
        weights = torch.stack([before, torch.tensor(list(after.values())).to(before), torch.ones_like(before)])
        called = [numbers[i] for i in held_out]
        judged = _judged(model, [encoded[i] for i in held_out], called, fitted, weights, settings.seed, done)
    remarks = [
        *_worth(judged),
        *_about_weights(components, fit, [names[i] for i in fitted]),
        *_about_data(recipe, [examples[i] for i in chosen], [examples[i] for i in held_out]),
    ]
    return FitReport(
        recipe=recipe.with_weights(after),
        components=components,
        examples=len(chosen),
        tokens=total,
        tokens_used=sum(map(len, tokens)),
        before=was,
        after=now,
        steps=fit.steps,
        gradient_norm=fit.gradient_norm,
        held_out=judged,
        remarks=tuple(remarks),
    )


def split(examples: int, held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """(to fit to, held out), by position: a share drawn at random, at least one example on either side.

    Raises:
        CounterpointError: too few examples for both.
    """
    if not examples:
        raise CounterpointError("there are no examples with answers to fit to")
    if held_out == 0:
        return list(range(examples)), []
    if examples < 2:
        raise CounterpointError(
            "one example cannot be both fitted to and held out; give more examples, or --held-out 0 "
            "(held_out=0) to fit to all there is, without figures on answers that the fit has not seen"
        )
    order = numpy.random.default_rng(seed).permutation(examples).tolist()
    out = min(max(round(held_out * examples), 1), examples - 1)
    return sorted(order[out:]), sorted(order[:out])


def _encoded(
    model: ComposedModel, number: int, prompt: str | Messages, answer: str
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        return encode_with_answer(model, prompt, answer)
    except ContextError as error:
        raise ContextError(f"example {number}: {error}") from None


def _components(
    recipe: Recipe, after: dict[str, float], fit: fitting.Fit, settings: FitSettings
) -> tuple[FittedComponent, ...]:
    errors = dict(zip(after, fit.standard_errors.tolist(), strict=True))
    exact = dict(zip(after, fit.weights.tolist(), strict=True))
    empty = {list(after)[i] for i in fitting.unidentified(fit.covariance)}
    found = []
    for name, component in recipe.components.items():
        if name not in after:
            found.append(FittedComponent(name, component.weight, component.weight, None, held=True))
            continue
        bound = {settings.lower: "lower", settings.upper: "upper"}.get(exact[name])
        error = None if math.isnan(errors[name]) or name in empty else errors[name]
        found.append(FittedComponent(name, component.weight, after[name], error, bound=bound))
    return tuple(found)


def _judged(
    model: ComposedModel,
    encoded: Sequence[tuple[torch.Tensor, torch.Tensor]],
    numbers: Sequence[int],
    fitted: Sequence[int],
    weights: torch.Tensor,
    seed: int,
    done: Callable[[], None],
) -> HeldOut:
    """The held-out answers, every token of them, one example at a time; `weights` are before, after, and ones."""
    sums: list[list[float]] = []
    counts: list[int] = []
    at_once = default_tokens(model, len(fitted))
    for number, (_, labels) in zip(numbers, encoded, strict=True):
        counts.append(int((labels != IGNORED).sum()))
        total = weights.new_zeros(1 + len(weights))
        for tokens in torch.arange(counts[-1]).split(at_once):
            found = gather(model, [encoded[len(sums)]], [tokens.tolist()], fitted, numbers=[number])
            likelihoods = fitting.log_likelihoods(found.log_base, found.log_ratios, found.target, weights)
            total += torch.cat([found.base.double()[None], likelihoods]).sum(1)
        sums.append(total.tolist())
        done()
    base, before, after, ones = (
        bootstrap_ratio(column, counts, seed) for column in numpy.array(sums, dtype=numpy.float64).T
    )
    gains = [s[2] - s[1] for s in sums]
    plain = bool((weights[0] == 1).all())
    difference = bootstrap_ratio(gains, counts, seed)
    return HeldOut(len(counts), sum(counts), base, None if plain else ones, before, after, difference)


def _worth(held_out: HeldOut | None) -> list[str]:
    if held_out is None:
        return ["Nothing was held out, so nothing is known of answers that the fit has not seen."]
    mean, low, high = held_out.difference
    assert mean is not None
    if low is None or high is None:
        said = f"One held-out example became {'likelier' if mean > 0 else 'no likelier'}; that is no evidence."
    elif low > 0:
        said = "The fitted weights make held-out answers likelier than the recipe's own."
    elif high < 0:
        said = "The fitted weights make held-out answers LESS likely: keep the recipe's own, or give more examples."
    elif mean < 0:
        said = "The fitted weights make held-out answers less likely, if anything (the interval includes 0)."
    else:
        said = "On held-out answers the fitted weights are no clearly better (the interval includes 0)."
    few = f"{held_out.examples} held-out examples are few: the interval is likely too narrow."
    return [said, few] if 2 <= held_out.examples < FEW else [said]


def _about_weights(components: Sequence[FittedComponent], fit: fitting.Fit, names: Sequence[str]) -> list[str]:
    bounds = {c.name: c.bound for c in components}
    empty = [names[i] for i in fitting.unidentified(fit.covariance) if bounds[names[i]] is None]
    alike = [names[i] for i in fitting.collinear(fit.covariance)]
    remarks = [
        f"{c.name} is at its {c.bound} bound, {c.after:g}: the answers ask for "
        f"{'less' if c.bound == 'lower' else 'more'} of it."
        for c in components
        if c.bound is not None
    ]
    if empty:
        remarks.append(
            f"{_listed(empty)}: says nothing beyond what it is measured against at these tokens, so its weight is "
            "whatever the pull towards 1 makes it."
        )
    if alike:
        remarks.append(
            f"{_listed(alike)}: move together, so the answers do not tell their weights apart; the pull towards 1 does."
        )
    if fit.steps == fitting.MOST_STEPS:
        remarks.append(f"Not converged after {fit.steps} steps (gradient {fit.gradient_norm:.1e}).")
    return remarks


def _about_data(recipe: Recipe, chosen: Sequence[Answered], held_out: Sequence[Answered]) -> list[str]:
    remarks = []
    kept = [word for word, value in (("plausibility", recipe.plausibility), ("budgets", recipe.budgets)) if value]
    if kept:
        verb, them = ("plays", "it") if kept == ["plausibility"] else ("play", "them")
        remarks.append(
            f"{_listed(kept).capitalize()} {verb} no part in the fit and its figures; the recipe keeps {them}."
        )
    twice = sum(example in chosen for example in held_out)
    if twice:
        remarks.append(f"{twice} of the held-out examples are also among those fitted to: the figures flatter the fit.")
    return remarks


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
