"""Tabular worlds whose truth is known: tokens are tuples of features, and every law follows by exact sums.

A token is a tuple (f_1, ..., f_k, m): one feature for each component, and a mode that belongs to the base. The next
token depends on the one before, so that laws at any length follow by dynamic programming, and short sequences can be
enumerated. Each component has its own law of its own feature; how far a world departs from factorised conditionals is
set by dials, `Violation`. Everything is in float64, and nothing here uses the measures of `diagnostics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALLEST, LARGEST = 12, 60
"""How many tokens a world may have."""


@dataclass(frozen=True)
class Violation:
    """How far a world departs from factorised conditionals; all 0, and they hold.

    Attributes:
        correlated: the base's features depend on each other.
        overlap: components move each other's features.
        shared: every component moves the mode too, all to the same law: what they have learned in common.
        wrong_base: the base given to the rules is the mixture (1 - s) p_b + s mean_i p_i: at 1 the average of the
            components' own tasks, instead of the background that they share.
        rough: every token's log-probability has its own noise, in the base and in each component.
        listening: conditionals still factorise, but a component's feature depends on what another's was before.
    """

    correlated: float = 0.0
    overlap: float = 0.0
    shared: float = 0.0
    wrong_base: float = 0.0
    rough: float = 0.0
    listening: float = 0.0


@dataclass(frozen=True)
class World:
    """Next-token laws by state: the token before, or, last, the beginning.

    Attributes:
        log_base: log p_b as the rules are given it.
        log_components: log p_i.
        owned: the class, 0, 1, ..., of every token for each component: its feature, with the mode where that is shared.
        log_target: the product of the owners' laws, which factorised conditionals promise.
    """

    log_base: Float[Tensor, "state vocab"]
    log_components: Float[Tensor, "component state vocab"]
    owned: Int[Tensor, "component vocab"]
    log_target: Float[Tensor, "state vocab"]


def draw_sizes(seed: int, components: int) -> list[int]:
    """How many values each component's feature and, last, the mode has."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        sizes = torch.randint(2, 7, (components,), generator=generator).tolist()
        sizes.append(int(torch.randint(2, 4, (), generator=generator)))
        if SMALLEST <= math.prod(sizes) <= LARGEST:
            return sizes


def draw_world(seed: int, sizes: Sequence[int], violation: Violation, reach: tuple[float, float] = (0.3, 2.0)) -> World:
    """A random world. The same seed and sizes give the same world up to the violation.

    Args:
        seed: of all draws.
        sizes: as `draw_sizes` gives them.
        violation: the dials.
        reach: the range of the scale, in nats, by which a component moves its feature.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    count, modes = len(sizes) - 1, sizes[-1]
    tokens = torch.cartesian_prod(*[torch.arange(size) for size in sizes])
    before = torch.cat([tokens, torch.tensor([list(sizes)])])  # at the beginning every feature has a value of its own
    own, mode, was = tokens.T[:-1], tokens[:, -1], before[:, -1]

    log_base = uniform(0.3, 1.2) * normal(modes + 1, modes)[was][:, mode]
    tilts = []
    for i in range(count):
        place = (before[:, i], was)
        log_base = log_base + uniform(0.3, 1.2) * normal(sizes[i] + 1, modes + 1, sizes[i])[place][:, own[i]]
        most = uniform(*reach)
        speaks = (torch.rand(modes + 1, generator=generator, dtype=torch.float64) < 0.7).double()
        speaks[int(torch.randint(modes + 1, (), generator=generator))] = 1.0
        tilts.append((most * speaks[was].unsqueeze(1), normal(sizes[i] + 1, modes + 1, sizes[i])[place][:, own[i]]))

    pairs = [(i, j) for i in range(count + 1) for j in range(i)]
    for i, j in pairs:
        bond = normal(sizes[i], sizes[j])[tokens[:, i], tokens[:, j]]
        log_base = log_base + violation.correlated * bond / math.sqrt(len(pairs))
    log_base = (log_base + violation.rough * normal(*log_base.shape)).log_softmax(-1)

    common = normal(modes + 1, modes)[was][:, mode]
    log_components = []
    for i, (scale, tilt) in enumerate(tilts):
        others = [j for j in range(count) if j != i]
        for j in others:
            tilt = tilt + violation.overlap * normal(modes + 1, sizes[j])[was][:, own[j]] / math.sqrt(len(others))
        heard = before[:, (i + 1) % count]
        tilt = tilt + violation.listening * normal(sizes[(i + 1) % count] + 1, sizes[i])[heard][:, own[i]]
        noise = violation.rough * normal(*log_base.shape)
        log_components.append((log_base + scale * tilt + violation.shared * common + noise).log_softmax(-1))
    log_probs = torch.stack(log_components)

    owned = torch.stack([own[i] * modes + mode if violation.shared else own[i] for i in range(count)])
    log_target = class_law(log_base.exp(), mode)[:, mode].log()
    for i in range(count):
        log_target = log_target + class_law(log_probs[i].exp(), own[i])[:, own[i]].log()
    share = violation.wrong_base
    given = ((1 - share) * log_base.exp() + share * log_probs.exp().mean(0)).log()
    return World(given, log_probs, owned, log_target)


def class_law(law: Float[Tensor, "*any vocab"], classes: Int[Tensor, " vocab"]) -> Float[Tensor, "*any class"]:
    """How much mass each class of tokens has."""
    return law @ torch.nn.functional.one_hot(classes).to(law.dtype)


def total_variation(one: Float[Tensor, "*any item"], other: Float[Tensor, "*any item"]) -> Float[Tensor, "*any"]:
    """Half the sum of absolute differences."""
    return (one - other).abs().sum(-1) / 2


def step_laws(table: Float[Tensor, "state vocab"], length: int) -> Float[Tensor, "length vocab"]:
    """The law of the token at each step, over sequences that begin at the beginning."""
    laws = [table[-1]]
    for _ in range(length - 1):
        laws.append(laws[-1] @ table[:-1])
    return torch.stack(laws)


def visits(table: Float[Tensor, "state vocab"], length: int) -> Float[Tensor, " state"]:
    """The average share of steps that begin in each state."""
    states = torch.zeros(len(table), dtype=table.dtype)
    states[-1] = 1
    if length > 1:
        states[:-1] += step_laws(table, length - 1).sum(0)
    return states / length


def marginal_errors(
    table: Float[Tensor, "state vocab"], world: World, length: int
) -> Float[Tensor, "component length"]:
    """Total variation between the laws of each component's feature at each step, by `table` and by itself alone."""
    ours = step_laws(table, length)
    return torch.stack(
        [
            total_variation(class_law(ours, classes), class_law(step_laws(alone.exp(), length), classes))
            for alone, classes in zip(world.log_components, world.owned, strict=True)
        ]
    )


