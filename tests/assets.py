"""Official tokenizers and templates, where available: $NGPT_ASSETS, or `shared/assets` beside the repository."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.memory import shared

_PLACES = (os.environ.get("NGPT_ASSETS"), REPOSITORY.parent / "shared" / "assets")
ASSETS = next((Path(place) for place in _PLACES if place and Path(place).is_dir()), Path("shared/assets"))
FOLDERS = sorted(path.parent for path in ASSETS.glob("*/tokenizer.json"))
# One folder for each tokenizer.json: what is about tokenizers alone need not run for copies of one.
DISTINCT = sorted(
    {hashlib.sha256((folder / "tokenizer.json").read_bytes()).digest(): folder for folder in reversed(FOLDERS)}.values()
)
TEMPLATES = sorted((ASSETS / "templates").glob("*.jinja"))
needs_assets = pytest.mark.skipif(not FOLDERS, reason=f"no tokenizers in {ASSETS} (set NGPT_ASSETS)")


@partial(shared, most=2)
def encoder_at(folder: Path) -> Any:
    """The encoder of a folder, loaded once for all tests: loading takes seconds and a hundred megabytes."""
    from niels_gpt.tokenizer.load import open_encoder

    return open_encoder(folder)


@partial(shared, most=2)
def family_encoder(folder: Path, family: str) -> Any:
    """The encoder with a family's control tokens, which for some is another: set up once, for that takes seconds."""
    from niels_gpt.renderers.registry import FAMILIES

    return FAMILIES[family](encoder_at(folder)).encoder
