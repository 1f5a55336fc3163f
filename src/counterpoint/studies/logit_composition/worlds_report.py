"""What the worlds amount to: how well measures predict true errors, cuts for a verdict, rules compared, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from counterpoint.diagnostics import verdict
from counterpoint.intervals import Interval, bootstrap, bootstrap_difference, student
from counterpoint.studies.findings import Finding, Findings
from counterpoint.studies.logit_composition import cuts
from counterpoint.studies.logit_composition.cuts import Array, Flags
from counterpoint.studies.plots import COLOURS, Panel, curves
from counterpoint.studies.render import figure, share
from counterpoint.studies.study import Block, Plot, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = {"clear": 0.0, "caution": 0.05, "interference": 0.15}
"""Levels of a verdict, by the true error from which on they hold."""
CUTS = {"5": LEVELS["caution"], "15": LEVELS["interference"]}
MUCH = 0.01
"""A rule is worse than the product in a world where its error is greater by more than this."""
PREDICTORS = {
    "log_partition": "mean \\|log Z\\|, nats",
    "interference": "mean \\|I_ij\\|, nats",
    "worst_pair": "mean \\|I_ij\\| of the worst pair, nats",
    "gap": "gap, nats",
    "either": "the greater of gap and \\|log Z\\|, nats",
    "mean_gap": "gap, mean over components, nats",
    "gap_where_active": "gap where active, nats",
    "bin_distance": "bin distance",
    "bin_distance_where_active": "bin distance where active",
    "quantile_distance": "distance over mere quantiles",
    "posterior": "shift of the posterior p_i/(p_i+p_b)",
    "retained": "\\|retained evidence − 1\\| where active",
    "both_active": "share of positions with two active",
    "orphan": "orphan share",
    "activity": "activity alone (Σ KL), nats",
}
TITLES = {
    "factorised": "factorised",
    "correlated": "correlated base",
    "overlap": "overlapping components",
    "shared": "shared skill",
    "wrong_base": "wrong base",
    "rough": "rough",
    "mixed": "mixed",
    "listening": "listening",
}
JUDGES = ("log_partition", "gap", "bin_distance", "quantile_distance")
CONFUSED = (*JUDGES, "either")
KINDS = ("raking", "projective")


@dataclass(frozen=True)
class Pool:
    """The random worlds, a place in every array each.

    Attributes:
        family: of each world.
        reported: the half on which figures are reported; the other half chose what is reported.
        figures: by measure.
    """

    family: Sequence[str]
    reported: Flags
    figures: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.figures[name]

    def of(self, *families: str) -> Flags:
        return numpy.array([family in families for family in self.family])

    @property
    def populations(self) -> dict[str, Flags]:
        """Worlds with a violation: all, those where whole sets of tokens share a log-ratio, and those where none do."""
        violated, rough = ~self.of("factorised"), self["world/rough"] > 0
        return {"violated": violated, "smooth worlds": violated & ~rough, "rough worlds": violated & rough}


def pool(findings: Findings) -> Pool:
    """All random worlds; every second one of a cell is kept for reporting."""
    families: list[str] = []
    halves: list[bool] = []
    figures: dict[str, list[float]] = {}
    for point in _part(findings, "random"):
        for name in point.figures:
            figures.setdefault(name, []).extend(value for cell in point.values(name) for value in cell)
        for cell in point.values("error/product"):
            families += [point.settings["family"]] * len(cell)
            halves += [index % 2 == 1 for index in range(len(cell))]
    arrays = {name: numpy.array(values, dtype=numpy.float64) for name, values in figures.items()}
    arrays["predictor/either"] = numpy.maximum(arrays["predictor/gap"], arrays["predictor/log_partition"])
    return Pool(families, numpy.array(halves), arrays)


def compare(findings: Findings) -> dict[str, Interval]:
    """Correlations, cuts with what they are worth, and rules against the product."""
    worlds = pool(findings)
    rules = _rules(worlds, _candidates(findings))
    return {**_correlations(worlds), **_cuts(worlds), **rules, **_at_the_longest(findings)}


def _at_the_longest(findings: Findings) -> dict[str, Interval]:
    """Each rule minus the product at the longest length, seed by seed: marginals of the last step, whole sequences."""
    found = {}
    for point in _part(findings, "length"):
        for name in _settings(findings)["repairs"]:
            for what in ("step", "whole"):
                pairs = zip(*(point.values(f"{what}_by_length/{rule}") for rule in (name, "product")), strict=True)
                lost = [ours[-1] - products[-1] for ours, products in pairs]
                found[f"{what}/{point.settings['family']}/{name}"] = student(lost, within=(-1, 1))
    return found


def _correlations(worlds: Pool) -> dict[str, Interval]:
    found = {}
    populations = worlds.populations
    for name in PREDICTORS:
        said = worlds[f"predictor/{name}"]
        for population, inside in populations.items():
            found[f"spearman/{population}/{name}"] = cuts.over_units(
                cuts.spearman, said[inside], worlds["error/product"][inside]
            )
        for truth in ("conditional", "sequence"):
            inside = populations["violated"]
            found[f"spearman/{truth}/{name}"] = cuts.over_units(
                cuts.spearman, said[inside], worlds[f"{truth}/product"][inside]
            )
    return found


def _cuts(worlds: Pool) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    error, chosen = worlds["error/product"], ~worlds.reported
    for name in PREDICTORS:
        said = worlds[f"predictor/{name}"]
        at, worth = {}, []
        for cut, least in CUTS.items():
            high = error >= least
            at[cut] = cuts.over_units(cuts.best_cut, said[chosen], high[chosen])
            above = said >= (at[cut].mean or 0.0)
            worth.append(float(cuts.balanced_accuracy(above[chosen], high[chosen])))
            here, true = above[worlds.reported], high[worlds.reported]
            found |= {
                f"cut/{name}/{cut}": at[cut],
                f"sensitivity/{name}/{cut}": cuts.over_units(cuts.share_where, here, true),
                f"specificity/{name}/{cut}": cuts.over_units(cuts.share_where, ~here, ~true),
                f"balanced/{name}/{cut}": cuts.over_units(cuts.balanced_accuracy, here, true),
            }
        found[f"worth/{name}"] = Interval(sum(worth) / len(worth), None, None)
        if name in CONFUSED:
            levels = [at["5"].mean or 0.0, max(at["5"].mean or 0.0, at["15"].mean or 0.0)]
            found |= _confusion(name, error[worlds.reported], said[worlds.reported], levels)
    shipped = [verdict.GAP.caution, verdict.GAP.interference]
    found |= {f"shipped/{cut}": Interval(level, None, None) for cut, level in zip(CUTS, shipped, strict=True)}
    reported = worlds.reported
    return found | _confusion("shipped", error[reported], worlds["predictor/gap"][reported], shipped)


def _confusion(name: str, error: Array, said: Array, levels: Sequence[float]) -> dict[str, Interval]:
    """Of the worlds of each true level, the shares that are given each level."""
    true = numpy.digitize(error, [*CUTS.values()])
    given = numpy.digitize(said, levels)
    return {
        f"said/{name}/{was}/{called}": cuts.over_units(cuts.share_where, given == j, true == i)
        for i, was in enumerate(LEVELS)
        for j, called in enumerate(LEVELS)
    } | {f"worlds/{was}": Interval(float((true == i).sum()), None, None) for i, was in enumerate(LEVELS)}


def _rules(worlds: Pool, candidates: Mapping[str, Mapping[str, Any]]) -> dict[str, Interval]:
    found = {}
    violated = worlds.populations["violated"]
    for name in ("product", *candidates):
        found[f"selected/{name}"] = Interval(
            float(worlds[f"error/{name}"][violated & ~worlds.reported].mean()), None, None
        )
    groups = {**worlds.populations, **{family: worlds.of(family) for family in dict.fromkeys(worlds.family)}}
    compared = {"product", *_shown(candidates, found)}
    for name in ("product", *candidates):
        error, product = worlds[f"error/{name}"], worlds["error/product"]
        for group, inside in groups.items():
            if group == "violated" or name in compared:
                here = inside & worlds.reported
                found[f"mean/{group}/{name}"] = bootstrap(error[here], 0)
                found[f"difference/{group}/{name}"] = bootstrap_difference(error[here], product[here], 0)
        here = violated & worlds.reported
        found[f"worse/{name}"] = bootstrap((error[here] > product[here] + MUCH).astype(float), 0)
        found[f"better/{name}"] = bootstrap((error[here] < product[here] - MUCH).astype(float), 0)
    return found


def _shown(candidates: Mapping[str, Mapping[str, Any]], compared: Mapping[str, Interval]) -> list[str]:
    """The best of each kind of rule on the half that chooses, and those without a choice."""
    best = [_chosen(candidates, compared, kind) for kind in KINDS]
    return [*best, *(name for name, rule in candidates.items() if rule["rule"] not in KINDS)]


def _chosen(candidates: Mapping[str, Mapping[str, Any]], compared: Mapping[str, Interval], kind: str) -> str:
    of_kind = [name for name, rule in candidates.items() if rule["rule"] == kind]
    return min(of_kind, key=lambda name: compared[f"selected/{name}"].mean or 0.0)


def report(findings: Findings) -> list[Block]:
    """The section: what was made, which measures tell, which cuts, which rules mend, and how length matters."""
    return [
        *_setting(findings),
        *_of_measures(findings),
        *_of_cuts(findings),
        *_of_rules(findings),
        *_of_dials(findings),
        *_of_lengths(findings),
    ]


def _setting(findings: Findings) -> list[Block]:
    worlds = pool(findings)
    counts = {level: findings.compared[f"worlds/{level}"].mean or 0 for level in LEVELS}
    tokens = worlds["world/tokens"]
    return [
        "**Claim.** Under factorised conditionals log Z is 0, every component's evidence has the law under p̂ that "
        "it has when the component speaks alone, and on its own feature the composed model is that component. So "
        "these can be measured without knowing any feature. How far do they tell, where conditionals do not "
        "factorise, how far the composed model is off?",
        f"**Here.** {len(tokens)} random worlds with known truth. A token is a tuple of features ({tokens.min():.0f} "
        f"to {tokens.max():.0f} tokens), one feature for each of two to four components and a mode for the base; the "
        "next token depends on the one before, so all laws follow exactly, by dynamic programming. *True error*: "
        "total variation between the law of a component's feature in the composed model and in that component "
        f"alone, the mean over {_settings(findings)['length']} steps, the worst component. Families: *correlated "
        "base* (the base's features depend on each other), *overlapping components* (each moves the others' "
        "features too), *shared skill* (all learned the same new law of the mode), *wrong base* (a mixture of "
        "background and components' tasks), *rough* (every token's probability has its own noise), *mixed*. Half of "
        "the worlds of every family but the factorised one are a little rough besides. Half of all worlds chose "
        f"cuts and options; figures but for correlations are of the other half ({sum(counts.values()):.0f} worlds, "
        f"with a true error below 5 % in {counts['clear']:.0f}, up to 15 % in {counts['caution']:.0f}, above in "
        f"{counts['interference']:.0f}).",
    ]


def _of_measures(findings: Findings) -> list[Block]:
    found = findings.compared
    order = sorted(PREDICTORS, key=lambda name: -(found[f"spearman/violated/{name}"].mean or 0.0))
    columns = {
        "violated": "all with a violation",
        "smooth worlds": "smooth",
        "rough worlds": "rough",
        "conditional": "error given the token before",
        "sequence": "error of the whole sequence",
    }
    rows = [
        [PREDICTORS[name], *(figure(found[f"spearman/{column}/{name}"], 2) for column in columns)] for name in order
    ]
    best, last = order[0], order[-1]
    top = found[f"spearman/violated/{best}"].mean or 0.0
    alike = [PREDICTORS[name] for name in order[1:] if (found[f"spearman/violated/{name}"].high or 0.0) >= top]
    rough = {name: found[f"spearman/rough worlds/{name}"] for name in ("quantile_distance", "bin_distance", "gap")}
    return [
        Table("Rank correlation (Spearman) of label-free measures with the true error", ["", *columns.values()], rows),
        Plot(
            "worlds-scatter",
            "True error of the product against four measures, a point a world. Dotted: 5 % and 15 %, and the cuts "
            "chosen for them. Points at the left edge are 0.001 or less.",
            "Scatter plots of the true error against four measures",
            _scatter(findings),
            (9.0, 6.5),
        ),
        f"**Which measure tells.** Best is {PREDICTORS[best]}, {figure(found[f'spearman/violated/{best}'], 2)}. No "
        f"worse within their intervals: {'; '.join(alike)}. None is a gauge: at one value of any measure true errors "
        "scatter widely. Activity alone, which needs no composition, reaches "
        f"{figure(found['spearman/violated/activity'], 2)}; {PREDICTORS[last]} tells least, "
        f"{figure(found[f'spearman/violated/{last}'], 2)}. In rough worlds, which are the ones like language models, "
        f"the gap has {figure(rough['gap'], 2)}, the bin distance {figure(rough['bin_distance'], 2)}, and the same "
        f"over mere quantiles {figure(rough['quantile_distance'], 2)}: quantiles part tokens whose log-ratios hardly "
        "differ, and count what moves between them in full.",
    ]


def _of_cuts(findings: Findings) -> list[Block]:
    found = findings.compared
    order = sorted(PREDICTORS, key=lambda name: -(found[f"worth/{name}"].mean or 0.0))
    rows = []
    for name in order:
        row = [PREDICTORS[name]]
        for cut in CUTS:
            row.append(figure(found[f"cut/{name}/{cut}"], 2))
            row += [share(found[f"{what}/{name}/{cut}"]) for what in ("sensitivity", "specificity")]
        rows.append(row)
    columns = ["", *(f"{word} {cut} %" for cut in CUTS for word in ("cut for", "sensitivity", "specificity"))]
    judges = sorted(CONFUSED, key=order.index)
    levels = " and ".join(f"{found[f'shipped/{cut}'].mean:g}" for cut in CUTS)
    rows_of = {
        **{name: PREDICTORS[name] for name in judges},
        "shipped": f"gap, cut as `diagnose` does at {levels} nats",
    }
    confusion = [
        [title, was, *(share(found[f"said/{name}/{was}/{called}"]) for called in LEVELS)]
        for name, title in rows_of.items()
        for was in LEVELS
    ]
    best = order[0]
    missed, alarm = found["said/shipped/interference/clear"], found["said/shipped/clear/interference"]
    return [
        Table(
            "Cuts with the best balanced accuracy for true errors of 5 % and 15 %, and what they are worth on the "
            "other half; best first",
            columns,
            rows,
        ),
        Table("What a verdict by two cuts says, by the true level", ["measure", "true level", *LEVELS], confusion),
        f"**Cuts.** Best over both on the half that chose is {PREDICTORS[best]}: balanced accuracy "
        f"{share(found[f'balanced/{best}/5'])} at 5 % and {share(found[f'balanced/{best}/15'])} at 15 %. By the cuts "
        f"of `counterpoint diagnose`, {share(missed)} of the worlds that are off by more than 15 % are called clear, "
        f"and {share(alarm)} of those within 5 % are called interference. A verdict is a warning, not a measurement; "
        "its cuts also depend on the mix of worlds, which is ours.",
    ]


def _of_rules(findings: Findings) -> list[Block]:
    found, candidates = findings.compared, _candidates(findings)
    shown = _shown(candidates, found)
    every = [
        [
            name,
            f"{100 * (found[f'selected/{name}'].mean or 0):.1f} %",
            share(found[f"mean/violated/{name}"]),
            _points(found[f"difference/violated/{name}"]) if name != "product" else "",
            share(found[f"better/{name}"]) if name != "product" else "",
            share(found[f"worse/{name}"]) if name != "product" else "",
        ]
        for name in ("product", *candidates)
    ]
    groups = [
        "smooth worlds",
        "rough worlds",
        *dict.fromkeys(point.settings["family"] for point in _part(findings, "random")),
    ]
    labels = [*groups[:2], *(f"*{TITLES[group]}*" for group in groups[2:])]
    by_group = [
        [label, *(share(found[f"mean/{group}/{name}"]) for name in ("product", *shown))]
        for label, group in zip(labels, groups, strict=True)
    ]
    return [
        Table(
            "True error under each rule, over worlds with a violation",
            [
                "rule",
                "half that chose",
                "other half",
                "minus product",
                "better by over 1 point",
                "worse by over 1 point",
            ],
            every,
        ),
        Table("True error of the chosen options, by kind of world", ["", "product", *shown], by_group),
        *(_of_kind(findings, kind) for kind in KINDS),
        *(_without_base(findings, name) for name in ("mixture", "geometric mean")),
    ]


def _of_kind(findings: Findings, kind: str) -> str:
    found = findings.compared
    name = _chosen(_candidates(findings), found, kind)
    return f"**{kind.capitalize()}.** Chosen: {name}. " + _against_product(findings, name)


def _against_product(findings: Findings, name: str) -> str:
    found = findings.compared
    families = dict.fromkeys(p.settings["family"] for p in _part(findings, "random"))
    text = (
        f"Against the product: {_points(found[f'difference/violated/{name}'])}; better by more than a point in "
        f"{share(found[f'better/{name}'])} of worlds, worse in {share(found[f'worse/{name}'])}."
    )
    for word, sign in (("Better", -1), ("Worse", 1)):
        where = [f for f in families if _sided(found[f"difference/{f}/{name}"], sign)]
        if where:
            listed = ", ".join(f"{TITLES[f]} ({_points(found[f'difference/{f}/{name}'])})" for f in where)
            text += f" {word}, beyond its interval: {listed}."
    return text


def _without_base(findings: Findings, name: str) -> str:
    found = findings.compared
    return (
        f"**{name.capitalize()}**, without a base, is off by {share(found[f'mean/factorised/{name}'])} where "
        "conditionals factorise and the product is exact. " + _against_product(findings, name)
    )


def _of_dials(findings: Findings) -> list[Block]:
    points = _part(findings, "dial")
    largest = max(
        float(point.along(name)[0].mean or 0.0)
        for point in points
        for name in point.figures
        if name != "error_by_strength/mixture"
    )
    names = ["product", *_settings(findings)["repairs"]]
    errors = [
        Panel(
            TITLES[point.settings["family"]],
            point.settings["strengths"],
            {name: point.along(f"error_by_strength/{name}") for name in names},
        )
        for point in points
    ]
    lines = {
        "true error": "error_by_strength/product",
        "|log Z|, nats": "measure_by_strength/log_partition",
        "gap, nats": "measure_by_strength/gap",
        "bin distance": "measure_by_strength/bin_distance",
        "distance over mere quantiles": "measure_by_strength/quantile_distance",
    }
    measures = [
        Panel(
            TITLES[point.settings["family"]],
            point.settings["strengths"],
            {label: point.along(name) for label, name in lines.items()},
        )
        for point in points
    ]
    rough, deaf = (next(p for p in points if p.settings["family"] == family) for family in ("rough", "listening"))
    said = {
        name: rough.along(f"measure_by_strength/{name}")[1] for name in ("quantile_distance", "bin_distance", "gap")
    }
    true = rough.along("error_by_strength/product")[1]
    blind = max(
        float(interval.mean or 0.0)
        for name in deaf.figures
        if name.startswith("measure_by_strength/")
        for interval in deaf.along(name)
    )
    return [
        Plot(
            "worlds-dials",
            "Measures of the product and its true error against the strength of one violation; the same worlds at "
            "every strength, bands over seeds.",
            "Measures against the strength of each violation",
            curves(measures, "strength", "value"),
            (12.0, 3.6),
        ),
        Plot(
            "worlds-repairs",
            "True error of the product and of three rules that repair, against the strength of one violation.",
            "True error under four rules against the strength of each violation",
            curves(errors, "strength", "true error"),
            (12.0, 3.6),
        ),
        f"**Dials.** At strength 0 conditionals factorise, and no measure and no error exceeds {largest:.1g}. From "
        "there errors and measures rise, but distance over mere quantiles leaps: at roughness "
        f"{rough.settings['strengths'][1]:.2g} it is {figure(said['quantile_distance'], 2)} while the true error is "
        f"{share(true)}; the bin distance is {figure(said['bin_distance'], 2)} there, the gap "
        f"{figure(said['gap'], 2, 'nats')}. *Listening* worlds factorise at every prefix, but a component's feature "
        "depends on what another's was before, which in the composed model is another component's doing: marginals "
        f"differ by {share(deaf.along('error_by_strength/product')[-1])} at strength "
        f"{deaf.settings['strengths'][-1]:g}, and no measure exceeds {blind:.1g}. That is no failure of composition "
        "(given any prefix, every feature's law is its owner's); but what a component does in texts of its own is "
        "no promise for texts that others write too.",
    ]


def _of_lengths(findings: Findings) -> list[Block]:
    points = _part(findings, "length")
    names = ["product", *_settings(findings)["repairs"]]
    whole = [
        Panel(
            f"{TITLES[point.settings['family']]}, {point.settings['strengths'][0]:g}",
            point.settings["lengths"],
            {
                **{f"whole sequence, {name}": point.along(f"whole_by_length/{name}") for name in names},
                "last step, product": point.along("step_by_length/product"),
                "sum of steps, product": point.along("bound/product"),
            },
        )
        for point in points
    ]
    last = points[0].settings["lengths"][-1]
    rows = []
    for point in points:
        for name in names:
            rows.append(
                [
                    TITLES[point.settings["family"]],
                    name,
                    share(point.along(f"step_by_length/{name}")[0]),
                    share(point.along(f"step_by_length/{name}")[-1]),
                    share(point.along(f"whole_by_length/{name}")[0]),
                    share(point.along(f"whole_by_length/{name}")[-1]),
                    figure(point.along(f"cumulative/{name}")[-1], 2),
                    figure(point.along("measure_by_length/gap")[-1], 2) if name == "product" else "",
                ]
            )
    noise = max(float(i.mean or 0.0) for p in points for name in names for i in p.along(f"sampling/{name}"))
    within = all(
        (one.mean or 0.0) <= (bound.mean or 0.0) + 3 * noise
        for point in points
        for name in names
        for one, bound in zip(point.along(f"whole_by_length/{name}"), point.along(f"bound/{name}"), strict=True)
    )
    farther, nearer = (_wholes(findings, sign) for sign in (1, -1))
    return [
        Plot(
            "worlds-length",
            "Total variation to the product of the owners' laws, for whole sequences, against their length; for the "
            "product also the sum of the steps' expected total variations, which bounds it, and the marginal error "
            "of the last step.",
            "Errors against length, one panel for each violation",
            curves(whole, "steps", "total variation", (-0.02, 1.02)),
            (13.0, 4.2),
        ),
        Table(
            f"One violation, growing length: the first step and {last} steps",
            [
                "violation",
                "rule",
                "marginal error, first step",
                f"marginal error, step {last}",
                "whole sequence, 1 step",
                f"whole sequence, {last} steps",
                f"\\|Σ log Z\\|, {last} steps, nats",
                "gap, nats",
            ],
            rows,
        ),
        "**Length.** What is off a step adds up: whole sequences drift from the target towards 1, while marginal "
        "errors of single steps level off, and |Σ log Z| grows in proportion to length; the measures, means over "
        "positions, stay where they are. The sum of the steps' total variations "
        f"{'bounds' if within else 'does NOT bound'} the sequence's at every length, as proved. Up to "
        f"{points[0].settings['enumerated']} steps sequences are enumerated, beyond that "
        f"{points[0].settings['samples']:,} are drawn a world (standard error at most {noise:.2g}).",
        "**Marginals are not everything.** A rule that mends the laws of single log-ratios may bend what tokens are "
        f"otherwise. Against the product, whole sequences of {last} steps are farther from the target, beyond the "
        f"interval, under: {farther}. They are nearer under: {nearer}.",
    ]


def _wholes(findings: Findings, sign: int) -> str:
    """The rules under which whole sequences are farther from the target than the product's, or, with -1, nearer."""
    found = [
        f"{name}, *{TITLES[point.settings['family']]}*, {_points(difference)}"
        for point in _part(findings, "length")
        for name in _settings(findings)["repairs"]
        if _sided(difference := findings.compared[f"whole/{point.settings['family']}/{name}"], sign)
    ]
    return "; ".join(found) or "no rule"


