"""Long texts: do the measures of interference drift as a composed text grows?

Per-step errors add up along a sequence; if they also grew, a diagnosis of short texts would say nothing about long
ones. No voice may end a text here, so that texts of every length are the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
from torch import Tensor, nn
from transformers import PreTrainedModel

from counterpoint.diagnostics.probing import COMPOSED, Task, probe
from counterpoint.diagnostics.results import Text
from counterpoint.intervals import Interval, student
from counterpoint.studies.findings import Findings
from counterpoint.studies.logit_composition.speaking import CONTEXTS, MODEL, backbone, repeated, side_of_zero, voices
from counterpoint.studies.plots import Panel, curves
from counterpoint.studies.render import figure
from counterpoint.studies.study import Block, Experiment, Measure, Options, Plot, Table

PROMPTS = [
    "Tell me a long story.",
    "Tell me about your life.",
    "Explain how the world works.",
    "Write a long letter to a friend.",
]
PAIRS = (("pirate", "food"), ("poet", "space"))
RULES = ("product", "raking")
NEVER = -1e4
"""The logit of tokens that no voice may say."""


def grid(options: Options) -> list[dict[str, Any]]:
    """The pairs under the product, then under raking."""
    common = {
        "model": MODEL,
        "prompts": PROMPTS[: 2 if options.quick else None],
        "tokens": 24 if options.quick else 512,
        "window": 8 if options.quick else 64,
        "temperature": 1.0,
    }
    pairs = PAIRS[: 1 if options.quick else None]
    return [
        {"rule": rule, "contexts": {name: CONTEXTS[name] for name in pair}, **common}
        for rule in RULES
        for pair in pairs
    ]


def cell(settings: Mapping[str, Any], seed: int) -> dict[str, list[float | None]]:
    """Let a pair write on and on, and average the measures over windows of positions, text by text."""
    model = voices(settings["model"], settings["contexts"])
    model.set_rule(settings["rule"])
    tasks = [Task(i, prompt, COMPOSED) for i, prompt in enumerate(settings["prompts"])]
    with endless(backbone(settings["model"])[0], model.generation_config.eos_token_id):
        texts = list(
            probe(
                model,
                tasks,
                max_new_tokens=settings["tokens"],
                temperature=settings["temperature"],
                seed=seed,
                batch_size=len(tasks),
            )
        )
    found = {}
    for start in range(0, settings["tokens"], settings["window"]):
        end = start + settings["window"]
        for name, value in OF_WINDOW.items():
            found[f"{name}/{end}"] = [value(text, start, end) for text in texts]
    return found


@contextmanager
def endless(model: PreTrainedModel, ends: int | list[int] | None) -> Iterator[None]:
    """Inside, the model gives next to no probability to the tokens that end a text."""
    banned = ends if isinstance(ends, list) else [] if ends is None else [ends]

    def without(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., banned] = NEVER
        return logits

    handle = model.get_output_embeddings().register_forward_hook(without)
    try:
        yield
    finally:
        handle.remove()


def _mean(values: Any) -> float | None:
    defined = [value for value in numpy.array(values, dtype=numpy.float64).ravel().tolist() if value == value]
    return sum(defined) / len(defined) if defined else None


def _retained(text: Text, start: int, end: int) -> float | None:
    """The smaller of the components' retained evidence, Σ E_p̂[r] / Σ E_p[r] over the window; as `activity` allows."""
    shares = []
    for evidence, activity in zip(text.evidence, text.activity, strict=True):
        above, below = (sum(value or 0.0 for value in values[start:end]) for values in (evidence, activity))
        if below > 0:
            shares.append(above / below)
    return min(shares) if shares else None


OF_WINDOW: dict[str, Callable[[Text, int, int], float | None]] = {
    "log_partition": lambda text, start, end: _mean(text.log_partition[start:end]),
    "cumulative": lambda text, start, end: sum(value or 0.0 for value in text.log_partition[:end]),
    "gap": lambda text, start, end: _mean([row[start:end] for row in text.gap]),
    "bin_distance": lambda text, start, end: _mean([row[start:end] for row in text.bin_distance]),
    "activity": lambda text, start, end: _mean([row[start:end] for row in text.activity]),
    "retained": _retained,
    "base_log_prob": lambda text, start, end: _mean(text.base_log_probs[start:end]),
    "repeated": lambda text, start, end: repeated(text.tokens[start:end]),
}

MEASURES = {
    "log_partition": Measure("mean log Z of the product in a window of positions, nats, by its end", "unit"),
    "cumulative": Measure("sum of log Z up to a window's end, nats", "unit"),
    "gap": Measure("mean projectivity gap of both components in a window, nats", "unit"),
    "bin_distance": Measure("mean bin distance of both components in a window", "unit", (0, 1)),
    "activity": Measure("mean activity of both components in a window, nats", "unit"),
    "retained": Measure("retained evidence in a window, of the component that retains less", "unit"),
    "base_log_prob": Measure("mean log-probability under the base in a window, nats a token", "unit"),
    "repeated": Measure("share of a window's 4-grams of tokens that were there before in it", "unit", (0, 1)),
}


