"""Worlds whose truth is known: do label-free measures tell how far a composition is off, and which rule mends it?

Three parts. `random`: many worlds of every family, with errors under every rule and what the measures say. `dial`: the
same worlds at growing strengths of one violation. `length`: one strength, growing sequences. What is made of them is in
`worlds_report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.composition.bins import cell_count, cells_of, mass_in, quantile_bins
from counterpoint.composition.evidence import Evidence, gather_evidence, normalise
from counterpoint.composition.rules import RULES, Scored
from counterpoint.diagnostics import measures as ms
from counterpoint.studies.logit_composition import tabular
from counterpoint.studies.logit_composition.tabular import Violation, World
from counterpoint.studies.logit_composition.worlds_report import compare, report
from counterpoint.studies.study import Experiment, Measure, Options

TOP = {"correlated": 3.0, "overlap": 1.2, "shared": 1.2, "wrong_base": 1.0, "rough": 1.2}
"""The greatest strength of each violation."""
SHOWN = ("log_partition", "gap", "bin_distance", "quantile_distance", "posterior")
PRODUCT = {"product": {"rule": "product"}}
FAMILIES = ("factorised", *TOP, "mixed")
NARROW = 1 / 64
"""Least width in nats of bins that are nothing but quantiles."""


def evidence_of(world: World) -> Evidence:
    """What the rules see, in every state at once."""
    return gather_evidence(torch.cat([world.log_base[None], world.log_components]), 0, [0] * len(world.log_components))


def compose(world: World, rule: str, **options: Any) -> Float[Tensor, "state vocab"]:
    """log p̂ in every state.

    Besides the library's rules there is `geometric`: the product of weights that add up to 1, without a base.
    """
    count = len(world.log_components)
    weights = torch.ones(count, dtype=torch.float64)
    if rule == "geometric":
        without = gather_evidence(world.log_components, None, [None] * count)
        return normalise(_scores(RULES["product"](without, weights / count)))[0]
    return normalise(_scores(RULES[rule](evidence_of(world), weights, **options)))[0]


def predictors(world: World, log_hat: Float[Tensor, "state vocab"], *lengths: int) -> list[dict[str, float]]:
    """Label-free measures of a composition at several lengths, summed up over p̂'s positions.

    Of the components the worst counts, and its measures are means over all positions, or `where_active` over those
    where it is.
    """
    found = ms.measure(world.log_base, world.log_components, log_hat)
    own, hat = world.log_components.exp(), log_hat.exp().expand(world.log_components.shape).contiguous()
    ratios = evidence_of(world).log_ratios
    narrow = cells_of(ratios, NARROW)
    base = world.log_base.exp().expand(own.shape).contiguous()
    bins = quantile_bins(mass_in(narrow, (own + base) / 2, cell_count(NARROW)), ms.BINS).gather(-1, narrow)
    quantiles = tabular.total_variation(mass_in(bins, own, ms.BINS), mass_in(bins, hat, ms.BINS))
    posterior = ((own - hat) * ratios.sigmoid()).sum(-1).abs()
    summed = []
    for length in lengths:
        weight = tabular.visits(log_hat.exp(), length)
        active = (found.activity > ms.ACTIVE) * weight
        spoken = active.sum(-1)
        often = spoken.clamp(min=1e-12)
        kept = (active * found.evidence).sum(-1) / (active * found.activity).sum(-1)
        figures = {
            "log_partition": found.log_partition.abs() @ weight,
            "interference": (found.interference.abs() @ weight).mean(),
            "worst_pair": (found.interference.abs() @ weight).max(),
            "gap": (found.gap @ weight).max(),
            "mean_gap": (found.gap @ weight).mean(),
            "gap_where_active": ((active * found.gap).sum(-1) / often).max(),
            "bin_distance": (found.bin_distance @ weight).max(),
            "bin_distance_where_active": ((active * found.bin_distance).sum(-1) / often).max(),
            "quantile_distance": (quantiles @ weight).max(),
            "posterior": (posterior @ weight).max(),
            "retained": torch.where(spoken > 0, kept - 1, 0.0).abs().max(),
            "both_active": ms.both_active(found.activity).double() @ weight,
            "orphan": found.orphan.double() @ weight,
            "activity": (found.activity @ weight).sum(),
        }
        summed.append({name: float(value) for name, value in figures.items()})
    return summed


def cell(settings: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """The cell of each part of the grid."""
    parts = {"random": random_worlds, "dial": along_dial, "length": along_length}
    return parts[settings["part"]](settings, seed)


def random_worlds(settings: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """Errors under all rules, and what the measures say of the product; a world a unit."""
    found: dict[str, list[float]] = {}
    length, rules = settings["length"], PRODUCT | settings["candidates"]
    for index in range(settings["worlds"]["random"]):
        number = world_number(settings["family"], seed, index)
        components = settings["components"][index // 2 % len(settings["components"])]
        violation = random_violation(settings["family"], number, settings["top"], settings["somewhat_rough"])
        world = tabular.draw_world(number, tabular.draw_sizes(number, components), violation)
        log_hat = compose(world, "product")
        figures = {f"error/{name}": _error(world, rule, length) for name, rule in rules.items()}
        figures |= {f"predictor/{name}": value for name, value in predictors(world, log_hat, length)[0].items()}
        figures["conditional/product"] = float(tabular.conditional_errors(log_hat.exp(), world, length).max())
        figures["sequence/product"] = float(
            tabular.feature_sequence_errors(log_hat.exp(), world, settings["enumerated"]).max()
        )
        figures |= {"world/rough": violation.rough, "world/tokens": world.log_base.shape[1]}
        _append(found, figures)
    return found


def random_violation(family: str, seed: int, top: Mapping[str, float], somewhat_rough: float) -> Violation:
    """Uniform strengths of one violation, or, in mixed worlds, of each of them with probability 1/2.

    Half of all worlds that are not factorised are somewhat rough besides.

    Args:
        family: one of `FAMILIES`.
        seed: of the draw.
        top: the greatest strength of each violation.
        somewhat_rough: the greatest roughness besides.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(2 * len(top) + 2, generator=generator, dtype=torch.float64).tolist()
    if family == "factorised":
        return Violation()
    strengths = {}
    for place, (name, most) in enumerate(top.items()):
        if family == name or (family == "mixed" and drawn[2 * place] < 0.5):
            strengths[name] = most * drawn[2 * place + 1]
    if drawn[-2] < 0.5:
        strengths["rough"] = max(strengths.get("rough", 0.0), somewhat_rough * drawn[-1])
    return Violation(**strengths)


