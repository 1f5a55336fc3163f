"""The paper's toy: two letters are mapped by two tiny models, and their product with an identity model maps both.

The alphabet is A-Z and space. Component 1 maps A to K, component 2 maps M to B, the base copies; at no position do both
components differ from the base, so conditionals factorise and the product should map both letters.

Two versions. `per position`: one forward pass over the string, and the output at a position is the mapped character of
that position, as published. `autoregressive`: the model reads the string and a separator, then writes the mapped string
token by token and ends it, so that what was written before and where one stands matter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from counterpoint.composition.model import ComposedModel
from counterpoint.intervals import Interval, student
from counterpoint.studies.findings import Finding, Findings
from counterpoint.studies.plots import Panel, curves
from counterpoint.studies.render import figure, share
from counterpoint.studies.study import Block, Experiment, Measure, Options, Plot, Table

PUBLISHED = 31
"""The longest strings of an independent check of the published toy."""
HOLDS = 0.99
ALPHA = 0.1
"""Of the plausibility mask: contrastive decoding's own value (arXiv 2210.15097), not tuned here."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ "
SEPARATOR, END, BLANK = (len(LETTERS) + i for i in range(3))
MAPS: dict[str, dict[str, str]] = {"base": {}, "first": {"A": "K"}, "second": {"M": "B"}}
BOTH = {**MAPS["first"], **MAPS["second"]}
COMPONENTS = {"first": {"model": "first"}, "second": {"model": "second"}}


def mapped(strings: Tensor, changes: Mapping[str, str]) -> Tensor:
    """Strings as letter numbers, any shape, with some letters changed."""
    table = torch.tensor([LETTERS.index(changes.get(letter, letter)) for letter in LETTERS])
    return table[strings]


def random_strings(count: int, length: int, generator: torch.Generator) -> Tensor:
    """Uniform letters, (count, length)."""
    return torch.randint(len(LETTERS), (count, length), generator=generator)


@dataclass(frozen=True)
class PerPosition:
    """The map in one forward pass."""

    vocabulary: int = len(LETTERS)

    def example(self, strings: Tensor, changes: Mapping[str, str]) -> tuple[Tensor, Tensor]:
        """Inputs and what should come out at each of their places, both (batch, time); -100 where anything may."""
        return strings, mapped(strings, changes)

    @torch.no_grad()
    def write(self, model: Any, strings: Tensor) -> Tensor:
        """What the model makes of the strings, (batch, length)."""
        written: Tensor = model(strings).logits.argmax(-1)
        return written


@dataclass(frozen=True)
class Autoregressive:
    """The map written token by token after the string and a separator, then an end token."""

    field: int
    """Places of the field that holds the string: more than its letters."""
    vocabulary: int = len(LETTERS) + 3

    def example(self, strings: Tensor, changes: Mapping[str, str]) -> tuple[Tensor, Tensor]:
        answer = torch.cat([mapped(strings, changes), torch.full_like(strings[:, :1], END)], 1)
        prompt = self._prompt(strings)
        nothing = torch.full_like(prompt[:, 1:], -100)
        return torch.cat([prompt, answer[:, :-1]], 1), torch.cat([nothing, answer], 1)

    @torch.no_grad()
    def write(self, model: Any, strings: Tensor) -> Tensor:
        """Greedy; (batch, length + 1) with the end token where it is right to end."""
        prompt, tokens = self._prompt(strings), strings.shape[1] + 1
        written: Tensor = model.generate(
            prompt,
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=END,
        )
        return written[:, -tokens:]

    def _prompt(self, strings: Tensor) -> Tensor:
        """The string at the beginning of a field of blanks, then the separator: (batch, field + 1)."""
        prompt = strings.new_full((len(strings), self.field + 1), BLANK)
        prompt[:, : strings.shape[1]], prompt[:, -1] = strings, SEPARATOR
        return prompt


def version_of(settings: Mapping[str, Any]) -> PerPosition | Autoregressive:
    """The version that the settings name."""
    return PerPosition() if settings["version"] == "per position" else Autoregressive(settings["field"])


