"""Styles and topics: the judge against plain forwards, shares and correlations by hand, the smallest runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import PreTrainedModel

from counterpoint.studies.findings import Finding, Findings, summarise
from counterpoint.studies.logit_composition import contexts, length, speaking
from counterpoint.studies.render import page, plots
from counterpoint.studies.run import read_results, run
from counterpoint.studies.study import Experiment, Options, Study
from worlds import tiny_model, tiny_tokenizer

PROMPTS = ["say it", "go on, say more", "why"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """A random model in place of the embedded one."""
    both = tiny_model(), tiny_tokenizer()
    for module in (speaking, length):
        monkeypatch.setattr(module, "backbone", lambda name: both)
    return both[0]


def test_the_judge_is_plain_forwards(tiny: PreTrainedModel) -> None:
    judge = speaking.voices("tiny", {"one": "be good", "other": "be bad to me"})
    texts = ["a cat", "oh no, not that", ""]
    found = speaking.log_odds(judge, PROMPTS, texts)
    tokenizer = tiny_tokenizer()

    def plain(context: str, prompt: str, text: str) -> float:
        """With `be nice` as the context that the template puts where there is none."""
        before = f"<|start|>system {context}<|end|><|start|>user {prompt}<|end|><|start|>assistant "
        ids = tokenizer(before + text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        count = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            logs = tiny(ids).logits.log_softmax(-1)[0, :-1]
        return logs[-count:].gather(-1, ids[0, -count:, None]).mean().item()

    for i, text in enumerate(texts[:2]):
        base = plain("be nice", PROMPTS[i], text)
        assert found["base"][i] == pytest.approx(base, abs=1e-4)
        assert found["one"][i] == pytest.approx(plain("be good", PROMPTS[i], text) - base, abs=1e-4)
        assert found["other"][i] == pytest.approx(plain("be bad to me", PROMPTS[i], text) - base, abs=1e-4)
    assert [values[2] for values in found.values()] == [None] * 3


def test_grams_by_hand() -> None:
    assert speaking.distinct([list("abab"), list("ab")]) == 2 / 4
    assert speaking.distinct([["a"]]) is None
    assert speaking.repeated(list("abcdabcd")) == pytest.approx(1 / 5)
    assert speaking.repeated(list("abc")) is None


def test_spearman_by_hand() -> None:
    assert speaking.spearman([1, 5, 9], [2, 3, 100]) == pytest.approx(1)
    assert speaking.spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert speaking.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert speaking.spearman([1, 1, 1], [1, 2, 3]) == 0


def test_no_voice_ends_a_text(tiny: PreTrainedModel) -> None:
    ids = torch.tensor([[5, 6, 7]])
    before = tiny(ids).logits
    with length.endless(tiny, [3, 4]):
        inside = tiny(ids).logits
    assert (inside[..., [3, 4]] == length.NEVER).all()
    assert torch.equal(inside[..., 5:], before[..., 5:])
    assert torch.equal(tiny(ids).logits, before)


POINT = {"judged_prompts": ["a", "b"], "diagnosed_prompts": ["c"], "tokens": 8, "model": "m"}
PAIRS = [(style, topic) for style in ("pirate", "poet", "lawyer") for topic in ("sea", "food")]


def finding(rule: str, components: Sequence[str], figures: Mapping[str, Any]) -> Finding:
    summed = {name: summarise([value], contexts.MEASURES[name.partition("/")[0]]) for name, value in figures.items()}
    return Finding({**POINT, "rule": rule, "components": list(components)}, [0], summed)


def spoken(names: Sequence[str], odds: Sequence[list[float]]) -> dict[str, Any]:
    said = {f"{kind}/{name}": values for kind in ("odds", "own_odds") for name, values in zip(names, odds, strict=True)}
    return {**said, "base_log_prob": [-1.0, -3.0], "distinct": 0.9, "repeated": [0.0, 0.5], "length": [8, 8]}


def test_outcomes_by_hand() -> None:
    alone = [
        finding("alone", ["pirate"], spoken(["pirate", "sea"], [[0.4, 0.6], [0.0, 0.2]])),
        finding("alone", ["sea"], spoken(["sea", "pirate"], [[1.0, 1.0], [-0.5, 0.0]])),
        finding("alone", ["money"], spoken(["money"], [[0.01, 0.02]])),
    ]
    product = finding("product", ["pirate", "sea"], spoken(["pirate", "sea"], [[0.5, 0.1], [0.4, 0.8]]))
    weak = finding("product", ["pirate", "money"], spoken(["pirate", "money"], [[0.5, 0.1], [0.4, 0.8]]))
    findings = Findings([*alone, product, weak], {})
    found = contexts.outcome(findings, "product", ["pirate", "sea"])
    assert found is not None
    assert found.kept == pytest.approx((0.6, 0.6))
    assert found.halves == pytest.approx((0.4, 0.2))
    assert (found.perplexity, found.distinct, found.repeated) == pytest.approx((math.exp(2), 0.9, 0.25))
    assert contexts.off((0.7, 1.4)) == pytest.approx(0.4)
    topic_alone = contexts.outcome(findings, "topic alone", ["pirate", "sea"])
    assert topic_alone is not None
    assert topic_alone.kept == pytest.approx((-0.5, 1.0))
    assert contexts.outcome(findings, "raking", ["pirate", "sea"]) is None
    assert contexts.outcome(findings, "product", ["pirate", "money"]) is None  # money says too little even alone


def made_up() -> Findings:
    """Three styles, two topics; what a pair keeps falls with its gap, and raking keeps 0.1 more than the product."""
    points = []
    for style, topic in PAIRS:
        for own, other in ((style, topic), (topic, style)):
            points.append(finding("alone", [own], spoken([own, other], [[1.0, 1.0], [0.0, 0.0]])))
    points = list({tuple(point.settings["components"]): point for point in points}.values())
    for point in points:  # every component is judged by all
        for name in {name for pair in PAIRS for name in pair}:
            point.figures.setdefault(f"odds/{name}", summarise([[0.0, 0.0]], contexts.MEASURES["odds"]))  # type: ignore[attr-defined]
    for i, pair in enumerate(PAIRS):
        for rule in ("product", "raking", "one prompt", "mixture", "projective"):
            kept = 0.9 - 0.1 * i + 0.1 * (rule == "raking") - 0.3 * (rule == "mixture") + 0.01 * i * (rule != "product")
            figures = spoken(pair, [[kept, kept], [1.0, 1.0]])
            if rule == "product":
                figures |= dict.fromkeys(contexts.OF_PAIR, 0.1 * i)
                figures |= {f"{name}/{one}": 0.3 for name in contexts.OF_COMPONENT for one in pair}
                figures[f"gap/{pair[0]}"] = 0.4 + 0.1 * i
            points.append(finding(rule, pair, figures))
    findings = Findings(points, {})
    return replace(findings, compared=contexts.compare(findings))


def test_the_section_says_what_was_found() -> None:
    findings = made_up()
    assert findings.compared["pairs/gap/success"].mean == pytest.approx(-1)
    assert findings.compared["pairs/activity/success"].mean == 0  # the same for all pairs
    assert findings.compared["failed"].mean == pytest.approx(1 / 6)
    difference = findings.compared["differences/raking/success"]
    assert difference.mean == pytest.approx(0.1 + 0.01 * 2.5)
    assert findings.compared["rules/style alone/topic"].mean == 0
    text = " ".join(block for block in contexts.report(findings) if isinstance(block, str))
    assert "For kept by the weaker, judged by paraphrase: told from 0 are mean log Z (-1 (-1 to -1))" in text
    assert "For perplexity under the base: no measure's correlation is told from 0." in text
    assert "*raking* wins on what the weaker keeps (12.5 % (10.5–14.5)), is nearer to 100 % (-12.5 %" in text
    assert "*raking* wins on what the weaker keeps" in text
    assert "*mixture* loses on what the weaker keeps" in text
    assert "the verdict of `counterpoint diagnose` would be interference for 6" in text


def test_correlation_draws_both_components_of_a_pair_together() -> None:
    first = [(float(i), float(-i)) for i in range(30)]
    interval = contexts._correlation(first, first)
    assert interval == pytest.approx((1, 1, 1))
    noise = numpy.random.default_rng(0).normal(size=(30, 2)).tolist()
    interval = contexts._correlation(first, noise)
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < 0 < interval.high


def smallest(experiment: Experiment, grid: Sequence[Mapping[str, Any]]) -> Study:
    changed = replace(experiment, grid=lambda options: grid)
    return Study("some", "Some", "About.", (changed,))


def test_the_smallest_run_of_contexts(tiny: PreTrainedModel, tmp_path: Path) -> None:
    grid = contexts.EXPERIMENT.grid(Options(quick=True))
    grid = [{**point, "tokens": 5, "contexts": SHORT, "paraphrases": SHORT} for point in grid]
    study = smallest(
        contexts.EXPERIMENT, [{**p, "judged_prompts": PROMPTS[:2], "diagnosed_prompts": PROMPTS[2:]} for p in grid]
    )
    run(study, Options(quick=True), tmp_path)
    results = read_results(tmp_path, study.name)
    points = results["experiments"]["contexts"]["points"]
    assert {p["settings"]["rule"] for p in points} == {"alone", "one prompt", *contexts.RULES}
    for point in points:
        assert all(1 <= length <= 5 for length in point["figures"]["length"]["values"][0])
        for name in point["settings"]["judges"]:
            assert all(math.isfinite(value) for value in point["figures"][f"odds/{name}"]["values"][0])
    assert "Judge." in page(study, results, "pictures")


SHORT = {name: f"be {name}" for name in speaking.CONTEXTS}


def test_the_smallest_run_of_length(tiny: PreTrainedModel, tmp_path: Path) -> None:
    grid = [{**p, "contexts": {"a": "be a", "b": "be b"}, "prompts": PROMPTS} for p in length.grid(Options(quick=True))]
    study = smallest(length.EXPERIMENT, grid)
    run(study, Options(quick=True), tmp_path)
    results = read_results(tmp_path, study.name)
    product, raking = results["experiments"]["length"]["points"]
    figures = product["figures"]
    for end in (8, 16, 24):
        assert len(figures[f"gap/{end}"]["values"][0]) == 3
    steps = sum(figures[f"log_partition/{end}"]["mean"] * 8 for end in (8, 16, 24))
    assert figures["cumulative/24"]["mean"] == pytest.approx(steps, abs=1e-3)
    assert raking["settings"]["rule"] == "raking"
    assert "from the second window to the last" in " ".join(page(study, results, "pictures").split())
    assert [plot.name for plot in plots(study, results)] == ["length-measures", "length-cumulative"]


@pytest.mark.embedded
def test_a_pirate_is_heard_by_another_wording() -> None:
    """Pirates' slang is likelier under another description of pirates than under the base; a recipe is not."""
    judge = speaking.voices(speaking.MODEL, {"pirate": speaking.PARAPHRASES["pirate"]})
    texts = ["Arr, matey! Shiver me timbers, ye scurvy dog!", "The committee approved the annual budget on Monday."]
    slang, plain = speaking.log_odds(judge, ["Tell me something."] * 2, texts)["pirate"]
    assert slang is not None
    assert plain is not None
    assert slang > 0.3 > plain
