"""`build-all --order units` against a local hub: workers, kills, faults, and what is downloaded."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="the extra 'hub' is not installed")
import numpy as np

from niels_gpt.cache.meta import open_meta
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests import hub as local
from tests.hub import Fault, Hub, Repository
from tests.test_build_all import FILES, FINEWEB, OASST1, WIKITEXT, Builder, hub_rows

UNITS = ("--order", "units", "--skip", "roam", "--max-train-tokens", 1 << 40, "--max-val-tokens", 1 << 40)
SNAPSHOT = "data/CC-MAIN-2024-10/"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({name: Repository(files) for name, files in FILES.items()}) as running:
        yield running


@pytest.fixture
def build(tmp_path: Path, tokenizer_dir: Path) -> Callable[[str], Builder]:
    return lambda name: Builder(tmp_path / name, tokenizer_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Builder:
    """Built by one process without any trouble."""
    undisturbed = Builder(tmp_path_factory.mktemp("whole"), tokenizer_dir)
    with Hub({name: Repository(files) for name, files in FILES.items()}) as healthy:
        code, printed = undisturbed.run(healthy, *UNITS)
    assert code == 0, printed
    return undisturbed


def caches(builder: Builder) -> dict[str, str]:
    return {name: digest for name, digest in builder.digests().items() if not name.startswith("tokenizer")}


def test_every_document_once_in_an_order_of_the_seed(whole: Builder, tokenizer: SentencePieceTokenizer) -> None:
    meta = open_meta(whole.cache / "pretrain/fineweb_edu")
    assert meta["dataset_config"]["shuffle"] == {"order": "units", "seed": 42, "window_files": 8, "unit_bytes": 4 << 20}
    found = [tokens for split in ("train", "val") for tokens in whole.tokens("pretrain/fineweb_edu", split)]
    texts = [row["text"] for row in hub_rows(FINEWEB, SNAPSHOT)]
    expected = [tokenizer.encode_torch(text).tolist() for text in texts]
    assert len(found) == len(expected)
    stripped = [[token for token in tokens if token != 4] for tokens in found]
    assert sorted(stripped) == sorted([token for token in tokens if token != 4] for tokens in expected)
    assert stripped != [[token for token in tokens if token != 4] for tokens in expected]
