"""Per-row adapters in one forward: every row of a batch passes through the low-rank factors of its own voice only.

Rows are voice-major: with n voices, the first n-th of the rows belongs to voice 0, and so on. So the rows of one module
are a batch of n matrices, and all adapters of that module are one batched product, ranks padded with zeros:

    y_v = W x_v + (x_v A_v) B_v        for every voice v at once, with torch.bmm
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


class RowAdapters(nn.Module):
    """The adapters of one backbone, attached to its modules by forward hooks that act only inside `active()`.

    Args:
        model: the backbone; its weights are not touched.
        adapters: one for each voice, or None for a voice without. They are emptied, so that their factors, copied side
            by side here, are never held twice.
    """

    def __init__(self, model: nn.Module, adapters: Sequence[Adapter | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self._active = False
        given = {voice: adapter for voice, adapter in enumerate(adapters) if adapter is not None}
        for name in dict.fromkeys(name for adapter in given.values() for name in adapter.factors):
            factors = {v: a.factors.pop(name) for v, a in given.items() if name in a.factors}
            self._attach(model.get_submodule(name), LowRankRows(factors, len(adapters)))
        for name in dict.fromkeys(name for adapter in given.values() for name in adapter.replaced):
            modules = {v: a.replaced.pop(name) for v, a in given.items() if name in a.replaced}
            self._attach(model.get_submodule(name), ReplacedRows(modules, len(adapters)))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context the backbone's rows are voice-major; outside, the backbone is its plain self."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _attach(self, module: nn.Module, part: LowRankRows | ReplacedRows) -> None:
        like = next(module.parameters())
        part.to(device=like.device, dtype=like.dtype if like.dtype.is_floating_point else torch.float32)
        self.parts.append(part.requires_grad_(False))
        module.register_forward_hook(partial(self._hook, part))

    def _hook(
        self, part: LowRankRows | ReplacedRows, module: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        return part.apply_to(module, args[0], output) if self._active else None


class LowRankRows(nn.Module):
    """The LoRA factors that some voices add to one module.

    Args:
        by_voice: voice -> its factors; ranks may differ.
        voices: n, how many voices share the rows.

    Attributes:
        which: the voices from the first to the last that has factors; zeros stand for those between without.
        down: A, shape (voice in `which`, in, largest rank).
        up: B with the scaling, shape (voice in `which`, largest rank, out).
        scale, shift: DoRA's scale and the bias of B, (voice in `which`, 1, out), or None.
    """

    down: Tensor
    up: Tensor
    scale: Tensor | None
    shift: Tensor | None

    def __init__(self, by_voice: Mapping[int, Factors], voices: int) -> None:
        super().__init__()
        self.voices = voices
        self.which = slice(min(by_voice), max(by_voice) + 1)
        like = next(iter(by_voice.values()))
        count, rank = self.which.stop - self.which.start, max(len(f.down) for f in by_voice.values())
        down, up = like.down.new_zeros(count, like.down.shape[1], rank), like.up.new_zeros(count, rank, len(like.up))
        for voice, factors in by_voice.items():
            down[voice - self.which.start, :, : len(factors.down)] = factors.down.t()
            up[voice - self.which.start, : len(factors.down)] = factors.up.t()
        vectors: dict[str, Tensor | None] = {"scale": None, "shift": None}
        for name, neutral in (("scale", 1.0), ("shift", 0.0)):
            given = {voice: getattr(f, name) for voice, f in by_voice.items() if getattr(f, name) is not None}
            if given:
                vectors[name] = rows = up.new_full((count, 1, up.shape[2]), neutral)
                for voice, vector in given.items():
                    rows[voice - self.which.start, 0] = vector
        for name, value in {"down": down, "up": up, **vectors}.items():
            self.register_buffer(name, value, persistent=False)

    def apply_to(self, module: nn.Module, x: Tensor, output: Tensor) -> Float[Tensor, "row *rest out"]:
        """The rows' own outputs, written over the module's; the backbone is frozen, so nothing else needs those.

        Args:
            module: the adapted module; DoRA's scale does not touch its bias.
            x: its input, (rows, ..., in), or token ids (rows, time) for an embedding.
            output: what it made of them, (rows, ..., out).
        """
        down, up = self.down, self.up
        y = output.view(self.voices, -1, up.shape[2])[self.which]
        if isinstance(module, nn.Embedding):
            ids = x.reshape(self.voices, -1)[self.which]
            hidden = torch.stack([F.embedding(one, factor) for one, factor in zip(ids, down, strict=True)])
        else:
            hidden = torch.bmm(x.reshape(self.voices, -1, down.shape[1])[self.which], down)
        if self.scale is None and self.shift is None:
            y.baddbmm_(hidden, up)
            return output
        bias: Any = 0 if getattr(module, "bias", None) is None else module.bias
        own = torch.baddbmm(y - bias, hidden, up)
        own = own * (1 if self.scale is None else self.scale) + (0 if self.shift is None else self.shift)
        y.copy_(own + bias)
        return output


class ReplacedRows(nn.Module):
    """Whole modules that some voices put in the place of one module of the backbone (PEFT's `modules_to_save`)."""

    def __init__(self, by_voice: Mapping[int, nn.Module], voices: int) -> None:
        super().__init__()
        self.voices = voices
        self.modules_of = nn.ModuleDict({str(voice): module for voice, module in by_voice.items()})

    def apply_to(self, module: nn.Module, x: Tensor, output: Tensor) -> Float[Tensor, "row *rest out"]:
        """`output` with the rows of the voices that have a module of their own computed by it."""
        outputs, inputs = list(output.chunk(self.voices)), x.chunk(self.voices)
        for voice, own in self.modules_of.items():
            outputs[int(voice)] = own(inputs[int(voice)])
        return torch.cat(outputs)
