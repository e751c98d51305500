"""A file that a crash left half written, under its final name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.episodes import build_episodes
from niels_gpt.messages import Conversation
from niels_gpt.store.verify import verify_dataset
from tests.doctor.made import chats
from tests.renderers.tiny_families import renderer_of


def naive(path: Path, blocks: Iterable[list[int]]) -> None:
    with path.open("wb") as file:
        for block in blocks:
            file.write(np.array(block, dtype="<u4").tobytes())


def dies(rows: list[list[int]]) -> Iterator[list[int]]:
    yield rows[0]
    raise OSError("no power")


def test_naive(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no power"):
        naive(tmp_path / "tokens.bin", dies([[1, 2, 3], [4, 5, 6]]))
    assert np.memmap(tmp_path / "tokens.bin", dtype="<u4").tolist() == [1, 2, 3]  # and nobody knows


def test_ours(tmp_path: Path) -> None:
    conversations = [Conversation(messages, "chat") for messages in chats()]

    def broken() -> Iterator[Conversation]:
        yield from conversations[:4]
        raise OSError("no power")

    with pytest.raises(OSError, match="no power"):
        build_episodes(broken(), tmp_path / "data", encoder=renderer_of("chatml"), val_frac=0.0)
    assert not (tmp_path / "data").exists()
    build_episodes(conversations, tmp_path / "data", encoder=renderer_of("chatml"), val_frac=0.0)
    assert list(verify_dataset(tmp_path / "data")) == []
    tokens = np.memmap(tmp_path / "data" / "train" / "tokens.bin", dtype="<u4", mode="r+")
    tokens[5] ^= 1
    tokens.flush()
    assert any("tokens.bin" in finding for finding in verify_dataset(tmp_path / "data"))
