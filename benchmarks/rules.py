"""What a rule costs: a decoding step of the same composed model under every rule, taking turns.

python benchmarks/rules.py              measure, print the table, write benchmarks/results/rules.json
python benchmarks/rules.py --render     write docs/performance.md's table from that file again
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from decode import MODEL, PAGE, PROMPT_TOKENS, Step, make_adapters, race
from tables import markdown, write_between
from torch import Tensor
from transformers.utils import logging

from counterpoint import ComposedModel
from counterpoint.files import versions

RESULTS = Path(__file__).parent / "results" / "rules.json"
RULES: dict[str, dict[str, float]] = {"product": {}, "mixture": {}, "raking": {}, "projective": {}}
BUDGET = "product, budget of 1 nat"
COMPONENTS = 4


def stepping(model: ComposedModel, rule: str, options: dict[str, float]) -> Step:
    """One decoding step under a rule, with a cache of its own."""
    cache = model.new_cache()

    def step(ids: Tensor) -> Tensor:
        model.set_rule(rule, **options)
        return model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    return step


def measure(new_tokens: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        adapters = make_adapters(Path(folder), COMPONENTS)
        recipe = {"base": MODEL, "components": {f"a{i}": {"adapter": path} for i, path in enumerate(adapters)}}
        model = ComposedModel.from_recipe(**recipe)
        steps = {rule: stepping(model, rule, options) for rule, options in RULES.items()}
        steps[BUDGET] = stepping(ComposedModel.from_recipe(**recipe, budgets={"base": 1.0}), "product", {})
        times = race(steps, 1, new_tokens, reference="product")
    settings = {
        "model": MODEL,
        "k": COMPONENTS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": new_tokens,
        "threads": torch.get_num_threads(),
        "options": RULES,
        "seed": 0,
    }
    return {"settings": settings, "versions": versions(), "times": times}


def table(results: dict) -> str:
    settings = results["settings"]
    rows = [["rule", "time a token, product = 1", "ms a token"]]
    rows += [[name, f"{t['ratio']:.2f}", f"{t['decode_ms']:.0f}"] for name, t in results["times"].items()]
    about = f"k = {settings['k']} adapters, batch 1, {settings['new_tokens']} tokens, {settings['threads']} threads"
    return f"**Rules**: {about}, every rule with its own defaults\n\n{markdown(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only write the table of docs/performance.md again")
    options = parser.parse_args()
    logging.disable_progress_bar()
    if not options.render:
        options.out.write_text(json.dumps(measure(options.new_tokens), indent=1) + "\n")
    text = table(json.loads(options.out.read_text()))
    print(text)
    if options.out == RESULTS:
        write_between(PAGE, "<!-- rules -->", text)


if __name__ == "__main__":
    main()
