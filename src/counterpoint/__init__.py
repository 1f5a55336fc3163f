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

_HOMES = {
    "ComposedCache": "composition.cache",
    "ComposedConfig": "composition.configuration",
    "LoadOptions": "composition.loading",
    "load_backbone": "composition.loading",
    "ComposedModel": "composition.model",
    "ComposedOutput": "composition.model",
    "Component": "composition.recipe",
    "Plausibility": "composition.recipe",
    "Recipe": "composition.recipe",
    "Voice": "composition.recipe",
    "CounterpointError": "errors",
}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'counterpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(f"counterpoint.{_HOMES[name]}"), name)


if Path(sys.argv[0]).stem != "counterpoint":
    # `import counterpoint` makes AutoModelForCausalLM know composed models, which loads torch and transformers. The
    # console command does that only when a verb needs it, so that its help is quick.
    import counterpoint.composition.model
