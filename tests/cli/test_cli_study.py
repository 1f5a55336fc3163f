"""`counterpoint study`: files, resuming, and errors in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import counterpoint.cli.study as verb
from counterpoint.studies.study import Study
from small_study import Counting, experiment


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The command line knows one study, `sums`."""
    cell = Counting()
    study = Study("sums", "Sums", "About sums.", (experiment(cell), experiment(cell, "second")))
    monkeypatch.setattr(verb, "STUDIES", {"sums": "sums"})
    monkeypatch.setattr(verb, "load_study", {"sums": study}.__getitem__)
    return cell


def test_a_run_writes_results_and_plots_and_render_the_page(run, counting: Counting, tmp_path: Path) -> None:
    result = run("study", "sums", "--seeds", "1", "--only", "second")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        ["results/sums/results.json", "results/sums/scores.svg", "results/sums/scores.png"],
    )
    assert result.stderr.splitlines() == ["1 of 2: second product, seed 0", "2 of 2: second mixture, seed 0"]
    assert not (tmp_path / "docs").exists()
    for cell in (tmp_path / "results/sums/cells/second").iterdir():
        cell.unlink()
    result = run("study", "sums", "--render")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "docs/studies/sums.md"
    text = (tmp_path / "docs/studies/sums.md").read_text()
    assert "](../../results/sums/scores.svg)" in text
    assert "## The second one" in text
    assert len(counting.calls) == 2


def test_quick_runs_and_other_folders_keep_their_pages_to_themselves(run, counting: Counting, tmp_path: Path) -> None:
    assert run("study", "sums", "--quick").exit_code == 0
    assert run("study", "sums", "--quick", "--render").stdout.splitlines()[-1] == "results/sums-quick/sums.md"
    assert run("study", "sums", "--out", "here").exit_code == 0
    assert run("study", "sums", "--out", "here", "--render").stdout.splitlines()[-1] == "here/sums.md"
    assert "](./scores.svg)" in (tmp_path / "here/sums.md").read_text()


def test_a_stopped_run_says_how_to_go_on_and_does(run, counting: Counting) -> None:
    counting.stop_at = 3
    result = run("study", "sums", "--seeds", "2")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "stopped: 3 of 8 cells are done in results/sums; run the same command again to go on"
    )
    counting.stop_at = None
    result = run("study", "sums", "--seeds", "2")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == "4 of 8: main mixture, seed 1"
    assert len(counting.calls) == 8


def test_a_failed_cell_is_an_error_of_one_line(run, counting: Counting) -> None:
    counting.stop_at, counting.error = 0, ValueError("no")
    result = run("study", "sums")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: sums, experiment main, seed 0, {")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sum"], "unknown study 'sum'; did you mean 'sums'?"),
        (["zebra"], "unknown study 'zebra'; the studies are sums"),
        (["sums", "--only", "secnod"], "--only secnod: no such experiment; did you mean 'second'?"),
        (["sums", "--seeds", "0"], "--seeds 0: use 1 or more"),
        (["sums", "--scale", "huge"], "--scale huge: sums has small"),
        (["sums", "--data", "x"], "--data: sums takes no data"),
        (["sums", "--out", "file"], "--out file: is a file; name a folder"),
    ],
)
def test_usage_errors(run, counting: Counting, words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("study", *words)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert counting.calls == []


def test_rendering_needs_results(run, counting: Counting) -> None:
    result = run("study", "sums", "--render")
    assert result.exit_code == 1
    assert "results/sums/results.json: no such file; run the study first: counterpoint study sums" in result.stderr


def test_without_matplotlib_nothing_is_run(run, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("study", "sums")
    assert result.exit_code == 1
    assert result.stderr == "error: plots need matplotlib; install it with: pip install 'counterpoint[study]'\n"
    assert counting.calls == []


def test_help_names_the_studies(run) -> None:
    text = " ".join(run("study", "--help").stdout.split())
    assert "logit-composition" in text
    assert "Examples:" in text
