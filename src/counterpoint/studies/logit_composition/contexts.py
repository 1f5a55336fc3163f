"""Styles and topics as contexts of one language model: does a pair's diagnosis tell which compositions fail?

Every style is composed with every topic. A pair is diagnosed on some prompts, and judged on others: by how far the
composed texts speak for the style and for the topic, put in other words than those that wrote them. Nothing but the
model itself judges, and no text is both diagnosed and judged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from counterpoint.composition.model import ComposedModel
from counterpoint.diagnostics.probing import COMPOSED, Task, probe
from counterpoint.diagnostics.results import Text
from counterpoint.diagnostics.summary import diagnose
from counterpoint.diagnostics.verdict import GAP, ORDER
from counterpoint.intervals import NOTHING, Interval, bootstrap, student
from counterpoint.studies.findings import MANY_UNITS, Finding, Findings
from counterpoint.studies.logit_composition.speaking import (
    CONTEXTS,
    MODEL,
    PARAPHRASES,
    STYLES,
    TOPICS,
    distinct,
    log_odds,
    repeated,
    side_of_zero,
    spearman,
    spelled,
    voices,
)
from counterpoint.studies.plots import COLOURS
from counterpoint.studies.render import figure, share
from counterpoint.studies.study import Block, Experiment, Measure, Options, Plot, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALONE, JOINT = "alone", "one prompt"
RULES = ("product", "raking", "projective", "mixture")
JUDGED = [
    "Tell me something interesting.",
    "What did you do today?",
    "Give me some advice.",
    "Write a few sentences.",
    "What is on your mind?",
    "Tell me a short story.",
    "What do you like most?",
    "Say something nice.",
]
DIAGNOSED = ["Introduce yourself.", "What should I know?", "What happened yesterday?", "Describe a thing you love."]
LEAST = 0.05
"""A component whose texts speak for it by fewer nats a token is not judged: there is nothing to keep."""


def grid(options: Options) -> list[dict[str, Any]]:
    """Each component alone, every pair under the product, and one pair a style under the other rules."""
    styles, topics = (list(names)[: 3 if options.quick else None] for names in (STYLES, TOPICS))
    rounds = [
        [[style, topics[(i + turn) % len(topics)]] for i, style in enumerate(styles)] for turn in range(len(topics))
    ]
    partners = {
        name: [other for pair in rounds[0] if name in pair for other in pair if other != name]
        for name in [*styles, *topics]
    }
    common = {
        "model": MODEL,
        "contexts": CONTEXTS,
        "paraphrases": PARAPHRASES,
        "judged_prompts": JUDGED[:2] if options.quick else JUDGED,
        "diagnosed_prompts": DIAGNOSED[:2] if options.quick else DIAGNOSED,
        "tokens": 8 if options.quick else 24,
        "temperature": 1.0,
    }

    def point(rule: str, components: Sequence[str], judges: Sequence[str]) -> dict[str, Any]:
        return {"rule": rule, "components": list(components), "judges": list(judges), **common}

    return [
        *(point(ALONE, [name], [name, *partners[name]]) for name in [*styles, *topics]),
        *(
            point(rule, pair, pair)
            for rule in ("product", "raking", JOINT, "mixture", "projective")
            for pair in rounds[0]
        ),
        *(point("product", pair, pair) for pairs in rounds[1 : 1 if options.quick else None] for pair in pairs),
    ]


def cell(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Let a pair, or a component alone, answer the judged prompts, and judge; diagnose the product on other prompts."""
    rule, names, prompts = settings["rule"], settings["components"], settings["judged_prompts"]
    contexts = {name: settings["contexts"][name] for name in names}
    if rule == JOINT:
        contexts = {"both": " ".join(contexts.values())}
    model = voices(settings["model"], contexts)
    if rule in RULES:
        model.set_rule(rule)
    speaker = COMPOSED if rule in RULES else next(iter(contexts))
    tasks = [Task(i, prompt, speaker) for i, prompt in enumerate(prompts)]
    diagnosed = settings["diagnosed_prompts"] if rule == "product" else []
    tasks += [Task(i, prompt, speaker) for i, prompt in enumerate(diagnosed, len(prompts))]
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
    judge = voices(settings["model"], {name: settings["paraphrases"][name] for name in settings["judges"]})
    found = _judgement(judge, model, texts[: len(prompts)])
    if rule != JOINT:
        moved = [[_mean(row) for row in text.moved] for text in texts[: len(prompts)]]
        found |= {f"own_odds/{name}": [text[i] for text in moved] for i, name in enumerate(names)}
    return found | (_diagnosis(texts[len(prompts) :], names) if diagnosed else {})


