"""Diagnoses made by hand: plausible figures for texts that no model wrote."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations

from counterpoint.diagnostics.results import Along, Diagnosis, Estimate, OfComponent, Reason, Text, Verdict

NOTHING = Estimate(mean=None, low=None, high=None)
NAMES = ["pirate", "scientist", "haiku", "polite", *(f"skill-{n}" for n in range(5, 33))]
PROSE = (
    "Arr, the tide be a patient teacher, and she teaches by the pull of the moon upon the water. Twice a day the sea "
    "comes in, me hearty, because gravity is stronger on the near side than on the far. The hypothesis is simple;\n"
    "the evidence is every wet plank in the harbour. So mark the hour, measure the height, and ye shall have data!\n"
)
HOSTILE = (
    "</script><script>alert(1)</script>",
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "]]>",
    "a\u2028b\u2029c",
    "\x00\x01\x7f",
    "\u202edesrever\u202c",
    "<img src=x onerror=document.title='owned'>",
    "👩\u200d👩\u200d👧\u200d👦 🏴\U000e0067\U000e007f",
    "\n\n\t \r",
    " ",
    "",
    "&lt;b&gt;&amp;\"'`${title}$style",
    "שלום مرحبا",
    "\ufeff",
    "endless" * 40,
    "\ud800 \udfff",
)


def estimate(mean: float, spread: float = 0.12) -> Estimate:
    return Estimate(mean=mean, low=mean - abs(mean) * spread - 0.004, high=mean + abs(mean) * spread + 0.004)


def text(index: int, components: int = 3, tokens: int = 64, trouble: float = 1.0) -> Text:
    """Components take turns; where two speak at once, they interfere in proportion to `trouble`."""
    draw = random.Random(index)
    words = [piece for word in PROSE.split(" ") for piece in _pieces(word)]
    start = draw.randrange(len(words))
    spelled = [words[(start + n) % len(words)] for n in range(tokens)]
    turns = [[math.sin(n / 5 + 2.1 * c + index) for n in range(tokens)] for c in range(components)]
    active = [[max(0.0, value) ** 2 * 1.6 + draw.random() * 0.03 for value in row] for row in turns]
    crowd = [sum(row[n] for row in active) - max(row[n] for row in active) for n in range(tokens)]
    moved = [[a * draw.choice([2, 1.2, 0.8, -0.7]) + draw.gauss(0, 0.04) for a in active_row] for active_row in active]
    troubled = [trouble * (0.04 + c * (0.6 + n / tokens) + draw.random() * 0.1) for n, c in enumerate(crowd)]
    gap = [[g if a > 0.1 else None for a, g in zip(row, troubled, strict=True)] for row in active]
    base = [-draw.expovariate(0.5) - 0.01 for _ in range(tokens)]
    return Text(
        index=index,
        prompt=[
            {"role": "system", "content": "You are a ship's scientist."},
            {"role": "user", "content": f"Why does the sea come and go? Answer number {index}, with evidence."},
        ]
        if index % 3 == 1
        else f"Question {index}: explain the tides to the crew, briefly and in your own voice.",
        voice="composed",
        tokens=spelled,
        log_probs=[min(-0.001, b + sum(row[n] for row in moved)) for n, b in enumerate(base)],
        base_log_probs=base,
        moved=moved,
        log_partition=[trouble * c * (0.4 + n / tokens) - 0.02 for n, c in enumerate(crowd)],
        activity=active,
        evidence=[[a * 1.1 for a in row] for row in active],
        gap=gap,
        bin_distance=[[None if g is None else min(1.0, g / 3) for g in row] for row in gap],
        interference=[[a * b for a, b in zip(active[i], active[j], strict=True)] for i, j in pairs(components)],
        orphan=[draw.random() < 0.05 for _ in range(tokens)],
    )


def texts(count: int = 24, components: int = 3, tokens: int = 64) -> Iterator[Text]:
    return (text(n, components, tokens, trouble=0.5 + (n * 7 % 11) / 8) for n in range(count))


def pairs(components: int) -> list[tuple[int, int]]:
    return list(combinations(range(components), 2))


def diagnosis(components: int = 3, count: int = 24, tokens: int = 64, level: str = "interference") -> Diagnosis:
    """What `texts` might amount to; the first components interfere most, and the last one is hardly ever active."""
    names = NAMES[:components]
    shares = [0.62 - 0.5 * n / max(1, components - 1) for n in range(components)]
    left = [count if n < tokens // 2 else max(1, round(count * (1.4 - 0.8 * n / tokens))) for n in range(tokens)]

    def curve(start: float, end: float, n: int) -> Estimate:
        mean = start + (end - start) * n / tokens + 0.03 * math.sin(n * 1.7)
        width = 0.25 / math.sqrt(left[n])
        return Estimate(mean=mean, low=mean - width, high=mean + width)

    grown = [curve(0.05, 0.55, n) for n in range(tokens)]
    total = [sum(e.mean or 0 for e in grown[: n + 1]) for n in range(tokens)]
    return Diagnosis(
        settings={
            "recipe": {"base": "embedded:smollm2-135m", "components": {name: {} for name in names}, "rule": "product"},
            "digest": "sha256:9f2c",
            "continuations": "composed, sampled, 64 tokens",
            "seed": 7,
            "dtype": "float32",
            "device": "cpu",
        },
        versions={"counterpoint": "0.2.0", "torch": "2.8.0", "transformers": "5.24.0"},
        formula="p(v) ∝ p_base(v)" + "".join(f" · (p_{name}(v) / p_base(v))" for name in names),
        components=names,
        pairs=pairs(components),
        texts=count,
        positions=count * tokens,
        verdict=verdict(level, names),
        log_partition=estimate(0.31),
        abs_log_partition=estimate(0.36),
        both_active_share=estimate(0.27),
        orphan_share=estimate(0.046),
        interference=[
            estimate((0.46 if (i + j) % 3 else -0.23) / (1 + 0.45 * (i + j))) if i + j else NOTHING
            for i, j in pairs(components)
        ],
        by_component={
            name: OfComponent(
                activity=estimate(1.1 * share),
                active_share=estimate(share),
                gap=estimate(0.4 + 0.3 * share),
                bin_distance=estimate(0.21 * share),
                retained_evidence=NOTHING if n == components - 1 > 1 else estimate(1.5 - 0.35 * n),
                moved_share=estimate(share * 0.8),
            )
            for n, (name, share) in enumerate(zip(names, shares, strict=True))
        },
        along=Along(
            texts=left,
            log_partition=grown,
            cumulative_log_partition=[Estimate(mean=t, low=t * 0.9, high=t * 1.1) for t in total],
            gap={
                name: [curve(0.2 + 0.1 * c, 0.5 + 0.2 * c, n) if c < 3 or n % 7 else NOTHING for n in range(tokens)]
                for c, name in enumerate(names)
            },
            activity={
                name: [curve(0.9 - 0.2 * (c % 4), 0.8 - 0.2 * (c % 4), n) for n in range(tokens)]
                for c, name in enumerate(names)
            },
        ),
    )


def verdict(level: str, names: list[str]) -> Verdict:
    if level == "clear":
        return Verdict(level="clear", headline="No interference was found on these prompts.", reasons=[])
    second = names[min(1, len(names) - 1)]
    return Verdict.model_validate(
        {
            "level": level,
            "headline": f"{names[0]} and {second} get in each other’s way, more so as texts grow longer.",
            "reasons": [
                {
                    "measure": "gap",
                    "about": [names[0]],
                    "value": 0.58,
                    "threshold": 0.25,
                    "text": f"In company {names[0]} favours other tokens than alone: its log-ratios move by 0.58 nats.",
                },
                Reason(
                    measure="abs_log_partition",
                    about=[],
                    value=0.36,
                    threshold=0.2,
                    text="The components are not independent: |log Z| is 0.36 nats a token, and grows along the text.",
                ).model_dump(),
            ],
        }
    )


def undefined(components: int = 1, count: int = 1) -> tuple[Diagnosis, list[Text]]:
    """Texts without a token: nothing was measured, everything is undefined."""
    nothing = OfComponent(**dict.fromkeys(OfComponent.model_fields, NOTHING))
    names = NAMES[:components]
    empty = diagnosis(components, count, 1, "clear").model_copy(
        update={
            "positions": 0,
            **dict.fromkeys(("log_partition", "abs_log_partition", "both_active_share", "orphan_share"), NOTHING),
            "interference": [NOTHING for _ in pairs(components)],
            "by_component": dict.fromkeys(names, nothing),
            "along": Along(
                texts=[],
                log_partition=[],
                cumulative_log_partition=[],
                gap={name: [] for name in names},
                activity={name: [] for name in names},
            ),
        }
    )
    return empty, [text(n, components, 0) for n in range(count)]


def hostile() -> tuple[Diagnosis, list[Text]]:
    """`HOSTILE` wherever a model or a user may write; pydantic would refuse the lone surrogates."""
    count = len(HOSTILE)
    names = list(HOSTILE)
    ordinary = diagnosis(count, count, count)
    everything = " ".join(HOSTILE)
    bad = ordinary.model_copy(
        update={
            "components": names,
            "formula": everything,
            "settings": {everything: everything, "rule": everything, "continuations": everything, "recipe": [names]},
            "versions": {"counterpoint": everything},
            "verdict": ordinary.verdict.model_copy(
                update={
                    "headline": everything,
                    "reasons": [
                        reason.model_copy(update={"text": everything, "measure": everything, "about": names})
                        for reason in ordinary.verdict.reasons
                    ],
                }
            ),
            "by_component": dict(zip(names, ordinary.by_component.values(), strict=True)),
            "along": ordinary.along.model_copy(
                update={
                    "gap": dict(zip(names, ordinary.along.gap.values(), strict=True)),
                    "activity": dict(zip(names, ordinary.along.activity.values(), strict=True)),
                }
            ),
        }
    )
    one = text(0, count, count).model_copy(update={"tokens": names, "prompt": everything, "voice": everything})
    chat = text(1, count, count).model_copy(
        update={"tokens": names, "prompt": [{"role": everything, "content": everything}], "voice": everything}
    )
    return bad, [one, chat]


def _pieces(word: str) -> list[str]:
    """A word as a tokenizer might cut it: in two where it is long, line breaks apart."""
    head, *lines = (" " + word).split("\n")
    pieces = [head] if len(head) < 9 else [head[:5], head[5:]]
    for line in lines:
        pieces += ["\n", line] if line else ["\n"]
    return pieces
