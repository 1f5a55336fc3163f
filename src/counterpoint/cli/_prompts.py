"""Prompts from the command line, from stdin, or from a file of JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from counterpoint.cli._errors import UsageError
from counterpoint.errors import ContextError

Prompt = str | list[dict[str, str]]
FORMS = 'a line is "text", {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'


def read_prompts(prompt: str | None, file: str | None) -> list[Prompt]:
    """The prompts asked for: one, or those of a file.

    Raises:
        UsageError: none or two sources of prompts, an empty prompt, or no such file.
        ContextError: a line of the file is not a prompt.
    """
    if prompt is not None and file is not None:
        raise UsageError("give a prompt or --prompts FILE, not both")
    if file is not None:
        return _from_file(file)
    if prompt is None:
        raise UsageError('no prompt: give one after the recipe, "-" to read it from stdin, or --prompts FILE')
    text = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UsageError(f"the prompt{' on stdin' if prompt == '-' else ''} is empty; say something")
    if problem := _not_text(text):
        raise UsageError(f"the prompt is {problem}")
    return [text]


def _from_file(name: str) -> list[Prompt]:
    path = Path(name).expanduser()
    if name != "-" and not path.exists():
        raise UsageError(f"--prompts {name}: no such file (looked in {Path.cwd()})")
    try:
        raw = sys.stdin.buffer.read() if name == "-" else path.read_bytes()
        lines = raw.decode("utf-8-sig").split("\n")  # not splitlines, which also cuts at signs within a text
    except OSError as error:
        raise UsageError(f"--prompts {name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ContextError(f"{name}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    prompts = [_prompt(line, f"{name}: line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ContextError(f"{name}: holds no prompts; {FORMS}")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        given: Any = json.loads(line)
    except ValueError as error:
        raise ContextError(f"{where}: not JSON ({error}); {FORMS}") from None
    if isinstance(given, dict):
        if ("prompt" in given) == ("messages" in given):
            raise ContextError(f"{where}: needs one of the keys prompt and messages; {FORMS}")
        given = given.get("prompt", given.get("messages"))
        if isinstance(given, list) and given:
            for message in given:
                _check_message(message, where)
            return given
    if not isinstance(given, str):
        raise ContextError(f"{where}: not a prompt; {FORMS}")
    if not given.strip():
        raise ContextError(f"{where}: the prompt is empty")
    if problem := _not_text(given):
        raise ContextError(f"{where}: the prompt is {problem}")
    return given


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise ContextError(f"{where}: a message has a role and a content, both text; {FORMS}")
    if problem := _not_text(message["content"]):
        raise ContextError(f"{where}: a message is {problem}")


def _not_text(text: str) -> str | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"not valid Unicode (character {error.start + 1})"
    return None
