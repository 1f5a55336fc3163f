"""Counterpoint composes language models: several skills, one ordinary Hugging Face model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoint.composition.cache import ComposedCache
    from counterpoint.composition.configuration import ComposedConfig
    from counterpoint.composition.loading import LoadOptions, load_backbone
    from counterpoint.composition.model import ComposedModel, ComposedOutput
    from counterpoint.composition.recipe import Component, Plausibility, Recipe, Voice
    from counterpoint.errors import CounterpointError

__all__ = [
    "Component",
    "ComposedCache",
    "ComposedConfig",
    "ComposedModel",
    "ComposedOutput",
    "CounterpointError",
    "LoadOptions",
    "Plausibility",
    "Recipe",
    "Voice",
    "load_backbone",
]
_HOMES = {
    "composition.cache": {"ComposedCache"},
    "composition.configuration": {"ComposedConfig"},
    "composition.loading": {"LoadOptions", "load_backbone"},
    "composition.model": {"ComposedModel", "ComposedOutput"},
    "composition.recipe": {"Component", "Plausibility", "Recipe", "Voice"},
    "errors": {"CounterpointError"},
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"counterpoint.{home}"), name)
    raise AttributeError(f"module 'counterpoint' has no attribute {name!r}")


if Path((sys.argv or [""])[0]).stem != "counterpoint" and sys.orig_argv[1:3] != ["-m", "counterpoint"]:
    # `import counterpoint` makes AutoModelForCausalLM know composed models, which loads torch and transformers. The
    # console command does that only when a verb needs it, so that its help is quick.
    importlib.import_module("counterpoint.composition.model")
