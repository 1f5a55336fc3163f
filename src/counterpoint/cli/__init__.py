"""The command line: one module a verb. Nothing heavy is imported here, so that help is quick."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated

import typer

from counterpoint.cli import chat, diagnose, explain, fit, generate, save, study
from counterpoint.cli._errors import Commands
from counterpoint.cli._options import version

INTRO = """Compose language models: several skills, one ordinary Hugging Face model.

A recipe names a base model, components (a prompt, a LoRA adapter, or another
model) and a rule that combines their next-token distributions:

  base: smollm2-135m-instruct
  components:
    pirate: {context: You are a pirate.}
    math: {adapter: ./math-lora, weight: 0.5}

Try it, without a file:

  counterpoint generate --base smollm2-135m-instruct
      --context pirate="You are a pirate." --context poet="You are a poet."
      "Tell me about the sea."

Every verb has examples of its own: counterpoint generate --help
"""

app = typer.Typer(
    cls=Commands,
    help=INTRO,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _verb in (generate.generate, chat.chat, diagnose.diagnose, explain.explain, fit.fit, save.save, study.study):
    app.command(no_args_is_help=True)(_verb)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"counterpoint {version()}")
        raise typer.Exit


@app.callback()
def _global_options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error. Works anywhere on the line.")
    ] = False,
) -> None:
    """Options that belong to no verb; `Commands` acts on --debug."""


def main() -> None:
    """The console command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):
                stream.reconfigure(encoding="utf-8", errors="replace")
    app(prog_name="counterpoint")
