"""Shapes are checked while the tests run; nothing reaches for the network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook("counterpoint.composition", "beartype.beartype")

import pytest
import torch
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
