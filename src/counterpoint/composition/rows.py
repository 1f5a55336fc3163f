"""Per-row adapters without a loop: every row of a batch passes through the low-rank factors of its own voice only.

All A factors that adapt one module are stacked to one (in, sum of ranks) matrix, all B factors to one
(sum of ranks, out) matrix, and a 0/1 mask keeps a row to its own voice's columns:

    y = W x + ((x A) * mask) B

Rows are voice-major: with n voices, the first n-th of the rows belongs to voice 0, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.composition.adapters import Adapter, Factors

FEW_ROWS = 64


class RowAdapters(nn.Module):
    """The adapters of one backbone, attached to its modules by forward hooks that act only inside `active()`.

    Args:
        model: the backbone; its weights are not touched.
        adapters: one for each voice, or None for a voice without.
    """

    def __init__(self, model: nn.Module, adapters: Sequence[Adapter | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self._active = False
        low_rank: dict[str, dict[int, Factors]] = {}
        replaced: dict[str, dict[int, nn.Module]] = {}
        for voice, adapter in enumerate(adapters):
            for name, factors in adapter.factors.items() if adapter else ():
                low_rank.setdefault(name, {})[voice] = factors
            for name, module in adapter.replaced.items() if adapter else ():
                replaced.setdefault(name, {})[voice] = module
        for name, by_voice in low_rank.items():
            self._attach(model.get_submodule(name), LowRankRows(by_voice, len(adapters)))
        for name, modules in replaced.items():
            self._attach(model.get_submodule(name), ReplacedRows(modules, len(adapters)))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context the backbone's rows are voice-major; outside, the backbone is its plain self."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _attach(self, module: nn.Module, part: nn.Module) -> None:
        like = next(module.parameters())
        part.to(device=like.device, dtype=like.dtype if like.dtype.is_floating_point else torch.float32)
        part.requires_grad_(False)
        self.parts.append(part)
        module.register_forward_hook(partial(self._hook, part))

    def _hook(self, part: nn.Module, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return part(module, args[0], output) if self._active else None


class LowRankRows(nn.Module):
    """The LoRA factors that some voices add to one module.

    Args:
        by_voice: voice -> its factors; ranks may differ.
        voices: n, how many voices share the rows.
    """

    down: Tensor
    up: Tensor
    mask: Tensor
    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, by_voice: Mapping[int, Factors], voices: int) -> None:
        super().__init__()
        owners = torch.cat([torch.full((f.down.shape[0],), voice) for voice, f in by_voice.items()])
        mask = (owners == torch.arange(voices)[:, None, None]).to(torch.float32)
        self._keep("down", torch.cat([f.down for f in by_voice.values()]).t().contiguous())
        self._keep("up", torch.cat([f.up for f in by_voice.values()], dim=1).t().contiguous())
        self._keep("mask", mask)
        self._keep("scale", self._vectors({v: f.scale for v, f in by_voice.items()}, voices, 1.0))
        self._keep("shift", self._vectors({v: f.shift for v, f in by_voice.items()}, voices, 0.0))

    def _keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, value, persistent=False)

    def _vectors(self, by_voice: Mapping[int, Tensor | None], voices: int, neutral: float) -> Tensor | None:
        given = {voice: vector for voice, vector in by_voice.items() if vector is not None}
        if not given:
            return None
        like = next(iter(given.values()))
        return torch.stack([given.get(voice, torch.full_like(like, neutral)) for voice in range(voices)]).unsqueeze(1)

    def forward(self, module: nn.Module, x: Tensor, output: Tensor) -> Float[Tensor, "row *rest out"]:
        """The rows' own outputs.

        Args:
            module: the adapted module; DoRA's scale does not touch its bias.
            x: its input, (rows, ..., in), or token ids (rows, time) for an embedding.
            output: what it made of them, (rows, ..., out).
        """
        rank, out = self.up.shape
        hidden = (
            F.embedding(x, self.down) if isinstance(module, nn.Embedding) else x.reshape(-1, x.shape[-1]) @ self.down
        )
        hidden = (hidden.view(len(self.mask), -1, rank) * self.mask).view(-1, rank)
        y = output.view(-1, out)
        if self.scale is None and self.shift is None:
            return torch.addmm(y, hidden, self.up).view(output.shape)
        bias = getattr(module, "bias", None)
        y = y + hidden @ self.up - (0 if bias is None else bias)
        y = y.view(len(self.mask), -1, out)
        y = y * (1 if self.scale is None else self.scale) + (0 if self.shift is None else self.shift)
        return (y + (0 if bias is None else bias)).view(output.shape)


class ReplacedRows(nn.Module):
    """Whole modules that some voices put in the place of one module of the backbone (PEFT's `modules_to_save`)."""

    def __init__(self, by_voice: Mapping[int, nn.Module], voices: int) -> None:
        super().__init__()
        self.voices = voices
        self.modules_of = nn.ModuleDict({str(voice): module for voice, module in by_voice.items()})

    def forward(self, module: nn.Module, x: Tensor, output: Tensor) -> Float[Tensor, "row *rest out"]:
        """`output` with the rows of the voices that have a module of their own computed by it."""
        outputs, inputs = list(output.chunk(self.voices)), x.chunk(self.voices)
        for voice, own in self.modules_of.items():
            outputs[int(voice)] = own(inputs[int(voice)])
        return torch.cat(outputs)


def speed_up_few_rows(model: nn.Module) -> None:
    """Make `nn.Linear` fast for a handful of rows on the CPU, where decoding k+1 voices spends its time.

    For float32 and 2 to 64 rows, W xᵀ is about as fast as one row alone, while x Wᵀ, the same numbers in the other
    memory layout, is 1.3 to 2 times slower (measured with MKL on two cores; see docs/performance.md).
    """
    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in vars(module):
            module.forward = partial(_few_rows, module)  # type: ignore[method-assign]


def _few_rows(module: nn.Linear, x: Float[Tensor, "*row in"]) -> Float[Tensor, "*row out"]:
    rows = x.numel() // x.shape[-1]
    weight = module.weight
    if not (1 < rows <= FEW_ROWS and x.is_cpu and x.dtype == weight.dtype == torch.float32) or x.requires_grad:
        return F.linear(x, weight, module.bias)
    y = torch.mm(weight, x.reshape(rows, -1).t()).t()
    y = y.contiguous() if module.bias is None else y + module.bias
    return y.view(*x.shape[:-1], -1)
