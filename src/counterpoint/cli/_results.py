"""A file of results, one JSON line a prompt, that an interrupted run can go on with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from counterpoint.cli._prompts import Prompt
from counterpoint.errors import CounterpointError

START = b'{"index": '
MEND = "use another file, or --overwrite to begin again"


class ResultsFile:
    """Appends results to a file, after those that are there.

    Args:
        path: the file; need not exist.
        prompts: all prompts of the run, by index.
        settings: what every result of this run has in common; a result of another run is refused.
        overwrite: forget what is there.
        verb: whose results these are, for messages.

    Raises:
        CounterpointError: the file holds something else, or results of another recipe, settings or prompts.
    """

    def __init__(
        self,
        path: Path,
        prompts: Sequence[Prompt],
        settings: Mapping[str, Any],
        overwrite: bool,
        verb: str = "generate",
    ) -> None:
        self.path, self._settings, self._verb = path, dict(settings), verb
        if path.is_dir() or not path.parent.is_dir():
            raise CounterpointError(
                f"{path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; name a file"
            )
        content = path.read_bytes() if path.exists() and not overwrite else b""
        lines = content.split(b"\n")
        torn = lines.pop()
        self.done = len(lines)
        for index, line in enumerate(lines):
            self._check(index, line, prompts)
        if torn and not torn.startswith(START) and not START.startswith(torn):
            raise self._refused(f"line {len(lines) + 1} is not a result of `counterpoint {self._verb}`")
        self._file = path.open("r+b" if path.exists() else "wb")
        self._file.truncate(len(content) - len(torn))
        self._file.seek(0, 2)

    def add(self, index: int, result: Mapping[str, Any]) -> None:
        """Write one result, at once."""
        self._file.write(to_line(index, result, self._settings).encode("utf-8"))
        self._file.flush()
        self.done += 1

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _check(self, index: int, line: bytes, prompts: Sequence[Prompt]) -> None:
        try:
            found = json.loads(line)
            if found["index"] != index:
                raise ValueError
            there = {key: found[key] for key in self._settings}
        except (ValueError, KeyError, TypeError):
            raise self._refused(f"line {index + 1} is not a result of `counterpoint {self._verb}`") from None
        if index >= len(prompts) or found.get("prompt") != prompts[index]:
            raise self._refused(f"line {index + 1} answers another prompt")
        for key, value in _flat(self._settings).items():
            if (old := _flat(there).get(key)) != value:
                raise self._refused(f"was made with another {key} ({_word(old)}, now {_word(value)})")

    def _refused(self, why: str) -> CounterpointError:
        return CounterpointError(f"{self.path}: {why}; {MEND}")


def to_line(index: int, result: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """One result as a JSON line; `index` comes first, by which a torn line is known."""
    return json.dumps({"index": index, **result, **settings}, ensure_ascii=False) + "\n"


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _word(value: Any) -> str:
    return "none" if value is None else str(value)
