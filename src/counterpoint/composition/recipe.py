"""Recipes: which models speak, how strongly, measured against what, and by which rule."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from counterpoint.composition.strict_yaml import read_yaml
from counterpoint.errors import RecipeError

BASE = "base"
UNIFORM = "uniform"
ANY = "any"
RESERVED = {BASE, UNIFORM, ANY}
LARGEST = 1e6
"""Of a weight or a temperature (whose smallest is the inverse): beyond it, float32 keeps nothing of the log-ratios."""


def _no_truth_value(value: Any) -> Any:
    """YAML reads `yes` and `on` as true, which Python counts as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Number = Annotated[float, BeforeValidator(_no_truth_value)]
Budget = Annotated[Number, Field(ge=0, le=LARGEST)]


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
        allow_other_base: accept an adapter whose config names another base model than the one it is put on.
    """

    model: str | None = Field(default=None, min_length=1)
    adapter: str | None = Field(default=None, min_length=1)
    context: str | None = Field(default=None, min_length=1)
    temperature: Number = Field(default=1.0, ge=1 / LARGEST, le=LARGEST)
    allow_other_base: bool = False


class Component(Voice):
    """A voice with a say: its log-ratio r_i = log p_i - log p_ref enters the composition with `weight`.

    Attributes:
        weight: w_i, any real number, negative ones too; 0 keeps the component as a reference for others only.
        relative_to: `base` (default; `uniform` where there is no base), `uniform`, or another component's name.
    """

    weight: Number = Field(default=1.0, ge=-LARGEST, le=LARGEST)
    relative_to: str | None = None


class Plausibility(_Strict):
    """Drop every token with p(v) < alpha * max p, p being the voice named by `of`, or all voices at once for `any`.

    With `any` a token stays if at least one of the voices finds it plausible.
    """

    alpha: Number = Field(gt=0, le=1)
    of: str = ANY


class Recipe(_Strict):
    """A base, its components and the rule that composes them: the content of a recipe file.

    Attributes:
        base: p_b, the shared background; a model name or a `Voice`; None composes the components alone.
        components: name -> `Component`, in order.
        rule: how next-token distributions combine; see `counterpoint.composition.rules`.
        rule_options: settings of that rule, such as `{bins: 16}` for raking; those left out have their defaults.
        plausibility: off by default, as in the paper; a number is short for `{alpha: number, of: any}`.
        budgets: voice -> nats: the composed distribution p stays within KL(p‖p_voice) ≤ so many nats at every token;
            the nearest such distribution is taken.
        context_format: `chat` puts contexts through the tokenizer's chat template as system prompts, `raw` puts
            them before the prompt as they are; by default `chat` where the tokenizer has a template.
    """

    base: Voice | None = None
    components: dict[str, Component] = Field(min_length=1)
    rule: str = "product"
    rule_options: dict[str, Annotated[int | float, BeforeValidator(_no_truth_value)]] = Field(default_factory=dict)
    plausibility: Plausibility | None = None
    budgets: dict[str, Budget] = Field(default_factory=dict)
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
            raise ValueError(f"unknown rule {value!r}{nearest(value, RULES, 'the rules are')}")
        return value

    def objection(self) -> str | None:
        """What the rule has against its options or the weights, in words, or None."""
        from counterpoint.composition.rules import OBJECTIONS, OPTIONS

        try:
            OPTIONS[self.rule].model_validate(self.rule_options)
        except ValidationError as error:
            return "\n".join(_option_line(self.rule, OPTIONS[self.rule], problem) for problem in _problems(error))
        ask = OBJECTIONS.get(self.rule)
        return None if ask is None else ask([component.weight for component in self.components.values()])

    @model_validator(mode="after")
    def _rule_agrees(self) -> Recipe:
        if objection := self.objection():
            raise ValueError(objection)
        return self

    @model_validator(mode="after")
    def _names_agree(self) -> Recipe:
        if self.base is not None and self.base.model is None:
            raise ValueError("base: no model: name one, as in `base: {model: NAME}`")
        for name, component in self.components.items():
            where = f"components.{name}"
            if name in RESERVED:
                raise ValueError(f"{where}: {name!r} is a reserved name; call the component something else")
            if not re.fullmatch(r"\w[\w .+-]*", name):
                raise ValueError(
                    f"components: {name!r} cannot be a name; use letters, digits, spaces and _ . + -, a letter or "
                    "digit first"
                )
            if component.model is None and self.base is None:
                raise ValueError(f"{where}: no model: give the component a `model`, or the recipe a `base`")
            if component.model is None and component.adapter is None and component.context is None:
                raise ValueError(f"{where}: nothing sets it apart from the base: give a model, an adapter or a context")
            self._check_reference(name)
        if self.plausibility is not None and self.plausibility.of != ANY:
            self._check_voice(self.plausibility.of, "plausibility.of", extra=ANY)
        for name in self.budgets:
            self._check_voice(name, f"budgets.{name}")
        return self

    def _check_reference(self, name: str) -> None:
        seen = [name]
        while reference := self.components[seen[-1]].relative_to:
            where = f"components.{seen[-1]}.relative_to"
            self._check_voice(reference, where, extra=UNIFORM)
            if reference in (BASE, UNIFORM):
                return
            if reference in seen:
                chain = " -> ".join([*seen[seen.index(reference) :], reference])
                raise ValueError(
                    f"{where}: measured against each other in a circle ({chain}); measure one of them against the base "
                    "or `uniform`"
                )
            seen.append(reference)

    def _check_voice(self, voice: str, where: str, extra: str | None = None) -> None:
        known = [*self.voices, *([] if extra is None else [extra])]
        if voice not in known:
            what = "the recipe has no base" if voice == BASE else f"no component is called {voice!r}"
            raise ValueError(f"{where}: {what}{nearest(voice, known, 'name one of')}")

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
        for voice in recipe.voices.values():
            voice.model = voice.model and absolute(voice.model, path.parent)
            voice.adapter = voice.adapter and absolute(voice.adapter, path.parent)
        return recipe

    @property
    def voices(self) -> dict[str, Voice]:
        """Name -> voice: the base first, where there is one, then the components."""
        return {**({} if self.base is None else {BASE: self.base}), **self.components}

    @classmethod
    def _validated(cls, data: Any, where: str) -> Recipe:
        if not isinstance(data, dict):
            given = "and this is empty" if data is None else f"not {_shown(data)}"
            raise RecipeError(f"{where}: a recipe is a mapping with `base`, `components` and `rule`, {given}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError("\n".join(f"{where}: {line}" for line in _in_words(error))) from None

    def with_weights(self, weights: Mapping[str, float]) -> Recipe:
        """A copy with some components' weights replaced.

        Raises:
            RecipeError: a name is not a component, a weight is not a finite number (or above `LARGEST`), or the rule
                does not take these weights.
        """
        copy = self.model_copy(deep=True)
        for name, weight in weights.items():
            if name not in copy.components:
                raise RecipeError(f"no component is called {name!r}{nearest(name, copy.components, 'there are')}")
            try:
                copy.components[name].weight = weight
            except ValidationError as error:
                raise RecipeError(f"components.{name}.{_in_words(error)[0]}") from None
        if objection := copy.objection():
            raise RecipeError(objection)
        return copy

    @property
    def all_rule_options(self) -> dict[str, Any]:
        """Every option of the rule, defaults filled in, as the rule takes them."""
        from counterpoint.composition.rules import OPTIONS

        return OPTIONS[self.rule].model_validate(self.rule_options).model_dump()

    def with_rule(self, rule: str, **options: int | float) -> Recipe:
        """A copy with another rule and its options; options of the rule it had are left behind, even of the same rule.

        Raises:
            RecipeError: no such rule or option, or the rule does not take the weights.
        """
        from counterpoint.composition.rules import RULES

        if rule not in RULES:
            raise RecipeError(f"unknown rule {rule!r}{nearest(rule, RULES, 'the rules are')}")
        copy = self.model_copy(update={"rule": rule, "rule_options": options}, deep=True)
        if objection := copy.objection():
            raise RecipeError(objection)
        return copy

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain data, defaults left out, in the form a recipe file has."""
        data = self.model_dump(exclude_defaults=True)
        if set(data.get("base") or {}) == {"model"}:
            data["base"] = data["base"]["model"]
        return data

    def digest(self) -> str:
        """Sixteen hexadecimal digits that name this recipe's content (SHA-256 of `as_dict` as sorted JSON)."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


def nearest(word: str, known: Any, otherwise: str | None = None) -> str:
    """`; did you mean 'x'?` where one of the known words is close to the given one, else `; otherwise` and them all."""
    words = [str(k) for k in known]
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return "" if otherwise is None else f"; {otherwise} {', '.join(words)}"


def _saved(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RecipeError(f"{path.parent}: not a saved composed model: no config.json with a recipe in it") from None


def absolute(name: str, folder: Path) -> str:
    """The absolute path of a name that is a path from `folder`, existing or plainly meant; other names as they are."""
    path = folder / Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or os.path.exists(path)  # Path.exists raises at an overlong name
    return str(path.resolve()) if is_path else name


_FIELDS: dict[str, type[BaseModel]] = {"components": Component, "base": Voice, "plausibility": Plausibility}
_MAPPINGS = {
    "components": "must be a mapping from a name to each component, as in `NAME: {adapter: FOLDER}`",
    "component": "must be a mapping, as in `{adapter: FOLDER}` or `{context: TEXT}`",
    "base": "must be a model's name, or a mapping, as in `{model: NAME, context: TEXT}`",
    "plausibility": "must be a number, or a mapping, as in `{alpha: 0.1, of: base}`",
}
_EXPECTED = {
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text (in quotes, if it looks like something else)",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
}


def _in_words(error: ValidationError) -> list[str]:
    """One line for each thing that pydantic finds wrong: where, what, and how to mend it."""
    return list(dict.fromkeys(_line(problem) for problem in _problems(error)))


def _problems(error: ValidationError) -> list[Any]:
    """What pydantic finds wrong, unknown keys first, without what is missing only because its key is misspelt."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    misspelt = [problem["loc"][:-1] for problem in unknown]
    others = [p for p in problems if p not in unknown and not (p["type"] == "missing" and p["loc"][:-1] in misspelt)]
    return [*unknown, *others]


