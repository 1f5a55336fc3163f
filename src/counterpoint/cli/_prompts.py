"""Prompts from the command line, from stdin, or from a file of JSON lines; examples with answers from such a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from counterpoint.cli._errors import UsageError
from counterpoint.errors import ContextError

Prompt = str | list[dict[str, str]]
FORMS = 'a line is "text", {"prompt": "text"} or {"messages": [{"role": "user", "content": "text"}]}'
EXAMPLE_FORMS = (
    'a line is "text", {"prompt": "text", "answer": "text"} or {"messages": [{"role": "user", "content": "text"}, '
    '{"role": "assistant", "content": "text"}]}, with the answer or without'
)
Line = TypeVar("Line")


@dataclass(frozen=True)
class Example:
    """A prompt, and the answer that should follow it, where one is known."""

    prompt: Prompt
    answer: str | None = None


def read_prompts(prompt: str | None, file: str | None) -> list[Prompt]:
    """The prompts asked for: one, or those of a file.

    Raises:
        UsageError: none or two sources of prompts, an empty prompt, or no such file.
        ContextError: a line of the file is not a prompt.
    """
    if prompt is not None and file is not None:
        raise UsageError("give a prompt or --prompts FILE, not both")
    if file is not None:
        return _from_file(file, "--prompts ", _prompt, "prompts", FORMS)
    if prompt is None:
        raise UsageError('no prompt: give one after the recipe, "-" to read it from stdin, or --prompts FILE')
    text = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt
    if not text.strip():
        raise UsageError(f"the prompt{' on stdin' if prompt == '-' else ''} is empty; say something")
    if problem := _not_text(text):
        raise UsageError(f"the prompt is {problem}")
    return [text]


def read_examples(file: str, option: str = "") -> list[Example]:
    """The examples of a file of JSON lines, "-" being stdin.

    A line is a prompt in any form that `read_prompts` takes. Its answer is the key `answer`, or the last message if the
    assistant says it; a line without either has none. Other keys are ignored.

    Args:
        file: its name.
        option: the option that names the file, such as "--prompts", for messages; empty for an argument.

    Raises:
        UsageError: no such file.
        ContextError: a line of the file is not an example.
    """
    return _from_file(file, f"{option} ".lstrip(), _example, "examples", EXAMPLE_FORMS)


def _from_file(name: str, option: str, read: Callable[[Any, str, str], Line], what: str, forms: str) -> list[Line]:
    path = Path(name).expanduser()
    if name != "-" and not path.exists():
        raise UsageError(f"{option}{name}: no such file (looked in {Path.cwd()})")
    try:
        raw = sys.stdin.buffer.read() if name == "-" else path.read_bytes()
        lines = raw.decode("utf-8-sig").split("\n")  # not splitlines, which also cuts at signs within a text
    except OSError as error:
        raise UsageError(f"{option}{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ContextError(f"{name}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}: line {number}"
            found.append(read(_json(line, where, forms), where, forms))
    if not found:
        raise ContextError(f"{name}: holds no {what}; {forms}")
    return found


def _json(line: str, where: str, forms: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ContextError(f"{where}: not JSON ({error}); {forms}") from None


def _prompt(given: Any, where: str, forms: str) -> Prompt:
    if isinstance(given, dict):
        if ("prompt" in given) == ("messages" in given):
            raise ContextError(f"{where}: needs one of the keys prompt and messages; {forms}")
        given = given.get("prompt", given.get("messages"))
        if isinstance(given, list) and given:
            for message in given:
                _check_message(message, where, forms)
            return given
    if not isinstance(given, str):
        raise ContextError(f"{where}: not a prompt; {forms}")
    _check_text(given, where, "prompt")
    return given


def _example(given: Any, where: str, forms: str) -> Example:
    prompt = _prompt(given, where, forms)
    answer = given.get("answer") if isinstance(given, dict) else None
    if isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
        if answer is not None:
            raise ContextError(f"{where}: has an answer, and messages that end with the assistant's; keep one of them")
        prompt, answer = prompt[:-1], prompt[-1]["content"]
        if not prompt:
            raise ContextError(f"{where}: only the assistant speaks; put what it answers before it")
    if answer is not None:
        if not isinstance(answer, str):
            raise ContextError(f"{where}: the answer is not text; {forms}")
        _check_text(answer, where, "answer")
    return Example(prompt, answer)


def _check_message(message: Any, where: str, forms: str) -> None:
    if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise ContextError(f"{where}: a message has a role and a content, both text; {forms}")
    if problem := _not_text(message["content"]):
        raise ContextError(f"{where}: a message is {problem}")


def _check_text(text: str, where: str, what: str) -> None:
    if not text.strip():
        raise ContextError(f"{where}: the {what} is empty")
    if problem := _not_text(text):
        raise ContextError(f"{where}: the {what} is {problem}")


def _not_text(text: str) -> str | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"not valid Unicode (character {error.start + 1})"
    return None