class Repeating(torch.nn.Embedding):
    """Position embeddings that repeat, so that a letter and its place in the answer share one.

    Position coupling (arXiv 2405.20671), with plain positions outside: trained on short strings, a model may copy long
    ones.
    """

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input % self.num_embeddings)


def couple_positions(model: GPT2LMHeadModel, every: int) -> None:
    """Let position embeddings repeat, and begin with queries like keys, so that equal positions attend to each other.

    The beginning is that of arXiv 2305.09828, where attention begins as W_q W_kᵀ ≈ I; without it, these models
    had not begun to copy after 400 steps.
    """
    width = model.config.n_embd
    positions = Repeating(every, width)
    torch.nn.init.normal_(positions.weight, std=0.05)
    model.transformer.wpe = positions
    blocks: Any = model.transformer.h
    for block in blocks:
        queries, keys, _ = block.attn.c_attn.weight.data.split(width, dim=1)
        keys.copy_(torch.nn.init.normal_(queries, std=width**-0.5))


def new_model(settings: Mapping[str, Any], seed: int) -> GPT2LMHeadModel:
    """A tiny GPT-2 with random weights."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=version_of(settings).vocabulary,
        n_positions=settings["window"],
        n_embd=settings["width"],
        n_layer=settings["layers"],
        n_head=settings["heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    if settings["positions"] == "coupled":
        couple_positions(model, settings["field"])
    return model


def train(
    model: GPT2LMHeadModel,
    settings: Mapping[str, Any],
    changes: Mapping[str, str],
    seed: int,
    steps: int,
    learning_rate: float,
) -> GPT2LMHeadModel:
    """Teach a model, in place, to map strings of the training lengths; on fresh strings at every step."""
    version, coupled = version_of(settings), settings["positions"] == "coupled"
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, steps)
    shortest, longest = settings["trained_lengths"]
    for _ in range(steps):
        length = int(torch.randint(shortest, longest + 1, (), generator=generator))
        inputs, targets = version.example(random_strings(settings["batch"], length, generator), changes)
        offset = int(torch.randint(settings["field"], (), generator=generator)) if coupled else 0
        logits = model(inputs, position_ids=torch.arange(offset, offset + inputs.shape[1])[None]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def trained(settings: Mapping[str, Any], seed: int) -> dict[str, GPT2LMHeadModel]:
    """The base and the components: each from scratch, or the components tuned from the base."""
    models: dict[str, GPT2LMHeadModel] = {}
    for i, (name, changes) in enumerate(MAPS.items()):
        own = len(MAPS) * seed + i
        if models and settings["components"] == "tuned":
            start, steps, rate = copy.deepcopy(models["base"]), settings["tuning_steps"], settings["tuning_rate"]
        else:
            start, steps, rate = new_model(settings, own), settings["steps"], settings["learning_rate"]
        models[name] = train(start, settings, changes, own, steps, rate)
    return models


def cell(settings: Mapping[str, Any], seed: int) -> dict[str, list[float | None]]:
    """Train the three models, compose them, and see what each gets right at every length."""
    version = version_of(settings)
    models = trained(settings, seed)
    composed = compositions(models)
    found: dict[str, list[float | None]] = {}
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    for length in settings["lengths"]:
        strings = random_strings(settings["strings"], length, generator)
        for name, value in measure(version, models, composed, strings).items():
            found.setdefault(name, []).append(value)
    return found


def compositions(models: Mapping[str, PreTrainedModel]) -> dict[str, ComposedModel]:
    """The three models under the product rule, without and with a plausibility mask, and as a mixture."""
    inside = {name: (model, None) for name, model in models.items()}
    ways: dict[str, dict[str, Any]] = {
        "product": {"rule": "product"},
        "guarded": {"rule": "product", "plausibility": ALPHA},
        "mixture": {"rule": "mixture"},
    }
    return {
        name: ComposedModel.from_recipe(base="base", components=COMPONENTS, models=inside, **way)
        for name, way in ways.items()
    }


def measure(
    version: PerPosition | Autoregressive,
    models: Mapping[str, PreTrainedModel],
    composed: Mapping[str, ComposedModel],
    strings: Tensor,
) -> dict[str, float | None]:
    """Shares of strings, all of one length, that the models and their compositions map exactly; see `MEASURES`."""

    def answer(changes: Mapping[str, str]) -> Tensor:
        targets = version.example(strings, changes)[1]
        return targets[targets != -100].view(len(strings), -1)

    written = {name: version.write(model, strings) for name, model in {**models, **composed}.items()}
    own = {name: (written[name] == answer(MAPS[name])).all(1) for name in models}
    combined = {name: (text == answer(BOTH)).all(1) for name, text in written.items()}
    changing = mapped(strings, BOTH) != strings
    right = written["product"][:, : strings.shape[1]] == mapped(strings, BOTH)
    inputs, targets = version.example(strings, BOTH)
    with torch.no_grad():
        log_partition = composed["product"](inputs).log_partition[targets != -100].view(len(strings), -1).abs()
    at_changes = torch.nn.functional.pad(changing, (0, log_partition.shape[1] - changing.shape[1]))
    return {
        **{f"own/{name}": _mean(rows) for name, rows in own.items()},
        "own/all": _mean(torch.stack([*own.values()]).all(0)),
        **{f"combined/{name}": _mean(rows) for name, rows in combined.items()},
        "changed/product": _mean(right[changing]),
        "log_partition/A and M": _mean(log_partition[at_changes]),
        "log_partition/elsewhere": _mean(log_partition[~at_changes]),
    }


def _mean(values: Tensor) -> float | None:
    return values.float().mean().item() if len(values) else None


def compare(findings: Findings) -> dict[str, Interval]:
    """Means over ranges of lengths, and what composing costs beyond the models' own mistakes, seed by seed."""
    compared: dict[str, Interval] = {}
    for point in findings.points:
        for title, lengths in ranges(point).items():
            places = [point.settings["lengths"].index(length) for length in lengths]
            over = {
                name: [sum(values[i] for i in places) / len(places) for values in point.values(name)]
                for name in ("combined/product", "combined/guarded", "own/all")
            }
            label = f"{_title(point)}/{title}"
            compared |= {f"{label}/{name}": student(values, within=(0, 1)) for name, values in over.items()}
            for way in ("product", "guarded"):
                lost = [a - b for a, b in zip(over["own/all"], over[f"combined/{way}"], strict=True)]
                compared[f"{label}/lost/{way}"] = student(lost, within=(-1, 1))
    return compared


