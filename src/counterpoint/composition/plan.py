"""The plan of a recipe: its voices in order, the backbones they share, and the formula. Pure data, no weights."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoint.composition.recipe import BASE, UNIFORM, Recipe, Voice


@dataclass(frozen=True)
class Plan:
    """What has to be computed for a recipe.

    Attributes:
        names: the voices, the base first where there is one.
        voices: their settings, each with its `model` filled in.
        backbones: model name -> the voices (by position) that run on these weights, in order.
        base: the position of the base, or None.
        refs: for each component the position of what it is measured against; None is the uniform distribution.
    """

    names: tuple[str, ...]
    voices: tuple[Voice, ...]
    backbones: dict[str, tuple[int, ...]]
    base: int | None
    refs: tuple[int | None, ...]

    @property
    def rows(self) -> int:
        """Rows of one forward for each sequence of a batch: k+1 with a base, k without."""
        return len(self.voices)


def plan(recipe: Recipe) -> Plan:
    """Lay out a recipe's voices and group them by the weights they share."""
    names = list(recipe.voices)
    shared = recipe.base.model if recipe.base else None
    voices = [voice.model_copy(update={"model": voice.model or shared}) for voice in recipe.voices.values()]
    backbones: dict[str, list[int]] = {}
    for position, voice in enumerate(voices):
        assert voice.model is not None
        backbones.setdefault(voice.model, []).append(position)
    return Plan(
        names=tuple(names),
        voices=tuple(voices),
        backbones={model: tuple(positions) for model, positions in backbones.items()},
        base=None if recipe.base is None else 0,
        refs=tuple(_position(reference_of(recipe, name), names) for name in recipe.components),
    )


def reference_of(recipe: Recipe, component: str) -> str:
    """What a component is measured against: `base`, `uniform` or a component's name, the default filled in."""
    return recipe.components[component].relative_to or (BASE if recipe.base is not None else UNIFORM)


def _position(reference: str, names: list[str]) -> int | None:
    return None if reference == UNIFORM else names.index(reference)


def formula(recipe: Recipe) -> str:
    """The composed distribution with the recipe's names and weights filled in, on one line."""
    if recipe.rule == "mixture":
        total = sum(component.weight for component in recipe.components.values())
        terms = " + ".join(f"{c.weight:g}·{_p_normalised(n, c)}" for n, c in recipe.components.items() if c.weight)
        return f"p(v) = ({terms or '0'}) / {total:g}"
    text = "" if recipe.base is None else _p(BASE, recipe.base)
    for name, component in recipe.components.items():
        if component.weight == 0:
            continue
        reference = reference_of(recipe, name)
        term = _p(name, component)
        if reference != UNIFORM:
            against = recipe.base if reference == BASE else recipe.components[reference]
            assert against is not None
            term = f"({term} / {_p(reference, against)})"
        power = "" if component.weight == 1 else f"^{component.weight:g}"
        if power and "^" in term and not term.startswith("("):
            term = f"({term})"
        text += f"{' · ' if text else ''}{term}{power}"
    rule = "" if recipe.rule == "product" else f", then rule {recipe.rule}"
    rule += "".join(f", within {nats:g} nats of {name}" for name, nats in recipe.budgets.items())
    return f"p(v) ∝ {text or '1 (uniform: every weight is 0)'}{rule}"


def _p(name: str, voice: Voice) -> str:
    power = "" if voice.temperature == 1 else f"^(1/{voice.temperature:g})"
    return f"p_{name}(v){power}"


def _p_normalised(name: str, voice: Voice) -> str:
    """In a sum, unlike in a product, the normaliser of p^(1/T) matters, so that the power alone would not say it."""
    return f"p_{name}(v)" if voice.temperature == 1 else f"p_{name}(v; T={voice.temperature:g})"
