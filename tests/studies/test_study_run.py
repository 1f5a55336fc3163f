"""Running a study: what is kept, what is run again, what is refused, and what results.json says."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from counterpoint.errors import StudyError
from counterpoint.intervals import bootstrap, student
from counterpoint.studies import run as running
from counterpoint.studies.run import Task, plan, read_results, run, to_json
from counterpoint.studies.study import Options, Study
from small_study import Counting, experiment

CELLS = [(rule, seed) for rule in ("product", "mixture") for seed in range(3)]


def only_one(counting: Counting, **changes: object) -> Study:
    return Study("sums", "Sums", "About sums.", (experiment(counting, **changes),))


def test_every_cell_runs_once_and_results_have_every_figure(study: Study, counting: Counting, tmp_path: Path) -> None:
    assert run(study, Options(), tmp_path / "out") == []
    assert counting.calls == CELLS * 2
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert (results["format"], results["study"]) == ("counterpoint-study/1", "sums")
    assert list(results["experiments"]) == ["main", "second"]
    entry = results["experiments"]["main"]
    assert entry["seeds"] == [0, 1, 2]
    assert entry["options"] == {"quick": False, "seeds": None, "data": None, "scale": "small"}
    assert {"python", "counterpoint", "torch", "numpy"} <= set(entry["versions"])
    assert entry["measures"] == {"score": "share of right answers", "gap": "projectivity gap, nats"}
    point = entry["points"][0]
    assert point["settings"] == {"rule": "product", "quick": False, "steps": 3}
    mean, low, high = student([0.9, 0.91, 0.92], within=(0, 1))
    score = point["figures"]["score"]
    assert (score["mean"], score["low"], score["high"]) == pytest.approx((mean, low, high), rel=1e-5)
    assert score["values"] == [0.9, 0.91, 0.92]


def test_lists_have_an_interval_a_place_and_units_are_pooled(study: Study, tmp_path: Path) -> None:
    run(study, Options(), tmp_path)
    figures = read_results(tmp_path, "sums")["experiments"]["main"]["points"][1]["figures"]
    by_length = figures["score/by length"]
    assert by_length["mean"] == pytest.approx([0.51, 0.255, None])
    assert by_length["low"][1] == pytest.approx(student([0.25, 0.255, 0.26]).low, rel=1e-5)
    assert by_length["high"][2] is None
    pooled = bootstrap([seed + unit / 10 for seed in range(3) for unit in range(12)], 0)
    assert (figures["gap"]["mean"], figures["gap"]["low"], figures["gap"]["high"]) == pytest.approx(pooled, rel=1e-5)


def test_figures_that_compare_points_are_in_the_results(study: Study, tmp_path: Path) -> None:
    run(study, Options(), tmp_path)
    compared = read_results(tmp_path, "sums")["experiments"]["main"]["compared"]
    assert compared == {"product - mixture": {"mean": 0.0, "low": 0.0, "high": 0.0}}


def test_an_interrupted_run_goes_on_with_what_is_missing(study: Study, counting: Counting, tmp_path: Path) -> None:
    counting.stop_at = 8
    with pytest.raises(KeyboardInterrupt):
        run(study, Options(), tmp_path)
    assert [task.done for task in plan(study, Options(), tmp_path)] == [True] * 8 + [False] * 4
    assert list(read_results(tmp_path, "sums")["experiments"]) == ["main"]
    done, counting.stop_at, counting.calls = counting.calls, None, []
    told = []
    run(study, Options(), tmp_path, tell=lambda task: told.append((task.experiment.name, task.label, task.seed)))
    assert done + counting.calls == CELLS * 2
    assert told[0] == ("second", "product", 2)
    whole = tmp_path / "whole"
    run(study, Options(), whole)
    assert _without_times(tmp_path) == _without_times(whole)


def test_more_seeds_run_only_the_new_ones(counting: Counting, tmp_path: Path) -> None:
    study = only_one(counting)
    run(study, Options(seeds=1), tmp_path)
    counting.calls.clear()
    run(study, Options(seeds=2), tmp_path)
    assert counting.calls == [("product", 1), ("mixture", 1)]
    assert read_results(tmp_path, "sums")["experiments"]["main"]["seeds"] == [0, 1]


@pytest.mark.parametrize("change", ["settings", "revision"])
def test_cells_of_other_settings_or_revisions_are_left_aside_and_said_so(
    change: str, counting: Counting, tmp_path: Path
) -> None:
    run(only_one(counting), Options(), tmp_path)
    counting.calls.clear()
    changed = (
        only_one(counting, revision=2)
        if change == "revision"
        else only_one(counting, grid=lambda o: [{"rule": r, "steps": 4} for r in ("product", "mixture")])
    )
    (notice,) = run(changed, Options(), tmp_path)
    assert counting.calls == CELLS
    assert notice == f"main: 6 cells in {tmp_path}/cells/main of other settings, seeds or revisions took no part"
    assert read_results(tmp_path, "sums")["experiments"]["main"]["revision"] == (2 if change == "revision" else 1)


def test_cells_of_another_version_are_kept_and_said_so(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = only_one(counting)
    before = running.versions()
    monkeypatch.setattr(running, "versions", lambda: {**before, "torch": "1.0"})
    run(study, Options(seeds=1), tmp_path)
    monkeypatch.setattr(running, "versions", lambda: {**before, "torch": "2.0"})
    (notice,) = run(study, Options(seeds=2), tmp_path)
    assert notice.startswith("main: some cells were made with torch 1.0, this is 2.0; they are kept, ")
    assert read_results(tmp_path, "sums")["experiments"]["main"]["versions"]["torch"] == "1.0, 2.0"


def test_one_experiment_alone_leaves_the_others_results(study: Study, counting: Counting, tmp_path: Path) -> None:
    run(study, Options(), tmp_path, only="second")
    before = read_results(tmp_path, "sums")["experiments"]["second"]
    for cell in (tmp_path / "cells/second").iterdir():
        cell.unlink()
    run(study, Options(), tmp_path, only="main")
    results = read_results(tmp_path, "sums")["experiments"]
    assert list(results) == ["main", "second"]
    assert results["second"] == before
    assert len(counting.calls) == 12


def test_experiments_may_run_beside_each_other(study: Study, counting: Counting, tmp_path: Path) -> None:
    def beside(task: Task) -> None:
        if task.seed == 2:
            run(study, Options(), tmp_path, only="second")

    run(study, Options(), tmp_path, only="main", tell=beside)
    assert list(read_results(tmp_path, "sums")["experiments"]) == ["main", "second"]


def test_a_quick_run_does_not_overwrite_a_full_one(study: Study, tmp_path: Path) -> None:
    run(study, Options(), tmp_path)
    with pytest.raises(StudyError, match="main was run with quick off, now on; name another folder with --out"):
        run(study, Options(quick=True), tmp_path)


def test_a_cell_that_fails_says_which_and_keeps_the_others(counting: Counting, tmp_path: Path) -> None:
    counting.stop_at, counting.error = 2, ZeroDivisionError("by zero")
    with pytest.raises(StudyError) as caught:
        run(only_one(counting), Options(), tmp_path)
    assert str(caught.value) == (
        'sums, experiment main, seed 2, {"rule": "product", "quick": false, "steps": 3}: '
        f"ZeroDivisionError: by zero; what was finished is kept in {tmp_path}"
    )
    assert len(list(tmp_path.rglob("*.json"))) == 2


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"score": math.nan}, "measure 'score' is nan; a number is needed, or None where it is undefined"),
        ({"score": [1.0, "x"]}, "measure 'score' is 'x'"),
        ({"scores": 1.0}, "measure 'scores' is not declared; the experiment's measures are ['score', 'gap']"),
    ],
)
def test_what_is_no_figure_is_refused(figures: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        run(only_one(lambda settings, seed: figures), Options(), tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"study": "sums"}'])
def test_files_that_are_something_else_are_named(content: str, counting: Counting, tmp_path: Path) -> None:
    study = only_one(counting)
    task = plan(study, Options(), tmp_path)[0]
    task.path.parent.mkdir(parents=True)
    task.path.write_text(content)
    with pytest.raises(StudyError, match=r"not the cell that belongs there; delete it, and it is run again"):
        run(study, Options(), tmp_path)
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(StudyError, match=r"results.json: not the results of a study; name another folder with --out"):
        run(study, Options(), tmp_path)


def test_results_of_another_study_or_none_are_refused(study: Study, tmp_path: Path) -> None:
    run(study, Options(), tmp_path)
    other = dataclasses.replace(study, name="products")
    with pytest.raises(StudyError, match=r"results of the study sums .* not of products"):
        run(other, Options(), tmp_path)
    with pytest.raises(StudyError, match="no such file; run the study first: counterpoint study sums"):
        read_results(tmp_path / "nowhere", "sums")


def test_of_data_only_the_name_is_recorded(study: Study, tmp_path: Path) -> None:
    run(study, Options(data=str(tmp_path / "secret/place/words.csv")), tmp_path)
    assert "secret" not in (tmp_path / "results.json").read_text()
    assert read_results(tmp_path, "sums")["experiments"]["main"]["options"]["data"] == "words.csv"


def test_json_is_the_same_content_and_short_lists_stay_on_a_line() -> None:
    value = {"a": {"b": [1, 2.5, None], "c": [[1], [2]], "d": [{"e": "é"}], "f": {}, "g": []}, "h": True}
    text = to_json(value)
    assert json.loads(text) == value
    assert '"b": [1, 2.5, null],\n' in text


def _without_times(folder: Path) -> dict:
    results = json.loads((folder / "results.json").read_text())
    for entry in results["experiments"].values():
        entry.pop("seconds")
    return results
