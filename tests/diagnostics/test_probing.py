"""Probing: what is recorded is what the composed model, run again over the text, says of every token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoint import ComposedModel
from counterpoint.composition.evidence import gather_evidence, tilted
from counterpoint.diagnostics.measures import measure
from counterpoint.diagnostics.probing import Task, pieces, probe
from worlds import save_adapter, save_model, tiny_tokenizer

PROMPTS = ["hi", "tell me about the sea", "what is it"]


@pytest.fixture(scope="module", params=["product", "raking"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ComposedModel:
    folder: Path = tmp_path_factory.mktemp("probing")
    base = save_model(folder / "base")
    composed = ComposedModel.from_recipe(
        base=base,
        components={
            "x": {"adapter": save_adapter(folder / "x", base), "context": "be brief"},
            "y": {"context": "you are a pirate, and a poet", "weight": 0.7},
        },
        rule=request.param,
    )
    composed.generation_config.eos_token_id = 2
    return composed


@torch.no_grad()
def again(model: ComposedModel, prompt: str, tokens: list[str]) -> dict[str, list]:
    """The same measures from one forward over the whole text, without a cache."""
    before = model.encode(prompt)["input_ids"]
    after = torch.tensor([[model.tokenizer.convert_tokens_to_ids(token) for token in tokens]])
    output = model(torch.cat([before, after], 1), use_cache=False, output_voices=True)
    start = before.shape[1] - 1
    voices, log_hat = output.voice_log_probs[:, 0, start:-1], output.logits[0, start:-1]
    evidence = gather_evidence(voices, model.plan.base, model.plan.refs)
    log_components = tilted(evidence, model.weights)
    found = measure(evidence.log_base, log_components, log_hat)
    chosen = after[0].unsqueeze(-1)
    return {
        "log_probs": log_hat.gather(-1, chosen)[:, 0],
        "base_log_probs": evidence.log_base.gather(-1, chosen)[:, 0],
        "moved": torch.stack([(q - evidence.log_base).gather(-1, chosen)[:, 0] for q in log_components]),
        **{n: getattr(found, n) for n in ("log_partition", "activity", "evidence", "gap", "interference")},
    }


@pytest.mark.parametrize("voice", ["composed", "base", "y"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_record_is_what_a_fresh_forward_says(model: ComposedModel, voice: str, batch_size: int) -> None:
    tasks = [Task(index, prompt, voice) for index, prompt in enumerate(PROMPTS)]
    texts = list(probe(model, tasks, max_new_tokens=12, seed=3, batch_size=batch_size))
    assert [text.index for text in texts] == [0, 1, 2]
    raked = {"log_probs", "evidence", "gap"} if model.rule == "raking" else set()  # may jump where r is on a bin's edge
    for text, prompt in zip(texts, PROMPTS, strict=True):
        assert len(text.tokens) == 12 or text.tokens[-1] == "</s>"
        for name, expected in again(model, prompt, text.tokens).items():
            if name in raked:
                continue
            torch.testing.assert_close(torch.tensor(getattr(text, name)), expected, atol=2e-3, rtol=1e-3, msg=name)


def test_given_answers_are_followed_to_their_end(model: ComposedModel) -> None:
    answer = "the sea is wide and deep. it is full of fish and ships"  # longer than one chunk
    task = Task(0, PROMPTS[1], "given", answer)
    (text,) = probe(model, [task], max_new_tokens=200)
    assert "".join(text.tokens) == answer + "<|end|>"
    raked = {"log_probs", "evidence", "gap"} if model.rule == "raking" else set()
    for name, expected in again(model, PROMPTS[1], text.tokens).items():
        if name in raked:
            continue
        torch.testing.assert_close(torch.tensor(getattr(text, name)), expected, atol=2e-3, rtol=1e-3, msg=name)
    (cut,) = probe(model, [task], max_new_tokens=5)
    assert cut.tokens == text.tokens[:5]
    assert cut.base_log_probs == pytest.approx(text.base_log_probs[:5], abs=1e-3)


def test_a_text_ends_where_the_window_is_full(model: ComposedModel) -> None:
    prompt = "a" * (model.config.max_position_embeddings - 40)
    (text,) = probe(model, [Task(0, prompt, "base")], max_new_tokens=200)
    assert 1 <= len(text.tokens) < 60


def test_each_voice_draws_from_its_own_law(model: ComposedModel) -> None:
    """Greedy texts are those that `generate` gives, with the others silent."""
    for voice in ("composed", "base", "x"):
        (text,) = probe(model, [Task(0, "hi", voice)], max_new_tokens=8, temperature=0)
        model.solo(None if voice == "composed" else voice)
        output = model.generate(**model.encode("hi"), max_new_tokens=8, do_sample=False)
        model.solo(None)
        new = output[0, model.encode("hi")["input_ids"].shape[1] :]
        assert text.tokens == model.tokenizer.convert_ids_to_tokens(new.tolist())


def test_going_on_gives_what_one_run_gives(model: ComposedModel) -> None:
    tasks = [Task(index, prompt, "composed") for index, prompt in enumerate([*PROMPTS, "a", "b"])]
    whole = list(probe(model, tasks, max_new_tokens=6, batch_size=2))
    assert list(probe(model, tasks, max_new_tokens=6, batch_size=2, done=3)) == whole[3:]
    other = list(probe(model, tasks, max_new_tokens=6, batch_size=2, seed=1))
    assert [text.tokens for text in other] != [text.tokens for text in whole]


def test_pieces_spell_the_text_even_where_a_letter_takes_several_tokens() -> None:
    class Bytes:
        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode("utf-8", "replace")

    text = "añ🙂b"
    found = pieces(Bytes(), list(text.encode()))  # type: ignore[arg-type]
    assert "".join(found) == text
    assert found[0] == "a"
    assert found[-1] == "b"
    assert pieces(Bytes(), [0xF0, 0x9F]) == ["", "�"]  # type: ignore[arg-type]
    tokenizer = tiny_tokenizer()
    assert pieces(tokenizer, tokenizer("hi </s>")["input_ids"]) == ["h", "i", " ", "</s>"]