def _judgement(judge: ComposedModel, model: ComposedModel, texts: Sequence[Text]) -> dict[str, Any]:
    written = [spelled(model, text) for text in texts]
    odds = log_odds(judge, [str(text.prompt) for text in texts], written)
    return {
        "base_log_prob": odds.pop("base"),
        **{f"odds/{name}": values for name, values in odds.items()},
        "distinct": distinct([text.tokens for text in texts]),
        "repeated": [repeated(text.tokens) for text in texts],
        "length": [len(text.tokens) for text in texts],
    }


def _diagnosis(texts: Sequence[Text], names: Sequence[str]) -> dict[str, Any]:
    diagnosis = diagnose(texts, names, formula="", settings={}, versions={})
    found = {name: getattr(diagnosis, name).mean for name in OF_PAIR}
    for component, figures in diagnosis.by_component.items():
        found |= {f"{name}/{component}": getattr(figures, name).mean for name in OF_COMPONENT}
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def smaller(values: Iterable[float]) -> float:
    return min(values)


def larger(values: Iterable[float]) -> float:
    return max(values)


OF_PAIR = {
    "log_partition": "mean log Z",
    "abs_log_partition": "mean size of log Z",
    "both_active_share": "places where both are active",
    "orphan_share": "places whose top token is no voice's",
}
OF_COMPONENT: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "retained_evidence": ("retained evidence", smaller),
    "gap": ("projectivity gap", larger),
    "bin_distance": ("bin distance", larger),
    "activity": ("activity", smaller),
}
"""What the diagnosis says of each component, and whether the smaller or the larger of two speaks for the pair."""

