"""Studies: each answers a paper's claims with experiments of its own. Running, intervals and pages are shared."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterpoint.studies.study import Study

STUDIES = {
    "logit-composition": "logit_composition",
}
"""The modules of this package that hold a `STUDY`, by the name that users call it."""


def load_study(name: str) -> Study:
    """The study of that name.

    Raises:
        KeyError: no such study.
    """
    study: Study = importlib.import_module(f"{__name__}.{STUDIES[name]}").STUDY
    return study
