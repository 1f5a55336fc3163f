"""Options that several verbs share, as dataclasses: a verb that takes one as a parameter gets all its options."""

import importlib.metadata
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from counterpoint.cli._errors import UsageError

IN_FILE, WITHOUT_FILE, DECODING, LOADING = "The recipe", "A recipe without a file", "Decoding", "Loading"

RecipeArgument = Annotated[
    str | None,
    typer.Argument(metavar="RECIPE", help="A YAML file, or a folder that `counterpoint save` wrote."),
]


def _option(name: str, panel: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)


@dataclass(frozen=True)
class Composing:
    """Which recipe: changes to the one that is named, or a whole one without a file."""

    weight: Annotated[
        list[str] | None,
        _option("--weight", IN_FILE, "Another weight for a component, as in math=0.5. Repeatable.", "NAME=NUMBER"),
    ] = None
    rule: Annotated[
        str | None, _option("--rule", IN_FILE, "Another rule: product, mixture, raking or projective.", "NAME")
    ] = None
    rule_option: Annotated[
        list[str] | None,
        _option("--rule-option", IN_FILE, "A setting of that rule, as in bins=16. Repeatable.", "NAME=NUMBER"),
    ] = None
    base: Annotated[
        str | None, _option("--base", WITHOUT_FILE, "The base model: embedded name, folder or hub id.", "MODEL")
    ] = None
    context: Annotated[
        list[str] | None,
        _option("--context", WITHOUT_FILE, 'A component with a prompt, as in pirate="You are a pirate."', "NAME=TEXT"),
    ] = None
    adapter: Annotated[
        list[str] | None,
        _option("--adapter", WITHOUT_FILE, "A component with a LoRA adapter: a folder or hub id.", "NAME=ADAPTER"),
    ] = None
    model: Annotated[
        list[str] | None,
        _option("--model", WITHOUT_FILE, "A component with a model of its own: a folder or hub id.", "NAME=MODEL"),
    ] = None

    def recipe(self) -> dict[str, Any]:
        """The recipe of --base, --context, --adapter and --model; one name may have several of the last three."""
        found: dict[str, dict[str, str]] = {}
        for key, example, values in (
            ("context", 'pirate="You are a pirate."', self.context),
            ("adapter", "math=./math-lora", self.adapter),
            ("model", "code=ORG/NAME", self.model),
        ):
            for name, value in pairs(f"--{key}", values, example):
                if key in found.setdefault(name, {}):
                    raise UsageError(f"--{key} {name}: given twice; give each component one {key}")
                found[name][key] = value if key == "context" else _from_here(value)
        if found and self.base is None:
            raise UsageError(
                "--context, --adapter and --model go with --base MODEL; a recipe file has its own components"
            )
        if self.base is not None and not found:
            raise UsageError("--base needs components: at least one of --context, --adapter and --model")
        return {"base": self.base and _from_here(self.base), "components": found}

    def weights(self) -> dict[str, float]:
        """The weights of --weight, by component."""
        return _numbers("--weight", self.weight, "math=0.5")

    def rule_options(self) -> dict[str, float]:
        """The settings of --rule-option, by name."""
        if self.rule_option and self.rule is None:
            raise UsageError("--rule-option goes with --rule NAME; a recipe file has its own rule_options")
        return _numbers("--rule-option", self.rule_option, "bins=16")


@dataclass(frozen=True)
class Loading:
    """How models are loaded: the fields of `LoadOptions`."""

    dtype: Annotated[
        str, _option("--dtype", LOADING, "auto, float32, bfloat16 or float16; auto is the checkpoint's own.")
    ] = "auto"
    device: Annotated[
        str | None, _option("--device", LOADING, "Such as cpu or cuda:1; by default the best one here.")
    ] = None
    device_map: Annotated[
        str | None, _option("--device-map", LOADING, "Accelerate's placement on several devices, such as auto.")
    ] = None
    download: Annotated[bool, _option("--download", LOADING, "Allow fetching from the Hugging Face hub.")] = False
    trust_remote_code: Annotated[
        bool, _option("--trust-remote-code", LOADING, "Run Python code that comes with a model.")
    ] = False
    allow_pickle: Annotated[
        bool, _option("--allow-pickle", LOADING, "Read pickled weights, which can run any code.")
    ] = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Decoding:
    """How the next token is chosen. Greedy unless a temperature, top-p or top-k is given."""

    max_new_tokens: Annotated[int, _option("--max-new-tokens", DECODING, "At most this many tokens for an answer.")] = (
        256
    )
    temperature: Annotated[
        float | None, _option("--temperature", DECODING, "Sample at this temperature; 1 is the composed distribution.")
    ] = None
    top_p: Annotated[
        float | None, _option("--top-p", DECODING, "Sample among the likeliest tokens that hold this share.")
    ] = None
    top_k: Annotated[int | None, _option("--top-k", DECODING, "Sample among this many tokens.")] = None
    seed: Annotated[int, _option("--seed", DECODING, "Where sampling begins.")] = 0

    def check(self) -> None:
        """Raises UsageError for a value without a meaning."""
        if self.max_new_tokens < 1:
            raise UsageError(f"nothing to generate: --max-new-tokens is {self.max_new_tokens}; use 1 or more")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise UsageError(f"--temperature {self.temperature:g}: use a number above 0, or 0 for greedy")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: use a number above 0 and at most 1")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k}: use 1 or more")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed}: use a whole number from 0 to 2**63 - 1")

    @property
    def sampling(self) -> bool:
        return self.temperature != 0 and (self.temperature, self.top_p, self.top_k) != (None, None, None)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `model.generate`; a top-k of the model's own settings plays no part."""
        if not self.sampling:
            return {"max_new_tokens": self.max_new_tokens, "do_sample": False}
        return {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": True,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_k": 0 if self.top_k is None else self.top_k,
        }


def pairs(option: str, values: list[str] | None, example: str) -> list[tuple[str, str]]:
    """NAME=VALUE, split; UsageError where one is not of that form."""
    found = []
    for text in values or []:
        name, sign, value = text.partition("=")
        if not (name.strip() and sign and value):
            raise UsageError(f"{option} {text}: write it as in {option} {example}")
        found.append((name.strip(), value))
    return found


def _numbers(option: str, values: list[str] | None, example: str) -> dict[str, float]:
    """NAME=NUMBER, split and read; UsageError where one is not of that form."""
    found = {}
    for name, value in pairs(option, values, example):
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(
                f"{option} {name}={value}: {value!r} is not a number; write it as in {option} {example}"
            ) from None
    return found


def version() -> str:
    """The version of this package."""
    try:
        return importlib.metadata.version("counterpoint")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _from_here(name: str) -> str:
    """A folder's absolute name, so that it means the same wherever the recipe is saved; other names as they are."""
    from counterpoint.composition.recipe import absolute

    return absolute(name, Path.cwd())
