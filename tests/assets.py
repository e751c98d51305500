"""Official tokenizers and templates, where available: $NGPT_ASSETS, or `shared/assets` beside the repository."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.folders import shared_folder
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

# Official templates without a tokenizer of their own: name -> template, the folder of a tokenizer with the same tokens,
# the model on the hub.
LONE_TEMPLATES = {
    "glm-5.2": ("ik--GLM-5.2.jinja", "glm-5.1", "zai-org/GLM-5.2"),
}


@cache
def with_lone_template(name: str) -> Path | None:
    """A folder that holds a template of `LONE_TEMPLATES` and its tokenizer; `None` where either is absent."""
    template, tokenizer, model = LONE_TEMPLATES[name]
    source, file = ASSETS / tokenizer, ASSETS / "templates_wild" / template
    if not (source / "tokenizer.json").is_file() or not file.is_file():
        return None
    folder = shared_folder("lone-") / name
    folder.mkdir()
    for path in source.iterdir():
        if path.name not in ("tokenizer_config.json", "family.json", "chat_template.jinja"):
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((source / "tokenizer_config.json").read_bytes())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes(file.read_bytes())
    (folder / "family.json").write_text(json.dumps({"hub_names": [model]}), encoding="utf-8")
    return folder


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