def compare(findings: Findings) -> dict[str, Interval]:
    """Every rule's curves over the texts of all pairs, and how far the last window is from earlier ones, text by text.

    Windows are named by their ends; `drift` is the last window less the first, `late drift` the last less the second,
    which leaves out how texts begin.
    """
    compared: dict[str, Interval] = {}
    for rule in rules(findings):
        for name in OF_WINDOW:
            rows = {end: pooled(findings, rule, f"{name}/{end}") for end in windows(findings)}
            for end, values in rows.items():
                compared[f"{rule}/{name}/{end}"] = student([value for value in values if value is not None])
            first, second, last = (rows[end] for end in (*windows(findings)[:2], windows(findings)[-1]))
            compared[f"{rule}/{name}/drift"] = _difference(last, first)
            compared[f"{rule}/{name}/late drift"] = _difference(last, second)
    return compared


def pooled(findings: Findings, rule: str, measure: str) -> list[float | None]:
    """One figure a text, over all pairs and seeds."""
    points = [point for point in findings.points if point.settings["rule"] == rule]
    return [value for point in points for values in point.values(measure) for value in values]


def rules(findings: Findings) -> list[str]:
    return list(dict.fromkeys(point.settings["rule"] for point in findings.points))


def windows(findings: Findings) -> list[int]:
    """The windows' ends."""
    settings = findings.points[0].settings
    return list(range(settings["window"], settings["tokens"] + 1, settings["window"]))


def _difference(one: Sequence[float | None], other: Sequence[float | None]) -> Interval:
    return student([a - b for a, b in zip(one, other, strict=True) if a is not None and b is not None])


def report(findings: Findings) -> list[Block]:
    """The section: what was measured along the position, and whether it drifts."""
    settings, ends = findings.points[0].settings, windows(findings)
    pairs = list(dict.fromkeys(" and ".join(point.settings["contexts"]) for point in findings.points))
    found = rules(findings)
    return [
        "**Question.** Errors of single steps add up along a text. Do the measures of a single step grow too, so that "
        "a diagnosis of short texts would say nothing about long ones?",
        f"**Here.** {settings['model']}; {', '.join(pairs)}; {len(settings['prompts'])} prompts each, "
        f"{settings['tokens']} sampled tokens, averaged over windows of {settings['window']}. No voice may end a text "
        "(the end token is taken from all of them), so every window holds the same texts; a text that would have "
        "ended goes on, which is not how the model is used. Intervals are over the texts of these few pairs; "
        "they say little about other pairs.",
        Plot(
            "length-measures",
            "Measures in windows along the text, means over texts with 95 % intervals.",
            "Four measures against position, by rule",
            curves(
                [
                    Panel(TITLES[name], ends, {rule: _curve(findings, rule, name) for rule in found})
                    for name in ("log_partition", "gap", "activity")
                ],
                "tokens",
                "nats a token",
            ),
            (9.0, 3.4),
        ),
        Plot(
            "length-cumulative",
            "log Z summed from the beginning: the log-weight between sampling token by token and the sequence-level "
            "product.",
            "Cumulative log Z against position, by rule",
            curves(
                [Panel("", ends, {rule: _curve(findings, rule, "cumulative") for rule in found})],
                "tokens",
                "cumulative log Z, nats",
            ),
            (5.0, 3.4),
        ),
        Table(
            f"First and last window, and their difference text by text ({settings['tokens']} tokens)",
            ["rule", "measure", f"up to {ends[0]}", f"up to {ends[-1]}", "last less first", "last less second"],
            [
                [rule, title, *(figure(findings.compared[f"{rule}/{name}/{what}"], 2) for what in _columns(ends))]
                for rule in found
                for name, title in TITLES.items()
            ],
        ),
        *(_in_words(findings, rule) for rule in found),
    ]


TITLES = {
    "log_partition": "log Z",
    "gap": "projectivity gap",
    "bin_distance": "bin distance",
    "activity": "activity",
    "retained": "retained evidence, the smaller",
    "base_log_prob": "log-probability under the base",
    "repeated": "repeated 4-grams",
}


def _columns(ends: Sequence[int]) -> list[str]:
    return [str(ends[0]), str(ends[-1]), "drift", "late drift"]


def _curve(findings: Findings, rule: str, name: str) -> list[Interval]:
    return [findings.compared[f"{rule}/{name}/{end}"] for end in windows(findings)]


def _in_words(findings: Findings, rule: str) -> str:
    """What drifts: intervals of the last window less the second that leave 0 out."""
    drifts: dict[str, list[str]] = {"rise": [], "fall": [], "no drift shown": []}
    for name, title in TITLES.items():
        drift = findings.compared[f"{rule}/{name}/late drift"]
        drifts[{1: "rise", -1: "fall", 0: "no drift shown"}[side_of_zero(drift)]].append(title)
    total = findings.compared[f"{rule}/cumulative/{windows(findings)[-1]}"]
    said = [f"{what}: {', '.join(names)}" for what, names in drifts.items() if names]
    return (
        f"**{rule.capitalize()}**, from the second window to the last: {'; '.join(said)}. Summed over "
        f"{windows(findings)[-1]} tokens log Z comes to {figure(total, 3, 'nats')}."
    )


EXPERIMENT = Experiment(
    name="length",
    title="Long texts: do the measures drift?",
    revision=1,
    grid=grid,
    cell=cell,
    measures=MEASURES,
    report=report,
    compare=compare,
    seeds=1,
    quick_seeds=1,
)
