"""Worlds with known truth: laws against sums in plain Python, dials at 0, the statistics by hand, the smallest run."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from counterpoint.studies.findings import Finding, Findings
from counterpoint.studies.logit_composition import cuts, tabular, worlds, worlds_report
from counterpoint.studies.logit_composition.tabular import Violation, World
from counterpoint.studies.render import page
from counterpoint.studies.run import read_results, run
from counterpoint.studies.study import Options, Study

DIALS = [field.name for field in dataclasses.fields(Violation)]
SIZES = [3, 2, 2]


def world(violation: Violation, seed: int = 0, sizes: Sequence[int] = SIZES) -> World:
    return tabular.draw_world(seed, sizes, violation)


def sequences(table: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence, by a product in plain Python."""
    rows, vocabulary = table.tolist(), range(table.shape[1])
    found = {}
    for sequence in itertools.product(vocabulary, repeat=length):
        probability, state = 1.0, len(rows) - 1
        for token in sequence:
            probability, state = probability * rows[state][token], token
        found[sequence] = probability
    return found


def distance(one: dict, other: dict) -> float:
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2


def summed(law: dict, key: object) -> dict:
    found: dict = {}
    for sequence, probability in law.items():
        found[key(sequence)] = found.get(key(sequence), 0.0) + probability  # type: ignore[operator]
    return found


@pytest.mark.parametrize("length", [1, 3])
def test_every_law_is_the_sum_over_all_sequences(length: int) -> None:
    violated = world(Violation(correlated=1.0, overlap=0.5, shared=0.5, wrong_base=0.5, rough=0.3, listening=0.5))
    log_hat = worlds.compose(violated, "product")
    table = log_hat.exp()
    ours = sequences(table, length)
    assert sum(ours.values()) == pytest.approx(1)
    steps = tabular.marginal_errors(table, violated, length)
    whole = tabular.feature_sequence_errors(table, violated, length)
    for i, classes in enumerate(violated.owned.tolist()):
        theirs = sequences(violated.log_components[i].exp(), length)
        for t in range(length):
            laws = [summed(law, lambda s, t=t, c=classes: c[s[t]]) for law in (ours, theirs)]
            assert steps[i, t].item() == pytest.approx(distance(*laws), abs=1e-12)
        laws = [summed(law, lambda s, c=classes: tuple(c[v] for v in s)) for law in (ours, theirs)]
        assert whole[i].item() == pytest.approx(distance(*laws), abs=1e-12)
    before = [summed(ours, lambda s, t=t: s[t - 1] if t else len(table) - 1) for t in range(length)]
    shares = [sum(law.get(state, 0.0) for law in before) / length for state in range(len(table))]
    assert tabular.visits(table, length).tolist() == pytest.approx(shares)
    target = sequences(violated.log_target.exp(), length)
    exact = distance(ours, target)
    assert tabular.sequence_error(log_hat, violated.log_target, length) == pytest.approx(exact, abs=1e-12)
    assert tabular.sequence_bound(table, violated.log_target.exp(), length) >= exact - 1e-12
    [sampled], [deviation] = tabular.sampled_sequence_errors(log_hat, violated.log_target, [length], 20_000, 0)
    assert sampled == pytest.approx(exact, abs=4 * deviation)
    assert 0 < deviation < 0.01


def test_conditional_errors_by_hand() -> None:
    violated = world(Violation(overlap=0.7))
    table = worlds.compose(violated, "product").exp()
    weight = tabular.visits(table, 4).tolist()
    for i, classes in enumerate(violated.owned.tolist()):
        expected = 0.0
        for state, often in enumerate(weight):
            rows = (table[state].tolist(), violated.log_components[i][state].exp().tolist())
            laws = [[sum(row[v] for v, c in enumerate(classes) if c == one) for one in set(classes)] for row in rows]
            expected += often * sum(abs(a - b) for a, b in zip(*laws, strict=True)) / 2
        assert tabular.conditional_errors(table, violated, 4)[i].item() == pytest.approx(expected)


