"""Every kind of adapter is composed exactly as PEFT runs it alone, or refused by name with the mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from counterpoint import ComposedModel
from counterpoint.composition.adapters import MERGE
from counterpoint.errors import AdapterError
from worlds import save_adapter, save_model, tiny_model

EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "rank-stabilised": ("llama", {"use_rslora": True, "r": 6, "lora_alpha": 5}),
    "patterns": ("llama", {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"k_proj": 3}}),
    "one layer only": ("llama", {"target_modules": ["v_proj"], "layers_to_transform": [1]}),
    "dora": ("llama", {"use_dora": True}),
    "dora on conv1d": ("gpt2", {"use_dora": True, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "dora with a biased base": ("qwen2", {"use_dora": True, "target_modules": ["q_proj", "v_proj"]}),
    "bias in B": ("llama", {"lora_bias": True, "target_modules": ["q_proj", "down_proj"]}),
    "output head": ("llama", {"target_modules": ["lm_head", "o_proj"]}),
    "output head, tied": ("llama-tied", {"target_modules": ["lm_head", "o_proj"]}),
    "embeddings": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "embeddings, tied": ("llama-tied", {"target_modules": ["embed_tokens", "q_proj"]}),
    "embeddings, tied in both places": (
        "llama-tied",
        {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    ),
    "trained embeddings": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "trained embeddings, tied": ("llama-tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "trained embeddings, tied in both places": (
        "llama-tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "trained norm": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_kinds(name: str, tmp_path: Path) -> None:
    """Beside a plain adapter that touches the same modules, in one forward, with 2 sequences."""
    kind, settings = EXACT[name]
    base = save_model(tmp_path / "base", kind)
    adapter = save_adapter(tmp_path / "adapter", base, **settings)
    targets = ["c_attn"] if kind == "gpt2" else ["q_proj", "lm_head"]
    plain = save_adapter(tmp_path / "plain", base, seed=5, r=3, target_modules=targets)
    composed = ComposedModel.from_recipe(
        base=base, components={"x": {"adapter": adapter}, "y": {"adapter": plain}, "z": {"adapter": adapter}}
    )
    ids = torch.randint(5, 50, (2, 9))
    with torch.no_grad():
        voices = composed(ids, output_voices=True).voice_log_probs
        for position, path in enumerate([None, adapter, plain, adapter]):
            model = AutoModelForCausalLM.from_pretrained(base)
            model = model if path is None else PeftModel.from_pretrained(model, path)
            torch.testing.assert_close(voices[position], model.eval()(ids).logits.log_softmax(-1), atol=1e-4, rtol=1e-4)
    assert (voices[1] - voices[0]).abs().max() > 0.05
    torch.testing.assert_close(voices[1], voices[3])


def test_the_backbone_itself_stays_plain(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    composed = ComposedModel.from_recipe(
        base=base, components={"x": {"adapter": save_adapter(tmp_path / "a", base, modules_to_save=["lm_head"])}}
    )
    ids = torch.randint(5, 50, (3, 7))
    with torch.no_grad():
        torch.testing.assert_close(composed.backbones[0].model(ids).logits, tiny_model()(ids).logits)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "biases": ({"bias": "lora_only"}, f"trained biases (bias='lora_only') cannot be composed exactly: {MERGE}"),
    "tokens": (
        {"trainable_token_indices": [3, 4]},
        f"uses trainable_token_indices, which cannot be composed exactly: {MERGE}",
    ),
    "replication": (
        {"layer_replication": [[0, 2], [1, 2]]},
        f"uses layer_replication, which cannot be composed exactly: {MERGE}",
    ),
    "pissa": (
        {"init_lora_weights": "pissa"},
        "init_lora_weights='pissa' changed the base's own weights; save it again as a plain LoRA with PEFT's "
        "`path_initial_model_for_weight_conversion`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_kinds_are_named(name: str, tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base)
    settings, message = REFUSED[name]
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(AdapterError) as caught:
        ComposedModel.from_recipe(base=base, components={"x": {"adapter": adapter}})
    assert str(caught.value) == f"x: {adapter}: {message}"


def error_for(base: str, adapter: str, **fields: Any) -> str:
    with pytest.raises(AdapterError) as caught:
        ComposedModel.from_recipe(base=base, components={"x": {"adapter": adapter, **fields}})
    return str(caught.value)


def test_other_methods_than_lora_are_refused(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")).save_pretrained(
        tmp_path / "p"
    )
    assert "only LoRA (and DoRA) can be composed row by row" in error_for(base, str(tmp_path / "p"))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    base, other = save_model(tmp_path / "base"), save_model(tmp_path / "other", seed=3)
    adapter = save_adapter(tmp_path / "adapter", other)
    assert error_for(base, adapter) == (
        f"x: {adapter}: trained on {other!r}, but its component runs on {base!r}; name the right base, or say "
        "`allow_other_base: true` in the component if these are the same weights under another name"
    )
    ComposedModel.from_recipe(base=base, components={"x": {"adapter": adapter, "allow_other_base": True}})


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    base, wide = save_model(tmp_path / "base"), save_model(tmp_path / "wide", intermediate_size=64)
    message = error_for(base, save_adapter(tmp_path / "a", wide), allow_other_base=True)
    assert "made for another base: " in message
    assert "in the adapter and" in message
    assert "\n" not in message


def test_tokens_added_before_training_are_explained(tmp_path: Path) -> None:
    base, grown = save_model(tmp_path / "base"), save_model(tmp_path / "grown", vocab_size=66)
    adapter = save_adapter(tmp_path / "a", grown, modules_to_save=["embed_tokens", "lm_head"])
    message = error_for(base, adapter, allow_other_base=True)
    assert "if tokens were added before training, resize the base's embeddings the same way" in message


def test_broken_folders(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    missing = tmp_path / "nowhere"
    assert error_for(base, str(missing)) == f"x: there is no adapter folder {missing}"
    missing.mkdir()
    assert error_for(base, str(missing)) == (
        f"x: {missing}: not an adapter: no adapter_config.json; PEFT's save_pretrained writes one"
    )
    adapter = Path(save_adapter(tmp_path / "a", base))
    weights = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    assert error_for(base, str(adapter)).endswith("no adapter_model.safetensors beside its adapter_config.json")
    torch.save(weights, adapter / "adapter_model.bin")
    assert "adapter_model.bin: a pickle file, which can run code when it loads" in error_for(base, str(adapter))
    ComposedModel.from_recipe(base=base, components={"x": {"adapter": str(adapter)}}, allow_pickle=True)
    first = next(iter(weights))
    save_file({k: v for k, v in weights.items() if k != first}, adapter / "adapter_model.safetensors")
    assert f"no weights for {first}" in error_for(base, str(adapter))
    (adapter / "adapter_model.safetensors").write_bytes(b"nonsense")
    assert "its weights cannot be read: " in error_for(base, str(adapter))
    (adapter / "adapter_config.json").write_text("{not json")
    assert "adapter_config.json: not readable: " in error_for(base, str(adapter))
    assert "not in the local Hugging Face cache; to fetch it pass --download" in error_for(base, "nobody/nothing")
