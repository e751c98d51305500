"""The same function of `ng.tokenize` in `datasets.map`, in a torch `DataLoader` and in Ray Data.

python examples/tokenize_in_pipelines.py chats.jsonl --tokenizer ~/models/Qwen3-0.6B --pack 2048
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset

import niels_gpt as ng


def mapped(chats: Dataset, function: Any) -> Dataset:
    """Rows change their number when they are packed, so the columns of the chats cannot stay."""
    return chats.map(function, batched=True, remove_columns=chats.column_names, num_proc=2)


def tokens_by_torch(chats: Dataset, function: Any) -> int:
    """Chats are tokenized by the loader's workers, batch by batch."""
    loader: Any = torch.utils.data.DataLoader(chats, batch_size=64, collate_fn=function, num_workers=2)
    return sum(len(ids) for batch in loader for ids in batch["input_ids"])


def tokens_by_ray(path: Path, function: Any) -> int:
    """Batches as Arrow tables, which is the form that Ray stores."""
    import ray.data

    made = ray.data.read_json(str(path), lines=True).map_batches(function, batch_format="pyarrow")
    return sum(len(row["input_ids"]) for row in made.iter_rows())


def main() -> None:
    """Print the tokens that each engine found: they are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chats", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--pack", type=int, help="Tokens of a packed row.  [default: a row for each chat]")
    parser.add_argument("--ray", action="store_true", help="Also in Ray Data.")
    given = parser.parse_args()

    function = ng.tokenize(given.tokenizer, name=given.renderer, pack=given.pack)
    chats = load_dataset("json", data_files=str(given.chats), split="train")
    rows = mapped(chats, function)
    print(f"datasets: {len(rows)} rows, columns {', '.join(rows.column_names)}")
    print(f"datasets: {sum(map(len, rows['input_ids']))} tokens")
    print(f"torch: {tokens_by_torch(chats, function)} tokens")
    if given.ray:
        print(f"ray: {tokens_by_ray(given.chats, function)} tokens")


if __name__ == "__main__":
    main()
