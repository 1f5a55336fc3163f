"""Loading a plain model, its tokenizer or its config; nothing random, pickled or fetched unless asked for."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from counterpoint.composition.embedded import quietly
from counterpoint.composition.sources import LoadOptions, Source, source
from counterpoint.errors import LoadingError, one_line

__all__ = ["LoadOptions", "Source", "load_backbone", "load_config", "load_tokenizer", "source"]

logger = logging.getLogger(__name__)

PICKLES = ("*.bin", "*.pth", "*.pt", "*.ckpt")
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
TRUST = "pass --trust-remote-code (trust_remote_code=True) if you trust it"


def load_backbone(name: str, options: LoadOptions | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model in eval mode, and its tokenizer.

    Args:
        name: an embedded name, a folder, or a hub id (`org/name`, `org/name@revision`).
        options: type, device, and what is allowed.

    Returns:
        The model, whose `config._name_or_path` is the hub id or the folder, and the tokenizer.

    Raises:
        LoadingError: not found, not a decoder-only language model, pickled, damaged or incomplete weights, remote
            code that is not allowed, or anything that transformers refuses.
    """
    options = options or LoadOptions()
    found = source(name, options)
    config = _config(found, options)
    tokenizer = _tokenizer(found, options)
    _check_weights(found, options)
    device = options.place()
    with _errors_name(found), quietly(), Console(file=sys.stderr).status(f"Loading {name}"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            found.path,
            config=config,
            dtype=options.dtype_for(name),
            device_map=options.device_map or (None if device == "cpu" else {"": device}),
            use_safetensors=None if options.allow_pickle else True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
            **_trust(options),
        )
    model, report = loaded
    _check_complete(report, found)
    model.config._name_or_path = model.name_or_path = found.label
    model.eval()
    return model, tokenizer


def load_tokenizer(name: str, options: LoadOptions | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model; arguments as for `load_backbone`.

    Raises:
        LoadingError: the model is not found, or has no readable tokenizer.
    """
    options = options or LoadOptions()
    return _tokenizer(source(name, options, weights=False), options)


def load_config(name: str, options: LoadOptions | None = None) -> PreTrainedConfig:
    """Load the config of a decoder-only language model without its weights; arguments as for `load_backbone`.

    Raises:
        LoadingError: the model is not found, needs remote code, or is not a decoder-only language model.
    """
    options = options or LoadOptions()
    return _config(source(name, options, weights=False), options)


def _config(found: Source, options: LoadOptions) -> PreTrainedConfig:
    raw = _read_json(found.path / "config.json")
    kind, code = raw.get("model_type"), raw.get("auto_map") or {}
    if kind not in CONFIG_MAPPING and not (code and options.trust_remote_code):
        if code:
            raise LoadingError(f"{found.label} needs Python code that comes with it; {TRUST}")
        raise LoadingError(f"{found.label}: its config.json names the model type {kind!r}, unknown to transformers")
    with _errors_name(found), quietly():
        config: PreTrainedConfig = AutoConfig.from_pretrained(found.path, **_trust(options))
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in code
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if config.is_encoder_decoder or masked or not causal:
        raise LoadingError(f"{found.label} is a {kind} model; only decoder-only (causal) language models compose")
    config._name_or_path = found.label
    return config


def _tokenizer(found: Source, options: LoadOptions) -> PreTrainedTokenizerBase:
    if not options.trust_remote_code and not any(next(found.path.glob(file), None) for file in VOCABULARIES):
        raise LoadingError(
            f"{found.label} has no tokenizer (such as tokenizer.json): save it there with `tokenizer.save_pretrained`"
        )
    with _errors_name(found, "the tokenizer of "), quietly():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(found.path, **_trust(options))
    tokenizer.name_or_path = found.label
    return tokenizer


def _check_weights(found: Source, options: LoadOptions) -> None:
    """Refuse pickled weights, and find a missing or damaged safetensors file before anything is loaded."""
    index = found.path / "model.safetensors.index.json"
    files = {found.path / "model.safetensors"}
    if not (found.path / "model.safetensors").is_file():
        if not index.is_file():
            _check_pickled(found, options)
            return
        files = {found.path / str(shard) for shard in _read_json(index).get("weight_map", {}).values()}
        if missing := sorted(file.name for file in files if not file.is_file()):
            raise LoadingError(
                f"{found.label} lacks {', '.join(missing[:3])}, which its {index.name} names; copy or fetch it again"
            )
    for file in sorted(files):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise LoadingError(f"{file} is damaged or cut off ({one_line(error)}); copy or fetch it again") from error


def _check_pickled(found: Source, options: LoadOptions) -> None:
    pickled = sorted(
        file.name for glob in PICKLES for file in found.path.glob(glob) if not file.name.startswith(NOT_WEIGHTS)
    )
    if pickled and not options.allow_pickle:
        raise LoadingError(
            f"{found.label} has only pickled weights ({pickled[0]}), which can run code when read; convert them to "
            "safetensors, or pass --allow-pickle (allow_pickle=True) if you trust them"
        )
    if not pickled:
        here = f" in the local cache ({found.path}); fetch them with --download" if found.revision else ""
        raise LoadingError(f"{found.label} has no weights{here or ': no model.safetensors'}")


def _check_complete(report: dict[str, Any], found: Source) -> None:
    """A model with a parameter that did not come from the file is random there: refuse it."""
    mismatched = {str(key[0]) if isinstance(key, tuple) else str(key) for key in report["mismatched_keys"]}
    for what, keys in (("lack", set(report["missing_keys"]) - mismatched), ("have another shape for", mismatched)):
        if keys:
            raise LoadingError(
                f"{found.label}: its weights {what} {len(keys)} of the parameters that its config.json asks for, "
                f"first {', '.join(sorted(keys)[:3])}; weights and config do not belong together"
            )
    if report["error_msgs"]:
        raise LoadingError(f"{found.label}: {'; '.join(report['error_msgs'][:3])}")
    if unused := sorted(report["unexpected_keys"]):
        logger.warning("%s: %d weights are not used, first %s", found.label, len(unused), ", ".join(unused[:3]))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadingError(f"{file} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise LoadingError(f"{file} is not a JSON object")
    return content


def _trust(options: LoadOptions) -> dict[str, bool]:
    return {"trust_remote_code": options.trust_remote_code, "local_files_only": not options.download}


@contextlib.contextmanager
def _errors_name(found: Source, what: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever transformers raises at a file it cannot use
        if "trust_remote_code" in str(error):
            raise LoadingError(f"{what}{found.label} needs Python code that comes with it; {TRUST}") from error
        raise LoadingError(f"cannot load {what}{found.label}: {one_line(error)}") from error
