"""Logit composition (arXiv 2605.28304): does it do what is claimed, and where does it stop?"""

from __future__ import annotations

from counterpoint.studies.logit_composition import contexts, length, toy, worlds
from counterpoint.studies.study import Study

ABOUT = """\
[Logit composition](https://arxiv.org/abs/2605.28304) multiplies next-token distributions: p̂ ∝ p_b · Π p_i / p_b. Where
every component changes a part of the next token that no other component changes (factorised conditionals), the composed
model has every component's skill, at any length at which the components have theirs. This page tests the claims one by
one, and says where they stop holding."""

STUDY = Study(
    name="logit-composition",
    title="Logit composition",
    about=ABOUT.replace("\n", " "),
    experiments=(toy.EXPERIMENT, worlds.EXPERIMENT, contexts.EXPERIMENT, length.EXPERIMENT),
)
