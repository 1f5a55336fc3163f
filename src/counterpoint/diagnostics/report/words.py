"""What each measure means, for somebody who has not read the paper (arXiv 2605.28304)."""

from __future__ import annotations

from counterpoint.diagnostics.measures import ACTIVE

LEVELS = {"clear": "Clear", "caution": "Caution", "interference": "Interference"}

VOICES = {
    "composed": "written by the composed model",
    "base": "written by the base",
    "given": "given, and read by the models",
}

MEASURES = {
    "activity": "activity",
    "active_share": "active share",
    "gap": "projectivity gap",
    "bin_distance": "bin distance",
    "retained_evidence": "retained evidence",
    "moved_share": "moved share",
    "log_partition": "log Z",
    "abs_log_partition": "|log Z|",
    "both_active_share": "two or more active",
    "orphan_share": "orphans",
    "interference": "interference",
}
"""Names of measures in a verdict's reasons; others are written as they are."""

COLUMNS = ("Activity", "Active share", "Projectivity gap", "Bin distance", "Retained evidence", "Moved share")

COMPONENTS = {
    "Activity": (
        "How far the component’s own prediction departs from the base’s at a typical position: "
        "KL(p<sub>i</sub>‖p<sub>b</sub>), in nats. At 0 it says what the base says anyway."
    ),
    "Active share": (
        f"At how many positions the component has something of its own to say: its activity exceeds {ACTIVE:g} nats."
    ),
    "Projectivity gap": (
        "A component makes some tokens likelier than the base does, and others rarer. The gap is how differently it "
        "does so in company and alone: the distance between the laws of its log-ratio r<sub>i</sub> under the composed "
        "model and under the component itself, in nats, where it is active. At 0 its say arrives unchanged, as the "
        "theory of composition promises; the larger, the more the others bend it."
    ),
    "Bin distance": (
        "The same comparison counted in probability, over groups of tokens with like log-ratio: what share of it "
        "lies in the wrong group. From 0, none, to 1, all."
    ),
    "Retained evidence": (
        "How much of its say a component keeps in company. At 1 it keeps all. Below 1 the others drown it out; above 1 "
        "they push the same way, so that what they share counts twice."
    ),
    "Moved share": (
        "Of how many tokens of the text this component moved the log-probability most, and by more than 0.1 nats, "
        "up or down."
    ),
}

TOGETHER = {
    "log Z": (
        "What it takes to make the product of all components a distribution again. With weights of 1 it is 0 where "
        "each speaks of something else. Above 0 they push the same tokens; below 0 they pull apart."
    ),
    "|log Z|": "Its size whatever the sign, so that pushing and pulling do not cancel out in the mean.",
    "Two or more active": "At how many positions at least two components have something of their own to say.",
    "Orphans": (
        "At how many positions the composed model’s favourite token is the favourite of none of the models in it."
    ),
}

INTERFERENCE = (
    "For each pair, log Z of these two alone, in nats. At 0 they leave each other in peace. Above 0 they favour the "
    "same tokens, and what they share counts twice; below 0 each favours what the other rules out."
)

ALONG = (
    "Means over all texts at each position of the continuation, with bands for their 95\u202f% intervals; the figures "
    "before and after an arrow are means over the first and the last quarter of the positions. A flat line says that "
    "what was found on short texts holds for longer ones; a rising one that interference grows with length. The grey "
    "strip below each chart is the number of texts that reach a position: where it thins out, so does what is known."
)

UNDEFINED = {
    "Projectivity gap": "nowhere active",
    "Bin distance": "nowhere active",
    "Retained evidence": "nowhere active",
}
"""Why a measure is undefined; of the others it can only be said that nothing was measured."""
