"""Saving a composed model to a folder, and loading it again: recipe, adapters, tokenizer, model card."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, snapshot_download
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from counterpoint.composition.assembly import OPTIONS, adapter_folder
from counterpoint.composition.configuration import ComposedConfig
from counterpoint.composition.loading import LoadOptions
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.plan import formula
from counterpoint.composition.recipe import Recipe
from counterpoint.errors import LoadingError, RecipeError, one_line
from counterpoint.files import versions


def save(model: ComposedModel, folder: Path, *, include_backbones: bool) -> None:
    """`ComposedModel.save_pretrained`; see there. All or nothing: written beside the folder, then renamed."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder}: is a file; name a folder to save to")
    if folder.is_dir() and any(folder.iterdir()) and not _is_saved(folder):
        raise RecipeError(f"{folder}: holds something else than a composed model; name an empty or new folder")
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(model, draft, include_backbones)
        draft.chmod(0o777 & ~_umask())
        _swap(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_saved(name: str, kwargs: dict[str, Any]) -> ComposedModel:
    """`ComposedModel.from_pretrained`; see there."""
    options = {key: value for key, value in kwargs.items() if key in OPTIONS and value is not None}
    folder = Path(name)
    if not folder.is_dir():
        try:
            folder = Path(
                snapshot_download(name, revision=kwargs.get("revision"), local_files_only=not options.get("download"))
            )
        except Exception as error:
            raise LoadingError(f"{name!r} is neither a folder nor reachable on the hub: {one_line(error)}") from None
    model = ComposedModel.from_recipe(Recipe.read(folder), **options)
    if (folder / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _is_saved(folder: Path) -> bool:
    try:
        return json.loads((folder / "config.json").read_text())["model_type"] == ComposedConfig.model_type
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(model: ComposedModel, folder: Path, include_backbones: bool) -> None:
    recipe = model.recipe.model_copy(deep=True)
    for name, voice in recipe.voices.items():
        if voice.adapter is not None:
            target = folder / "adapters" / name
            source = adapter_folder(voice.adapter, LoadOptions())
            shutil.copytree(source, target, ignore=lambda _, names: [n for n in names if not n.startswith("adapter_")])
            voice.adapter = f"./adapters/{name}"
    copies: dict[str, str] = {}
    for number, (name, backbone) in enumerate(zip(model.plan.backbones, model.backbones, strict=True)):
        if include_backbones:
            copies[name] = f"./backbones/{number}"
            backbone.model.save_pretrained(folder / "backbones" / str(number))
            if model.tokenizer is not None:
                model.tokenizer.save_pretrained(folder / "backbones" / str(number))
    for voice in recipe.voices.values():
        if voice.adapter is not None and include_backbones:
            voice.allow_other_base = True  # the copy goes by another name than the adapter knows
        if voice.model is not None:
            voice.model = copies.get(voice.model) or _lasting(voice.model, model.config)
    config = ComposedConfig(**{**model.config.to_dict(), "recipe": recipe.as_dict()})
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    # not save_pretrained: it refuses what many published models have, a temperature without do_sample
    model.generation_config.to_json_file(folder / GENERATION_CONFIG_NAME)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    _card(model, recipe).save(folder / "README.md")


def _lasting(name: str, config: ComposedConfig) -> str:
    """A model's name as it can be found from anywhere: a folder's absolute path."""
    loaded_from = (config.sources or {}).get(name, {}).get("name", name)
    return str(Path(loaded_from).resolve()) if Path(loaded_from).is_dir() else name


def _card(model: ComposedModel, recipe: Recipe) -> ModelCard:
    sources: dict[str, Any] = model.config.sources or {}
    named = [s["name"] for s in sources.values() if not Path(s["name"]).is_absolute()]
    data = ModelCardData(
        library_name="counterpoint",
        tags=["counterpoint", "composition"],
        base_model=named or None,
        pipeline_tag="text-generation",
    )
    made_with = "\n".join(f"| {name} | {version} |" for name, version in versions().items())
    parts = "\n".join(_part(model, name) for name in model.plan.names)
    return ModelCard(
        f"""---
{data.to_yaml()}
---

# A composed model

    {formula(recipe)}

Load it with:

```python
import counterpoint  # registers the model type
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("this folder")
```

| voice | weights | revision | adapter | context |
| --- | --- | --- | --- | --- |
{parts}

The licences are those of the parts: see the pages of the models and adapters named above. Recipe digest
`{recipe.digest()}`, weights in {str(model.dtype).removeprefix("torch.")}.

| package | version |
| --- | --- |
{made_with}
"""
    )


def _part(model: ComposedModel, name: str) -> str:
    voice = model.plan.voices[model.plan.names.index(name)]
    source = (model.config.sources or {}).get(str(voice.model), {"name": voice.model, "revision": None})
    context = (voice.context or "").replace("|", "\\|").replace("\n", " ")
    return f"| {name} | {source['name']} | {source['revision'] or ''} | {voice.adapter or ''} | {context} |"


def _swap(draft: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(draft, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        os.rename(folder, old / "saved")
        os.rename(draft, folder)
    except BaseException:
        if not folder.exists():
            os.rename(old / "saved", folder)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
