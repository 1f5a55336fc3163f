"""Saving: what comes back is the same model, wherever the folder goes; and nothing half-written stays behind."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from counterpoint import ComposedModel, Recipe
from counterpoint.composition import saving
from counterpoint.composition.loading import load_backbone
from counterpoint.errors import AdapterError, LoadingError, RecipeError
from worlds import save_adapter, save_model, tables

IDS = torch.tensor([[5, 9, 30, 12, 7], [40, 6, 8, 21, 33]])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    base = save_model(folder / "base")
    save_model(folder / "other", "qwen2", seed=7)
    save_adapter(folder / "maths", base)
    (folder / "maths/training_args.bin").write_bytes(b"pickle")
    (folder / "maths/checkpoint-10").mkdir()
    (folder / "maths/checkpoint-10/adapter_model.safetensors").write_bytes(b"old")
    for name, changes in (("base", {"eos_token_id": [2, 60], "top_k": 40}), ("other", {"eos_token_id": 61})):
        file = folder / name / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))  # top_k without do_sample, as published
    return folder


@pytest.fixture
def world(originals: Path, tmp_path: Path) -> Path:
    shutil.copytree(originals, tmp_path / "world")
    return tmp_path / "world"


def compose(world: Path, **changes: Any) -> ComposedModel:
    fields = {
        "base": {"model": str(world / "base"), "temperature": 0.8},
        "components": {
            "maths": {"adapter": str(world / "maths"), "weight": 1.3},
            "pirate": {"context": "you are a pirate", "weight": 0.4},
            "other": {"model": str(world / "other"), "relative_to": "maths", "weight": -0.2},
        },
    }
    return ComposedModel.from_recipe(**fields | changes)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(IDS).logits
    return result


def loaded(folder: Path) -> ComposedModel:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, ComposedModel)
    assert not model.training
    return model


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def refusal(function: Any, *arguments: Any) -> str:
    with pytest.raises((RecipeError, LoadingError)) as caught:
        function(*arguments)
    return str(caught.value)


ALL_FILES = {
    "README.md",
    "adapters/maths/adapter_config.json",
    "adapters/maths/adapter_model.safetensors",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_what_is_loaded_is_what_was_saved(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    model.save_pretrained(tmp_path / "saved")
    shutil.rmtree(world / "maths")
    again = loaded(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    assert again.voice_names == model.voice_names
    assert again.plan.backbones == model.plan.backbones
    assert list(again.recipe.components) == list(model.recipe.components) == ["maths", "pirate", "other"]
    assert again.recipe.as_dict()["components"] == {
        **model.recipe.as_dict()["components"],
        "maths": {
            "adapter": str(tmp_path / "saved/adapters/maths"),
            "weight": 1.3,
        },
    }
    assert files(tmp_path / "saved") == ALL_FILES
    ids = AutoTokenizer.from_pretrained(tmp_path / "saved")("tell me").input_ids
    assert ids == model.tokenizer("tell me").input_ids
    assert torch.equal(again.encode("hi").input_ids, model.encode("hi").input_ids)


def test_a_folder_with_backbones_needs_nothing_else_and_can_be_moved(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    expected = logits(model)
    model.save_pretrained(tmp_path / "saved", include_backbones=True)
    shutil.rmtree(world)
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "saved").rename(tmp_path / "elsewhere/moved")
    again = loaded(moved)
    assert torch.equal(logits(again), expected)
    assert again.generate(IDS[:1], do_sample=False, max_new_tokens=5).shape[1] <= 10
    config = json.loads((moved / "config.json").read_text())
    models = [config["recipe"]["base"]["model"], config["recipe"]["components"]["other"]["model"]]
    assert models == ["./backbones/0", "./backbones/1"]
    assert str(tmp_path) not in json.dumps(config["recipe"])
    again.save_pretrained(moved, include_backbones=True)
    assert torch.equal(logits(loaded(moved)), expected)


def test_without_backbones_the_folder_can_be_moved_too(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    model.save_pretrained(tmp_path / "saved")
    shutil.rmtree(world / "maths")
    moved = (tmp_path / "saved").rename(tmp_path / "moved")
    assert torch.equal(logits(loaded(moved)), logits(model))
    recipe = json.loads((moved / "config.json").read_text())["recipe"]
    assert recipe["components"]["maths"]["adapter"] == "./adapters/maths"
    assert recipe["base"]["model"] == str(world / "base")


def test_models_named_by_relative_paths_are_found_from_anywhere(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    model = compose(Path())
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world / "maths", tmp_path / "maths")
    model.save_pretrained("saved")
    monkeypatch.chdir("/")
    assert torch.equal(logits(loaded(tmp_path / "saved")), logits(model))
    assert "base_model:" not in (tmp_path / "saved/README.md").read_text()


def test_models_given_in_memory_are_saved_under_the_folder_they_came_from(world: Path, tmp_path: Path) -> None:
    models = {"mine": load_backbone(str(world / "base"))}
    model = ComposedModel.from_recipe(base="mine", components={"x": {"context": "be brief"}}, models=models)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(loaded(tmp_path / "saved")), logits(model))


def test_changes_since_loading_are_saved(world: Path, tmp_path: Path) -> None:
    model = compose(world, plausibility={"alpha": 0.05, "of": "maths"}, context_format="raw")
    before = logits(model)
    model.set_weight("pirate", 0.1)
    model.weights.data[0] = 1.25
    model.set_weight("other", 0.5)
    model.rule = "mixture"
    model.save_pretrained(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    assert [c.weight for c in again.recipe.components.values()] == [1.25, 0.1, 0.5]
    assert (again.rule, again.recipe.context_format, again.openings.format) == ("mixture", "raw", "raw")
    assert again.recipe.plausibility is not None
    assert (again.recipe.plausibility.alpha, again.recipe.plausibility.of) == (0.05, "maths")
    assert torch.equal(logits(again), logits(model))
    assert not torch.equal(logits(again), before)


def test_generation_settings_are_kept_with_every_end_of_sequence(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    assert model.generation_config.eos_token_id == [2, 60, 61]
    model.save_pretrained(tmp_path / "saved")
    saved = GenerationConfig.from_pretrained(tmp_path / "saved")
    assert (saved.eos_token_id, saved.pad_token_id, saved.top_k) == ([2, 60, 61], 0, 40)
    model.generation_config.eos_token_id = [9, 2]
    model.generation_config.top_k = 7
    model.save_pretrained(tmp_path / "saved")
    again = loaded(tmp_path / "saved").generation_config
    assert (again.eos_token_id, again.pad_token_id, again.top_k) == ([9, 2], 0, 7)


def test_saving_twice_replaces_the_first(world: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep/er/saved"
    model = compose(world)
    model.save_pretrained(target, include_backbones=True)
    assert "backbones/1/model.safetensors" in files(target)
    loaded(target).save_pretrained(target)
    assert files(target) >= ALL_FILES
    shutil.rmtree(target)
    model.save_pretrained(target)
    model.set_weight("maths", 2.0)
    model.save_pretrained(target)
    again = loaded(target)
    again.save_pretrained(target)
    assert files(target) == ALL_FILES
    assert os.listdir(target.parent) == ["saved"]
    assert torch.equal(logits(loaded(target)), logits(model))
    target.with_name("empty").mkdir(mode=0o755)
    model.save_pretrained(target.with_name("empty"))
    assert files(target.with_name("empty")) == ALL_FILES
    assert target.stat().st_mode & 0o777 == 0o777 & ~saving._umask()


def test_other_peoples_folders_are_left_alone(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    before = {path: path.read_bytes() for path in (world / "base").iterdir()}
    assert refusal(model.save_pretrained, world / "base") == (
        f"{world}/base: holds something else than a composed model; name an empty or new folder"
    )
    assert {path: path.read_bytes() for path in (world / "base").iterdir()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert refusal(model.save_pretrained, tmp_path / "mine").endswith("name an empty or new folder")
    assert refusal(model.save_pretrained, tmp_path / "mine/notes.txt") == (
        f"{tmp_path}/mine/notes.txt: is a file; name a folder to save to"
    )
    assert files(tmp_path / "mine") == {"notes.txt"}
    assert sorted(os.listdir(tmp_path)) == ["mine", "world"]


@pytest.mark.parametrize("at", ["_card", "tokenizer", "first rename", "second rename"])
def test_a_failure_halfway_leaves_the_old_save_and_no_litter(
    at: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = compose(world)
    model.save_pretrained(tmp_path / "saved")
    old = {name: (tmp_path / "saved" / name).read_bytes() for name in files(tmp_path / "saved")}
    model.set_weight("maths", 0.1)
    calls = []

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt if at == "tokenizer" else OSError("disk full")

    def rename(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == (1 if at == "first rename" else 2):
            fail()
        real(source, target)

    real = os.rename
    if at == "_card":
        monkeypatch.setattr(saving, "_card", fail)
    elif at == "tokenizer":
        monkeypatch.setattr(model.tokenizer, "save_pretrained", fail)
    else:
        monkeypatch.setattr(saving.os, "rename", rename)
    for target in ("saved", "new")[: 2 if at in ("_card", "tokenizer") else 1]:
        with pytest.raises((OSError, KeyboardInterrupt)):
            model.save_pretrained(tmp_path / target)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["saved", "world"]
    assert {name: (tmp_path / "saved" / name).read_bytes() for name in files(tmp_path / "saved")} == old
    model.save_pretrained(tmp_path / "saved")
    assert loaded(tmp_path / "saved").recipe.components["maths"].weight == 0.1


def test_an_adapter_that_has_gone_is_named_and_nothing_is_written(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    shutil.rmtree(world / "maths")
    with pytest.raises(AdapterError) as caught:
        model.save_pretrained(tmp_path / "saved")
    assert str(caught.value) == f"there is no adapter folder {world}/maths"
    assert os.listdir(tmp_path) == ["world"]


def test_the_model_card_says_what_is_inside(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compose(world)
    monkeypatch.setitem(model.config.sources, str(world / "other"), {"name": "org/other", "revision": "c0ffee"})
    model.save_pretrained(tmp_path / "saved")
    card = (tmp_path / "saved/README.md").read_text("utf-8")
    lines = card.splitlines()
    assert lines[:1] == ["---"]
    assert "library_name: counterpoint" in lines
    assert "base_model:\n- org/other\n" in card
    assert (
        "    p(v) ∝ p_base(v)^(1/0.8) · (p_maths(v) / p_base(v)^(1/0.8))^1.3 · (p_pirate(v) / p_base(v)^(1/0.8))^0.4 · "
        "(p_other(v) / p_maths(v))^-0.2" in lines
    )
    assert f"| base | {world}/base |  |  |  |" in lines
    assert f"| maths | {world}/base |  | {world}/maths |  |" in lines
    assert f"| pirate | {world}/base |  |  | you are a pirate |" in lines
    assert "| other | org/other | c0ffee |  |  |" in lines
    for package in ("counterpoint", "torch", "transformers", "peft"):
        assert f"| {package} | {version(package)} |" in lines
    assert "The licences are those of the parts: see the pages of the models and adapters named above." in card
    assert f"`{saved_recipe(tmp_path / 'saved').digest()}`, weights in float32." in card


def saved_recipe(folder: Path) -> Recipe:
    return Recipe.read(json.loads((folder / "config.json").read_text())["recipe"])


def test_a_saved_folder_reads_as_a_recipe(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    model.save_pretrained(tmp_path / "saved")
    recipe = Recipe.read(tmp_path / "saved")
    assert list(recipe.components) == ["maths", "pirate", "other"]
    assert recipe.components["maths"].adapter == str(tmp_path / "saved/adapters/maths")
    assert recipe.base is not None
    assert (recipe.base.model, recipe.base.temperature) == (str(world / "base"), 0.8)
    assert torch.equal(logits(ComposedModel.from_recipe(tmp_path / "saved")), logits(model))


def test_folders_that_are_no_saved_model_are_named(world: Path, tmp_path: Path) -> None:
    for folder in (world, world / "base"):
        message = f"{folder}: not a saved composed model: no config.json with a recipe in it"
        assert refusal(Recipe.read, folder) == message
        assert refusal(ComposedModel.from_pretrained, folder) == message
    (world / "config.json").write_text('{"model_type": "counterpoint", "recipe": {"components": {}}}')
    assert refusal(ComposedModel.from_pretrained, world) == (
        f"{world}/config.json: components: empty; a recipe needs at least one component"
    )
    assert refusal(ComposedModel.from_pretrained, tmp_path / "nowhere").startswith(
        f"'{tmp_path}/nowhere' is neither a folder nor reachable on the hub: "
    )


def test_the_config_holds_neither_quantisation_nor_adapter_paths(world: Path, tmp_path: Path) -> None:
    model = compose(world)
    model.save_pretrained(tmp_path / "saved", include_backbones=True)
    text = (tmp_path / "saved/config.json").read_text()
    config = json.loads(text)
    assert "quantization_config" not in config
    assert str(world / "maths") not in text
    assert str(tmp_path / "saved") not in text
    assert config["model_type"] == "counterpoint"
    assert config["architectures"] == ["ComposedModel"]
    assert (config["vocab_size"], config["num_hidden_layers"]) == (64, 4)


def test_models_that_are_nowhere_on_disk_are_named_when_loading(tmp_path: Path) -> None:
    model = ComposedModel.from_recipe(base="b", components={"x": {"model": "x"}}, models=tables("bx", 6))
    model.save_pretrained(tmp_path / "saved")
    assert refusal(ComposedModel.from_pretrained, tmp_path / "saved").startswith("'b' is not a folder here and not in")
