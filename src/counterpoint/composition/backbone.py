"""A backbone: one set of weights that speaks for several voices in one forward."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from counterpoint.composition.adapters import Adapter
from counterpoint.composition.cache import ComposedCache, growing_cache
from counterpoint.composition.few_rows import speed_up_few_rows
from counterpoint.composition.rows import RowAdapters
from counterpoint.errors import ContextError


class Backbone(nn.Module):
    """Runs B sequences as n·B voice-major rows: each voice's opening before it, each voice's adapter within it.

    Args:
        model: a Hugging Face causal language model; frozen, otherwise left as it is.
        adapters: one for each voice, or None.
        openings: the token ids before each voice's sequence (its context), possibly empty.
        pad: any valid token id; stands, masked, where a row has nothing.

    Raises:
        ContextError: an opening leaves no room in the model's window.
    """

    _opening_ids: Tensor
    _opening_mask: Tensor

    def __init__(
        self,
        model: PreTrainedModel,
        adapters: Sequence[Adapter | None],
        openings: Sequence[Sequence[int]],
        pad: int = 0,
    ) -> None:
        super().__init__()
        self.model = cast("PreTrainedModel", model.requires_grad_(False).eval())
        self.voices = len(openings)
        self.pad = pad
        self.window: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.adapters = RowAdapters(model, list(adapters))
        speed_up_few_rows(model)
        self.opening_length = max(len(opening) for opening in openings)
        if self.window is not None and self.opening_length >= self.window:
            raise ContextError(
                f"a context of {self.opening_length} tokens leaves no room in the model's window of {self.window}; "
                "shorten it"
            )
        aligned = torch.full((self.voices, self.opening_length), pad)
        present = torch.zeros_like(aligned)
        for voice, opening in enumerate(openings):
            if opening:
                aligned[voice, -len(opening) :] = torch.tensor(opening)
                present[voice, -len(opening) :] = 1
        self.register_buffer("_opening_ids", aligned, persistent=False)
        self.register_buffer("_opening_mask", present, persistent=False)
        self._accepts = set(inspect.signature(model.forward).parameters)

    def new_cache(self) -> Cache:
        """An empty cache for this backbone's rows."""
        return growing_cache(self.model.config)

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch seen"],
        cache: ComposedCache | None,
        part: int,
        logits_to_keep: int | Tensor,
    ) -> Float[Tensor, "voice batch kept vocab"]:
        """Logits of every voice.

        Args:
            input_ids: new tokens.
            attention_mask: over all tokens of `input_ids` so far, cached ones first.
            cache: the composed cache or None; its part's mask is brought up to date.
            part: which of the cache's parts is this backbone's.
            logits_to_keep: as in transformers: the last n positions, or 0 for all.
        """
        batch, time = input_ids.shape
        device = self._opening_ids.device
        new_mask = attention_mask[:, -time:].to(device).repeat(self.voices, 1)
        rows = input_ids.to(device).repeat(self.voices, 1)
        mask: Tensor | None = new_mask
        if cache is not None and cache.length:
            mask = self._extended(cache.masks[part], cache.length, new_mask)
        else:
            rows, mask = self._with_openings(rows, new_mask) if self.opening_length else (rows, new_mask)
            mask = None if bool(mask.all()) else mask
        self._check_window(rows, mask, cache)
        arguments = self._arguments(rows, mask, None if cache is None else cache.parts[part])
        if "logits_to_keep" in self._accepts:
            before = rows.shape[1] - time
            keep = logits_to_keep + before if isinstance(logits_to_keep, Tensor) else logits_to_keep or time
            arguments["logits_to_keep"] = keep
        with self.adapters.active():
            logits: Tensor = self.model(**arguments).logits
        if "logits_to_keep" not in self._accepts:
            logits = logits[:, -time:]
            logits = logits[:, logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)]
        if cache is not None:
            cache.masks[part] = mask
        return logits.view(self.voices, batch, logits.shape[1], -1)

    def _with_openings(
        self, rows: Int[Tensor, "row time"], mask: Int[Tensor, "row time"]
    ) -> tuple[Int[Tensor, "row seen"], Int[Tensor, "row seen"]]:
        """Each row with its voice's opening right before its first real token, so that no gap lies between them."""
        batch = rows.shape[0] // self.voices
        width = self.opening_length
        padding = rows.new_full((rows.shape[0], width), self.pad)
        ids, present = torch.cat([padding, rows], dim=1), torch.cat([torch.zeros_like(padding), mask], dim=1)
        leading = (mask.cumsum(1) == 0).sum(1, keepdim=True)
        place = leading + torch.arange(width, device=rows.device)
        ids.scatter_(1, place, self._opening_ids.repeat_interleave(batch, 0))
        present.scatter_(1, place, self._opening_mask.repeat_interleave(batch, 0))
        return ids, present

    def _extended(
        self, seen: Int[Tensor, "row past"] | None, length: int, new: Int[Tensor, "row time"]
    ) -> Int[Tensor, "row seen"] | None:
        if seen is None:
            if bool(new.all()):
                return None
            seen = new.new_ones(new.shape[0], self.opening_length + length)
        return torch.cat([seen, new], dim=1)

    def _arguments(self, rows: Tensor, mask: Tensor | None, cache: Cache | None) -> dict[str, object]:
        arguments: dict[str, object] = {"input_ids": rows, "use_cache": cache is not None}
        if mask is not None:
            arguments["attention_mask"] = mask
            if "position_ids" in self._accepts:
                positions = (mask.cumsum(1) - 1).clamp(min=0)
                arguments["position_ids"] = positions[:, -rows.shape[1] :]
        if cache is not None:
            arguments["cache" if "cache" in self._accepts else "past_key_values"] = cache
        return arguments

    def _check_window(self, rows: Tensor, mask: Tensor | None, cache: ComposedCache | None) -> None:
        past = self.opening_length + cache.length if cache is not None and cache.length else 0
        seen = past + rows.shape[1]
        if self.window is None or seen <= self.window:
            return
        longest = seen if mask is None else int(mask.sum(1).max())
        if longest > self.window:
            raise ContextError(
                f"contexts, prompt and answer come to {longest} tokens, and the model's window is {self.window}; "
                "shorten the prompt or the contexts, or ask for fewer new tokens"
            )