def conditional_errors(table: Float[Tensor, "state vocab"], world: World, length: int) -> Float[Tensor, " component"]:
    """The same given the token before, on average over `table`'s sequences."""
    weight = visits(table, length)
    return torch.stack(
        [
            weight @ total_variation(class_law(table, classes), class_law(alone.exp(), classes))
            for alone, classes in zip(world.log_components, world.owned, strict=True)
        ]
    )


def feature_sequence_law(
    table: Float[Tensor, "state vocab"], classes: Int[Tensor, " vocab"], length: int
) -> Float[Tensor, " sequence"]:
    """The law of the sequence of a feature's values, over all (values to the power of length) sequences."""
    chosen = torch.nn.functional.one_hot(classes).to(table.dtype).T  # class, vocab
    reached = table[-1] * chosen  # (sequence, vocab): the mass of a feature sequence that ends in a token
    for _ in range(length - 1):
        reached = ((reached @ table[:-1]).unsqueeze(1) * chosen).flatten(0, 1)
    return reached.sum(-1)


def feature_sequence_errors(
    table: Float[Tensor, "state vocab"], world: World, length: int
) -> Float[Tensor, " component"]:
    """Total variation between the laws of the whole sequence of each component's feature."""
    return torch.stack(
        [
            total_variation(
                feature_sequence_law(table, classes, length), feature_sequence_law(alone.exp(), classes, length)
            )
            for alone, classes in zip(world.log_components, world.owned, strict=True)
        ]
    )


def sequence_error(
    log_table: Float[Tensor, "state vocab"], log_other: Float[Tensor, "state vocab"], length: int
) -> float:
    """Total variation between two laws of whole sequences, by enumeration of all of them."""
    vocabulary = log_table.shape[1]
    one, other = log_table[-1], log_other[-1]
    for _ in range(length - 1):
        one = (one.view(-1, vocabulary, 1) + log_table[:-1]).flatten()
        other = (other.view(-1, vocabulary, 1) + log_other[:-1]).flatten()
    return float(total_variation(one.exp(), other.exp()))


def sampled_sequence_errors(
    log_table: Float[Tensor, "state vocab"],
    log_other: Float[Tensor, "state vocab"],
    lengths: Sequence[int],
    samples: int,
    seed: int,
) -> tuple[list[float], list[float]]:
    """The same at several lengths, as E_P[(1 - Q/P)+] over sequences drawn from P; and its standard errors."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.full((samples,), len(log_table) - 1)
    log_ratio = torch.zeros(samples, dtype=log_table.dtype)
    errors, deviations = [], []
    for step in range(1, max(lengths) + 1):
        token = torch.multinomial(log_table.exp()[state], 1, generator=generator).squeeze(1)
        log_ratio = log_ratio + log_other[state, token] - log_table[state, token]
        state = token
        if step in lengths:
            missing = (-log_ratio.expm1()).clamp(min=0)
            errors.append(float(missing.mean()))
            deviations.append(float(missing.std() / math.sqrt(samples)))
    return errors, deviations


def sequence_bound(table: Float[Tensor, "state vocab"], other: Float[Tensor, "state vocab"], length: int) -> float:
    """The sum of the steps' expected total variations, which bounds that of whole sequences."""
    return float(length * (visits(table, length) @ total_variation(table, other)))
