"""Files that are whole or not there, and what they record of where they were made."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("counterpoint", "torch", "transformers", "peft", "numpy")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all; text as UTF-8. Its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """What a result may depend on: Python, packages, the machine's kind."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {**found, "machine": platform.machine()}
