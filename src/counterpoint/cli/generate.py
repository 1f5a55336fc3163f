"""`counterpoint generate`: answers from a composed model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoint.cli._errors import INTERRUPTED, UsageError
from counterpoint.cli._grouped import grouped
from counterpoint.cli._models import arguments, load, read_recipe
from counterpoint.cli._options import Composing, Decoding, Loading, RecipeArgument, version
from counterpoint.cli._progress import progress
from counterpoint.cli._prompts import Prompt, read_prompts
from counterpoint.cli._results import ResultsFile, to_line

if TYPE_CHECKING:
    from counterpoint.composition.recipe import Recipe

OUTPUT = "Prompts and results"


@grouped
def generate(
    recipe: RecipeArgument = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help='What to answer; "-" reads it from stdin.')
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help='JSON lines: "text", {"prompt": "text"} or {"messages": ...}; other keys are ignored.',
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write JSON lines there; run again to go on."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=OUTPUT, help="Begin the --out file again.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", rich_help_panel=OUTPUT, help="JSON lines, on a terminal too.")
    ] = False,
    batch_size: Annotated[int, typer.Option(rich_help_panel=OUTPUT, help="Prompts answered at once.")] = 1,
    *,
    decoding: Decoding,
    composing: Composing,
    loading: Loading,
) -> None:
    """Answer a prompt, or a file of prompts, with a composed model.

    Decoding is greedy unless --temperature, --top-p or --top-k is given. An
    answer is streamed to a terminal; anywhere else results are JSON lines.

    Examples:

      counterpoint generate pirate.yaml "Tell me about the sea."
      counterpoint generate pirate.yaml "Tell me a joke." --weight pirate=0.5
      counterpoint generate pirate.yaml - --temperature 0.8 < question.txt
      counterpoint generate pirate.yaml --prompts in.jsonl --out out.jsonl
      counterpoint generate --base smollm2-135m-instruct
          --context pirate="You are a pirate." --adapter math=./math-lora "Hi"

    An interrupted --out file is gone on with when the same command is run again,
    and ends up the same as if it had never been interrupted.
    """
    recipe, prompt = arguments(composing, [recipe, prompt], ["RECIPE", "the prompt"])
    decoding.check()
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: use 1 or more")
    if overwrite and out is None:
        raise UsageError("--overwrite goes with --out FILE")
    asked = read_prompts(prompt, prompts)
    composed = read_recipe(recipe, composing)
    if out is not None:
        settings = _settings(composed, decoding, loading, batch_size)
        with ResultsFile(Path(out).expanduser(), asked, settings, overwrite) as file:
            _to_file(file, composed, asked, decoding, loading, batch_size)
    elif sys.stdout.isatty() and not json and prompts is None:
        _to_terminal(composed, asked[0], decoding, loading)
    else:
        _to_stdout(composed, asked, decoding, loading, batch_size)


def _to_terminal(recipe: "Recipe", prompt: Prompt, decoding: Decoding, loading: Loading) -> None:
    model = load(recipe, loading)
    import torch

    from counterpoint.cli._decoding import Printer, stream

    assert model.tokenizer is not None
    torch.manual_seed(decoding.seed)
    stream(model, prompt, decoding, Printer(model.tokenizer))


def _to_stdout(recipe: "Recipe", prompts: list[Prompt], decoding: Decoding, loading: Loading, batch_size: int) -> None:
    model = load(recipe, loading)
    from counterpoint.cli._decoding import answer, check_prompts

    settings = _settings(recipe, decoding, loading, batch_size)
    check_prompts(model, prompts)
    for batch in answer(model, prompts, decoding, batch_size):
        for one in batch:
            sys.stdout.write(to_line(one.index, _result(prompts, one), settings))
        sys.stdout.flush()


def _to_file(
    file: ResultsFile,
    recipe: "Recipe",
    prompts: list[Prompt],
    decoding: Decoding,
    loading: Loading,
    batch_size: int,
) -> None:
    total = len(prompts)
    try:
        if file.done < total:
            model = load(recipe, loading)
            from counterpoint.cli._decoding import answer, check_prompts

            check_prompts(model, prompts)
            with progress("Generating", file.done, total) as advance:
                for batch in answer(model, prompts, decoding, batch_size, file.done):
                    for one in batch:
                        file.add(one.index, _result(prompts, one))
                        advance()
    except KeyboardInterrupt:
        again = "run the same command again to go on"
        typer.echo(f"\nstopped: {file.done} of {total} prompts are done in {file.path}; {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{file.path}: {total} of {total} prompts done", err=True)


def _settings(recipe: "Recipe", decoding: Decoding, loading: Loading, batch_size: int) -> dict[str, Any]:
    """What all results of a run have in common, and must have to stand in one file."""
    return {
        "seed": decoding.seed,
        "recipe": recipe.digest(),
        "version": version(),
        "settings": {
            "max_new_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k,
            "batch_size": batch_size,
            "dtype": loading.dtype,
            "device": loading.device,
        },
    }


def _result(prompts: list[Prompt], answer: Any) -> dict[str, Any]:
    return {"prompt": prompts[answer.index], "text": answer.text, "tokens": answer.tokens, "finish": answer.finish}