def ranges(point: Finding) -> dict[str, list[int]]:
    """The tested lengths: those trained on, those up to 31 that the published check covers, and those beyond."""
    lengths, longest = point.settings["lengths"], point.settings["trained_lengths"][1]
    found = {
        f"1–{longest}": [n for n in lengths if n <= longest],
        f"{longest + 1}–{PUBLISHED}": [n for n in lengths if longest < n <= PUBLISHED],
        f"{PUBLISHED + 1}–{max(lengths)}": [n for n in lengths if n > PUBLISHED],
    }
    return {title: inside for title, inside in found.items() if inside}


def holds_until(point: Finding, measure: str) -> int:
    """The longest tested length up to which a mean stays at 99 % or above; 0 if at none."""
    longest = 0
    for length, interval in zip(point.settings["lengths"], point.along(measure), strict=True):
        if (interval.mean or 0.0) < HOLDS:
            break
        longest = length
    return longest


def grid(options: Options) -> list[dict[str, Any]]:
    """Both versions, the first as published."""
    common = {"width": 64, "layers": 2, "heads": 2, "learning_rate": 3e-3, "strings": 50 if options.quick else 100}
    per_position = {
        "version": "per position",
        "components": "from scratch",
        "positions": "learned",
        "trained_lengths": [16, 16],
        "window": 64,
        "batch": 64,
        "steps": 100 if options.quick else 200,
        "lengths": [1, 16, 31, 64] if options.quick else [*range(1, 33), 36, 40, 48, 56, 64],
    }
    autoregressive = {
        "version": "autoregressive",
        "components": "from scratch",
        "positions": "coupled",
        "trained_lengths": [1, 16],
        "field": 49,
        "window": 99,
        "batch": 32,
        "steps": 250 if options.quick else 400,
        "lengths": [1, 16, 31] if options.quick else [1, 2, 4, 8, 12, 16, 20, 24, 28, 31, 36, 40, 44, 48],
    }
    tuned = {**autoregressive, "components": "tuned", "tuning_steps": 100, "tuning_rate": 1e-3}
    return [{**one, **common} for one in (per_position, autoregressive, tuned)]


