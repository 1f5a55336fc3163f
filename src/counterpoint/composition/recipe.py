"""Recipes: which models speak, how strongly, measured against what, and by which rule."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from counterpoint.composition.strict_yaml import read_yaml
from counterpoint.errors import RecipeError

BASE = "base"
UNIFORM = "uniform"
ANY = "any"
RESERVED = {BASE, UNIFORM, ANY}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


class Voice(_Strict):
    """One model that speaks: weights (`model`), an adapter on them, a context before the prompt, or any mix.

    Attributes:
        model: the embedded name, a folder, or a hub id (`org/name` or `org/name@revision`); a component without
            one uses the base's.
        adapter: a folder or hub id of a PEFT LoRA adapter on those weights.
        context: a system prompt (chat) or a prefix (raw), see `Recipe.context_format`.
        temperature: the model's distribution is taken to the power 1/temperature before anything else.
    """

    model: str | None = Field(default=None, min_length=1)
    adapter: str | None = Field(default=None, min_length=1)
    context: str | None = Field(default=None, min_length=1)
    temperature: float = Field(default=1.0, gt=0)


class Component(Voice):
    """A voice with a say: its log-ratio r_i = log p_i - log p_ref enters the composition with `weight`.

    Attributes:
        weight: w_i, any finite real number; 0 keeps the component as a reference for others only.
        relative_to: `base` (default; `uniform` where there is no base), `uniform`, or another component's name.
        allow_other_base: accept an adapter whose config names another base model than the one it is put on.
    """

    weight: float = 1.0
    relative_to: str | None = None
    allow_other_base: bool = False


class Plausibility(_Strict):
    """Drop every token with p(v) < alpha * max p, p being the voice named by `of`, or all voices at once for `any`.

    With `any` a token stays if at least one of the voices finds it plausible.
    """

    alpha: float = Field(gt=0, le=1)
    of: str = ANY


class Recipe(_Strict):
    """A base, its components and the rule that composes them: the content of a recipe file.

    Attributes:
        base: p_b, the shared background; a model name or a `Voice`; None composes the components alone.
        components: name -> `Component`, in order.
        rule: how next-token distributions combine; see `counterpoint.composition.rules`.
        plausibility: off by default, as in the paper; a number is short for `{alpha: number, of: any}`.
        context_format: `chat` puts contexts through the tokenizer's chat template as system prompts, `raw` puts
            them before the prompt as they are; by default `chat` where the tokenizer has a template.
    """

    base: Voice | None = None
    components: dict[str, Component] = Field(min_length=1)
    rule: str = "product"
    plausibility: Plausibility | None = None
    context_format: Literal["chat", "raw"] | None = None

    @field_validator("base", mode="before")
    @classmethod
    def _base_by_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @field_validator("plausibility", mode="before")
    @classmethod
    def _plausibility_by_number(cls, value: Any) -> Any:
        return {"alpha": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("rule")
    @classmethod
    def _known_rule(cls, value: str) -> str:
        from counterpoint.composition.rules import RULES  # imports torch, which reading a recipe does not need

        if value not in RULES:
            raise ValueError(f"unknown rule {value!r}{nearest(value, RULES)}; the rules are {', '.join(RULES)}")
        return value

    @model_validator(mode="after")
    def _names_agree(self) -> Recipe:
        for name, component in self.components.items():
            where = f"components.{name}"
            if name in RESERVED or not name.strip():
                raise ValueError(f"{where}: {name!r} is a reserved name; call the component something else")
            if component.model is None and (self.base is None or self.base.model is None):
                raise ValueError(f"{where}: no model: give the component a `model`, or the recipe a `base`")
            if component.model is None and component.adapter is None and component.context is None:
                raise ValueError(f"{where}: nothing sets it apart from the base: give a model, an adapter or a context")
            self._check_reference(name, where)
        if self.base is not None and self.base.model is None:
            raise ValueError("base: no model: name one, as in `base: {model: NAME}`")
        if self.plausibility is not None and self.plausibility.of != ANY:
            self._check_voice(self.plausibility.of, "plausibility.of", extra=ANY)
        return self

    def _check_reference(self, name: str, where: str) -> None:
        seen = [name]
        while (reference := self.components[seen[-1]].relative_to) not in (None, BASE, UNIFORM):
            assert reference is not None
            self._check_voice(reference, f"components.{seen[-1]}.relative_to")
            if reference in seen:
                chain = " -> ".join([*seen, reference])
                raise ValueError(f"{where}.relative_to: the components refer to each other in a circle: {chain}")
            seen.append(reference)
        if reference == BASE and self.base is None:
            raise ValueError(f"{where}.relative_to: the recipe has no base; name a component or `uniform`")

    def _check_voice(self, voice: str, where: str, extra: str = UNIFORM) -> None:
        known = [*([BASE] if self.base is not None else []), *self.components, extra]
        if voice not in known:
            raise ValueError(f"{where}: no component is called {voice!r}{nearest(voice, known)}")

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any] | Recipe) -> Recipe:
        """The recipe of a YAML file, of a folder that `save_pretrained` wrote, a mapping, or a recipe (as it is).

        Names of local folders in a file are taken from the file's own folder and made absolute.

        Raises:
            RecipeError: what is wrong, in which file and key, and how to mend it.
        """
        if isinstance(source, Recipe):
            return source
        if isinstance(source, Mapping):
            return cls._validated(dict(source), "recipe")
        path = Path(source).expanduser()
        if path.is_dir():
            path = path / "config.json"
            recipe = cls._validated(_saved(path), str(path))
        else:
            recipe = cls._validated(read_yaml(path), str(path))
        for voice in [recipe.base, *recipe.components.values()]:
            if voice is not None:
                voice.model = _absolute(voice.model, path.parent)
                voice.adapter = _absolute(voice.adapter, path.parent)
        return recipe

    @classmethod
    def _validated(cls, data: Any, where: str) -> Recipe:
        if not isinstance(data, dict):
            raise RecipeError(f"{where}: a recipe is a mapping with `base`, `components` and `rule`, not {data!r:.60}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            lines = [f"{where}: {_in_words(problem)}" for problem in error.errors(include_url=False)]
            raise RecipeError("\n".join(dict.fromkeys(lines))) from None

    def with_weights(self, weights: Mapping[str, float]) -> Recipe:
        """A copy with some components' weights replaced.

        Raises:
            RecipeError: a name is not a component, or a weight is not a finite number.
        """
        copy = self.model_copy(deep=True)
        for name, weight in weights.items():
            if name not in copy.components:
                raise RecipeError(f"no component is called {name!r}{nearest(name, copy.components)}")
            if not math.isfinite(weight):
                raise RecipeError(f"components.{name}.weight: {weight} is not a finite number")
            copy.components[name].weight = weight
        return copy

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain data, defaults left out, in the form a recipe file has."""
        data = self.model_dump(exclude_defaults=True)
        if set(data.get("base") or {}) == {"model"}:
            data["base"] = data["base"]["model"]
        return data

    def digest(self) -> str:
        """Sixteen hexadecimal digits that name this recipe's content (SHA-256 of its canonical JSON)."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


def nearest(word: str, known: Any) -> str:
    """`; did you mean 'x'?` where one of the known words is close to the given one, else nothing."""
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _saved(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RecipeError(f"{path.parent}: not a saved composed model: no config.json with a recipe in it") from None


def _absolute(name: str | None, folder: Path) -> str | None:
    if name is None:
        return None
    path = folder / Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or path.exists()
    return str(path.resolve()) if is_path else name


_FIELDS: dict[str, type[BaseModel]] = {"components": Component, "base": Voice, "plausibility": Plausibility}


def _in_words(problem: Any) -> str:
    """One line for one pydantic error: where, what, and how to mend it."""
    location = [str(part) for part in problem["loc"]]
    where = ".".join(location)
    if problem["type"] == "extra_forbidden":
        owner = _FIELDS[location[0]] if len(location) > 1 else Recipe
        fields = list(owner.model_fields)
        return f"{where}: unknown key{nearest(location[-1], fields)}; the keys are {', '.join(fields)}"
    if problem["type"] == "missing":
        return f"{where}: missing; a recipe needs at least one component"
    if problem["type"] == "too_short" and location == ["components"]:
        return "components: empty; a recipe needs at least one component"
    message = problem["msg"].removeprefix("Value error, ")
    given = (
        ""
        if isinstance(problem["input"], dict) or where == "" or "rule" in location
        else f", not {problem['input']!r:.60}"
    )
    return f"{where}: {message}{given}" if where else message
