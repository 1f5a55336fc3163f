"""Small worlds for the tests: random tiny models, their tokenizers, adapters, and models that are plain tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCABULARY = 64
SPECIAL = ["<pad>", "<s>", "</s>", "<|start|>", "<|end|>"]
CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m['role'] != 'system' %}{{ '<|start|>system be nice<|end|>' }}{% endif %}"
    "{{ '<|start|>' + m['role'] + ' ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant ' }}{% endif %}"
)
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
_LLAMA = {**_SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 256}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": LlamaConfig(**_LLAMA, **_ENDS),
    "llama-tied": LlamaConfig(**_LLAMA, **_ENDS, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**_LLAMA, **_ENDS),
    "mistral-sliding": MistralConfig(**_LLAMA, **_ENDS, sliding_window=8),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, vocab_size=VOCABULARY, **_ENDS),
}


def tiny_model(kind: str = "llama", seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random model whose next-token distributions are far from uniform."""
    torch.manual_seed(seed)
    config = type(CONFIGS[kind])(**{**CONFIGS[kind].to_dict(), **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
    model.generation_config.eos_token_id = None  # so that random text runs to its full length
    return model


def tiny_tokenizer(template: str | None = CHATML, size: int = VOCABULARY, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token a letter, a few special ones, and fillers up to `size`."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list(" .!?ABCDEFGH0123456789")
    tokens = [*SPECIAL, *letters]
    tokens += [f"<f{i}>" for i in range(size - len(tokens))]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if bos:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="?"
    )
    fast.chat_template = template
    return fast


def save_model(
    folder: Path, kind: str = "llama", seed: int = 0, template: str | None = CHATML, **changes: object
) -> str:
    """A tiny model and its tokenizer in a folder, as a user would have one."""
    tiny_model(kind, seed, **changes).save_pretrained(folder)
    tiny_tokenizer(template).save_pretrained(folder)
    return str(folder)


def save_adapter(folder: Path, base: str, seed: int = 1, **settings: object) -> str:
    """A random LoRA for the model in folder `base`, every factor far from zero."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base)
    defaults = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    wrapped = get_peft_model(model, LoraConfig(**{**defaults, **settings}))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                if "magnitude" in name:
                    parameter.mul_(1 + 0.3 * torch.rand_like(parameter))
                else:
                    parameter.add_(0.2 * torch.randn_like(parameter))
    wrapped.save_pretrained(folder)
    return str(folder)


class TableConfig(PreTrainedConfig):
    model_type = "counterpoint-test-table"
    vocab_size: int = 0
    num_hidden_layers: int = 1


class TableModel(PreTrainedModel, GenerationMixin):
    """p(v | previous token) read from a table of log-probabilities, (vocab, vocab); -inf allowed."""

    config_class = TableConfig

    def __init__(self, table: Tensor) -> None:
        super().__init__(TableConfig(vocab_size=table.shape[1]))
        self.table = nn.Parameter(table.clone())

    def forward(self, input_ids: Tensor, cache: object = None, use_cache: bool = False) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=self.table[input_ids])


def random_table(vocabulary: int, seed: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(vocabulary, vocabulary, generator=generator)).log_softmax(-1)


def tables(names: Sequence[str], vocabulary: int, spread: float = 1.0) -> dict[str, tuple[TableModel, None]]:
    """Table models by name, as `ComposedModel.from_recipe(models=...)` takes them."""
    return {name: (TableModel(random_table(vocabulary, seed, spread)), None) for seed, name in enumerate(names)}
