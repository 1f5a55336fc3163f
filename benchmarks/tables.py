"""The benchmarks' results as Markdown tables, and their place in the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def tables(results: dict[str, Any]) -> str:
    """Decoding and memory tables, every figure a ratio to the plain model in the same run unless it says MiB."""
    settings, versions = results["settings"], results["versions"]
    parts = [
        f"{settings['model']} in {settings['dtype']}, rank {settings['rank']} on all linear layers, prompt of "
        f"{settings['prompt_tokens']} tokens, {settings['new_tokens']} new tokens ({settings['reference_tokens']} for "
        f"the three references), {settings['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    ]
    for kind, batch in dict.fromkeys((run["kind"], run["batch"]) for run in results["runs"]):
        runs = [run for run in results["runs"] if (run["kind"], run["batch"]) == (kind, batch)]
        names = [name for name in runs[0]["times"] if name != "plain"]
        parts.append(f"**{kind.capitalize()} as components, batch {batch}**: time a token, plain model = 1\n")
        rows = [["k", *names, *([f"{names[0]}, first step"] if names else []), "plain, ms a token"]]
        for run in runs:
            plain, times = run["times"]["plain"], run["times"]
            first = times[names[0]]["prefill_ms"] / plain["prefill_ms"]
            ratios = [times[name]["ratio"] for name in names]
            rows.append([str(run["k"]), *(f"{r:.2f}" for r in [*ratios, first]), f"{plain['decode_ms']:.0f}"])
        parts.append(markdown(rows))
    rows = [["k", "plain, MiB", "adapters, MiB", "caches, MiB", "composed, MiB", "over the sum of its parts"]]
    for m in results["memory"]:
        figures = [m[key] for key in ("plain_mib", "adapters_mib", "caches_mib", "composed_mib")]
        rows.append([str(m["k"]), *(f"{figure:.0f}" for figure in figures), f"{m['over_sum_of_parts']:+.1%}"])
    parts += ["**Peak memory of a process**\n", markdown(rows)]
    return "\n\n".join(part.strip() for part in parts)


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table, its first row the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_between(page: Path, mark: str, text: str) -> None:
    """Put a text between the two places of a page where `mark` stands."""
    before, _, after = page.read_text().split(mark)
    page.write_text(f"{before}{mark}\n{text}\n{mark}{after}")
