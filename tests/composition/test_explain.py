"""What `explain` tells is what loading then gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from counterpoint.composition.explain import explain
from counterpoint.composition.loading import LoadOptions
from counterpoint.composition.model import ComposedModel
from counterpoint.composition.recipe import Recipe
from counterpoint.composition.rules import RULES
from worlds import save_adapter, save_model


def recipe(**fields: object) -> Recipe:
    return Recipe.read(fields)


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "gpt2"])
def test_figures_are_those_of_the_loaded_model(tmp_path: Path, kind: str) -> None:
    base = save_model(tmp_path / "base", kind)
    given = recipe(base=base, components={"a": {"context": "x"}, "b": {"context": "yy"}})
    told = explain(given)
    model = ComposedModel.from_recipe(given)
    loaded = model.backbones[0].model
    (backbone,) = told.backbones
    assert backbone.parameters == sum(p.numel() for p in loaded.parameters())
    assert backbone.dtype == str(loaded.dtype).removeprefix("torch.")
    cache = model.new_cache()
    ids = model.encode("hello")["input_ids"]
    model(ids, cache=cache)
    kept = sum(t.numel() * t.element_size() for layer in cache.parts[0].layers for t in (layer.keys, layer.values))
    longest = ids.shape[1] + model.backbones[0].opening_length
    assert told.cache_bytes == kept / longest
    assert told.rows == model.plan.rows == 3


def test_the_start_of_a_row_without_a_context_is_what_the_model_reads(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    given = recipe(base=base, components={"a": {"context": "x"}})
    model = ComposedModel.from_recipe(given)
    assert model.tokenizer is not None
    start = model.tokenizer.decode(list(model.openings.ids[0]))
    words = explain(given).defaults["rows of base"]
    assert words == f"have no context, and begin with the chat template's own start: {start!r}"


@pytest.mark.parametrize(
    ("template", "wanted", "words"),
    [
        ("chatml", None, "chat, because the tokenizer of BASE has a chat template: "),
        ("chatml", "raw", "raw, as the recipe says: contexts and prompts are joined as they are"),
        ("chatml", "chat", "chat, as the recipe says: a prompt becomes a user turn, a context a system prompt"),
        (None, None, "raw, because the tokenizer of BASE has no chat template: "),
        (None, "chat", "chat; not checked: context_format: chat, but the tokenizer has no chat template; "),
    ],
)
def test_the_context_format_and_why(tmp_path: Path, template: str | None, wanted: str | None, words: str) -> None:
    base = save_model(tmp_path / "base", **({} if template else {"template": None}))
    told = explain(recipe(base=base, components={"a": {"context": "x"}}, context_format=wanted))
    assert told.defaults["prompts"].startswith(words.replace("BASE", base))


def test_raw_rows_without_a_context_begin_with_the_prompt(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", template=None)
    told = explain(recipe(base=base, components={"a": {"context": "x"}}))
    assert told.defaults["rows of base"] == "have no context, and begin with the prompt"


def test_adapters_are_read_without_the_base(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    lora = Path(save_adapter(tmp_path / "lora", base, rank_pattern={"q_proj": 8}))
    (tmp_path / "base" / "model.safetensors").unlink()
    told = explain(recipe(base=base, components={"a": {"adapter": str(lora)}, "b": {"adapter": str(tmp_path / "no")}}))
    _, a, b = told.voices
    assert (a.rank, a.adapter_bytes) == ("4 to 8", (lora / "adapter_model.safetensors").stat().st_size)
    assert a.note is None
    assert (b.rank, b.adapter_bytes, b.note) == (None, None, f"there is no adapter folder {tmp_path}/no")
    assert told.adapter_bytes is None
    assert told.defaults["contexts"] == "none: all rows begin alike"


def test_a_quantized_checkpoint_and_one_without_a_size_are_noted(tmp_path: Path) -> None:
    save_model(tmp_path / "base")
    file = tmp_path / "base" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}})
    )
    given = recipe(base=str(tmp_path / "base"), components={"a": {"context": "x"}})
    assert explain(given).backbones[0].note == "quantized: its weights take less than this estimate"
    file.write_text(json.dumps(config | {"vocab_size": -1}))
    (backbone,) = explain(given).backbones
    assert backbone.weight_bytes is None
    assert str(backbone.note).startswith("its size cannot be told from the config: ")


def test_settings_of_the_model_that_change_decoding_are_told(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    file = tmp_path / "base" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"repetition_penalty": 1.1, "temperature": 0.6}))
    told = explain(recipe(base=base, components={"a": {"context": "x"}}))
    greedy = "greedy, unless a temperature, top-p or top-k is given"
    assert told.defaults["decoding"] == f"{greedy}; with repetition_penalty=1.1 from {base}"


@pytest.mark.parametrize(
    ("plausibility", "words"),
    [
        (None, "off: no token is ruled out"),
        (0.1, "a token is dropped where every voice finds it less than 0.1 times as likely as the likeliest"),
        (
            {"alpha": 0.1, "of": "a"},
            "a token is dropped where a finds it less than 0.1 times as likely as the likeliest",
        ),
    ],
)
def test_plausibility_in_words(plausibility: object, words: str) -> None:
    told = explain(recipe(base="org/none", components={"a": {"context": "x"}}, plausibility=plausibility))
    assert told.defaults["plausibility"] == words


@pytest.mark.parametrize("rule", [*RULES])
def test_every_rule_has_words(rule: str) -> None:
    told = explain(recipe(components={"a": {"model": "org/none"}}, rule=rule))
    assert len(told.defaults["rule"]) > len(f"{rule}: ")
    assert told.voices[0].measured_against == (None if rule == "mixture" else "uniform")


def test_the_type_asked_for_counts(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    given = recipe(base=base, components={"a": {"context": "x"}})
    whole, half = explain(given), explain(given, LoadOptions(dtype=torch.float16, device="cpu"))
    assert half.weight_bytes == (whole.weight_bytes or 0) / 2
    assert half.cache_bytes == (whole.cache_bytes or 0) / 2
    assert half.defaults["number type"].startswith("float16 for the weights")
