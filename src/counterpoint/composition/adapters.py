"""Reading PEFT adapters into plain factors: what each one adds to which module, exactly or not at all."""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft import (
    LoraConfig,
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from peft.tuners.lora import Embedding, Linear, LoraLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from counterpoint.errors import AdapterError, one_line

MERGE = (
    "merge it once with PEFT's `merge_and_unload()`, save that as a full model, and name it as the component's `model`"
)
EXACT = {
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "modules_to_save", "use_dora", "lora_bias", "ensure_weight_tying",
    "fan_in_fan_out", "lora_dropout", "task_type", "peft_type", "auto_mapping", "peft_version",
    "base_model_name_or_path", "revision", "inference_mode", "init_lora_weights", "runtime_config", "eva_config",
    "lora_ga_config", "bias", "qalora_group_size", "megatron_core", "loftq_config",
}  # fmt: skip
"""LoraConfig fields whose effect on the forward pass is reproduced; any other one that is set is refused by name."""
PLAIN_STARTS = {True, False, "gaussian", "eva", "orthogonal", "lora_ga"}
"""Values of `init_lora_weights` that leave the base's weights as they are."""


@dataclass(frozen=True)
class Factors:
    """What a LoRA adds to one module: x -> up(down(x)), the scaling folded into `up`.

    Attributes:
        down: A, shape (rank, in); for an embedding in = vocabulary.
        up: s·B, shape (out, rank).
        scale: DoRA's m / ||W + s·BA||, shape (out,), or None.
        shift: s·b where B has a bias b, shape (out,), or None.
    """

    down: Float[Tensor, "rank in"]
    up: Float[Tensor, "out rank"]
    scale: Float[Tensor, " out"] | None = None
    shift: Float[Tensor, " out"] | None = None


@dataclass(frozen=True)
class Adapter:
    """One adapter: low-rank additions by module name, and modules that it replaces whole (`modules_to_save`)."""

    factors: dict[str, Factors] = field(default_factory=dict)
    replaced: dict[str, nn.Module] = field(default_factory=dict)


def read_adapter(
    folder: Path,
    model: PreTrainedModel,
    base_names: set[str],
    *,
    allow_other_base: bool = False,
    allow_pickle: bool = False,
) -> Adapter:
    """The adapter saved in a folder, as it acts on `model`.

    PEFT itself decides which modules are meant and how they are scaled: it wraps a second model that shares the
    weights of this one, and the factors are taken from there. The model is not changed.

    Args:
        folder: holds adapter_config.json and adapter_model.safetensors.
        model: the weights that the adapter is for.
        base_names: all names of these weights; the adapter's `base_model_name_or_path` must be one of them.
        allow_other_base: skip that comparison; shapes are always compared.
        allow_pickle: also read adapter_model.bin, which can run any code it likes while it loads.

    Raises:
        AdapterError: not an adapter, made for another base, or with a feature that cannot be composed exactly.
    """
    config = _read_config(folder)
    _check_features(folder, config)
    if not allow_other_base:
        _check_base(folder, config, base_names)
    wrapped = _wrap(folder, config, model, _read_weights(folder, allow_pickle))
    adapter = Adapter()
    for name, module in wrapped.get_base_model().named_modules():
        if isinstance(module, LoraLayer):
            adapter.factors[name] = _factors(folder, name, module, model)
        elif isinstance(module, ModulesToSaveWrapper):
            adapter.replaced[name] = module.modules_to_save["default"].requires_grad_(False)
    return adapter


def _read_config(folder: Path) -> LoraConfig:
    if not (folder / "adapter_config.json").is_file():
        raise AdapterError(f"{folder}: not an adapter: no adapter_config.json; PEFT's save_pretrained writes one")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except Exception as error:
        raise AdapterError(f"{folder}/adapter_config.json: not readable: {one_line(error)}") from None
    if not isinstance(config, LoraConfig):
        raise AdapterError(
            f"{folder}: a {config.peft_type} adapter; only LoRA (and DoRA) can be composed row by row: {MERGE}"
        )
    return config


def _check_features(folder: Path, config: LoraConfig) -> None:
    default = LoraConfig()
    for name in (f.name for f in fields(config)):
        value = getattr(config, name)
        if name not in EXACT and value and value != getattr(default, name):
            raise AdapterError(f"{folder}: uses {name}, which cannot be composed exactly: {MERGE}")
    if config.bias != "none":
        raise AdapterError(f"{folder}: trained biases (bias={config.bias!r}) cannot be composed exactly: {MERGE}")
    if config.init_lora_weights not in PLAIN_STARTS:
        raise AdapterError(
            f"{folder}: init_lora_weights={config.init_lora_weights!r} changed the base's own weights; save it again "
            "as a plain LoRA with PEFT's `path_initial_model_for_weight_conversion`"
        )


def _check_base(folder: Path, config: LoraConfig, base_names: set[str]) -> None:
    trained_on = config.base_model_name_or_path
    if trained_on and not {_short(trained_on)} & {_short(name) for name in base_names}:
        raise AdapterError(
            f"{folder}: trained on {trained_on!r}, but its component runs on {sorted(base_names)[0]!r}; name the right "
            "base, or say `allow_other_base: true` in the component if these are the same weights under another name"
        )


def _short(name: str) -> str:
    return name.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].split("@")[0].lower()