@pytest.mark.parametrize("components", [2, 3, 4])
def test_with_every_dial_at_0_nothing_is_off_and_nothing_is_measured(components: int) -> None:
    for seed in range(3):
        sizes = tabular.draw_sizes(seed, components)
        assert tabular.SMALLEST <= math.prod(sizes) <= tabular.LARGEST
        clean = world(Violation(), seed, sizes)
        log_hat = worlds.compose(clean, "product")
        torch.testing.assert_close(log_hat, clean.log_target, atol=1e-10, rtol=0)
        assert tabular.marginal_errors(log_hat.exp(), clean, 5).max() < 1e-10
        assert tabular.conditional_errors(log_hat.exp(), clean, 5).max() < 1e-10
        said = worlds.predictors(clean, log_hat, 5)[0]
        silent = {"both_active", "orphan", "activity"}
        assert {name: value for name, value in said.items() if value > 1e-5 and name not in silent} == {}
        assert said["activity"] > 0.01
        for rule in ("raking", "projective"):
            torch.testing.assert_close(worlds.compose(clean, rule), log_hat, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dial", DIALS)
def test_every_dial_moves_the_truth_and_all_but_listening_the_measures(dial: str) -> None:
    violated = world(Violation(**{dial: 0.5}), seed=3)
    log_hat = worlds.compose(violated, "product")
    assert tabular.marginal_errors(log_hat.exp(), violated, 4)[:, 1:].max() > 1e-3
    said = worlds.predictors(violated, log_hat, 4)[0]
    moved = {"log_partition", "worst_pair", "gap", "bin_distance", "quantile_distance", "posterior", "retained"}
    if dial == "listening":
        assert max(said[name] for name in moved) < 1e-5
        assert tabular.conditional_errors(log_hat.exp(), violated, 4).max() < 1e-10
    else:
        assert min(said[name] for name in moved) > 1e-4


def test_strength_is_all_that_a_dial_changes() -> None:
    weak, strong = (world(Violation(overlap=strength)) for strength in (0.0, 1e-9))
    torch.testing.assert_close(weak.log_components, strong.log_components, atol=1e-7, rtol=0)
    mixed = world(Violation(wrong_base=1.0))
    torch.testing.assert_close(mixed.log_base.exp(), mixed.log_components.exp().mean(0))
    common = world(Violation(shared=0.8)).log_components.exp()
    laws = [tabular.class_law(one, torch.arange(12) % 2) for one in common]
    torch.testing.assert_close(laws[0], laws[1])


def test_rules_without_a_base_by_hand() -> None:
    some = world(Violation(overlap=0.5))
    mean = some.log_components.exp().mean(0)
    torch.testing.assert_close(worlds.compose(some, "mixture").exp(), mean)
    root = some.log_components.exp().prod(0).sqrt()
    torch.testing.assert_close(worlds.compose(some, "geometric").exp(), root / root.sum(-1, keepdim=True))


def test_statistics_by_hand() -> None:
    values = numpy.array([[3.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    assert cuts.ranks(values).tolist() == [[3, 0, 1.5, 1.5], [1.5, 1.5, 1.5, 1.5]]
    one, other = numpy.array([[1.0, 2, 3, 4, 5]]), numpy.array([[2.0, 1, 4, 3, 5]])
    assert cuts.spearman(one, other).tolist() == pytest.approx([1 - 6 * 4 / (5 * 24)])
    assert cuts.spearman(values[1:], values[:1]).tolist() == [0]
    high = numpy.array([[False, False, True, False, True]])
    assert cuts.best_cut(one, high).tolist() == [2.5]
    assert cuts.balanced_accuracy(one >= 2.5, high).tolist() == pytest.approx([(1 + 2 / 3) / 2])
    tied = numpy.array([[1.0, 2, 2, 2, 3]])
    assert cuts.best_cut(tied, high).tolist() in ([1.5], [2.5])
    everywhere = cuts.over_units(cuts.spearman, one[0], one[0])
    assert (everywhere.mean, everywhere.high) == pytest.approx((1.0, 1.0))


def test_half_of_each_cell_chooses_and_the_other_half_reports() -> None:
    def point(family: str, *cells: list[float]) -> Finding:
        figures = {name: {"values": cells} for name in ("error/product", "predictor/gap", "predictor/log_partition")}
        return Finding({"part": "random", "family": family}, range(len(cells)), figures)

    points = [point("factorised", [0.0, 0.1, 0.2]), point("rough", [0.3, 0.4, 0.5], [0.6, 0.7, 0.8])]
    pooled = worlds_report.pool(Findings([*points, Finding({"part": "dial"}, [0], {})], {}))
    assert pooled["error/product"][pooled.reported].tolist() == [0.1, 0.4, 0.7]
    assert pooled["error/product"][pooled.of("rough")].tolist() == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert pooled["predictor/either"].tolist() == pooled["predictor/gap"].tolist()


def test_levels_said_by_hand() -> None:
    error, said = numpy.array([0.01, 0.04, 0.05, 0.2, 0.3]), numpy.array([0.0, 0.3, 0.1, 0.1, 0.9])
    found = worlds_report._confusion("gap", error, said, [0.1, 0.5])
    assert [found[f"said/gap/clear/{level}"].mean for level in worlds_report.LEVELS] == [0.5, 0.5, 0.0]
    assert [found[f"said/gap/caution/{level}"].mean for level in worlds_report.LEVELS] == [0.0, 1.0, 0.0]
    assert [found[f"said/gap/interference/{level}"].mean for level in worlds_report.LEVELS] == [0.0, 0.5, 0.5]
    assert [found[f"worlds/{level}"].mean for level in worlds_report.LEVELS] == [2, 1, 2]


def test_random_strengths_keep_to_their_family() -> None:
    drawn = [worlds.random_violation(family, 7, worlds.TOP, 0.3) for family in worlds.FAMILIES]
    assert drawn[0] == Violation()
    assert all(getattr(v, name) > 0 for v, name in zip(drawn[1:-1], worlds.TOP, strict=True))
    assert all(
        v.overlap == 0 for v, name in zip(drawn, worlds.FAMILIES, strict=True) if name not in ("overlap", "mixed")
    )
    numbers = {worlds.world_number(f, s, i) for f in worlds.FAMILIES for s in (0, 4, 104, 204) for i in range(12)}
    assert len(numbers) == len(worlds.FAMILIES) * 4 * 12


def test_the_smallest_run_has_a_page(tmp_path: Path) -> None:
    few = {"worlds": {"random": 2, "dial": 1, "length": 1}, "samples": 100, "lengths": [1, 5]}
    settings = [{**point, **few} for point in worlds.grid(Options(quick=True))]
    experiment = dataclasses.replace(worlds.EXPERIMENT, grid=lambda options: settings)
    study = Study("logit-composition", "Logit composition", "About.", (experiment,))
    assert run(study, Options(quick=True, seeds=1), tmp_path) == []
    results = read_results(tmp_path, study.name)
    compared = results["experiments"]["worlds"]["compared"]
    assert compared["mean/factorised/product"]["mean"] < 1e-9
    assert compared["spearman/violated/gap"]["mean"] > 0
    text = page(study, results, "pictures")
    assert "no measure and no error exceeds" in " ".join(text.split())
    assert "bounds the sequence's at every length" in " ".join(text.split())
    for name in ("worlds-scatter", "worlds-dials", "worlds-repairs", "worlds-length"):
        assert f"pictures/{name}.svg" in text
