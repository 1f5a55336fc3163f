"""One cache for all voices: each backbone's key-value cache, addressed by sequence instead of by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

STEP = 128
"""A growing layer has room for up to so many more tokens than it holds."""


class ComposedCache(Cache):
    """The caches of all backbones, behind the interface that `generate` expects of one.

    A backbone with n voices holds n·B rows, voice-major: row v·B + b is voice v of sequence b. Lengths count the
    tokens of `input_ids`, not the contexts before them.

    Attributes:
        parts: one cache a backbone.
        masks: one attention mask a backbone, (rows, contexts and tokens so far), or None while nothing is masked.
        length: tokens of `input_ids` seen so far.
        batch: B, the number of sequences.
    """

    def __init__(self, parts: Sequence[Cache], voices: Sequence[int]) -> None:
        super().__init__(layers=[layer for part in parts for layer in part.layers])
        self.parts = list(parts)
        self.voices = list(voices)
        self.masks: list[Tensor | None] = [None] * len(self.parts)
        self.length = 0
        self.batch = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the number is negative or zero, as in `transformers.Cache.crop`."""
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self.masks = [None if mask is None else mask[:, :tokens_to_remove] for mask in self.masks]
            self.length += tokens_to_remove

    def reset(self) -> None:
        super().reset()
        self.masks = [None] * len(self.parts)
        self.length = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(beam_idx, "reorder_cache")

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(indices, "batch_select_indices")

    def _select(self, sequences: Tensor, method: str) -> None:
        for i, (part, voices, mask) in enumerate(zip(self.parts, self.voices, self.masks, strict=True)):
            rows = rows_of(sequences, voices, self.batch)
            getattr(part, method)(rows)
            self.masks[i] = None if mask is None else mask[rows.to(mask.device)]
        self.batch = len(sequences)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.masks = [None if mask is None else mask.repeat_interleave(repeats, dim=0) for mask in self.masks]
        self.batch *= repeats

    @property
    def batch_size(self) -> int:
        return self.batch or -1


def rows_of(sequences: Tensor, voices: int, batch: int) -> Tensor:
    """The rows of some sequences in a voice-major batch: v·batch + b for every voice v and given b, (voices·n,)."""
    offsets = torch.arange(voices, device=sequences.device) * batch
    return (offsets[:, None] + sequences[None, :]).flatten()


class GrowingLayer(DynamicLayer):
    """A layer that writes new keys and values behind the old ones, where `DynamicLayer` copies all of them each step.

    With k+1 voices that copy is k+1 times as large: for five, a fifth of a step after 1,600 tokens (SmolLM2-135M).
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = keys, values = appended(self.keys, key_states), appended(self.values, value_states)
        return keys, values


def growing_cache(config: PretrainedConfig) -> DynamicCache:
    """The cache that transformers would make for this model, its full-attention layers growing in place."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def appended(past: Tensor | None, new: Float[Tensor, "row head time size"]) -> Float[Tensor, "row head seen size"]:
    """`past`, (row, head, before, size) or empty, with `new` behind it; copied only where its room is full.

    How much room there is can be read off the strides: with room for n tokens, heads lie n · size numbers apart.
    """
    before = past.shape[2] if past is not None and past.numel() else 0
    seen = before + new.shape[2]
    if past is None or not before or past.stride(1) // past.shape[3] < seen:
        room = new.new_empty(*new.shape[:2], -(-seen // STEP) * STEP, new.shape[3])
        if past is not None and before:
            room[:, :, :before] = past
        past = room
    whole = past.as_strided((*new.shape[:2], seen, new.shape[3]), past.stride(), past.storage_offset())
    whole[:, :, before:] = new
    return whole
