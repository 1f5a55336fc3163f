"""lm-evaluation-harness takes a composed model as it is: likelihoods, generation, a whole local task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from counterpoint import ComposedModel
from worlds import save_adapter, save_model

pytestmark = pytest.mark.eval
lm_eval = pytest.importorskip("lm_eval", reason="needs the extra: pip install 'counterpoint[eval]'")


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> ComposedModel:
    folder = tmp_path_factory.mktemp("harness")
    base = save_model(folder / "base")
    components = {"x": {"adapter": save_adapter(folder / "a", base)}, "y": {"context": "speak in verse", "weight": 0.5}}
    return ComposedModel.from_recipe(base=base, components=components)


def harness(composed: ComposedModel, batch_size: int) -> object:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=composed, tokenizer=composed.tokenizer, batch_size=batch_size, max_length=128)


def request(kind: str, *arguments: object) -> object:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_log_likelihoods_are_those_of_the_model(composed: ComposedModel, batch_size: int) -> None:
    pairs = [("the sea is", " blue"), ("a", " boat of wood"), ("what is", " it")]
    results = harness(composed, batch_size).loglikelihood([request("loglikelihood", *pair) for pair in pairs])
    for (context, answer), (log_likelihood, greedy) in zip(pairs, results, strict=True):
        before = composed.tokenizer(context).input_ids
        after = composed.tokenizer(answer).input_ids
        with torch.no_grad():
            log_probs = composed(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
        expected = log_probs.gather(1, torch.tensor(after)[:, None]).sum().item()
        assert log_likelihood == pytest.approx(expected, abs=1e-3)
        assert greedy == (log_probs.argmax(-1).tolist() == after)


def test_generation_until_a_stop_string(composed: ComposedModel) -> None:
    settings = {"max_gen_toks": 6, "do_sample": False, "until": ["</s>"]}
    prompts = ["the sea", "hi", "what is this"]
    texts = harness(composed, 3).generate_until([request("generate_until", prompt, settings) for prompt in prompts])
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([composed.tokenizer(prompt).input_ids])
        answer = composed.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :]
        assert text == composed.tokenizer.decode(answer, skip_special_tokens=True)


def test_a_whole_local_task(composed: ComposedModel, tmp_path: Path) -> None:
    rows = [{"question": "the sea is", "choices": [" blue", " dry"], "answer": i % 2} for i in range(4)]
    (tmp_path / "sea.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "sea",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "sea.jsonl")}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    }
    results = lm_eval.simple_evaluate(model=harness(composed, 2), tasks=[task], bootstrap_iters=0)
    assert results["results"]["sea"]["acc,none"] == 0.5
