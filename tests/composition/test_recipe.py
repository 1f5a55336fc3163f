"""Recipes: four ways to give one, what a file may say, and the exact words in which anything else is refused."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from counterpoint import Component, Plausibility, Recipe, Voice
from counterpoint.composition.strict_yaml import MAX_BYTES, MAX_DEPTH
from counterpoint.errors import RecipeError

FULL = """
base:
  model: org/base
  context: Be brief.
  temperature: 0.5
components:
  maths: {adapter: org/maths-lora, weight: 1.5, relative_to: base}
  pirate: {context: You are a pirate., weight: 0.25, relative_to: uniform}
  other: {model: org/other@v1, relative_to: maths, allow_other_base: true, weight: 1e-3}
rule: mixture
plausibility: {alpha: 0.1, of: maths}
context_format: raw
"""
FULL_MAPPING: dict[str, Any] = {
    "base": {"model": "org/base", "context": "Be brief.", "temperature": 0.5},
    "components": {
        "maths": {"adapter": "org/maths-lora", "weight": 1.5, "relative_to": "base"},
        "pirate": {"context": "You are a pirate.", "weight": 0.25, "relative_to": "uniform"},
        "other": {"model": "org/other@v1", "relative_to": "maths", "allow_other_base": True, "weight": 0.001},
    },
    "rule": "mixture",
    "plausibility": {"alpha": 0.1, "of": "maths"},
    "context_format": "raw",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recipe.yaml"


def read(file: Path, text: str) -> Recipe:
    file.write_text(text, "utf-8")
    return Recipe.read(file)


def refusal(source: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.read(source)
    return str(caught.value)


def test_a_file_a_mapping_a_recipe_and_keywords_say_the_same(file: Path) -> None:
    from_file = read(file, FULL)
    from_mapping = Recipe.read(FULL_MAPPING)
    from_keywords = Recipe(
        base=Voice(model="org/base", context="Be brief.", temperature=0.5),
        components={
            "maths": Component(adapter="org/maths-lora", weight=1.5, relative_to="base"),
            "pirate": Component(context="You are a pirate.", weight=0.25, relative_to="uniform"),
            "other": Component(model="org/other@v1", relative_to="maths", allow_other_base=True, weight=0.001),
        },
        rule="mixture",
        plausibility=Plausibility(alpha=0.1, of="maths"),
        context_format="raw",
    )
    assert from_file == from_mapping == from_keywords == Recipe.read(str(file))
    assert list(from_file.components) == ["maths", "pirate", "other"]
    assert Recipe.read(from_file) is from_file
    assert from_file.components["other"].weight == 0.001
    assert from_file.base is not None
    assert from_file.base.temperature == 0.5


def test_what_is_not_said_has_the_documented_default(file: Path) -> None:
    recipe = read(file, "base: org/base\ncomponents: {x: {context: hi}}")
    assert recipe.base == Voice(model="org/base")
    assert recipe.model_dump() == {
        "base": {"model": "org/base", "adapter": None, "context": None, "temperature": 1.0, "allow_other_base": False},
        "components": {
            "x": {
                "model": None,
                "adapter": None,
                "context": "hi",
                "temperature": 1.0,
                "weight": 1.0,
                "relative_to": None,
                "allow_other_base": False,
            }
        },
        "rule": "product",
        "rule_options": {},
        "plausibility": None,
        "budgets": {},
        "context_format": None,
    }


def test_a_base_may_be_a_name_or_a_mapping(file: Path) -> None:
    components = "components: {x: {context: hi}}"
    assert read(file, f"base: org/base\n{components}") == read(file, f"base: {{model: org/base}}\n{components}")
    assert read(file, "components: {x: {model: org/a}}").base is None


def test_plausibility_may_be_a_number(file: Path) -> None:
    recipe = read(file, "components: {x: {model: a}}\nplausibility: 0.1")
    assert recipe.plausibility == Plausibility(alpha=0.1, of="any")
    assert read(file, "components: {x: {model: a}}\nplausibility: 1").plausibility == Plausibility(alpha=1.0)


def test_folders_are_taken_from_the_files_own_folder_and_hub_ids_are_not(tmp_path: Path) -> None:
    for folder in ("recipes/here", "beside", "recipes/org/local"):
        (tmp_path / folder).mkdir(parents=True)
    recipe = read(
        tmp_path / "recipes/r.yaml",
        "base: here\ncomponents:\n"
        "  a: {model: ../beside, adapter: ./nowhere}\n"
        "  b: {model: org/hub-id, adapter: org/local}\n"
        "  c: {model: org/hub-id@main}\n"
        "  d: {model: /somewhere/else}\n"
        "  e: {model: ~/mine}\n"
        f"  f: {{model: {'x' * 300}}}\n",
    )
    base, a, b, c, d, e, f = [v for v in (recipe.base, *recipe.components.values()) if v is not None]
    assert base.model == str(tmp_path / "recipes/here")
    assert (a.model, a.adapter) == (str(tmp_path / "beside"), str(tmp_path / "recipes/nowhere"))
    assert (b.model, b.adapter) == ("org/hub-id", str(tmp_path / "recipes/org/local"))
    assert (c.model, d.model, e.model) == ("org/hub-id@main", "/somewhere/else", str(Path.home() / "mine"))
    assert f.model == "x" * 300


def test_the_digest_names_the_content(file: Path) -> None:
    recipe = read(file, FULL)
    assert recipe.digest() == sha256(json.dumps(FULL_MAPPING, sort_keys=True).encode()).hexdigest()[:16]
    assert recipe.digest() == "3902e3100b350d48"  # the same on every machine and in every version
    assert Recipe.read(FULL_MAPPING).digest() == recipe.digest()
    backwards = dict(reversed(FULL_MAPPING["components"].items()))
    assert Recipe.read({**FULL_MAPPING, "components": backwards}).digest() == recipe.digest()
    changed = [
        recipe.with_weights({"maths": 1.6}),
        Recipe.read({**FULL_MAPPING, "rule": "product"}),
        Recipe.read({**FULL_MAPPING, "context_format": None}),
        Recipe.read({**FULL_MAPPING, "base": "org/base"}),
    ]
    assert len({recipe.digest(), *(other.digest() for other in changed)}) == 5


def test_weights_are_replaced_in_a_copy(file: Path) -> None:
    recipe = read(file, FULL)
    copy = recipe.with_weights({"maths": 0, "other": 2.5})
    assert [component.weight for component in copy.components.values()] == [0.0, 0.25, 2.5]
    assert [component.weight for component in recipe.components.values()] == [1.5, 0.25, 0.001]
    assert copy.with_weights({"maths": 1.5, "other": 0.001}) == recipe


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"math": 1}, "no component is called 'math'; did you mean 'maths'?"),
        ({"zzz": 1}, "no component is called 'zzz'; there are maths, pirate, other"),
        ({"maths": float("nan")}, "components.maths.weight: nan is not a finite number"),
        ({"maths": float("-inf")}, "components.maths.weight: -inf is not a finite number"),
        ({"maths": "much"}, "components.maths.weight: must be a number, not 'much'"),
        ({"maths": True}, "components.maths.weight: must be a number, not true"),
        ({"maths": 1e300}, "components.maths.weight: must be at most 1e+06, not 1e+300"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.read(FULL_MAPPING).with_weights(weights)
    assert str(caught.value) == message


def test_plain_data_and_back_is_the_same_recipe(file: Path) -> None:
    recipe = read(file, FULL)
    assert recipe.as_dict() == FULL_MAPPING
    assert Recipe.read(recipe.as_dict()) == recipe
    assert Recipe.read(json.loads(json.dumps(recipe.as_dict()))).digest() == recipe.digest()
    short = {"base": "org/base", "components": {"x": {"context": "hi"}}}
    assert Recipe.read(short).as_dict() == short


ONE = "components: {a: {model: m}}"
MAPPING = "a recipe is a mapping with `base`, `components` and `rule`"
A_COMPONENT = "must be a mapping, as in `{adapter: FOLDER}` or `{context: TEXT}`"
A_BASE = "must be a model's name, or a mapping, as in `{model: NAME, context: TEXT}`"
TEXT = "must be text (in quotes, if it looks like something else)"
NAME = "use letters, digits, spaces and _ . + -, a letter or digit first"
ON_PLAUSIBILITY = "must be a number, or a mapping, as in `{alpha: 0.1, of: base}`"
REFUSED: dict[str, tuple[str, str]] = {
    "empty file": ("", f"{MAPPING}, and this is empty"),
    "only a comment": ("# later\n", f"{MAPPING}, and this is empty"),
    "a list": ("- a\n- b", f"{MAPPING}, not ['a', 'b']"),
    "a word": ("hello", f"{MAPPING}, not 'hello'"),
    "a number": ("3", f"{MAPPING}, not 3"),
    "a long text": ("x" * 99, f"{MAPPING}, not '{'x' * 56}..."),
    "unknown key": (f"{ONE}\nrules: product", "rules: unknown key; did you mean 'rule'?"),
    "unknown key, nothing near": (
        f"{ONE}\nzzz: 1",
        "zzz: unknown key; the keys are base, components, rule, rule_options, plausibility, budgets, context_format",
    ),
    "unknown key in the base": (f"base: {{modle: m}}\n{ONE}", "base.modle: unknown key; did you mean 'model'?"),
    "unknown key in a component": (
        "components: {a: {model: m, wieght: 2}}",
        "components.a.wieght: unknown key; did you mean 'weight'?",
    ),
    "a component's key in the base": (
        f"base: {{model: m, weight: 1}}\n{ONE}",
        "base.weight: unknown key; the keys are model, adapter, context, temperature, allow_other_base",
    ),
    "unknown key in plausibility": (
        f"{ONE}\nplausibility: {{alpa: .1}}",
        "plausibility.alpa: unknown key; did you mean 'alpha'?",
    ),
    "misspelt components": ("component: {a: {model: m}}", "component: unknown key; did you mean 'components'?"),
    "no components": ("base: m", "components: missing; a recipe needs at least one component"),
    "components of none": ("base: m\ncomponents: {}", "components: empty; a recipe needs at least one component"),
    "components of nothing": (
        "base: m\ncomponents:",
        "components: must be a mapping from a name to each component, as in `NAME: {adapter: FOLDER}`, not nothing",
    ),
    "components in a list": (
        "components: [a, b]",
        "components: must be a mapping from a name to each component, as in `NAME: {adapter: FOLDER}`, not ['a', 'b']",
    ),
    "a component of text": ("components: {a: m}", f"components.a: {A_COMPONENT}, not 'm'"),
    "a component of nothing": ("components: {a: }", f"components.a: {A_COMPONENT}, not nothing"),
    "a base of a number": (f"base: 3\n{ONE}", f"base: {A_BASE}, not 3"),
    "a base of a list": (f"base: [m]\n{ONE}", f"base: {A_BASE}, not ['m']"),
    "an empty base": (f'base: ""\n{ONE}', "base.model: empty; fill it in, or leave the key out"),
    "an empty context": (
        'base: m\ncomponents: {a: {context: ""}}',
        "components.a.context: empty; fill it in, or leave the key out",
    ),
    "a context that YAML takes for a truth value": (
        "base: m\ncomponents: {a: {context: no}}",
        f"components.a.context: {TEXT}, not false",
    ),
    "weight NaN": ("components: {a: {model: m, weight: .nan}}", "components.a.weight: nan is not a finite number"),
    "weight infinite": (
        "components: {a: {model: m, weight: -.inf}}",
        "components.a.weight: -inf is not a finite number",
    ),
    "weight of text": (
        "components: {a: {model: m, weight: high}}",
        "components.a.weight: must be a number, not 'high'",
    ),
    "weight of truth": ("components: {a: {model: m, weight: yes}}", "components.a.weight: must be a number, not true"),
    "weight of nothing": (
        "components: {a: {model: m, weight: }}",
        "components.a.weight: must be a number, not nothing",
    ),
    "weight beyond float32": (
        "components: {a: {model: m, weight: -1.0e+300}}",
        "components.a.weight: must be at least -1e+06, not -1e+300",
    ),
    "temperature 0": (
        "components: {a: {model: m, temperature: 0}}",
        "components.a.temperature: must be at least 1e-06, not 0",
    ),
    "temperature below 0": (
        f"base: {{model: m, temperature: -1}}\n{ONE}",
        "base.temperature: must be at least 1e-06, not -1",
    ),
    "temperature NaN": (
        f"base: {{model: m, temperature: .nan}}\n{ONE}",
        "base.temperature: nan is not a finite number",
    ),
    "unknown rule": (f"{ONE}\nrule: produkt", "rule: unknown rule 'produkt'; did you mean 'product'?"),
    "unknown rule, nothing near": (
        f"{ONE}\nrule: zzz",
        "rule: unknown rule 'zzz'; the rules are mixture, product, projective, raking",
    ),
    "a rule of a number": (f"{ONE}\nrule: 3", f"rule: {TEXT}, not 3"),
    "relative to itself": (
        "components: {a: {model: m, relative_to: a}}",
        "components.a.relative_to: measured against each other in a circle (a -> a); measure one of them against the "
        "base or `uniform`",
    ),
    "a circle of two": (
        "components: {a: {model: m, relative_to: b}, b: {model: m, relative_to: a}}",
        "components.b.relative_to: measured against each other in a circle (a -> b -> a); measure one of them against "
        "the base or `uniform`",
    ),
    "a circle of three, and a way into it": (
        "components:\n  z: {model: m, relative_to: a}\n  a: {model: m, relative_to: b}\n"
        "  b: {model: m, relative_to: c}\n  c: {model: m, relative_to: a}",
        "components.c.relative_to: measured against each other in a circle (a -> b -> c -> a); measure one of them "
        "against the base or `uniform`",
    ),
    "relative to an unknown name": (
        "components: {happy: {model: m, relative_to: hapy}, b: {model: m}}",
        "components.happy.relative_to: no component is called 'hapy'; did you mean 'happy'?",
    ),
    "relative to an unknown name, nothing near": (
        "base: m\ncomponents: {a: {model: m, relative_to: zzz}}",
        "components.a.relative_to: no component is called 'zzz'; name one of base, a, uniform",
    ),
    "relative to a base that is not there": (
        "components: {a: {model: m, relative_to: b}, b: {model: m, relative_to: base}}",
        "components.b.relative_to: the recipe has no base; name one of a, b, uniform",
    ),
    "the name base": (
        "components: {base: {model: m}}",
        "components.base: 'base' is a reserved name; call the component something else",
    ),
    "the name any": (
        "components: {any: {model: m}}",
        "components.any: 'any' is a reserved name; call the component something else",
    ),
    "the name uniform": (
        "components: {uniform: {model: m}}",
        "components.uniform: 'uniform' is a reserved name; call the component something else",
    ),
    "a blank name": ('components: {" ": {model: m}}', f"components: ' ' cannot be a name; {NAME}"),
    "a name that leaves its folder": ("components: {../a: {model: m}}", f"components: '../a' cannot be a name; {NAME}"),
    "a name with a line break": ('components: {"a\\nb": {model: m}}', f"components: 'a\\nb' cannot be a name; {NAME}"),
    "nothing of its own": (
        "base: m\ncomponents: {a: {weight: 2}}",
        "components.a: nothing sets it apart from the base: give a model, an adapter or a context",
    ),
    "no model": (
        "components: {a: {context: hi}}",
        "components.a: no model: give the component a `model`, or the recipe a `base`",
    ),
    "a base without a model": (
        "base: {context: hi}\ncomponents: {a: {context: ho}}",
        "base: no model: name one, as in `base: {model: NAME}`",
    ),
    "plausibility 0": (f"{ONE}\nplausibility: 0", "plausibility.alpha: must be above 0, not 0"),
    "plausibility above 1": (f"{ONE}\nplausibility: {{alpha: 1.5}}", "plausibility.alpha: must be at most 1, not 1.5"),
    "plausibility NaN": (f"{ONE}\nplausibility: .nan", "plausibility.alpha: nan is not a finite number"),
    "plausibility of truth": (f"{ONE}\nplausibility: on", f"plausibility: {ON_PLAUSIBILITY}, not true"),
    "plausibility of text": (f"{ONE}\nplausibility: strict", f"plausibility: {ON_PLAUSIBILITY}, not 'strict'"),
    "plausibility without a number": (
        f"{ONE}\nplausibility: {{of: a}}",
        "plausibility.alpha: missing; a number above 0, at most 1",
    ),
    "plausibility of an unknown voice": (
        "components: {happy: {model: m}}\nplausibility: {alpha: .1, of: hapy}",
        "plausibility.of: no component is called 'hapy'; did you mean 'happy'?",
    ),
    "plausibility of no base": (
        f"{ONE}\nplausibility: {{alpha: .1, of: base}}",
        "plausibility.of: the recipe has no base; name one of a, any",
    ),
    "plausibility of the uniform": (
        f"{ONE}\nplausibility: {{alpha: .1, of: uniform}}",
        "plausibility.of: no component is called 'uniform'; name one of a, any",
    ),
    "another context format": (
        f"{ONE}\ncontext_format: chatml",
        "context_format: must be 'chat' or 'raw', not 'chatml'",
    ),
    "no truth value": (
        "components: {a: {model: m, allow_other_base: maybe}}",
        "components.a.allow_other_base: must be true or false, not 'maybe'",
    ),
    "an alias": (
        "base: &b {model: m}\ncomponents: {a: *b}",
        "line 2: aliases (*name) are not allowed; write out what they stand for",
    ),
    "a bomb": (
        "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]",
        "line 2: aliases (*name) are not allowed; write out what they stand for",
    ),
    "a merge key": (
        "components: {a: {<<: {model: m}}}",
        "components.a.<<: unknown key; the keys are model, adapter, context, temperature, allow_other_base, "
        "weight, relative_to",
    ),
    "a tag that would run a command": (
        'components: !!python/object/apply:os.system ["touch ran"]',
        "line 1: tags (tag:yaml.org,2002:python/object/apply:os.system) are not allowed; a recipe is plain YAML",
    ),
    "a tag on a word": (f"base: !secret m\n{ONE}", "line 1: tags (!secret) are not allowed; a recipe is plain YAML"),
    "a key twice": (f"base: a\n{ONE}\nbase: b", "line 3: the key 'base' appears twice; keep one of them"),
    "a component twice": (
        "components:\n  a: {model: m}\n  a: {model: n}",
        "line 3: the key 'a' appears twice; keep one of them",
    ),
    "brackets without end": ("[" * 50_000, f"line 1: nested more than {MAX_DEPTH} levels deep; no recipe needs that"),
    "braces without end": (
        "components:\n  " + "{a: " * 5_000,
        f"line 2: nested more than {MAX_DEPTH} levels deep; no recipe needs that",
    ),
    "a number for a key": (
        "components: {1: {model: m}}",
        "line 1: the key 1 is not text; put it in quotes, or use another word",
    ),
    "a truth value for a key": (
        "components:\n  yes: {model: m}",
        "line 2: the key yes is not text; put it in quotes, or use another word",
    ),
    "a list for a key": ("? [a]\n: b", "line 1: the key ['a'] is not text; put it in quotes, or use another word"),
    "a tab": (
        "components:\n\ta: 1",
        "line 2: while scanning for the next token, found character '\\t' that cannot start any token; indent with "
        "spaces, not tabs",
    ),
    "a brace left open": (
        "components: {a: ",
        "line 1: while parsing a flow node, expected the node content, but found '<stream end>'",
    ),
    "two documents": (
        f"{ONE}\n---\n{ONE}",
        "line 2: expected a single document in the stream, but found another document",
    ),
    "a control character": (f'{ONE}\nrule: "\x07"', "line 2: the character #x07 is not allowed in YAML"),
    "too much": ("#" * (MAX_BYTES + 1), "1000001 bytes is too large for a recipe (at most 1000000)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_fault_is_named_in_one_line_with_file_and_key(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    text, message = REFUSED[name]
    file.write_text(text, "utf-8")
    assert refusal(file) == f"{file}: {message}"
    assert "\n" not in message
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_several_faults_have_a_line_each_and_unknown_keys_come_first(file: Path) -> None:
    file.write_text("basis: m\ncomponents:\n  a: {model: m, weight: x}\n  b: {modle: m}\n")
    assert refusal(file).splitlines() == [
        f"{file}: components.b.modle: unknown key; did you mean 'model'?",
        f"{file}: basis: unknown key; did you mean 'base'?",
        f"{file}: components.a.weight: must be a number, not 'x'",
    ]


def test_a_mapping_is_checked_like_a_file() -> None:
    assert refusal({"base": "m", "components": {"a": {"weight": float("nan")}}}) == (
        "recipe: components.a.weight: nan is not a finite number"
    )
    assert refusal({"components": {1: {"model": "m"}}}) == "recipe: components.1: a key must be text, not 1"
    assert refusal({}) == "recipe: components: missing; a recipe needs at least one component"


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("none.yaml") == f"none.yaml: no such file (looked in {tmp_path})"
    assert refusal("sub/none.yaml") == f"sub/none.yaml: no such file (looked in {tmp_path}/sub)"
    (tmp_path / "latin.yaml").write_bytes("base: caf\xe9".encode("latin-1"))
    assert refusal("latin.yaml") == "latin.yaml: not UTF-8 text (byte 9); save the file as UTF-8"
    assert refusal("latin.yaml/x") == "latin.yaml/x: cannot be read: Not a directory"


def test_numbers_that_yaml_takes_for_text_are_numbers(file: Path) -> None:
    recipe = read(file, 'components: {a: {model: m, weight: 1e-3}, b: {model: m, weight: "0.5"}}')
    assert [component.weight for component in recipe.components.values()] == [0.001, 0.5]


def test_dates_and_names_in_any_script_are_text(file: Path) -> None:
    recipe = read(file, "base: m\ncomponents: {стихи v1.2: {context: 2026-01-31}}")
    assert recipe.components["стихи v1.2"].context == "2026-01-31"
