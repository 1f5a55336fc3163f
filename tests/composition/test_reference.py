"""The composed model against its definition: run every voice alone with plain transformers or PEFT, add log-ratios."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from counterpoint import ComposedModel
from counterpoint.composition.contexts import render
from worlds import save_adapter, save_model

PROMPTS = ["tell me about the sea", "hi", "what is a boat made of"]


@cache
def plain(model: str, adapter: str | None) -> tuple[Any, Any]:
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    if adapter is not None:
        loaded = PeftModel.from_pretrained(loaded, adapter).eval()
    return loaded, AutoTokenizer.from_pretrained(model)


def reference(fields: dict[str, Any], ids: Tensor, conversation: list[dict[str, str]] | None) -> Tensor:
    """log p̂ at every position of one unpadded sequence (time,), each voice run alone on all of it."""

    def alone(voice: dict[str, Any]) -> Tensor:
        model, _ = plain(voice["model"], voice.get("adapter"))
        before: list[int] = []
        if conversation is not None:
            system = [{"role": "system", "content": voice["context"]}] if voice.get("context") else []
            rendered = render(tokenizer, system + conversation)
            shared = len(prompt)
            assert rendered[-shared:] == prompt
            before = rendered[:-shared]
        elif voice.get("context"):
            before = tokenizer(voice["context"]).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([before + ids.tolist()])).logits[0, len(before) :].float()
        return (logits / voice.get("temperature", 1.0)).log_softmax(-1)

    _, tokenizer = plain(fields["base"]["model"], None)
    prompt = fields.pop("prompt", None) if conversation is not None else None
    voices = {
        "base": fields["base"],
        **{n: {"model": fields["base"]["model"], **c} for n, c in fields["components"].items()},
    }
    log_p = {name: alone(voice) for name, voice in voices.items()}
    scores = log_p["base"].clone()
    for name, c in fields["components"].items():
        scores += c.get("weight", 1.0) * (log_p[name] - log_p[c.get("relative_to", "base")])
    return scores.log_softmax(-1)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("world")
    paths = {
        kind: save_model(folder / kind, kind, seed=i)
        for i, kind in enumerate(["llama", "llama-tied", "qwen2", "mistral-sliding", "gpt2"])
    }
    paths["other"] = save_model(folder / "other", "qwen2", seed=11)
    for kind in list(paths):
        paths[f"{kind}/a"] = save_adapter(folder / f"{kind}-a", paths[kind], seed=1, r=4, lora_alpha=6)
        targets = ["c_attn", "c_fc"] if kind == "gpt2" else ["q_proj", "down_proj"]
        patterns = {} if kind == "gpt2" else {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 5}}
        paths[f"{kind}/b"] = save_adapter(
            folder / f"{kind}-b",
            paths[kind],
            seed=2,
            r=7,
            lora_alpha=3,
            use_rslora=True,
            target_modules=targets,
            **patterns,
        )
    return paths


def recipes(world: dict[str, str], kind: str) -> dict[str, dict[str, Any]]:
    base = {"model": world[kind]}
    pirate, poet = "you are a pirate", "speak in verse, softly, as poets do"
    return {
        "contexts": {"base": base, "components": {"x": {"context": pirate}, "y": {"context": poet, "weight": 0.6}}},
        "base with a context": {"base": {**base, "context": "be brief"}, "components": {"x": {"context": poet}}},
        "adapters": {
            "base": base,
            "components": {"x": {"adapter": world[f"{kind}/a"]}, "y": {"adapter": world[f"{kind}/b"], "weight": -0.4}},
        },
        "full models": {
            "base": base,
            "components": {
                "x": {"model": world["other"], "temperature": 1.3},
                "y": {"model": world["llama"], "weight": 0.5},
            },
        },
        "all at once": {
            "base": {**base, "temperature": 0.9},
            "components": {
                "x": {"adapter": world[f"{kind}/a"], "context": pirate, "weight": 1.2},
                "y": {"model": world["other"], "adapter": world["other/b"], "context": poet, "relative_to": "z"},
                "z": {"model": world["other"], "weight": 0.0},
                "w": {"context": poet, "relative_to": "x", "weight": 0.3},
            },
        },
    }


NAMES = ["contexts", "base with a context", "adapters", "full models", "all at once"]


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen2", "mistral-sliding", "gpt2"])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_a_greedy_generation_equals_the_voices_run_alone(
    world: dict[str, str], kind: str, name: str
) -> None:
    fields = recipes(world, kind)[name]
    composed = ComposedModel.from_recipe(**fields)
    composed.generation_config.eos_token_id = None
    has_contexts = composed.openings.any
    batch = composed.encode(PROMPTS)
    settings = {"do_sample": False, "max_new_tokens": 64, "output_logits": True, "return_dict_in_generate": True}
    cached = composed.generate(**batch, **settings)
    length = batch.input_ids.shape[1]
    for row, prompt in enumerate(PROMPTS):
        single = composed.encode(prompt)
        real = cached.sequences[row][length - single.input_ids.shape[1] :]
        conversation = [{"role": "user", "content": prompt}] if has_contexts else None
        expected = reference({**fields, "prompt": single.input_ids[0].tolist()}, real, conversation)
        start = single.input_ids.shape[1] - 1
        steps = torch.stack([logits[row] for logits in cached.logits])
        torch.testing.assert_close(steps, expected[start:-1], atol=1e-4, rtol=1e-4)
        assert expected[start:-1].argmax(-1).tolist() == real[start + 1 :].tolist()
        alone = composed.generate(**single, **settings)
        assert alone.sequences[0].tolist() == real.tolist()
        with torch.no_grad():
            whole = composed(real[None], use_cache=False).logits[0]
        torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)


def test_generation_without_a_cache_gives_the_same_text(world: dict[str, str]) -> None:
    composed = ComposedModel.from_recipe(**recipes(world, "llama")["all at once"])
    batch = composed.encode(PROMPTS)
    with_cache = composed.generate(**batch, do_sample=False, max_new_tokens=12)
    without = composed.generate(**batch, do_sample=False, max_new_tokens=12, use_cache=False)
    assert with_cache.tolist() == without.tolist()


def test_raw_contexts_are_prefixes(world: dict[str, str]) -> None:
    fields = recipes(world, "llama")["contexts"]
    composed = ComposedModel.from_recipe(**fields, context_format="raw")
    ids = composed.encode("the sea").input_ids
    with torch.no_grad():
        logits = composed(ids).logits[0]
    torch.testing.assert_close(logits, reference(fields, ids[0], None), atol=1e-4, rtol=1e-4)


def test_right_padding_and_missing_masks_do_not_change_real_positions(world: dict[str, str]) -> None:
    composed = ComposedModel.from_recipe(**recipes(world, "mistral-sliding")["contexts"])
    ids = composed.encode("what is the sea").input_ids
    padded = torch.cat([ids, torch.zeros_like(ids)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(
            composed(padded).logits[:, : ids.shape[1]], composed(ids).logits, atol=1e-5, rtol=1e-5
        )


def test_composing_in_small_pieces_changes_nothing(world: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    composed = ComposedModel.from_recipe(**recipes(world, "llama")["contexts"], plausibility=0.1)
    batch = composed.encode(PROMPTS)
    with torch.no_grad():
        whole = composed(**batch, output_voices=True)
        monkeypatch.setattr("counterpoint.composition.combine.MOST_SCORES_AT_ONCE", 2000)
        pieces = composed(**batch, output_voices=True)
        silent = composed(**batch)
    assert silent.voice_log_probs is None
    torch.testing.assert_close(silent.logits, whole.logits)
    for name in ("logits", "log_partition", "voice_log_probs"):
        torch.testing.assert_close(getattr(whole, name), getattr(pieces, name))
    assert whole.voice_log_probs.shape == (3, *whole.logits.shape)
