"""Files of examples: every form of a line, and what is said of a bad one."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from counterpoint.cli._errors import UsageError
from counterpoint.cli._prompts import EXAMPLE_FORMS, Example, read_examples
from counterpoint.errors import ContextError

USER, ASSISTANT, LATER = ({"role": r, "content": c} for r, c in [("user", "hi"), ("assistant", "ho"), ("user", "hey")])


def written(folder: Path, *lines: object) -> str:
    path = folder / "e.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_every_form_of_a_line(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '"hi"\n\n',
        {"prompt": "hi", "answer": " ho \n", "id": 7},
        {"prompt": "hi", "answer": None},
        {"messages": [USER]},
        {"messages": [USER, ASSISTANT]},
        {"messages": [USER, ASSISTANT, LATER]},
        {"messages": [USER, ASSISTANT, LATER], "answer": "ha"},
        {"prompt": [USER, ASSISTANT]},
    )
    assert read_examples(file, "--prompts") == [
        Example("hi"),
        Example("hi", " ho \n"),
        Example("hi"),
        Example([USER]),
        Example([USER], "ho"),
        Example([USER, ASSISTANT, LATER]),
        Example([USER, ASSISTANT, LATER], "ha"),
        Example([USER], "ho"),
    ]


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"prompt": "hi", "answer": "ho"}')))
    assert read_examples("-") == [Example("hi", "ho")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "hi"', f"not JSON (Expecting ',' delimiter: line 1 column 16 (char 15)); {EXAMPLE_FORMS}"),
        ("3", f"not a prompt; {EXAMPLE_FORMS}"),
        ('{"answer": "ho"}', f"needs one of the keys prompt and messages; {EXAMPLE_FORMS}"),
        ('{"prompt": "", "answer": "ho"}', "the prompt is empty"),
        ('{"prompt": "hi", "answer": " "}', "the answer is empty"),
        ('{"prompt": "hi", "answer": 3}', f"the answer is not text; {EXAMPLE_FORMS}"),
        ('{"prompt": "hi", "answer": "\\ud800"}', "the answer is not valid Unicode (character 1)"),
        (json.dumps({"messages": [USER, {**ASSISTANT, "content": ""}]}), "the answer is empty"),
        (json.dumps({"messages": [ASSISTANT]}), "only the assistant speaks; put what it answers before it"),
        (
            json.dumps({"messages": [USER, ASSISTANT], "answer": "ho"}),
            "has an answer, and messages that end with the assistant's; keep one of them",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = written(tmp_path, '"good"\n', "\n", line)
    with pytest.raises(ContextError) as caught:
        read_examples(file)
    assert str(caught.value) == f"{file}: line 3: {message}"


def test_files_that_are_missing_or_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for option, named in (("--prompts", "--prompts none.jsonl"), ("", "none.jsonl")):
        with pytest.raises(UsageError) as usage:
            read_examples("none.jsonl", option)
        assert str(usage.value) == f"{named}: no such file (looked in {tmp_path})"
    with pytest.raises(ContextError) as caught:
        read_examples(written(tmp_path, "\n"))
    assert str(caught.value) == f"{tmp_path / 'e.jsonl'}: holds no examples; {EXAMPLE_FORMS}"
