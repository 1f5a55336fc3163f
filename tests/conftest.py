"""Shapes are checked while the tests run; nothing reaches for the network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from jaxtyping import install_import_hook
from transformers.utils import logging

SHAPED = [
    *(f"composition.{name}" for name in ("adapters", "backbone", "bins", "budgets", "cache", "combine", "evidence")),
    *(f"composition.{name}" for name in ("continuations", "fitting", "gathering", "model", "rows", "rules")),
    *(f"diagnostics.{name}" for name in ("measures",)),
]
install_import_hook([f"counterpoint.{module}" for module in SHAPED], "beartype.beartype")
logging.disable_progress_bar()
torch.set_num_threads(1)  # the models are tiny; more threads only wait for each other


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