MEASURES = {
    "own": Measure(
        "share of strings that a model maps exactly by its own map; `all`: all three models do, on the same string",
        within=(0, 1),
    ),
    "combined": Measure("share of strings with both letters mapped exactly, by length", within=(0, 1)),
    "changed": Measure("share of A and M that become K and B, by length", within=(0, 1)),
    "log_partition": Measure(
        "mean |log Z| along the right answer, nats, by length: where the letter is A or M, and elsewhere",
        within=(0, math.inf),
    ),
}


def report(findings: Findings) -> list[Block]:
    """The section: the claim, what was measured, and in words what came out."""
    points = findings.points
    return [
        "**Claim.** One tiny model maps A to K, another maps M to B, and the base copies. At no place do both differ "
        "from the base, so their product maps both letters. The published toy does it for strings of 16 letters, all "
        f"at once, one letter a place; an independent check found every string right at lengths 1 to {PUBLISHED}.",
        "**Here.** Each model is a GPT-2 trained from scratch on random strings of A to Z and space. *Per position* is "
        "the published version: the output at a place is that place's letter, mapped; it is trained on strings of 16 "
        "only, so positions beyond keep their random embeddings. *Autoregressive*: the model reads the string in a "
        "field, larger than any, and a separator, then writes the mapped string letter by letter and an end token; a "
        "string is right if all of it is, and it ends where it should. It is trained on strings of 1 to 16. So that it "
        "has a chance beyond, a letter and its place in the answer share a position embedding (position coupling, "
        "[arXiv 2405.20671](https://arxiv.org/abs/2405.20671)), and training begins at a random position. *Tuned*: the "
        "same, but the components are trained briefly from the base instead of from scratch.",
        Table(
            "Strings mapped exactly, at the longest length trained on",
            ["", *(_title(point) for point in points)],
            [[title, *(share(_at_trained(point, name)) for point in points)] for title, name in ROWS.items()],
        ),
        Table(
            "Strings mapped exactly, by length: what the composed model gets right, and what its models could",
            ["version", "lengths", "composed", "with the mask", "all three models, own maps", "lost with the mask"],
            [
                [_title(point), lengths, *(share(_compared(findings, point, lengths, name)) for name in OVER)]
                for point in points
                for lengths in ranges(point)
            ],
        ),
        Plot(
            "toy-lengths",
            "Share of strings mapped exactly against their length, with 95 % intervals over seeds. The mixture "
            "averages the two components' probabilities.",
            "Exact match against length, one panel for each version",
            curves(
                [_panel(point) for point in points], "letters in the string", "strings mapped exactly", (-0.02, 1.02)
            ),
        ),
        *(_in_words(findings, point) for point in points),
        _of_log_partition(points),
    ]


ROWS = {
    "base, its own map (copying)": "own/base",
    "first component, its own map (A→K)": "own/first",
    "second component, its own map (M→B)": "own/second",
    "**composed, both maps**": "combined/product",
    "**composed with a plausibility mask, both maps**": "combined/guarded",
    "mixture, both maps": "combined/mixture",
    "first component alone, both maps": "combined/first",
    "base alone, both maps": "combined/base",
}
OVER = ("combined/product", "combined/guarded", "own/all", "lost/guarded")
CURVES = {
    "composed, both maps": "combined/product",
    "with a plausibility mask": "combined/guarded",
    "all three models, each its own map": "own/all",
    "mixture, both maps": "combined/mixture",
    "first component alone, both maps": "combined/first",
}


