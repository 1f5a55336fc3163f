"""The plan: which voices share which weights, what is measured against what, and the formula in words."""

from __future__ import annotations

from typing import Any

import pytest

from counterpoint import Recipe
from counterpoint.composition.plan import formula, plan, reference_of


def recipe(**fields: Any) -> Recipe:
    return Recipe.read(fields)


def test_voices_are_grouped_by_the_weights_they_share() -> None:
    layout = plan(
        recipe(
            base={"model": "m", "temperature": 0.5},
            components={
                "x": {"adapter": "a"},
                "y": {"model": "other", "relative_to": "z"},
                "z": {"model": "m", "context": "hi", "relative_to": "uniform"},
                "w": {"model": "other", "context": "ho", "relative_to": "x"},
            },
        )
    )
    assert layout.names == ("base", "x", "y", "z", "w")
    assert [voice.model for voice in layout.voices] == ["m", "m", "other", "m", "other"]
    assert layout.voices[0].temperature == 0.5
    assert layout.backbones == {"m": (0, 1, 3), "other": (2, 4)}
    assert (layout.base, layout.refs) == (0, (0, 3, None, 1))
    assert layout.rows == 5


def test_without_a_base_the_components_are_all_there_is() -> None:
    layout = plan(recipe(components={"x": {"model": "m"}, "y": {"model": "n", "relative_to": "x"}}))
    assert layout.names == ("x", "y")
    assert layout.backbones == {"m": (0,), "n": (1,)}
    assert (layout.base, layout.refs) == (None, (None, 0))
    assert layout.rows == 2


def test_laying_out_leaves_the_recipe_as_it_was() -> None:
    given = recipe(base="m", components={"x": {"context": "hi"}})
    assert plan(given).voices[1].model == "m"
    assert given.components["x"].model is None


def test_the_default_reference_is_the_base_or_uniform() -> None:
    components = {"x": {"model": "m"}, "y": {"model": "n", "relative_to": "x"}}
    assert [reference_of(recipe(base="m", components=components), name) for name in "xy"] == ["base", "x"]
    assert [reference_of(recipe(components=components), name) for name in "xy"] == ["uniform", "x"]


X, Y = {"model": "x"}, {"model": "y"}
FORMULAS: dict[str, tuple[dict[str, Any], str]] = {
    "the paper's": (
        {"base": "m", "components": {"x": X, "y": Y}},
        "p(v) ∝ p_base(v) · (p_x(v) / p_base(v)) · (p_y(v) / p_base(v))",
    ),
    "weights": (
        {"base": "m", "components": {"x": {**X, "weight": 0.5}, "y": {**Y, "weight": -2}}},
        "p(v) ∝ p_base(v) · (p_x(v) / p_base(v))^0.5 · (p_y(v) / p_base(v))^-2",
    ),
    "temperatures": (
        {"base": {"model": "m", "temperature": 2}, "components": {"x": {**X, "temperature": 0.5, "weight": 3}}},
        "p(v) ∝ p_base(v)^(1/2) · (p_x(v)^(1/0.5) / p_base(v)^(1/2))^3",
    ),
    "against each other": (
        {
            "base": "m",
            "components": {
                "x": {**X, "relative_to": "y"},
                "y": {**Y, "weight": 0},
                "z": {"model": "z", "relative_to": "uniform"},
            },
        },
        "p(v) ∝ p_base(v) · (p_x(v) / p_y(v)) · p_z(v)",
    ),
    "no base": (
        {"components": {"x": {**X, "weight": 0.3}, "y": Y}},
        "p(v) ∝ p_x(v)^0.3 · p_y(v)",
    ),
    "a power of a power": (
        {"components": {"x": {**X, "weight": 0.3, "temperature": 2}, "y": {**Y, "temperature": 4}}},
        "p(v) ∝ (p_x(v)^(1/2))^0.3 · p_y(v)^(1/4)",
    ),
    "every weight 0": ({"base": "m", "components": {"x": {**X, "weight": 0}}}, "p(v) ∝ p_base(v)"),
    "every weight 0 and no base": (
        {"components": {"x": {**X, "weight": 0}}},
        "p(v) ∝ 1 (uniform: every weight is 0)",
    ),
    "mixture": (
        {
            "base": "m",
            "rule": "mixture",
            "components": {"x": {**X, "weight": 2}, "y": {**Y, "temperature": 0.5}, "z": {"model": "z", "weight": 0}},
        },
        "p(v) = (2·p_x(v) + 1·p_y(v; T=0.5)) / 3",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_says_what_is_computed(name: str) -> None:
    fields, text = FORMULAS[name]
    assert formula(recipe(**fields)) == text