def along_dial(settings: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """Means over a few worlds at each strength of one violation; the worlds are the same at every strength."""
    found: dict[str, list[float]] = {}
    for strength in settings["strengths"]:
        each: dict[str, list[float]] = {}
        for index in range(settings["worlds"]["dial"]):
            number = world_number("factorised", 100 + seed, index)
            sizes = tabular.draw_sizes(number, settings["components"][index % len(settings["components"])])
            world = tabular.draw_world(number, sizes, Violation(**{settings["family"]: strength}))
            figures = {
                f"error_by_strength/{name}": _error(world, rule, settings["length"])
                for name, rule in (PRODUCT | settings["repairs"]).items()
            }
            said = predictors(world, compose(world, "product"), settings["length"])[0]
            _append(each, figures | {f"measure_by_strength/{name}": said[name] for name in SHOWN})
        _append(found, {name: sum(values) / len(values) for name, values in each.items()})
    return found


def along_length(settings: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """Means over a few worlds at each length, the violation of each step being what it is."""
    each: dict[str, list[list[float]]] = {}
    violation = Violation(**{settings["family"]: settings["strengths"][0]})
    lengths = settings["lengths"]
    for index in range(settings["worlds"]["length"]):
        number = world_number("factorised", 200 + seed, index)
        world = tabular.draw_world(number, settings["sizes"], violation)
        said = predictors(world, compose(world, "product"), *lengths)
        for measure in SHOWN:
            each.setdefault(f"measure_by_length/{measure}", []).append([one[measure] for one in said])
        log_partition = normalise(world.log_base + evidence_of(world).log_ratios.sum(0))[1]
        for name, rule in (PRODUCT | settings["repairs"]).items():
            log_hat = compose(world, **rule)
            errors = tabular.marginal_errors(log_hat.exp(), world, max(lengths))
            curves = {
                f"step_by_length/{name}": [float(errors[:, n - 1].max()) for n in lengths],
                f"cumulative/{name}": [
                    abs(n * float(tabular.visits(log_hat.exp(), n) @ log_partition)) for n in lengths
                ],
                f"bound/{name}": [
                    min(1.0, tabular.sequence_bound(log_hat.exp(), world.log_target.exp(), n)) for n in lengths
                ],
            }
            whole, deviations = tabular.sampled_sequence_errors(
                log_hat, world.log_target, lengths, settings["samples"], number
            )
            short = [n for n in lengths if n <= settings["enumerated"]]
            whole[: len(short)] = [tabular.sequence_error(log_hat, world.log_target, n) for n in short]
            curves[f"whole_by_length/{name}"] = whole
            curves[f"sampling/{name}"] = [0.0] * len(short) + deviations[len(short) :]
            for curve, values in curves.items():
                each.setdefault(curve, []).append(values)
    return {name: torch.tensor(values, dtype=torch.float64).mean(0).tolist() for name, values in each.items()}


def world_number(family: str, seed: int, index: int) -> int:
    """The seed of a world, different for every family, seed and place."""
    return 1_000_000 * FAMILIES.index(family) + 500_000 + 1_000 * seed + index


def _error(world: World, rule: Mapping[str, Any], length: int) -> float:
    """The worst component's marginal error, the mean over steps."""
    return float(tabular.marginal_errors(compose(world, **rule).exp(), world, length).mean(1).max())


def _scores(found: Tensor | Scored) -> Tensor:
    return found.scores if isinstance(found, Scored) else found


def _append(found: dict[str, list[float]], figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        found.setdefault(name, []).append(value)


def _raking_in_words(bins: int, width: float, sweeps: int) -> str:
    kind = f"{bins} quantiles" if width == NARROW else f"{bins} bins of {width:g} nat"
    return f"raking, {kind}, {sweeps} sweeps"


def grid(options: Options) -> list[dict[str, Any]]:
    """Random worlds of every family, a dial for each violation, and four violations at growing length."""
    quick = options.quick
    repairs = {
        "raking, 8 bins": {"rule": "raking", "bins": 8, "width": 1.0, "sweeps": 5},
        "raking, 8 quantiles": {"rule": "raking", "bins": 8, "width": NARROW, "sweeps": 5},
        "projective, rho 0.3": {"rule": "projective", "rho": 0.3},
    }
    of_raking = [(8, 1.0, 5), (8, NARROW, 5)]  # bins, width, sweeps
    if not quick:
        of_raking = [*((n, NARROW, 5) for n in (4, 8, 32)), *((n, 1.0, 5) for n in (4, 8, 64))]
        of_raking += [(8, 0.5, 5), (8, 2.0, 5), (8, 1.0, 2), (8, 1.0, 20)]
    candidates = {
        "mixture": {"rule": "mixture"},
        "geometric mean": {"rule": "geometric"},
        **{
            _raking_in_words(n, width, sweeps): {"rule": "raking", "bins": n, "width": width, "sweeps": sweeps}
            for n, width, sweeps in of_raking
        },
        **{
            f"projective, rho {rho:g}": {"rule": "projective", "rho": rho}
            for rho in ((0.3, 1.0) if quick else (0.03, 0.1, 0.3, 1.0, 3.0))
        },
    }
    common = {
        "worlds": {"random": 4, "dial": 3, "length": 2} if quick else {"random": 12, "dial": 6, "length": 6},
        "components": [2, 3, 4],
        "length": 5,
        "top": TOP,
        "somewhat_rough": 0.3,
        "candidates": candidates,
        "repairs": repairs,
        "lengths": [1, 4, 16] if quick else [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64],
        "sizes": [3, 2, 2],
        "enumerated": 4,
        "samples": 1000 if quick else 4000,
    }
    steps = (0, 1) if quick else (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
    dials = {family: [top * step for step in steps] for family, top in {**TOP, "listening": 1.2}.items()}
    lengths = {"overlap": [0.4], "shared": [0.5], "wrong_base": [0.5], "rough": [0.4]}
    return [
        *({"part": "random", "family": family, "strengths": [], **common} for family in FAMILIES),
        *({"part": "dial", "family": family, "strengths": strengths, **common} for family, strengths in dials.items()),
        *({"part": "length", "family": family, "strengths": one, **common} for family, one in lengths.items()),
    ]


MEASURES = {
    "error": Measure(
        "a world's marginal error under a rule: total variation between the law of a component's feature under p̂ and "
        "under the component alone, the mean over steps, the worst component",
        each="unit",
        within=(0, 1),
    ),
    "conditional": Measure("the same given the token before, the mean over p̂'s positions", each="unit", within=(0, 1)),
    "sequence": Measure(
        "the same for the whole sequence of the feature, of as many steps as are enumerated", each="unit", within=(0, 1)
    ),
    "predictor": Measure("a label-free measure of a world's product; see the table", each="unit"),
    "world": Measure("strength of the roughness, and number of tokens, of a world", each="unit"),
    "error_by_strength": Measure("marginal error under a rule, by strength; mean over worlds", within=(0, 1)),
    "measure_by_strength": Measure("a label-free measure of the product, by strength; mean over worlds"),
    "step_by_length": Measure("marginal error of the last step, by length; mean over worlds", within=(0, 1)),
    "whole_by_length": Measure(
        "total variation between whole sequences under p̂ and the product of the owners' laws, by length; mean over "
        "worlds; enumerated where short, else sampled",
        within=(0, 1),
    ),
    "sampling": Measure("standard error of a world's sampled total variation, by length; mean over worlds"),
    "bound": Measure("the sum of the steps' expected total variations, at most 1, by length; mean over worlds"),
    "cumulative": Measure("|expected sum of log Z|, nats, by length; mean over worlds"),
    "measure_by_length": Measure("a label-free measure of the product, by length; mean over worlds"),
}

EXPERIMENT = Experiment(
    name="worlds",
    title="Worlds with known truth: what the measures tell, and which rule mends",
    revision=1,
    grid=grid,
    cell=cell,
    measures=MEASURES,
    report=report,
    compare=compare,
)
