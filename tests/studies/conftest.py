"""The study without models, as fixtures."""

from __future__ import annotations

import pytest

from counterpoint.studies.study import Study
from small_study import Counting, experiment


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def study(counting: Counting) -> Study:
    experiments = (experiment(counting), experiment(counting, "second"))
    return Study("sums", "Sums", "About sums.", experiments)
