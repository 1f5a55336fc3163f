"""Pages and plots: from results.json alone, the same every time, with numbers that come from it."""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
from pathlib import Path

import pytest

from counterpoint.errors import StudyError
from counterpoint.intervals import NOTHING, Interval
from counterpoint.studies import render as rendering
from counterpoint.studies.render import figure, page, share, write_page, write_plots
from counterpoint.studies.run import read_results, run
from counterpoint.studies.study import Options, Study
from small_study import Counting, experiment


@pytest.fixture
def results(study: Study, tmp_path: Path) -> dict:
    run(study, Options(), tmp_path)
    return read_results(tmp_path, "sums")


def test_a_page_has_the_words_the_numbers_and_how_they_were_made(study: Study, results: dict) -> None:
    text = page(study, results, "../../results/sums")
    assert "# Sums\n\nAbout sums.\n\nMade by `counterpoint study sums`;" in text
    assert text.count("The product scores 91.0 % (88.5–93.5).") == 2
    assert "**Scores**\n\n| rule | score |\n| --- | --- |\n| product | 91.0 % (88.5–93.5) |" in text
    assert "![Two falling curves](../../results/sums/scores.svg)" in text
    assert "*Scores by length.* ([PNG](../../results/sums/scores.png))" in text
    made = " ".join(text[text.index("<details>") :].split())
    assert "`counterpoint study sums --only main`, 3 seeds, 0 seconds of computing; intervals are 95 %:" in made
    assert re.search(r"Revision 1; python \S+, counterpoint \S+, torch", made)
    assert "Settings: rule: product or mixture; quick: no; steps: 3." in made


def test_the_numbers_come_from_the_results(study: Study, results: dict) -> None:
    changed = copy.deepcopy(results)
    changed["experiments"]["main"]["points"][0]["figures"]["score"] |= {"mean": 0.1234, "low": 0.1, "high": 0.2}
    text = page(study, changed, "")
    assert text.count("12.3 % (10.0–20.0)") == 2  # a paragraph and a table
    assert text.count("91.0 % (88.5–93.5)") == 2  # the other experiment's


def test_pages_and_plots_are_the_same_every_time(study: Study, results: dict, tmp_path: Path) -> None:
    assert page(study, results, "x") == page(study, copy.deepcopy(results), "x")
    first, second = ({p.name: p.read_bytes() for p in write_plots(study, results, tmp_path / f)} for f in "ab")
    assert first == second
    assert set(first) == {"scores.svg", "scores.png"}
    assert first["scores.png"].startswith(b"\x89PNG")


def test_links_of_a_page_lead_to_its_plots(study: Study, results: dict, tmp_path: Path) -> None:
    write_plots(study, results, tmp_path)
    write_page(study, results, tmp_path, tmp_path / "docs/studies/sums.md")
    text = (tmp_path / "docs/studies/sums.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) == 5
    assert all((tmp_path / "docs/studies" / link).exists() for link in links)


def test_a_page_says_with_what_options_it_was_made(study: Study, tmp_path: Path) -> None:
    run(study, Options(quick=True, seeds=1, data="words.csv"), tmp_path, only="main")
    text = page(study, read_results(tmp_path, "sums"), "")
    assert "Made by `counterpoint study sums --quick --seeds 1 --data words.csv`;" in text
    assert "The product scores 90.0 %.\n" in text  # one seed has no interval


def test_results_of_an_earlier_revision_are_not_shown(counting: Counting, results: dict) -> None:
    later = Study("sums", "Sums", "About sums.", (experiment(counting, revision=2), experiment(counting, "second")))
    text = page(later, results, "")
    assert "are of revision 1 of this experiment, which is at revision 2 now: it has to be run again." in " ".join(
        text.split()
    )
    assert text.count("The product scores") == 1


def test_long_paragraphs_are_wrapped_and_tables_are_not(study: Study, results: dict) -> None:
    wordy = dataclasses.replace(study, about="word " * 100 + "\n\n| " + "cell " * 100 + "|")
    lines = page(wordy, results, "").splitlines()
    assert max(len(line) for line in lines if not line.startswith(("|", "<"))) <= 120
    assert max(map(len, lines)) > 500


def test_figures_in_words() -> None:
    assert share(Interval(0.9731, 0.951, 1.0)) == "97.3 % (95.1–100.0)"
    assert share(Interval(0.5, None, None)) == "50.0 %"
    assert figure(Interval(0.01234, -0.1, 0.2), unit="nats") == "0.0123 nats (-0.1 to 0.2)"
    assert figure(NOTHING) == "undefined"


def test_without_matplotlib_the_extra_is_named(
    study: Study, results: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        StudyError, match=r"plots need matplotlib; install it with: pip install 'counterpoint\[study\]'"
    ):
        write_plots(study, results, tmp_path)


@pytest.mark.parametrize(
    ("setting", "words"),
    [([0, 1, 2, 3], "0 to 3"), ([0.5, 1.0, 2.0, 4.0], "0.5, 1.0, 2.0, 4.0"), (["a", "b", "c", "d"], "a, b, c, d")],
)
def test_settings_that_are_lists(setting: list[object], words: str) -> None:
    entry = {"points": [{"settings": {"lengths": setting}}]}
    assert rendering._settings(entry) == {"lengths": words}
