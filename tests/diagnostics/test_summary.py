"""Aggregates, their intervals and the verdict, from texts written by hand."""

from __future__ import annotations

import numpy
import pytest

from counterpoint.diagnostics.results import Text
from counterpoint.diagnostics.summary import diagnose
from counterpoint.diagnostics.verdict import GAP, LOG_PARTITION

COMPONENTS = ["pirate", "math"]


def text(index: int, time: int = 4, **changes: object) -> Text:
    plain = {
        "index": index,
        "prompt": "hi",
        "voice": "composed",
        "tokens": ["a"] * time,
        "log_probs": [-1.0] * time,
        "base_log_probs": [-2.0] * time,
        "moved": [[0.0] * time, [0.0] * time],
        "log_partition": [0.0] * time,
        "activity": [[1.0] * time, [1.0] * time],
        "evidence": [[1.0] * time, [1.0] * time],
        "gap": [[0.0] * time, [0.0] * time],
        "bin_distance": [[0.0] * time, [0.0] * time],
        "interference": [[0.0] * time],
        "orphan": [False] * time,
    }
    return Text(**{**plain, **changes})


def summed(*texts: Text, components: list[str] = COMPONENTS):
    return diagnose(texts, components, formula="p", settings={}, versions={})


def test_figures_are_means_over_positions_and_intervals_resample_prompts() -> None:
    numbers = numpy.random.default_rng(0)
    lengths = [3, 7, 5, 6, 4, 8]
    drawn = [numbers.normal(0.3, 1, n).round(4).tolist() for n in lengths]
    found = summed(*(text(i, n, log_partition=z) for i, (n, z) in enumerate(zip(lengths, drawn, strict=True))))
    everything = numpy.concatenate([numpy.array(z) for z in drawn])
    assert found.positions == sum(lengths)
    assert found.log_partition.mean == pytest.approx(everything.mean(), abs=1e-5)
    assert found.abs_log_partition.mean == pytest.approx(numpy.abs(everything).mean(), abs=1e-5)
    sums = numpy.array([sum(z) for z in drawn])
    choice = numbers.integers(0, 6, (4000, 6))
    ends = numpy.quantile(sums[choice].sum(1) / numpy.array(lengths)[choice].sum(1), [0.025, 0.975])
    assert [found.log_partition.low, found.log_partition.high] == pytest.approx(ends, abs=0.05)
    same = summed(*(text(0, n, log_partition=z) for n, z in zip(lengths, drawn, strict=True)))
    assert same.log_partition.low is None  # several texts of one prompt are one unit


def test_a_components_figures_are_taken_where_it_is_active() -> None:
    found = summed(
        text(
            0,
            activity=[[2.0, 0.0, 0.05, 1.0], [0.0] * 4],
            evidence=[[1.0, 9.0, 9.0, 2.0], [0.0] * 4],
            gap=[[0.5, 9.0, 9.0, 1.5], [0.0] * 4],
            bin_distance=[[0.1, 0.9, 0.9, 0.3], [0.0] * 4],
            moved=[[0.5, -0.3, 0.0, 0.2], [-0.9, 0.2, 0.05, 0.1]],
            orphan=[True, False, False, False],
        )
    )
    pirate, math = found.by_component["pirate"], found.by_component["math"]
    assert pirate.active_share.mean == 0.5
    assert pirate.gap.mean == 5.0  # everywhere, active or not
    assert pirate.bin_distance.mean == pytest.approx(0.2)
    assert pirate.retained_evidence.mean == pytest.approx(3.0 / 3.0)
    assert (math.bin_distance.mean, math.retained_evidence.mean) == (None, None)
    assert (pirate.moved_share.mean, math.moved_share.mean) == (0.5, 0.25)
    assert (found.both_active_share.mean, found.orphan_share.mean) == (0.0, 0.25)


def test_curves_end_where_texts_end() -> None:
    found = summed(text(0, 2, log_partition=[1.0, 2.0]), text(1, 4, log_partition=[3.0, 4.0, None, 6.0])).along
    assert found.texts == [2, 2, 1, 1]
    assert [estimate.mean for estimate in found.log_partition] == [2.0, 3.0, None, 6.0]
    assert [estimate.mean for estimate in found.cumulative_log_partition[:2]] == [2.0, 5.0]
    assert found.log_partition[3].low is None
    assert set(found.gap) == {"pirate", "math"}


@pytest.mark.parametrize(
    ("distance", "level", "words"),
    [
        (GAP.caution / 2, "clear", "Clear: every component that speaks is heard"),
        ((GAP.caution + GAP.interference) / 2, "caution", "Caution: math is bent"),
        (GAP.interference + 0.1, "interference", "Interference: math is not itself"),
    ],
)
def test_the_verdict_is_that_of_the_worst_component(distance: float, level: str, words: str) -> None:
    found = summed(
        text(0, gap=[[0.0] * 4, [distance] * 4], evidence=[[1.0] * 4, [1.4] * 4]),
        text(1, gap=[[0.0] * 4, [distance] * 4], evidence=[[1.0] * 4, [1.4] * 4]),
    ).verdict
    assert found.level == level
    assert found.headline.startswith(words)
    worst = found.reasons[0]
    assert (worst.measure, worst.about) == ("gap", ["math"])
    assert "keeps 140% of its evidence (overshoot)" in worst.text


def test_pairs_that_interfere_are_among_the_reasons() -> None:
    strong = LOG_PARTITION.interference + 0.3
    for value, words in ((strong, "push the same way"), (-strong, "pull apart")):
        reasons = summed(text(0, interference=[[value] * 4])).verdict.reasons
        assert [reason.about for reason in reasons if reason.measure == "interference"] == [COMPONENTS]
        assert any(words in reason.text for reason in reasons)


def test_silence_is_not_called_harmony() -> None:
    quiet = {"activity": [[0.0] * 4] * 2, "bin_distance": [[0.0] * 4] * 2}
    found = summed(text(0, **quiet)).verdict
    assert (
        found.headline == "No component is active on these prompts: there is nothing to interfere, and nothing to hear."
    )
    assert [reason.measure for reason in found.reasons] == ["activity", "activity"]


def test_what_cannot_be_summed_up_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        summed()
    with pytest.raises(ValueError, match="text 0: its measures are not those of 1 components"):
        summed(text(0), components=["pirate"])
    empty = summed(text(0, 0), text(1, 0))
    assert empty.positions == 0
    assert empty.log_partition.mean is None
