"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint import files


def test_nothing_half_written_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: object) -> None:
        raise OSError("disk full")

    files.write_whole(tmp_path / "file", "before")
    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_whole(tmp_path / "file", "after")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]


def test_versions_name_what_results_depend_on() -> None:
    assert {"python", "counterpoint", "torch", "transformers", "peft", "machine"} <= set(files.versions())
