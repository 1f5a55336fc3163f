"""The toy: maps and examples against plain Python, and the smallest run of both versions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from counterpoint.studies import load_study
from counterpoint.studies.logit_composition import toy
from counterpoint.studies.render import page
from counterpoint.studies.run import read_results, run
from counterpoint.studies.study import Options, Study
from worlds import TableModel

TOY = toy.EXPERIMENT


def spelled(numbers: torch.Tensor) -> str:
    return "".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ |$_"[n] for n in numbers.tolist())


def small() -> Study:
    """The study with its quick grid smaller still."""
    tiny = {
        "steps": 2,
        "lengths": [1, 4, 6],
        "strings": 3,
        "width": 16,
        "trained_lengths": [1, 4],
        "field": 8,
        "tuning_steps": 1,
    }
    settings = [{**point, **tiny} for point in TOY.grid(Options(quick=True))]
    study = load_study("logit-composition")
    changed = {**TOY.__dict__, "grid": lambda options: settings}
    return Study(study.name, study.title, study.about, (type(TOY)(**changed),))


def test_maps_by_hand() -> None:
    strings = toy.random_strings(50, 12, torch.Generator().manual_seed(0))
    for changes, table in ((toy.MAPS["first"], {"A": "K"}), (toy.MAPS["second"], {"M": "B"}), (toy.MAPS["base"], {})):
        expected = [[table.get(letter, letter) for letter in spelled(row)] for row in strings]
        assert [list(spelled(row)) for row in toy.mapped(strings, changes)] == expected
    both = [spelled(row).replace("A", "K").replace("M", "B") for row in strings]
    assert [spelled(row) for row in toy.mapped(strings, toy.BOTH)] == both


def test_examples_by_hand() -> None:
    string = torch.tensor([[0, 26, 12]])
    inputs, targets = toy.PerPosition().example(string, toy.BOTH)
    assert (spelled(inputs[0]), spelled(targets[0])) == ("A M", "K B")
    inputs, targets = toy.Autoregressive(5).example(string, toy.BOTH)
    assert spelled(inputs[0]) == "A M" + "__" + "|K B"
    assert targets[0, :-4].tolist() == [-100] * 5
    assert spelled(targets[0, -4:]) == "K B$"


def test_written_tokens_are_what_comes_after_the_separator() -> None:
    """Models that count up: after the separator (27) come 0, 1, 2, whatever the string."""
    following = torch.full((30, 30), -9.0)
    for token in range(30):
        following[token, 0 if token == toy.SEPARATOR else (token + 1) % 30] = 0.0
    counting = toy.compositions({name: TableModel(following.log_softmax(-1)) for name in toy.MAPS})["product"]
    written = toy.Autoregressive(5).write(counting, torch.tensor([[5, 5], [0, 9]]))
    assert written.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_shares_by_hand() -> None:
    """Exact maps as models: the product of the three has both letters, the mixture and each alone has not."""

    def exact(changes: dict[str, str]) -> TableModel:
        logits = torch.full((27, 27), -12.0)
        logits[torch.arange(27), toy.mapped(torch.arange(27), changes)] = 0.0
        return TableModel(logits.log_softmax(-1))

    models = {name: exact(changes) for name, changes in toy.MAPS.items()}
    strings = torch.tensor([[0, 12, 3], [0, 1, 2], [12, 1, 2], [4, 5, 6]])
    found = toy.measure(toy.PerPosition(), models, toy.compositions(models), strings)
    assert {name: value for name, value in found.items() if "mixture" not in name and "log" not in name} == {
        "own/base": 1.0,
        "own/first": 1.0,
        "own/second": 1.0,
        "own/all": 1.0,
        "combined/base": 0.25,
        "combined/first": 0.5,
        "combined/second": 0.5,
        "combined/product": 1.0,
        "combined/guarded": 1.0,
        "changed/product": 1.0,
    }
    assert found["combined/mixture"] < 1
    assert found["log_partition/A and M"] == pytest.approx(0, abs=1e-3)
    assert found["log_partition/elsewhere"] == pytest.approx(0, abs=1e-3)
    nothing_changes = toy.measure(toy.PerPosition(), models, toy.compositions(models), strings[3:])
    assert nothing_changes["changed/product"] is nothing_changes["log_partition/A and M"] is None


def test_the_smallest_run_has_every_figure_and_a_page(tmp_path: Path) -> None:
    study = small()
    run(study, Options(quick=True, seeds=2), tmp_path)
    results = read_results(tmp_path, study.name)
    points = results["experiments"]["toy"]["points"]
    assert [point["settings"]["version"] for point in points] == ["per position"] + ["autoregressive"] * 2
    for point in points:
        for name, figure in point["figures"].items():
            assert len(figure["mean"]) == 3, name
            assert all(mean is not None and mean >= 0 for mean in figure["mean"][1:]), name
    text = page(study, results, "pictures")
    assert (
        "The product maps 0.0 % (0.0–0.0) of strings of lengths 1–4 exactly, where the claim asks for all"
        in " ".join(text.split())
    )


def test_training_is_seeded_and_learns() -> None:
    small = {"steps": 60, "batch": 16, "width": 32, "trained_lengths": [4, 4], "learning_rate": 1e-2}
    settings = {**TOY.grid(Options(quick=True))[0], **small}
    one, again, other = (toy.trained(settings, seed)["second"].lm_head.weight for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    found = toy.cell({**settings, "lengths": [4], "strings": 30}, 0)
    assert found["own/base"][0] > 0.9


def test_where_a_claim_holds_is_read_off_the_means() -> None:
    point = SimpleNamespace(
        settings={"lengths": [1, 16, 31, 64], "trained_lengths": [1, 16]},
        along=lambda name: [SimpleNamespace(mean=mean) for mean in (1.0, 0.99, 0.98, 1.0)],
    )
    assert toy.holds_until(point, "combined/product") == 16
    assert toy.ranges(point) == {"1–16": [1, 16], "17–31": [31], "32–64": [64]}


def test_components_may_be_tuned_from_the_base() -> None:
    settings = {**TOY.grid(Options(quick=True))[2], "steps": 1, "tuning_steps": 1, "tuning_rate": 1e-9}
    tuned = toy.trained(settings, 0)
    scratch = toy.trained({**settings, "components": "from scratch"}, 0)
    assert torch.equal(tuned["base"].lm_head.weight, scratch["base"].lm_head.weight)
    torch.testing.assert_close(tuned["first"].lm_head.weight, tuned["base"].lm_head.weight)
    assert not torch.allclose(scratch["first"].lm_head.weight, scratch["base"].lm_head.weight)


def test_the_mask_takes_away_what_no_model_would_write() -> None:
    """Both components find D a little likely and the base finds it all but impossible: the product writes it."""
    base, component = torch.full((27, 27), -30.0), torch.full((27, 27), -30.0)
    base[:, 0] = component[:, 0] = 0.0
    base[:, 3], component[:, 3] = -9.0, -3.0
    models = {"base": base, "first": component, "second": component}
    tables = {name: TableModel(table.log_softmax(-1)) for name, table in models.items()}
    composed = toy.compositions(tables)
    strings = torch.tensor([[1, 2]])
    assert toy.PerPosition().write(composed["product"], strings).tolist() == [[3, 3]]
    assert toy.PerPosition().write(composed["guarded"], strings).tolist() == [[0, 0]]
