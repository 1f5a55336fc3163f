"""The embedded model, composed, against PEFT and plain transformers running each voice alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from counterpoint import ComposedModel, load_backbone
from counterpoint.composition.contexts import render

NAME = "smollm2-135m-instruct"
PIRATE = "You are a pirate. Talk like a pirate."


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("real") / "adapter"
    torch.manual_seed(0)
    model = get_peft_model(load_backbone(NAME)[0], LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.embedded
def test_every_step_of_a_greedy_answer_equals_the_voices_run_alone(adapter: str) -> None:
    """Within 1e-4 of five lines on top of PEFT; the adapter, trained on the embedded model, is known as its own."""
    composed = ComposedModel.from_recipe(
        base=NAME, components={"pirate": {"context": PIRATE}, "odd": {"adapter": adapter, "weight": 0.7}}
    )
    batch = composed.encode("Tell me about the sea.")
    start = batch.input_ids.shape[1]
    answer = composed.generate(
        **batch, do_sample=False, max_new_tokens=12, output_logits=True, return_dict_in_generate=True
    )
    plain, tokenizer = load_backbone(NAME)
    question = [{"role": "user", "content": "Tell me about the sea."}]
    default = render(tokenizer, question)
    pirate = render(tokenizer, [{"role": "system", "content": PIRATE}, *question])
    tail = answer.sequences[0, start:].tolist()
    with torch.no_grad():
        log_p = [
            plain(torch.tensor([ids + tail])).logits[0, len(ids) - 1 : -1].log_softmax(-1) for ids in (default, pirate)
        ]
        odd = PeftModel.from_pretrained(plain, adapter).eval()
        log_p.append(odd(torch.tensor([default + tail])).logits[0, len(default) - 1 : -1].log_softmax(-1))
    base, pirates, odds = log_p
    expected = (base + (pirates - base) + 0.7 * (odds - base)).log_softmax(-1)
    steps = torch.stack([logits[0] for logits in answer.logits])
    torch.testing.assert_close(steps, expected, atol=1e-4, rtol=1e-4)
    assert expected.argmax(-1).tolist() == tail
    assert (pirates - base).abs().max() > 1
    assert (odds - base).abs().max() > 0.5