def _title(point: Finding) -> str:
    tuned = point.settings["components"] == "tuned"
    return f"{point.settings['version']}{', tuned' if tuned else ''}"


def _trained(point: Finding) -> int:
    return int(point.settings["trained_lengths"][1])


def _at_trained(point: Finding, measure: str) -> Interval:
    return point.along(measure)[point.settings["lengths"].index(_trained(point))]


def _compared(findings: Findings, point: Finding, lengths: str, name: str) -> Interval:
    return findings.compared[f"{_title(point)}/{lengths}/{name}"]


def _panel(point: Finding) -> Panel:
    lines = {title: point.along(name) for title, name in CURVES.items()}
    return Panel(_title(point), point.settings["lengths"], lines, {"trained": _trained(point)})


def _in_words(findings: Findings, point: Finding) -> str:
    """What a version says of the claim: at lengths trained on, and beyond."""
    trained_on, *beyond = ranges(point)
    words = [f"**{_title(point).capitalize()}.**"]
    for name, way in (("product", "The product"), ("guarded", "With the mask it")):
        right = _compared(findings, point, trained_on, f"combined/{name}")
        words += [f"{way} maps {share(right)} of strings of lengths {trained_on} exactly,"]
        words += ["as claimed." if (right.mean or 0.0) >= HOLDS else "where the claim asks for all of them."]
    until = {name: holds_until(point, name) for name in ("combined/product", "combined/guarded", "own/all")}
    words += [
        "Without a break, 99 % or more are right up to these lengths: the product {}, with the mask {}, all three "
        "models at once, each at its own map of the same strings, {}.".format(*(n or "none" for n in until.values()))
    ]
    for lengths in beyond:
        words += [_against_its_models(findings, point, lengths)]
    return " ".join(words)


def _against_its_models(findings: Findings, point: Finding, lengths: str) -> str:
    alone = _compared(findings, point, lengths, "own/all")
    parts = []
    for name, way in (("product", "the product"), ("guarded", "the product with the mask")):
        lost = _compared(findings, point, lengths, f"lost/{name}")
        right = _compared(findings, point, lengths, f"combined/{name}")
        word = "as far as can be told, no less"
        if lost.mean == 0:
            word = "the same"
        elif lost.low is not None and lost.low > 0:
            word = "less"
        elif lost.high is not None and lost.high < 0:
            word = "more: where one model errs, the others can outvote it"
        parts.append(f"{way} {share(right)} ({word})")
    return f"At lengths {lengths} all three have {share(alone)} right at once; {'; '.join(parts)}."


def _of_log_partition(points: Sequence[Finding]) -> str:
    parts = [
        f"{_title(point)}, {figure(_at_trained(point, 'log_partition/A and M'), 2, 'nats')} where the letter is A or M "
        f"and {figure(_at_trained(point, 'log_partition/elsewhere'), 2, 'nats')} elsewhere"
        for point in points
    ]
    return (
        "**log Z.** Under factorised conditionals log Z is 0. Mean |log Z| along the right answer, at the longest "
        f"length trained on: {'; '.join(parts)}. With two components, log Z is also their pairwise interference. Where "
        "the letter is A or M, two of the three models put almost nothing on the right token, and log Z is how much "
        "they differ about that (where it is A, log p_2(K)/p_b(K)): a tail that training leaves to chance. Elsewhere "
        "all three put their weight on the same token, and a large log Z comes from tokens that the base finds all but "
        "impossible and both components a little less so: there p_1 p_2 / p_b exceeds that of the right token, and the "
        "product writes what none of the models would. The mask keeps the tokens to which at least one model gives a "
        f"tenth of its largest probability (α = {ALPHA}, not tuned here), which takes those tails away."
    )


EXPERIMENT = Experiment(
    name="toy",
    title="The toy: two letters mapped at once",
    revision=2,
    grid=grid,
    cell=cell,
    measures=MEASURES,
    report=report,
    compare=compare,
    quick_seeds=1,
)