def _scatter(findings: Findings) -> Callable[[Figure], None]:
    worlds = pool(findings)
    families = [*dict.fromkeys(worlds.family)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(2, 2, sharey=True).flatten()
        for axis, name in zip(axes, JUDGES, strict=True):
            said = numpy.maximum(worlds[f"predictor/{name}"], 1e-3)
            for family, colour, mark in zip(families, COLOURS, "osD^vPX", strict=True):
                here = worlds.of(family)
                axis.scatter(
                    said[here], worlds["error/product"][here], s=9, c=colour, marker=mark, alpha=0.7, linewidths=0
                )
            for cut, least in CUTS.items():
                axis.axhline(least, color="#888888", linewidth=0.8, linestyle=":")
                axis.axvline(
                    findings.compared[f"cut/{name}/{cut}"].mean or 0.0, color="#888888", linewidth=0.8, linestyle=":"
                )
            axis.set_xscale("log")
            axis.set_xlabel(PREDICTORS[name].replace("\\", ""))
            axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[::2]:
            axis.set_ylabel("true error")
        handles = [
            axes[0].scatter([], [], c=colour, marker=mark, label=TITLES[family])
            for family, colour, mark in zip(families, COLOURS, "osD^vPX", strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)

    return draw


def _part(findings: Findings, part: str) -> list[Finding]:
    return [point for point in findings.points if point.settings["part"] == part]


def _settings(findings: Findings) -> Mapping[str, Any]:
    return findings.points[0].settings


def _candidates(findings: Findings) -> Mapping[str, Mapping[str, Any]]:
    candidates: Mapping[str, Mapping[str, Any]] = _settings(findings)["candidates"]
    return candidates


def _points(interval: Interval) -> str:
    """A difference of shares, in points."""
    if interval.mean is None or interval.low is None or interval.high is None:
        return "undefined"
    return f"{100 * interval.mean:+.1f} points ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _sided(interval: Interval, sign: int) -> bool:
    """The whole interval lies on one side of 0."""
    ends = (interval.low, interval.high)
    return all(end is not None and end * sign > 0 for end in ends)
