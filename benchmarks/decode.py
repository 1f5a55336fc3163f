"""How fast a composed model decodes, and how much memory it takes, beside other ways of running the same adapters.

    python benchmarks/decode.py                 measure, print the tables, write benchmarks/results/decode.json
    python benchmarks/decode.py --render        write docs/performance.md's tables from that file again

All contenders take one decoding step in turn, in one process, so that a noisy machine is noisy for all of them. Quote
the ratios of medians, not the milliseconds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from memory import peak_memory
from peft import LoraConfig, PeftModel, get_peft_model
from tables import tables, write_between
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from counterpoint import ComposedModel, load_backbone

MODEL = "smollm2-135m-instruct"
RESULTS = Path(__file__).parent / "results" / "decode.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RANK = 16
PROMPT_TOKENS = 64
REFERENCE_TOKENS = 24
"""The slow contenders leave the race after so many tokens; each is compared with the plain model's same steps."""
SLOW = ("PEFT adapter_names rows", "set_adapter, one after another", "k+1 whole models")
Step = Callable[[Tensor], Tensor]
"""Takes new tokens (batch, time), returns next-token scores (batch, vocab); keeps its own cache."""


def make_adapters(folder: Path, count: int) -> list[str]:
    """Random rank-16 LoRA adapters on all linear layers, as PEFT saves them."""
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear")
    model = get_peft_model(load_backbone(MODEL)[0], config)
    for number in range(count):
        torch.manual_seed(number)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        model.save_pretrained(folder / str(number))
    return [str(folder / str(number)) for number in range(count)]


def plain(model: PreTrainedModel) -> Step:
    cache = DynamicCache(config=model.config)
    return lambda ids: model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float().log_softmax(-1)


def ours(model: ComposedModel) -> Step:
    cache = model.new_cache()
    return lambda ids: model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]


def product(log_probs: Tensor) -> Tensor:
    """The reference rule on (voice, batch, vocab), the base first, every weight 1."""
    return (log_probs[0] + (log_probs[1:] - log_probs[0]).sum(0)).log_softmax(-1)


def peft_rows(model: PeftModel, count: int) -> Step:
    cache = DynamicCache(config=model.config)

    def step(ids: Tensor) -> Tensor:
        names = [name for name in ("__base__", *map(str, range(count))) for _ in range(len(ids))]
        logits = model(
            ids.repeat(count + 1, 1), cache=cache, use_cache=True, logits_to_keep=1, adapter_names=names
        ).logits[:, -1]
        return product(logits.float().log_softmax(-1).view(count + 1, len(ids), -1))

    return step


def one_after_another(model: PeftModel, count: int) -> Step:
    voices = [None, *map(str, range(count))]
    steps = [plain(model) for _ in voices]

    def step(ids: Tensor) -> Tensor:
        log_probs = []
        for voice, run in zip(voices, steps, strict=True):
            if voice is None:
                with model.disable_adapter():
                    log_probs.append(run(ids))
            else:
                model.set_adapter(voice)
                log_probs.append(run(ids))
        return product(torch.stack(log_probs))

    return step


def whole_models(models: list[PreTrainedModel]) -> Step:
    steps = [plain(model) for model in models]
    return lambda ids: product(torch.stack([step(ids) for step in steps]))


def contenders(kind: str, count: int, adapters: list[str], references: bool) -> Iterator[tuple[str, Step]]:
    yield "plain", plain(load_backbone(MODEL)[0])
    if kind == "contexts":
        contexts = {f"c{i}": {"context": f"Answer as person number {i} would, in a few words."} for i in range(count)}
        yield "composed", ours(ComposedModel.from_recipe(base=MODEL, components=contexts))
        return
    components = {f"a{i}": {"adapter": path} for i, path in enumerate(adapters[:count])}
    yield "composed", ours(ComposedModel.from_recipe(base=MODEL, components=components))
    if references:
        wrapped = PeftModel.from_pretrained(load_backbone(MODEL)[0], adapters[0], adapter_name="0").eval()
        for number in range(1, count):
            wrapped.load_adapter(adapters[number], adapter_name=str(number))
        models = [load_backbone(MODEL)[0] for _ in range(count + 1)]
        yield from zip(
            SLOW, (peft_rows(wrapped, count), one_after_another(wrapped, count), whole_models(models)), strict=True
        )


@torch.inference_mode()
def race(steps: dict[str, Step], batch: int, new_tokens: int, reference: str = "plain") -> dict[str, dict[str, float]]:
    """Median milliseconds of the first step (64 tokens) and of the following ones, all contenders taking turns.

    The reference's greedy choice is what all go on with, and `ratio` is to its median over the same steps.
    """
    ids = torch.randint(1000, 40000, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {name: [] for name in steps}
    tokens = ids
    for number in range(new_tokens + 1):
        following = tokens
        for name, step in steps.items():
            if number > REFERENCE_TOKENS and name in SLOW:
                continue
            start = time.perf_counter()
            scores = step(tokens)
            times[name].append((time.perf_counter() - start) * 1e3)
            if name == reference:
                following = scores.argmax(-1, keepdim=True)
        tokens = following
    return {
        name: {
            "prefill_ms": spent[0],
            "decode_ms": statistics.median(spent[1:]),
            "ratio": statistics.median(spent[1:]) / statistics.median(times[reference][1 : len(spent)]),
            "decode_ms_low": statistics.quantiles(spent[1:], n=10)[0],
            "decode_ms_high": statistics.quantiles(spent[1:], n=10)[-1],
        }
        for name, spent in times.items()
    }


def measure(counts: list[int], new_tokens: int) -> dict[str, object]:
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        adapters = make_adapters(Path(folder), max(counts))
        for kind, batch, references in (("adapters", 1, True), ("contexts", 1, False), ("adapters", 8, False)):
            for count in counts:
                steps = dict(contenders(kind, count, adapters, references))
                runs.append({"kind": kind, "k": count, "batch": batch, "times": race(steps, batch, new_tokens)})
                print(json.dumps(runs[-1]), flush=True)
        memory = [peak_memory(MODEL, adapters[:count]) for count in counts]
    packages = ("counterpoint", "torch", "transformers", "peft")
    return {
        "settings": {
            "model": MODEL,
            "dtype": "float32",
            "rank": RANK,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": new_tokens,
            "reference_tokens": REFERENCE_TOKENS,
            "threads": torch.get_num_threads(),
            "seed": 0,
            "processor": platform.machine(),
        },
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "runs": runs,
        "memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--memory", action="store_true", help="measure memory again, keep the times")
    parser.add_argument("--render", action="store_true", help="only write the tables of docs/performance.md again")
    options = parser.parse_args()
    logging.disable_progress_bar()
    if options.memory:
        results = json.loads(options.out.read_text())
        with tempfile.TemporaryDirectory() as folder:
            adapters = make_adapters(Path(folder), max(options.k))
            results["memory"] = [peak_memory(MODEL, adapters[:count]) for count in options.k]
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    elif not options.render:
        results = measure(options.k, options.new_tokens)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    text = tables(json.loads(options.out.read_text()))
    print(text)
    if options.out == RESULTS:
        write_between(PAGE, "<!-- tables -->", text)


if __name__ == "__main__":
    main()
