"""What becomes of errors: one line on stderr each, and an exit code; a traceback only with --debug."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from counterpoint.errors import CounterpointError

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


class UsageError(Exception):
    """The command line itself is wrong: exit code 2."""


class _Ended(Exception):
    """Carries Ctrl-C or a closed pipe past typer, which would give them other exit codes."""

    def __init__(self, code: int) -> None:
        self.code = code


class Commands(TyperGroup):
    """The verbs, with our own reporting of errors around them."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        arguments, debug = _without_debug(list(sys.argv[1:] if args is None else args))
        options["standalone_mode"] = False
        try:
            code = super().main(arguments, *rest, **options)
        except (Exception, KeyboardInterrupt) as error:
            code = report(error, debug)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise _Ended(INTERRUPTED) from None
        except BrokenPipeError:
            raise _Ended(PIPE_CLOSED) from None
        return result


def report(error: BaseException, debug: bool) -> int:
    """Print an error, and return the exit code that it stands for."""
    if isinstance(error, _Ended) and error.code == PIPE_CLOSED:
        _discard_stdout()
        return PIPE_CLOSED
    if isinstance(error, _Ended | KeyboardInterrupt | typer.Abort):
        print("\nstopped", file=sys.stderr)
        return INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has printed the help already
        return USAGE
    if debug:
        traceback.print_exception(error)
    code, lines = _in_words(error)
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return code


def _in_words(error: BaseException) -> tuple[int, list[str]]:
    if isinstance(error, UsageError):
        return USAGE, [str(error)]
    if isinstance(error, CounterpointError):
        return FAILED, str(error).splitlines()
    if hasattr(error, "format_message"):  # what typer finds wrong when it parses
        message = error.format_message().strip().rstrip(".").replace("\n", " ")
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "counterpoint"
        return USAGE, [f"{message[:1].lower()}{message[1:]}; see `{command} --help`"]
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, OSError) and error.strerror:
        return FAILED, [f"{error.filename or 'a file'}: {error.strerror}"]
    return FAILED, [f"{type(error).__name__}{': ' if said else ''}{said} (--debug shows where it comes from)"]


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without --debug, which may stand anywhere before `--`, and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _discard_stdout() -> None:
    """Let what is left in the buffer of a closed pipe go nowhere, instead of failing once more at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as in tests
        return
