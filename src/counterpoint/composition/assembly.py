"""From a recipe to a composed model: load each backbone once, read the adapters, check that all fits together."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from counterpoint.composition.adapters import Adapter, read_adapter
from counterpoint.composition.backbone import Backbone
from counterpoint.composition.configuration import ComposedConfig
from counterpoint.composition.contexts import openings
from counterpoint.composition.loading import LoadOptions, Source, load_backbone, source
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.plan import Plan, plan
from counterpoint.composition.recipe import Recipe
from counterpoint.composition.vocabulary import Vocabulary, check_known, common_vocabulary, end_of_sequence_ids
from counterpoint.errors import AdapterError, ContextError, RecipeError, one_line

logger = logging.getLogger(__name__)

Loaded = dict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase | None]]
OPTIONS = {field.name for field in dataclass_fields(LoadOptions)}


def assemble(
    recipe: str | Path | Mapping[str, Any] | Recipe | None,
    models: Mapping[str, tuple[PreTrainedModel, PreTrainedTokenizerBase | None]],
    fields: Mapping[str, Any],
) -> ComposedModel:
    """`ComposedModel.from_recipe`; see there."""
    options = LoadOptions(**{key: value for key, value in fields.items() if key in OPTIONS})
    given = {key: value for key, value in fields.items() if key not in OPTIONS}
    if recipe is not None and given:
        raise RecipeError(f"{', '.join(given)}: give either a recipe or its fields as keyword arguments, not both")
    recipe = Recipe.read(given if recipe is None else recipe)
    layout = plan(recipe)
    folders = _adapter_folders(layout, options)  # first: a wrong path should not cost the loading of a model
    loaded: Loaded = {
        name: models[name] if name in models else load_backbone(name, options) for name in layout.backbones
    }
    found = {name: source(name, options) for name in layout.backbones if name not in models}
    vocabulary = _vocabulary(loaded)
    tokenizer = next(iter(loaded.values()))[1]
    opening = openings(tokenizer, [voice.context for voice in layout.voices], recipe.context_format)
    backbones = []
    for name, positions in layout.backbones.items():
        model = loaded[name][0]
        names = {name, found[name].label if name in found else str(model.config.name_or_path or "")}
        adapters = [
            _adapter(layout, position, folders[position], model, names - {""}, options) if position in folders else None
            for position in positions
        ]
        for position in positions:
            if tokenizer is not None:
                check_known(opening.ids[position], vocabulary.width, tokenizer)
        try:
            backbones.append(Backbone(model, adapters, [opening.ids[position] for position in positions]))
        except ContextError as error:
            longest = max(positions, key=lambda position: len(opening.ids[position]))
            raise ContextError(f"{layout.names[longest]}: {error}") from None
    generation = _generation_config(loaded, tokenizer)
    config = _config(recipe, layout, vocabulary, backbones, generation, found)
    return ComposedModel(config, recipe, backbones, opening, tokenizer, generation).eval()


def adapter_folder(name: str, options: LoadOptions) -> Path:
    """The folder of an adapter named by path or by hub id.

    Raises:
        AdapterError: no such folder, and not in the local hub cache (or not on the hub, where downloading is allowed).
    """
    path = Path(name).expanduser()
    if path.exists() or name.startswith((".", "/", "~")):
        if not path.is_dir():
            raise AdapterError(f"there is no adapter folder {path.absolute()}")
        return path
    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                local_files_only=not options.download,
                allow_patterns=["adapter_*"],
            )
        )
    except Exception as error:
        if options.download:
            raise AdapterError(f"adapter {name!r}: cannot be downloaded: {one_line(error)}") from None
        raise AdapterError(
            f"adapter {name!r} is not a folder here and not in the local Hugging Face cache; to fetch it pass "
            "--download (download=True)"
        ) from None


def _adapter_folders(layout: Plan, options: LoadOptions) -> dict[int, Path]:
    """The folder of every voice that has an adapter, by the voice's position."""
    folders = {}
    for position, (name, voice) in enumerate(zip(layout.names, layout.voices, strict=True)):
        if voice.adapter is not None:
            try:
                folders[position] = adapter_folder(voice.adapter, options)
            except AdapterError as error:
                raise AdapterError(f"{name}: {error}") from None
    return folders


def _adapter(
    layout: Plan, position: int, folder: Path, model: PreTrainedModel, names: set[str], options: LoadOptions
) -> Adapter:
    allowed = layout.voices[position].allow_other_base
    try:
        return read_adapter(folder, model, names, allow_other_base=allowed, allow_pickle=options.allow_pickle)
    except AdapterError as error:
        raise AdapterError(f"{layout.names[position]}: {error}") from None


def _vocabulary(loaded: Loaded) -> Vocabulary:
    widths = {name: model.config.get_text_config().vocab_size for name, (model, _) in loaded.items()}
    tokens = {name: tokenizer.get_vocab() for name, (_, tokenizer) in loaded.items() if tokenizer is not None}
    vocabulary = common_vocabulary(widths, tokens)
    for name, added in vocabulary.added.items():
        shown = ", ".join(map(repr, added[:5])) + (", ..." if len(added) > 5 else "")
        logger.warning("%s has %d tokens that not all models know: %s", name, len(added), shown)
    return vocabulary


def _generation_config(loaded: Loaded, tokenizer: PreTrainedTokenizerBase | None) -> GenerationConfig:
    """The first model's generation settings, ending at any model's end of sequence."""
    first = next(iter(loaded.values()))[0].generation_config
    generation = GenerationConfig() if first is None else GenerationConfig.from_dict(first.to_dict())
    configured = [m.generation_config.eos_token_id for m, _ in loaded.values() if m.generation_config is not None]
    ends = end_of_sequence_ids(*configured)
    if not ends and tokenizer is not None:
        ends = end_of_sequence_ids(tokenizer.eos_token_id)
    generation.eos_token_id = ends or None
    if generation.pad_token_id is None:
        pad = None if tokenizer is None else tokenizer.pad_token_id
        generation.pad_token_id = pad if pad is not None else ends[0] if ends else None
    return generation


def _config(
    recipe: Recipe,
    layout: Plan,
    vocabulary: Vocabulary,
    backbones: list[Backbone],
    generation: GenerationConfig,
    found: Mapping[str, Source],
) -> ComposedConfig:
    windows = [b.window - b.opening_length for b in backbones if b.window is not None]
    return ComposedConfig(
        recipe=recipe.as_dict(),
        vocab_size=vocabulary.width,
        max_position_embeddings=min(windows) if windows else None,
        num_hidden_layers=sum(b.model.config.get_text_config().num_hidden_layers for b in backbones),
        sources={
            name: _origin(name, backbone, found.get(name))
            for name, backbone in zip(layout.backbones, backbones, strict=True)
        },
        bos_token_id=generation.bos_token_id,
        eos_token_id=generation.eos_token_id,
        pad_token_id=generation.pad_token_id,
        dtype=backbones[0].model.dtype,
    )


def _origin(name: str, backbone: Backbone, found: Source | None) -> dict[str, Any]:
    """What the model card says of a backbone: the folder or hub id, and the hub's commit."""
    if found is None:
        return {"name": backbone.model.config.name_or_path or name, "revision": None}
    return {"name": found.hub_id or str(found.path.resolve()), "revision": found.revision}
