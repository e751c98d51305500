"""`TokenStream`: every window of a split of tokens, for classes that draw windows at random.

A window is block_size + 1 neighbouring tokens of one file, wherever texts begin or end in it. All windows of all files
are numbered through::

    files of 5 and 7 tokens, windows of 3      windows 0 1 2 | 3 4 5 6 7      window 4 is tokens 1 to 3 of the second
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from niels_gpt.store.files import samples
from niels_gpt.store.index import EveryWindow
from niels_gpt.store.kinds import meta_beside
from niels_gpt.store.schema import META_DTYPES, TOKENS_NAME
from niels_gpt.store.shards import EPISODE_TOKENS, Shard, map_tokens, open_mask
from niels_gpt.store.split import IndexedSplit


class TokenStream(IndexedSplit):
    """Every window of block_size + 1 tokens of the files of a split, which may be of any of three forms."""

    def __init__(self, dataset: Path, split: str, block_size: int) -> None:
        self._block_size = block_size
        super().__init__([dataset], split)

    def _open_dataset(self, dataset: Path) -> tuple[None, list[Shard]]:
        return None, [
            Shard(path, EveryWindow(path, len(tokens), self._block_size), columns, no_mask)
            for path, columns, no_mask in stream_files(dataset / self.name)
            for tokens in [columns["tokens"]]
        ]

    @cached_property
    def fingerprint(self) -> str:
        """See `Split`: of the files and the size of windows."""
        digest = hashlib.blake2b(f"windows {self._block_size}".encode(), digest_size=16)
        for shard in self.shards:
            for part in samples(shard.tokens):
                digest.update(part)
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process, the files are opened again there."""
        return type(self), (self.datasets[0], self.name, self._block_size)


def stream_files(split: Path) -> list[tuple[Path, dict[str, Any], str]]:
    """The files of a split, in any of the three forms, each with its columns and why it has no mask; none if absent."""
    folders = [split, *sorted(path for path in split.glob("shard_*") if path.is_dir())]
    files: list[tuple[Path, dict[str, Any], str]] = []
    for folder in folders:
        if (folder / TOKENS_NAME).is_file():
            tokens = map_tokens(folder / TOKENS_NAME, EPISODE_TOKENS)
            mask, no_mask = open_mask(folder, len(tokens), None)
            files.append((folder / TOKENS_NAME, {"tokens": tokens} | ({} if mask is None else {"mask": mask}), no_mask))
    if files:
        return files
    # By name, because windows are numbered through all files and a state refers to these numbers.
    paths = sorted(split.glob("shard_*.bin"))
    # Shards without a meta.json are of the cache format's default dtype.
    meta: Mapping[str, Any] = (meta_beside(split.parent, None) or {}) if paths else {}
    dtype = META_DTYPES[meta.get("token_dtype", "uint16-le")]
    return [(path, {"tokens": map_tokens(path, dtype)}, f"{path}: a shard without mask") for path in paths]
