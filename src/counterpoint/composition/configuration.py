"""The configuration of a composed model: its recipe, and the few figures that Hugging Face tools ask for."""

from __future__ import annotations

import json
from typing import Any

from transformers import PreTrainedConfig


class ComposedConfig(PreTrainedConfig):
    """What a composed model is made of.

    Attributes:
        recipe: the recipe as plain data.
        vocab_size: width of the composed distribution, the part that all models share.
        max_position_embeddings: tokens that fit behind the longest context in the smallest window.
        num_hidden_layers: layers of all backbones together.
        sources: model name -> where its weights came from (path or hub id, revision), for the model card.
    """

    model_type = "counterpoint"
    keys_to_ignore_at_inference = ("cache", "past_key_values")

    recipe: dict[str, Any] | None = None
    vocab_size: int = 0
    max_position_embeddings: int | None = None
    num_hidden_layers: int = 0
    sources: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    use_cache: bool = True

    def to_json_string(self, use_diff: bool = True) -> str:
        """As JSON, with the components in the recipe's order: elsewhere transformers sorts the keys."""
        data = json.loads(super().to_json_string(use_diff))
        return json.dumps(data | ({"recipe": self.recipe} if "recipe" in data else {}), indent=2) + "\n"