def _option_line(rule: str, options: type[BaseModel], problem: Any) -> str:
    where, kind, given = f"rule_options.{problem['loc'][-1]}", problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = options.model_fields
        others = f"rule {rule} takes" if known else f"rule {rule} takes no options"
        return f"{where}: unknown key{nearest(problem['loc'][-1], known, others)}"
    expected = _EXPECTED[kind].format(**problem.get("ctx", {})) if kind in _EXPECTED else problem["msg"]
    return f"{where}: {expected}, not {_shown(given)}"


def _line(problem: Any) -> str:
    location, kind, given = [str(part) for part in problem["loc"]], problem["type"], problem["input"]
    where = ".".join(location)
    message: str = problem["msg"].removeprefix("Value error, ")
    if not where:  # from `_names_agree`, which says where itself
        return message
    if kind == "extra_forbidden":
        owner = _FIELDS[location[0]] if len(location) > 1 else Recipe
        return f"{where}: unknown key{nearest(location[-1], owner.model_fields, 'the keys are')}"
    if kind in ("missing", "too_short"):
        mend = "a number above 0, at most 1" if location[-1] == "alpha" else "a recipe needs at least one component"
        return f"{where}: {'missing' if kind == 'missing' else 'empty'}; {mend}"
    if kind == "string_too_short":
        return f"{where}: empty; fill it in, or leave the key out"
    if "[key]" in location or kind == "invalid_key":
        return f"{'.'.join(part for part in location if part != '[key]')}: a key must be text, not {_shown(given)}"
    if kind in ("dict_type", "model_type"):
        message = _MAPPINGS["component" if location[0] == "components" and len(location) > 1 else location[0]]
    elif kind == "finite_number":
        return f"{where}: {given} is not a finite number"
    elif kind in _EXPECTED:
        message = _EXPECTED[kind].format(**problem.get("ctx", {}))
    elif location == ["rule"]:
        return f"{where}: {message}"
    return f"{where}: {message}, not {_shown(given)}"


def _shown(value: Any) -> str:
    """A value as a recipe file would have it, cut to a readable length."""
    words = {None: "nothing", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
