"""Stored datasets as columns: which files there are, of which dtype, with a value per token or per row.

A split has one shard or several; a shard is a file for each column, and an index of its rows. The three layouts::

    EPISODES   SPLIT/tokens.bin SPLIT/mask.bin ... SPLIT/episodes.idx, or the same in SPLIT/shard_00000/, ...
    EXAMPLES   SPLIT_tokens.bin SPLIT_mask.bin SPLIT_idx.npy
    STREAM     SPLIT/shard_00000.bin, ...      no index: rows are windows or documents

Another column is a line of `COLUMNS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

REPAIR: Final = "Restore the file, or build again with --overwrite"  # the advice of messages about damage
SPLITS: Final = ("train", "val")
META_NAME: Final = "meta.json"  # the manifest of a cache
MANIFEST_NAME: Final = "episodes.json"  # of episodes and preferences
MANIFESTS: Final = (MANIFEST_NAME, META_NAME)
CACHE_VERSION: Final = 1
FORMAT_VERSION: Final = 1  # of episodes
CONTEXT_VERSION: Final = 2  # of episodes with images, which readers that know none would ignore

TOKENS_NAME: Final = "tokens.bin"
MASK_NAME: Final = "mask.bin"
SEGMENTS_NAME: Final = "segment_ids.bin"
COMPLETIONS_NAME: Final = "completions.bin"
IMAGE_PATHS_NAME: Final = "image_paths.bin"
IMAGES_NAME: Final = "images.idx"
INDEX_NAME: Final = "episodes.idx"
METADATA_NAME: Final = "episodes.parquet"

# A record of `completions.bin`. Each completion of a prompt is a row; those of one prompt are neighbours.
COMPLETION: Final = np.dtype(
    [
        ("number", "<u4"),  # among the completions of its prompt: 0 begins the next group
        ("prompt_length", "<u4"),  # tokens of the prompt, with which the row begins
        ("rank", "<i4"),  # 0 is the best; -1: not ranked
        ("label", "<i4"),  # 1 desirable, 0 undesirable, -1: not labelled
        ("score", "<f8"),  # NaN: none
        ("margin", "<f8"),  # of the pair, in the record of its chosen completion; NaN: none
    ]
)

# A record of `images.idx`, in the order of the rows and of the places in them.
IMAGE: Final = np.dtype(
    [
        ("episode", "<u8"),  # the number of its row in the index of this folder
        ("path_start", "<u8"),  # in `image_paths.bin`
        ("path_length", "<u4"),
        ("start", "<u4"),  # the first placeholder token, counted from the row's first
        ("tokens", "<u4"),  # how many there are
        ("width", "<u4"),  # of the file, in pixels
        ("height", "<u4"),
        ("sha256", "u1", (32,)),  # of the file's bytes
    ]
)


@dataclass(frozen=True)
class PlacedImage:
    """One image of a row, as a dataset stores it.

    Attributes:
        start, tokens: its placeholder tokens, counted from the row's first.
        width, height: of the file, in pixels.
        path: relative to the folder of images, with `/`.
        sha256: of the file's bytes, 64 hex digits.
    """

    start: int
    tokens: int
    width: int
    height: int
    path: str
    sha256: str


@dataclass(frozen=True)
class Column:
    """One file of a shard.

    Attributes:
        file: its name.
        dtypes: those that it may have, by the names that manifests give them. It has no header: where no manifest names
            the dtype, its size decides.
        per: "token", "row" or "image".
    """

    file: str
    dtypes: dict[str, Any]
    per: str = "token"


TOKEN_DTYPES: Final = {"uint32": "<u4", "uint16": "<u2"}
META_DTYPES: Final = {"uint16-le": "<u2", "uint32-le": "<u4"}  # as `meta.json` names them
MASK_DTYPES: Final = {"uint8": "u1", "float32": "<f4"}
SEGMENT_DTYPES: Final = {"uint16": "<u2", "uint32": "<u4", "uint8": "u1"}  # we write the first two

# In the order in which manifests list the files.
COLUMNS: Final = {
    "tokens": Column(TOKENS_NAME, TOKEN_DTYPES),
    "mask": Column(MASK_NAME, MASK_DTYPES),
    "segments": Column(SEGMENTS_NAME, SEGMENT_DTYPES),  # where it changes, another text begins
    "completions": Column(COMPLETIONS_NAME, {"completion": COMPLETION}, per="row"),
    "image_paths": Column(IMAGE_PATHS_NAME, {"bytes": "u1"}, per="image"),
    "images": Column(IMAGES_NAME, {"image": IMAGE}, per="image"),
}


@dataclass(frozen=True)
class Layout:
    """Where the files of a split lie.

    Attributes:
        index: the name of the index's file; `None` for a stream, which may be cut between any two tokens.
        joint: between the name of the split, or of the shard, and that of a file.
        empty: what a split without rows has: "files", "folder", or "nothing".
    """

    index: str | None
    joint: str
    empty: str

    def shard(self, split: str, number: int | None) -> str:
        """With what the names of a shard's files begin: `train/shard_00003`; `None`: the only one, `train`."""
        return split if number is None else f"{split}/shard_{number:05d}"

    def file(self, shard: str, name: str) -> str:
        """A file of a shard: `train/shard_00003/mask.bin`; of a stream the shard is a file."""
        return f"{shard}.bin" if self.index is None else f"{shard}{self.joint}{name}"


EPISODES: Final = Layout(INDEX_NAME, "/", "nothing")
EXAMPLES: Final = Layout("idx.npy", "_", "files")
STREAM: Final = Layout(None, "/", "folder")
