"""Per-row adapters without a loop: every row of a batch passes through the low-rank factors of its own voice only.

All A factors that adapt one module are stacked to one (in, sum of ranks) matrix, all B factors to one
(sum of ranks, out) matrix, and a 0/1 mask keeps a row to its own voice's columns:

    y = W x + ((x A) * mask) B

Rows are voice-major: with n voices, the first n-th of the rows belongs to voice 0, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.composition.adapters import Adapter

FEW_ROWS = 64


class RowAdapters(nn.Module):
    """The adapters of one backbone, attached to its modules by forward hooks that act only inside `active()`.

    Args:
        model: the backbone; its weights are not touched.
        adapters: one for each voice, or None for a voice without.
    """

    def __init__(self, model: nn.Module, adapters: list[Adapter | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self._active = False
        by_voice = {voice: adapter for voice, adapter in enumerate(adapters) if adapter is not None}
        names = dict.fromkeys(n for adapter in by_voice.values() for n in [*adapter.factors, *adapter.replaced])
        for name in names:
            module = model.get_submodule(name)
            part = _AdaptedModule(module, name, by_voice, len(adapters))
            self.parts.append(part)
            module.register_forward_hook(partial(self._hook, part))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context the backbone's rows are voice-major; outside, the backbone is its plain self."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _hook(self, part: _AdaptedModule, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return part(args[0], output, getattr(module, "bias", None)) if self._active else None


class _AdaptedModule(nn.Module):
    """All that the voices add to, or put in place of, one module of the backbone."""

    def __init__(self, module: nn.Module, name: str, by_voice: Mapping[int, Adapter], voices: int) -> None:
        super().__init__()
        self.voices = voices
        self.looks_up = isinstance(module, nn.Embedding)
        self.replaced = nn.ModuleDict({str(v): a.replaced[name] for v, a in by_voice.items() if name in a.replaced})
        factors = {v: a.factors[name] for v, a in by_voice.items() if name in a.factors}
        like = next(module.parameters())
        place = {"device": like.device, "dtype": like.dtype if like.dtype.is_floating_point else torch.float32}
        self.replaced.to(**place)
        self.down = self.up = self.mask = self.scale = self.shift = None
        if not factors:
            return
        owner = torch.cat([torch.full((f.down.shape[0],), voice) for voice, f in factors.items()])
        mask = (owner[None, :] == torch.arange(voices)[:, None]).unsqueeze(1)
        self._keep("down", torch.cat([f.down for f in factors.values()]).t(), place)
        self._keep("up", torch.cat([f.up for f in factors.values()], dim=1).t(), place)
        self._keep("mask", mask, place)
        for what, neutral in (("scale", 1.0), ("shift", 0.0)):
            given = {v: getattr(f, what) for v, f in factors.items() if getattr(f, what) is not None}
            if given:
                rows = torch.full((voices, 1, self.up.shape[1]), neutral)
                for voice, vector in given.items():
                    rows[voice, 0] = vector
                self._keep(what, rows, place)

    def _keep(self, name: str, value: Tensor, place: dict[str, Any]) -> None:
        delattr(self, name)
        self.register_buffer(name, value.to(**place).contiguous(), persistent=False)

    def forward(self, x: Tensor, output: Tensor, bias: Tensor | None) -> Tensor:
        """The rows' own outputs.

        Args:
            x: the module's input, (rows, ..., in), or token ids (rows, time) for an embedding.
            output: what the module made of it, (rows, ..., out).
            bias: the module's bias, which DoRA's scale does not touch.
        """
        by_voice = output.view(self.voices, -1, output.shape[-1])
        if self.down is not None:
            by_voice = self._adapt(x, by_voice, bias)
        if self.replaced:
            chunks, inputs = list(by_voice.unbind(0)), x.chunk(self.voices)
            for voice, module in self.replaced.items():
                chunks[int(voice)] = module(inputs[int(voice)]).reshape(chunks[0].shape)
            by_voice = torch.stack(chunks)
        return by_voice.view(output.shape)

    def _adapt(
        self, x: Tensor, y: Float[Tensor, "voice item out"], bias: Tensor | None
    ) -> Float[Tensor, "voice item out"]:
        rank, out = self.up.shape
        hidden = F.embedding(x, self.down).view(-1, rank) if self.looks_up else x.reshape(-1, x.shape[-1]) @ self.down
        hidden = (hidden.view(self.voices, -1, rank) * self.mask).view(-1, rank)
        if self.scale is None and self.shift is None:
            return torch.addmm(y.view(-1, out), hidden, self.up).view(y.shape)
        y = y if bias is None else y - bias
        y = y + (hidden @ self.up).view(y.shape)
        y = y if self.scale is None else y * self.scale
        y = y if self.shift is None else y + self.shift
        return y if bias is None else y + bias


def speed_up_few_rows(model: nn.Module) -> None:
    """Make `nn.Linear` fast for a handful of rows on the CPU, where decoding k+1 voices spends its time.

    For float32 and 2 to 64 rows, W xᵀ is about as fast as one row alone, while x Wᵀ, the same numbers in the other
    memory layout, is 1.3 to 2 times slower (measured with MKL on two cores; see docs/performance.md).
    """
    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in vars(module):
            module.forward = partial(_few_rows, module)


def _few_rows(module: nn.Linear, x: Float[Tensor, "*row in"]) -> Float[Tensor, "*row out"]:
    rows = x.numel() // x.shape[-1]
    weight = module.weight
    if not (1 < rows <= FEW_ROWS and x.is_cpu and x.dtype == weight.dtype == torch.float32) or x.requires_grad:
        return F.linear(x, weight, module.bias)
    y = torch.mm(weight, x.reshape(rows, -1).t()).t()
    y = y.contiguous() if module.bias is None else y + module.bias
    return y.view(*x.shape[:-1], -1)