MEASURES = {
    "odds": Measure(
        "log-odds of a component, its context in other words, against the base, nats a token of a judged text", "unit"
    ),
    "own_odds": Measure("the same with the component's own context", "unit"),
    "base_log_prob": Measure("log-probability under the base, nats a token of a judged text", "unit"),
    "distinct": Measure("different 2-grams of tokens, a share, over the judged texts together", within=(0, 1)),
    "repeated": Measure("share of a judged text's 4-grams of tokens that were there before", "unit", (0, 1)),
    "length": Measure("tokens of a judged text", "unit"),
    "log_partition": Measure("diagnosis: mean log Z, nats"),
    "abs_log_partition": Measure("diagnosis: mean |log Z|, nats"),
    "both_active_share": Measure("diagnosis: share of positions where both components are active", within=(0, 1)),
    "orphan_share": Measure("diagnosis: share of positions whose top token is no voice's", within=(0, 1)),
    "retained_evidence": Measure("diagnosis: retained evidence of a component"),
    "gap": Measure("diagnosis: projectivity gap of a component, nats"),
    "bin_distance": Measure("diagnosis: bin distance of a component", within=(0, 1)),
    "activity": Measure("diagnosis: activity of a component, nats"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a pair under a rule.

    Attributes:
        kept: of style and topic, the log-odds on the pair's texts as a share of those that it reaches alone, judged by
            paraphrase.
        halves: the smaller of `kept` on the first half of the judged prompts, and on the second.
        own_kept: as `kept`, judged by the contexts that wrote the texts: no fair judge; None where not measured.
        perplexity: under the base, a token.
        distinct, repeated: 2-grams and 4-grams, see `MEASURES`.
    """

    kept: tuple[float, float]
    halves: tuple[float, float]
    own_kept: tuple[float, float] | None
    perplexity: float
    distinct: float
    repeated: float


def off(kept: Iterable[float]) -> float:
    """How far the worse component is from saying as much as when it speaks alone, whether less or more."""
    return max(abs(share - 1) for share in kept)


OUTCOMES: dict[str, tuple[str, Callable[[Outcome], float]]] = {
    "success": ("kept by the weaker", lambda found: min(found.kept)),
    "off": ("off from 100 %, the worse", lambda found: off(found.kept)),
    "style": ("kept by the style", lambda found: found.kept[0]),
    "topic": ("kept by the topic", lambda found: found.kept[1]),
    "perplexity": ("perplexity under the base", lambda found: found.perplexity),
    "distinct": ("different 2-grams", lambda found: found.distinct),
    "repeated": ("repeated 4-grams", lambda found: found.repeated),
}
SAID_ALONE = {"style alone": 0, "topic alone": 1}
COMPARED = ("product", "raking", JOINT, "mixture", "projective", *SAID_ALONE)


def outcome(findings: Findings, rule: str, pair: Sequence[str]) -> Outcome | None:
    """A pair's outcome, under a rule or as in `COMPARED`; None where it was not run or not judged.

    It is not judged where a component says next to nothing even alone, see `LEAST`.
    """
    alone = [_found(findings, ALONE, [name]) for name in pair]
    spoken = alone[SAID_ALONE[rule]] if rule in SAID_ALONE else _found(findings, rule, pair)
    if spoken is None or any(f"odds/{name}" not in spoken.figures for name in pair):
        return None

    def kept(measure: str, part: slice = slice(None)) -> tuple[float, float] | None:
        shares = []
        for name, own in zip(pair, alone, strict=True):
            reached = _average(own, f"{measure}/{name}") if own else None
            said = _average(spoken, f"{measure}/{name}", part)
            if said is None or reached is None or reached < LEAST:
                return None
            shares.append(said / reached)
        return shares[0], shares[1]

    half = len(spoken.settings["judged_prompts"]) // 2
    whole, first, second = kept("odds"), kept("odds", slice(None, half)), kept("odds", slice(half, None))
    if whole is None or first is None or second is None:
        return None
    return Outcome(
        kept=whole,
        halves=(min(first), min(second)),
        own_kept=kept("own_odds") if all(f"own_odds/{name}" in spoken.figures for name in pair) else None,
        perplexity=math.exp(-(_average(spoken, "base_log_prob") or 0.0)),
        distinct=spoken.number("distinct").mean or 0.0,
        repeated=_average(spoken, "repeated") or 0.0,
    )


def _found(findings: Findings, rule: str, components: Sequence[str]) -> Finding | None:
    found = [p for p in findings.points if p.settings["rule"] == rule and p.settings["components"] == list(components)]
    return found[0] if found else None


def _average(point: Finding, measure: str, part: slice = slice(None)) -> float | None:
    """The mean over the texts of all seeds; `part` picks texts of each seed."""
    return _mean([value for values in point.values(measure) for value in values[part]])


@dataclass(frozen=True)
class Case:
    """A pair that was diagnosed and, under the product, judged on other prompts.

    Attributes:
        pair: style and topic.
        diagnosis: by measure, the pair's figure.
        components: by measure, the two components' figures.
        outcome: of the product.
    """

    pair: tuple[str, str]
    diagnosis: Mapping[str, float]
    components: Mapping[str, tuple[float, float]]
    outcome: Outcome


def cases(findings: Findings) -> list[Case]:
    """All pairs that were judged and have every figure of the diagnosis defined."""
    found = []
    for point in findings.points:
        if point.settings["rule"] != "product":
            continue
        style, topic = point.settings["components"]
        judged = outcome(findings, "product", (style, topic))
        of_pair = {name: point.number(name).mean for name in OF_PAIR}
        both = {name: [point.number(f"{name}/{one}").mean for one in (style, topic)] for name in OF_COMPONENT}
        figures = [*of_pair.values(), *(value for values in both.values() for value in values)]
        if judged is None or judged.own_kept is None or any(value is None for value in figures):
            continue
        components = {name: (float(one or 0.0), float(other or 0.0)) for name, (one, other) in both.items()}
        diagnosis = {name: float(value or 0.0) for name, value in of_pair.items()}
        diagnosis |= {name: worst(components[name]) for name, (_, worst) in OF_COMPONENT.items()}
        found.append(Case((style, topic), diagnosis, components, judged))
    return found


TARGETS: dict[str, tuple[str, Callable[[Outcome], float]]] = {
    "success": ("kept by the weaker, judged by paraphrase", lambda found: min(found.kept)),
    "off": ("off from 100 %, the worse, judged by paraphrase", lambda found: off(found.kept)),
    "own": ("kept by the weaker, judged by the contexts themselves", lambda found: min(found.own_kept or (0.0,))),
    "perplexity": ("perplexity under the base", lambda found: found.perplexity),
}


def compare(findings: Findings) -> dict[str, Interval]:
    """Rank correlations over pairs, and the rules on the pairs that all of them were run on."""
    compared: dict[str, Interval] = {}
    known = cases(findings)
    for target, (_, value) in TARGETS.items():
        ends = [[value(case.outcome)] for case in known]
        for name in [*OF_PAIR, *OF_COMPONENT]:
            compared[f"pairs/{name}/{target}"] = _correlation([[case.diagnosis[name]] for case in known], ends)
    for name in OF_COMPONENT:
        figures, kept = [case.components[name] for case in known], [case.outcome.kept for case in known]
        compared[f"components/{name}"] = _correlation(figures, kept)
    halves = [case.outcome.halves for case in known]
    compared["pairs/halves"] = _correlation([[one] for one, _ in halves], [[other] for _, other in halves])
    compared["success"] = _interval([min(case.outcome.kept) for case in known])
    compared["failed"] = _interval([float(min(case.outcome.kept) < FAILED) for case in known], (0, 1))
    compared["overshot"] = _interval([float(max(case.outcome.kept) > OVERSHOT) for case in known], (0, 1))
    table = ruled(findings)
    for rule, outcomes in table.items():
        for name, (_, value) in OUTCOMES.items():
            values, products = [value(o) for o in outcomes], [value(o) for o in table["product"]]
            compared[f"rules/{rule}/{name}"] = _interval(values)
            compared[f"differences/{rule}/{name}"] = _interval(numpy.subtract(values, products).tolist())
    return compared


def ruled(findings: Findings) -> dict[str, list[Outcome]]:
    """By rule, the outcomes of the pairs that were run and judged in every way of `COMPARED`, in one order."""
    pairs = [p.settings["components"] for p in findings.points if p.settings["rule"] == "product"]
    rows = [[outcome(findings, rule, pair) for rule in COMPARED] for pair in pairs]
    whole = [[one for one in row if one is not None] for row in rows]
    whole = [row for row in whole if len(row) == len(COMPARED)]
    return {rule: [row[i] for row in whole] for i, rule in enumerate(COMPARED)}


def _correlation(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Interval:
    """Spearman's ρ of all numbers, its interval over pairs; the numbers of a pair are drawn together."""
    one, other = numpy.array(first, dtype=float), numpy.array(second, dtype=float)
    if len(one) < 3:
        return NOTHING

    def statistic(drawn: Any, axis: int) -> Any:
        rows = numpy.asarray(drawn, dtype=int)
        return spearman(one[rows].reshape(*rows.shape[:-1], -1), other[rows].reshape(*rows.shape[:-1], -1))

    return bootstrap(numpy.arange(len(one)), 0, statistic)


def _interval(values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    return bootstrap(values, 0) if len(values) >= MANY_UNITS else student(values, within=within)


def report(findings: Findings) -> list[Block]:
    """The section: the question, what was measured, and in words what came out."""
    known, table, first = cases(findings), ruled(findings), findings.points[0].settings
    pairs = sum(point.settings["rule"] == "product" for point in findings.points)
    texts = len(first["judged_prompts"])
    return [
        "**Question.** Does the diagnosis of a pair tell, before it is used, whether composing it will work? And does "
        "another rule, or plainly asking for both in one prompt, work better?",
        f"**Here.** {first['model']} with a style and a topic as system prompts, the model without one as the base. "
        f"Each of {pairs} pairs is diagnosed on {len(first['diagnosed_prompts'])} prompts, under the product, and "
        f"judged on {texts} other prompts; all texts are sampled, {first['tokens']} tokens each.",
        "**Judge.** There is no outside judge here, so the model judges itself: a component's say in a text is the "
        "text's log-odds under the component against the base, nats a token, and what is **kept** is its say in the "
        "composed texts as a share of its say in the texts that it writes alone, on the same prompts. Success is what "
        "the weaker of the two keeps; above 100 % a component is overstated. Retained evidence, from the diagnosis, is "
        "nearly the same quantity; two things keep them apart: judged prompts are not those of the diagnosis, and the "
        "judging component has the style or topic in other words than the one that wrote the text. Judging by the "
        "contexts themselves is shown beside it, and is not fair. That a text speaks for its style and topic does not "
        "make it a good text.",
        *_whether_it_tells(findings, known),
        *_rules(findings, table),
    ]


FAILED = 0.5
"""A composition failed where a component keeps less than half of its say."""
OVERSHOT = 1.5
"""Beyond it a component says so much more than when it speaks alone that the text is a caricature of it."""


def _whether_it_tells(findings: Findings, known: Sequence[Case]) -> list[Block]:
    if len(known) < 3:
        return [f"Only {len(known)} pairs could be judged; correlations need more."]
    names = {**OF_PAIR, **{name: f"{worst.__name__} {text}" for name, (text, worst) in OF_COMPONENT.items()}}
    levels = Counter(GAP.level(case.diagnosis["gap"]) for case in known)
    return [
        Table(
            f"Spearman's rank correlation over {len(known)} pairs, with bootstrap intervals over pairs",
            ["diagnosis", *(text for text, _ in TARGETS.values())],
            [
                [text, *(figure(findings.compared[f"pairs/{name}/{target}"], 2) for target in TARGETS)]
                for name, text in names.items()
            ],
        ),
        Table(
            f"The same over the {2 * len(known)} components of the pairs: a component's own figure, and what it keeps",
            ["diagnosis", "kept, judged by paraphrase"],
            [[text, figure(findings.compared[f"components/{name}"], 2)] for name, (text, _) in OF_COMPONENT.items()],
        ),
        Plot(
            "contexts-diagnosis",
            "Each point is a pair: its diagnosis, and what the weaker component keeps on other prompts, judged by "
            "paraphrase.",
            "Success against three measures of the diagnosis",
            _scatter(known, findings),
            (9.0, 3.6),
        ),
        f"**How well pairs fare.** The weaker component keeps {share(findings.compared['success'])} of its say on "
        f"average; it keeps less than half in {share(findings.compared['failed'])} of the pairs. In "
        f"{share(findings.compared['overshot'])} a component says more than 1.5 times as much as alone. By the larger "
        "gap, the verdict of `counterpoint diagnose` would be "
        f"{', '.join(f'{level} for {levels[level]}' for level in ORDER if levels[level])}.",
        f"**Does the diagnosis tell?** {_telling(findings, names)}",
    ]


def _telling(findings: Findings, names: Mapping[str, str]) -> str:
    halves = findings.compared["pairs/halves"]
    said = [
        f"For {TARGETS[target][0]}: {_told(findings, names, target)}." for target in ("success", "off", "perplexity")
    ]
    return (
        f"{' '.join(said)} What there is to predict is itself noisy: what the weaker keeps on one half of the judged "
        f"prompts correlates with the other half at {figure(halves, 2)}."
    )


def _told(findings: Findings, names: Mapping[str, str], target: str) -> str:
    """Which correlations with a target are told from 0 by their intervals."""
    found = {name: findings.compared[f"pairs/{name}/{target}"] for name in names}
    sure = [f"{names[name]} ({figure(one, 2)})" for name, one in found.items() if side_of_zero(one)]
    unsure = [text for name, text in names.items() if not side_of_zero(found[name])]
    if not sure:
        return "no measure's correlation is told from 0"
    return f"told from 0 are {', '.join(sure)}" + (f"; not {', '.join(unsure)}" if unsure else "")


def _rules(findings: Findings, table: Mapping[str, Sequence[Outcome]]) -> list[Block]:
    count = len(table["product"])
    if count < 2:
        return []
    shown = {name: figure if name == "perplexity" else share for name in OUTCOMES}
    others = [rule for rule in COMPARED if rule != "product"]
    return [
        Table(
            f"Rules on the same {count} pairs: means with intervals over pairs. *One prompt* asks a single model for "
            "both",
            ["", *(text for text, _ in OUTCOMES.values())],
            [
                [rule, *(shown[name](findings.compared[f"rules/{rule}/{name}"]) for name in OUTCOMES)]
                for rule in COMPARED
            ],
        ),
        Table(
            "Paired differences from the product",
            ["", *(text for text, _ in OUTCOMES.values())],
            [
                [rule, *(shown[name](findings.compared[f"differences/{rule}/{name}"]) for name in OUTCOMES)]
                for rule in others
            ],
        ),
        Plot(
            "contexts-rules",
            "What style and topic keep of their say, judged by paraphrase, and perplexity under the base; with 95 % "
            "intervals over pairs.",
            "Bars of the rules",
            _bars(findings),
            (9.0, 3.8),
        ),
        f"**Which way of combining?** {' '.join(_against_product(findings, rule) for rule in others)}",
    ]


def _against_product(findings: Findings, rule: str) -> str:
    success, away = (findings.compared[f"differences/{rule}/{name}"] for name in ("success", "off"))
    perplexity = findings.compared[f"differences/{rule}/perplexity"]
    kept = {1: "wins on what the weaker keeps", -1: "loses on what the weaker keeps", 0: "is not told apart on it"}
    near = {1: "farther from 100 %", -1: "nearer to 100 %", 0: "as far from 100 % as can be told"}
    fluent = {1: "at a higher perplexity", -1: "at a lower perplexity", 0: "at a perplexity not told apart"}
    return (
        f"Against the product, *{rule}* {kept[side_of_zero(success)]} ({share(success)}), is "
        f"{near[side_of_zero(away)]} ({share(away)}), "
        f"{fluent[side_of_zero(perplexity)]} ({figure(perplexity)})."
    )


SCATTERED = ("log_partition", "retained_evidence", "gap")


def _scatter(known: Sequence[Case], findings: Findings) -> Callable[[Figure], None]:
    styles = list(dict.fromkeys(case.pair[0] for case in known))
    names = {**OF_PAIR, **{name: f"{worst.__name__} {text}" for name, (text, worst) in OF_COMPONENT.items()}}

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(SCATTERED), sharey=True)
        for axis, name in zip(axes, SCATTERED, strict=True):
            for i, style in enumerate(styles):
                here = [case for case in known if case.pair[0] == style]
                axis.scatter(
                    [case.diagnosis[name] for case in here],
                    [min(case.outcome.kept) for case in here],
                    s=22,
                    color=COLOURS[i % len(COLOURS)],
                    marker="osD^vP"[i % 6],
                    label=style,
                )
            correlation = findings.compared[f"pairs/{name}/success"].mean
            axis.set_title("" if correlation is None else f"Spearman's ρ = {correlation:.2f}", fontsize=10)
            axis.set_xlabel(names[name])
            axis.axhline(FAILED, color="#888888", linewidth=0.8, linestyle=":")
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("kept by the weaker component")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(styles), frameon=False
        )

    return draw


def _bars(findings: Findings) -> Callable[[Figure], None]:
    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[2, 1])
        places = numpy.arange(len(COMPARED))
        for i, name in enumerate(("style", "topic")):
            _draw_bars(left, places + 0.4 * i - 0.2, findings, name, 0.38, COLOURS[i])
        _draw_bars(right, places, findings, "perplexity", 0.7, COLOURS[2])
        left.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
        left.axhline(0, color="#000000", linewidth=0.8)
        left.set_ylabel("share of its say that is kept")
        right.set_ylabel("perplexity under the base")
        left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=2)
        for axis in (left, right):
            axis.set_xticks(places, COMPARED, rotation=40, ha="right")
            axis.spines[["top", "right"]].set_visible(False)

    return draw


def _draw_bars(axis: Any, places: Any, findings: Findings, name: str, width: float, colour: str) -> None:
    intervals = [findings.compared[f"rules/{rule}/{name}"] for rule in COMPARED]
    means = [interval.mean or 0.0 for interval in intervals]
    below = [mean - (mean if one.low is None else one.low) for mean, one in zip(means, intervals, strict=True)]
    above = [(mean if one.high is None else one.high) - mean for mean, one in zip(means, intervals, strict=True)]
    axis.bar(places, means, width, yerr=[below, above], color=colour, label=OUTCOMES[name][0], error_kw={"lw": 1})


EXPERIMENT = Experiment(
    name="contexts",
    title="Styles and topics: does the diagnosis tell which compositions fail?",
    revision=1,
    grid=grid,
    cell=cell,
    measures=MEASURES,
    report=report,
    compare=compare,
    seeds=1,
    quick_seeds=1,
)
