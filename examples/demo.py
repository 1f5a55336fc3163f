"""Compose the embedded model with two system prompts, and hear each voice alone before all of them at once."""

import torch
from rich.console import Console
from rich.panel import Panel

from counterpoint import ComposedModel, Recipe
from counterpoint.composition.plan import formula

PROMPT = "Tell me about the sea."


def main() -> None:
    console = Console()
    recipe = Recipe.read("examples/pirate_scientist.yaml")
    model = ComposedModel.from_recipe(recipe)
    console.print(f"\n[bold]{formula(recipe)}[/bold]\n\nPrompt: {PROMPT}\n")
    batch = model.encode(PROMPT)
    for voice in (*model.voice_names, None):
        model.solo(voice)
        with torch.inference_mode():
            ids = model.generate(**batch, max_new_tokens=50, do_sample=False)[0, batch.input_ids.shape[1] :]
        text = model.tokenizer.decode(ids, skip_special_tokens=True)
        title = "all at once: the composed model" if voice is None else f"{voice} alone"
        console.print(Panel(text, title=title, title_align="left", border_style="bold" if voice is None else "dim"))


if __name__ == "__main__":
    main()