def _read_weights(folder: Path, allow_pickle: bool) -> dict[str, Tensor]:
    if not (folder / "adapter_model.safetensors").is_file():
        if not (folder / "adapter_model.bin").is_file():
            raise AdapterError(f"{folder}: no adapter_model.safetensors beside its adapter_config.json")
        if not allow_pickle:
            raise AdapterError(
                f"{folder}/adapter_model.bin: a pickle file, which can run code when it loads; save the adapter as "
                "safetensors, or pass --allow-pickle (allow_pickle=True) if you trust it"
            )
    try:
        return load_peft_weights(str(folder), device="cpu")
    except Exception as error:
        raise AdapterError(f"{folder}: its weights cannot be read: {one_line(error)}") from None


def _wrap(folder: Path, config: LoraConfig, model: PreTrainedModel, weights: dict[str, Tensor]) -> PeftModel:
    skeleton_config = copy.deepcopy(model.config)
    if hasattr(skeleton_config, "quantization_config"):
        del skeleton_config.quantization_config
    with torch.device("meta"):
        skeleton = type(model)(skeleton_config)
    try:
        skeleton.load_state_dict(model.state_dict(), strict=False, assign=True)  # shares the weights, copies nothing
    except RuntimeError:
        raise AdapterError(
            f"{folder}: adapters on quantised weights are not supported; load the base unquantised"
        ) from None
    skeleton.tie_weights()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = get_peft_model(skeleton, copy.deepcopy(config))
        result: Any = set_peft_model_state_dict(wrapped, weights)
    except RuntimeError as error:
        raise AdapterError(f"{folder}: made for another base: {_mismatch(str(error))}") from None
    except (ValueError, NotImplementedError) as error:
        raise AdapterError(f"{folder}: does not fit this model: {one_line(error)}") from None
    expected = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    missing = [key for key in expected if key not in weights]
    if result.unexpected_keys or missing:
        wrong = (
            f"no place for {result.unexpected_keys[0]}" if result.unexpected_keys else f"no weights for {missing[0]}"
        )
        raise AdapterError(f"{folder}: its weights do not fit its adapter_config.json and this base: {wrong}")
    return wrapped


def _mismatch(message: str) -> str:
    found = re.search(r"size mismatch for (\S+): .*?Size\((.*?)\).*?Size\((.*?)\)", message, re.DOTALL)
    if not found:
        return one_line(message)
    name, theirs, here = found.groups()
    name = name.removeprefix("base_model.model.").replace(".default", "")
    return (
        f"{name} has shape {theirs} in the adapter and {here} on this base (if tokens were added before training, "
        "resize the base's embeddings the same way, save it, and use that as the model)"
    )


def _factors(folder: Path, name: str, layer: Any, model: PreTrainedModel) -> Factors:
    uses_dora = bool(layer.use_dora.get("default"))
    if isinstance(layer, Embedding) and not uses_dora:
        down, up = layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
        scale = getattr(model.get_submodule(name), "embed_scale", 1.0)  # Gemma's embeddings multiply what they look up
        return Factors(down.detach(), (up * layer.scaling["default"]).detach() * scale)
    if not isinstance(layer, Linear) or re.search(r"\bexperts\.\d+\.", name):
        kind = type(layer.get_base_layer()).__name__
        raise AdapterError(f"{folder}: adapts {name} ({kind}), which cannot be composed exactly row by row: {MERGE}")
    linear: Any = layer
    scaling, a, b = linear.scaling["default"], linear.lora_A["default"], linear.lora_B["default"]
    down, up, bias = a.weight.detach(), b.weight.detach() * scaling, b.bias
    shift = None if bias is None else bias.detach() * scaling
    if not uses_dora:
        return Factors(down, up, shift=shift)
    weight = _weight(model.get_submodule(name))
    magnitude = linear.lora_magnitude_vector["default"].weight.detach()
    norm = torch.linalg.norm(weight.float() + (up @ down).float().to(weight.device), dim=1)
    return Factors(down, up, magnitude.to(norm) / norm, shift)


def _weight(module: Any) -> Float[Tensor, "out in"]:
    weight: Tensor = module.weight.detach()
    return weight.t() if isinstance(module, Conv1D) else weight
