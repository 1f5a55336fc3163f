"""What a recipe amounts to, before any weights are loaded: formula, voices, memory, and the defaults that apply."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from counterpoint.composition.assembly import adapter_folder
from counterpoint.composition.defaults import defaults, read_json
from counterpoint.composition.embedded import quietly
from counterpoint.composition.loading import LoadOptions, load_config
from counterpoint.composition.plan import Plan, formula, plan, reference_of
from counterpoint.composition.recipe import Component, Recipe, Voice
from counterpoint.errors import CounterpointError, one_line


@dataclass(frozen=True)
class VoiceFacts:
    """One voice. `weight` and `measured_against` are None for the base; `rank` where there is no adapter to read."""

    name: str
    model: str
    adapter: str | None
    rank: str | None
    adapter_bytes: int | None
    context: str | None
    weight: float | None
    temperature: float
    measured_against: str | None
    note: str | None


@dataclass(frozen=True)
class BackboneFacts:
    """One set of weights. Figures are None where the config is not on this machine; `note` says why.

    Attributes:
        voices: who speaks with these weights; each is one row of every sequence.
        cache_bytes: keys and values of one token of a sequence, for all of these rows.
    """

    model: str
    voices: tuple[str, ...]
    parameters: int | None
    dtype: str | None
    weight_bytes: int | None
    cache_bytes: int | None
    window: int | None
    note: str | None


@dataclass(frozen=True)
class Explanation:
    """A recipe in figures and words.

    Attributes:
        rows: rows of one forward for each sequence of a batch.
        weight_bytes: all backbones, None where one is unknown; so too `adapter_bytes` and `cache_bytes`.
        defaults: topic -> what holds, in words.
    """

    formula: str
    digest: str
    rows: int
    voices: tuple[VoiceFacts, ...]
    backbones: tuple[BackboneFacts, ...]
    weight_bytes: int | None
    adapter_bytes: int | None
    cache_bytes: int | None
    defaults: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def explain(recipe: Recipe, options: LoadOptions | None = None) -> Explanation:
    """Explain a recipe from configs, tokenizers and adapter files; what is not on this machine is said to be missing.

    Args:
        recipe: the recipe.
        options: as for loading; with `download`, configs, tokenizers and adapters may be fetched, never weights.
    """
    options = options or LoadOptions()
    layout = plan(recipe)
    voices = tuple(_voice(recipe, n, v, options) for n, v in zip(layout.names, layout.voices, strict=True))
    backbones = tuple(_backbone(layout, model, options) for model in layout.backbones)
    return Explanation(
        formula=formula(recipe),
        digest=recipe.digest(),
        rows=layout.rows,
        voices=voices,
        backbones=backbones,
        weight_bytes=_total([b.weight_bytes for b in backbones]),
        adapter_bytes=_total([v.adapter_bytes for v in voices if v.adapter is not None]),
        cache_bytes=_total([b.cache_bytes for b in backbones]),
        defaults=defaults(recipe, layout, options),
    )


def _voice(recipe: Recipe, name: str, voice: Voice, options: LoadOptions) -> VoiceFacts:
    rank = size = note = None
    if voice.adapter is not None:
        try:
            folder = adapter_folder(voice.adapter, options)
            rank, size = _rank(folder), _adapter_size(folder)
            note = None if rank and size else f"{folder}: no readable adapter_config.json with weights beside it"
        except CounterpointError as error:
            note = str(error)
    component = voice if isinstance(voice, Component) else None
    return VoiceFacts(
        name=name,
        model=str(voice.model),
        adapter=voice.adapter,
        rank=rank,
        adapter_bytes=size,
        context=voice.context,
        weight=None if component is None else component.weight,
        temperature=voice.temperature,
        measured_against=None if component is None or recipe.rule == "mixture" else reference_of(recipe, name),
        note=note,
    )


def _rank(folder: Path) -> str | None:
    config = read_json(folder / "adapter_config.json")
    ranks = [r for r in [config.get("r"), *(config.get("rank_pattern") or {}).values()] if isinstance(r, int)]
    if not ranks:
        return None
    return str(ranks[0]) if len(set(ranks)) == 1 else f"{min(ranks)} to {max(ranks)}"


def _adapter_size(folder: Path) -> int | None:
    files = [folder / name for name in ("adapter_model.safetensors", "adapter_model.bin")]
    return next((file.stat().st_size for file in files if file.is_file()), None)


def _backbone(layout: Plan, model: str, options: LoadOptions) -> BackboneFacts:
    voices = tuple(layout.names[position] for position in layout.backbones[model])
    try:
        config = load_config(model, options)
    except CounterpointError as error:
        return BackboneFacts(model, voices, None, None, None, None, None, str(error))
    text = config.get_text_config()
    dtype = options.dtype_for(model)
    if not isinstance(dtype, torch.dtype):
        dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    parameters, note = _parameters(config, options)
    cache = _cache(text)
    return BackboneFacts(
        model=model,
        voices=voices,
        parameters=parameters,
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=None if parameters is None else parameters * dtype.itemsize,
        cache_bytes=None if cache is None else cache * dtype.itemsize * len(voices),
        window=getattr(text, "max_position_embeddings", None),
        note=note,
    )


def _parameters(config: PreTrainedConfig, options: LoadOptions) -> tuple[int | None, str | None]:
    """How many parameters a model of this config has (tied ones once), from shapes alone; or why that is not known."""
    note = None
    if getattr(config, "quantization_config", None) is not None:
        note = "quantized: its weights take less than this estimate"
    try:
        with torch.device("meta"), quietly():
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # whatever a model's own code raises
        return None, f"its size cannot be told from the config: {one_line(error)}"
    return sum(parameter.numel() for parameter in model.parameters()), note


def _cache(config: PreTrainedConfig) -> int | None:
    """Numbers that a transformer's cache keeps for one token of one row."""
    try:
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kept = getattr(config, "num_key_value_heads", None) or heads
        return int(2 * config.num_hidden_layers * kept * width)
    except (AttributeError, TypeError):
        return None


def _total(figures: list[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
