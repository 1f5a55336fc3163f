"""`counterpoint chat`: a conversation with a composed model in the terminal."""

import sys
from typing import TYPE_CHECKING

import typer

from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, load, read_recipe
from counterpoint.cli._options import Composing, Decoding, Loading, RecipeArgument
from counterpoint.errors import ContextError, CounterpointError

if TYPE_CHECKING:
    from counterpoint.composition.model import ComposedModel

HELP = """/weight NAME NUMBER  change a component's weight; /weight alone shows the formula
/rule NAME           change the rule
/solo NAME           hear one voice alone; /solo alone brings all back
/reset               forget the conversation
/help                this list
/quit                leave (so does Ctrl-D); Ctrl-C stops an answer"""


@grouped
def chat(recipe: RecipeArgument = None, *, decoding: Decoding, composing: Composing, loading: Loading) -> None:
    """Chat with a composed model, and change its weights while you talk.

    In the chat: /weight pirate 0.5, /rule mixture, /solo pirate, /reset, /help,
    /quit. Ctrl-C stops an answer, Ctrl-D leaves. Greedy unless --temperature,
    --top-p or --top-k is given.

    Examples:

      counterpoint chat pirate.yaml
      counterpoint chat pirate.yaml --temperature 0.8 --weight pirate=0.5
      counterpoint chat --base smollm2-135m-instruct --context pirate="You are a pirate."
    """
    (recipe,) = arguments(composing, [recipe], ["RECIPE"])
    decoding.check()
    model = load(read_recipe(recipe, composing), loading)
    if model.openings.format == "raw":
        why = (
            "this recipe's context_format is raw"
            if model.tokenizer and model.tokenizer.chat_template
            else "the tokenizer has none"
        )
        raise ContextError(f"a chat needs a chat template, and {why}; use `counterpoint generate` with plain text")
    import torch

    torch.manual_seed(decoding.seed)
    interactive = sys.stdin.isatty()
    if interactive:
        typer.echo(f"{_formula(model)}\n/help lists the commands, Ctrl-D leaves.")
    Chat(model, decoding).run(interactive)


class Chat:
    """The conversation so far, and what each line of input does to it."""

    def __init__(self, model: "ComposedModel", decoding: Decoding) -> None:
        self.model, self.decoding = model, decoding
        self.messages: list[dict[str, str]] = []
        self.commands = {
            "/weight": self.weight,
            "/rule": self.rule,
            "/solo": self.solo,
            "/reset": self.reset,
            "/help": lambda _: typer.echo(HELP),
        }

    def run(self, interactive: bool) -> None:
        """Take lines until the end of input or /quit."""
        if interactive:
            import readline  # noqa: F401  (gives `input` a history and editing)
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if not interactive:
                    raise
                typer.echo("\nCtrl-D or /quit leaves")
                continue
            if line == "/quit":
                return
            try:
                self.take(line)
            except CounterpointError as error:
                typer.echo(f"error: {error}", err=True)

    def take(self, line: str) -> None:
        """One line: a command, or something to answer."""
        if not line.startswith("/"):
            if line:
                self.answer(line)
            return
        name, _, argument = line.partition(" ")
        if name not in self.commands:
            from counterpoint.composition.recipe import nearest

            known = [*self.commands, "/quit"]
            raise CounterpointError(f"no command is called {name}{nearest(name, known)}; /help lists them")
        self.commands[name](argument.strip())

    def answer(self, text: str) -> None:
        """Answer, and remember both sides; of an answer that is stopped, what there was."""
        from counterpoint.cli._decoding import Printer, stream

        assert self.model.tokenizer is not None
        printer = Printer(self.model.tokenizer)
        asked = [*self.messages, {"role": "user", "content": text}]
        try:
            stream(self.model, asked, self.decoding, printer)
        except KeyboardInterrupt:
            printer.end()
            typer.echo("(stopped)")
            if not printer.text:
                return
        except CounterpointError:
            if printer.text:
                printer.end()
            raise
        self.messages = [*asked, {"role": "assistant", "content": printer.text}]

    def weight(self, argument: str) -> None:
        name, _, number = argument.rpartition(" ")
        if argument:
            try:
                value = float(number)
            except ValueError:
                raise CounterpointError(f"{number!r} is not a number; write it as in /weight pirate 0.5") from None
            if not name:
                raise CounterpointError("no component is named; write it as in /weight pirate 0.5")
            self.model.set_weight(name.strip(), value)
        typer.echo(_formula(self.model))

    def rule(self, argument: str) -> None:
        self.model.rule = argument
        typer.echo(_formula(self.model))

    def solo(self, argument: str) -> None:
        self.model.solo(argument or None)
        typer.echo(f"only {argument} is heard; /solo alone brings all back" if argument else "all voices are heard")

    def reset(self, argument: str) -> None:
        self.messages = []
        typer.echo("the conversation is forgotten")


def _formula(model: "ComposedModel") -> str:
    from counterpoint.composition.plan import formula

    return formula(model.recipe)
