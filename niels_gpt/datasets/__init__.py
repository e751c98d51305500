"""Read any dataset that this package stores: one interface for caches and episodes, with numpy alone.

::

    dataset = open_dataset("cache/chats")          Dataset   .kind .manifest .vocab_size .special_token_ids
    train = dataset.splits["train"]                Split     len(train), .lengths
    train.row(17).ids                              Row       one row
    train.rows(np.array([17, 3]))                  Rows      some rows, one after the other in flat arrays
    for rows in train.chunks(1 << 20): ...                   the whole split, about a million tokens at a time

    kind        files (docs/formats.md)                    a row is
    pretrain    train/shard_00000.bin, ...                 a document; `windows(n)` reads training windows instead
    sft         train_tokens.bin, train_idx.npy,           an example; train_mask.bin or the sentinels among its ids
                train_mask.bin                             decide what is trained
    episodes    train/tokens.bin, train/episodes.idx, ...  an episode, or a packed row of several texts

Splits of pretraining caches are in `stream.py`, all others in `examples.py`; `rows.py` has what they share, and
`dataset.py` opens them.

All files are memory-mapped: opening reads manifests and checks the indexes, and memory grows with the rows that are
read, not with the dataset. Nothing here loops over tokens or rows in Python.
"""

from niels_gpt.datasets.dataset import Dataset, open_dataset, token_text_of
from niels_gpt.datasets.examples import EpisodeRows, ExampleSplit
from niels_gpt.datasets.rows import (
    CHUNK_ROWS,
    CHUNK_TOKENS,
    Row,
    Rows,
    Split,
    TokenText,
    gather,
    gather_from,
    slices_of_tokens,
)
from niels_gpt.datasets.stream import DocumentSplit, TokenStream, WindowSplit

__all__ = [
    "CHUNK_ROWS",
    "CHUNK_TOKENS",
    "Dataset",
    "DocumentSplit",
    "EpisodeRows",
    "ExampleSplit",
    "Row",
    "Rows",
    "Split",
    "TokenStream",
    "TokenText",
    "WindowSplit",
    "gather",
    "gather_from",
    "open_dataset",
    "slices_of_tokens",
    "token_text_of",
]
