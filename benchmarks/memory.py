"""Peak memory of a process that loads and decodes, measured in a process of its own."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import torch

MIB = 2**20


def peak_memory(model: str, adapters: list[str]) -> dict[str, float]:
    """Peak resident memory in MiB of the plain model and of the composed one, and what the difference should be."""
    plain, composed = (
        json.loads(subprocess.run([sys.executable, __file__, model, *paths], check=True, capture_output=True).stdout)
        for paths in ([], adapters)
    )
    adapter_bytes = sum((Path(path) / "adapter_model.safetensors").stat().st_size for path in adapters)
    allowed = plain["peak"] + adapter_bytes / MIB + composed["cache"] - plain["cache"]
    return {
        "k": len(adapters),
        "plain_mib": plain["peak"],
        "adapters_mib": adapter_bytes / MIB,
        "caches_mib": composed["cache"],
        "composed_mib": composed["peak"],
        "over_sum_of_parts": composed["peak"] / allowed - 1,
    }


def _decode(name: str, adapters: list[str]) -> dict[str, float]:
    from counterpoint import ComposedModel, load_backbone

    if adapters:
        components = {f"a{i}": {"adapter": path} for i, path in enumerate(adapters)}
        model = ComposedModel.from_recipe(base=name, components=components)
    else:
        model = load_backbone(name)[0]
    ids = torch.randint(1000, 40000, (1, 64), generator=torch.Generator().manual_seed(0))
    output = model.generate(ids, max_new_tokens=64, min_new_tokens=64, do_sample=False, return_dict_in_generate=True)
    layers = output.cache.layers
    cache = sum(t.numel() * t.element_size() for layer in layers for t in (layer.keys, layer.values))
    return {"peak": _peak_bytes() / MIB, "cache": cache / MIB}


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # Linux: getrusage would report the parent's peak if that was higher
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(_decode(sys.argv[1], sys.argv[2:])))
