"""The steps of `niels-gpt demo` on the bundled samples: tokenizer, caches, batches, one example, counts, next steps.

It is not part of `demo.py`, so that the help page of `niels-gpt demo` does not wait for these imports. Only the batches
need torch; without it that step prints how to install it, and the other steps run.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES, DEFAULT_VAL_FRAC, UNLIMITED_TOKENS
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cli.terminal import table_of
from niels_gpt.errors import EXTRA_OF_LIBRARY
from niels_gpt.explorer.example_view import view_example
from niels_gpt.explorer.terminal_view import show_view
from niels_gpt.progress import Progress
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.tokenizer import SentencePieceTokenizer, train_tokenizer

VOCAB_SIZE = 2000  # small, because SentencePiece refuses more pieces than a text gives
T, B = 128, 8
SHOWN_TOKENS = 80


def run_demo(out: Path, *, seed: int, console: Console, progress: Progress) -> None:
    """Build everything below `out` (replacing an earlier demo) and show it on `console`.

    Raises:
        OutputExists: something below `out` is not an earlier demo's.
    """
    started = time.perf_counter()
    tokenizer = _tokenizer(out, seed, console, progress)
    _caches(out, seed, tokenizer, console, progress)
    console.print(Rule("3. batches, straight from the mapped files", align="left"))
    if find_spec("torch"):
        _batches(out, seed, console)
    else:
        remedy = f"pip install 'niels-gpt[{EXTRA_OF_LIBRARY['torch']}]'"
        line = Text(f"batches are tensors of torch, which is not installed: {remedy}", style="yellow")
        console.print(line, soft_wrap=True)
    _one_example(out, console)
    _counts(out, console)
    console.print(Text(f"\ndone in {time.perf_counter() - started:.1f} s\n", style="dim"))
    _next_steps(out, console)


def _tokenizer(out: Path, seed: int, console: Console, progress: Progress) -> SentencePieceTokenizer:
    console.print(Rule("1. a tokenizer", align="left"))
    tokenizer = train_tokenizer(
        [chats_file(), notes_dir()],
        out / "tokenizer",
        vocab_size=VOCAB_SIZE,
        seed=seed,
        overwrite=True,
        progress=progress,
    )
    special = ", ".join(f"{name} {token}" for name, token in tokenizer.special_token_ids().items())
    console.print(f"{tokenizer.model_path}: {tokenizer.vocab_size:,} pieces; sentinels: {special}", soft_wrap=True)
    return tokenizer


def _caches(out: Path, seed: int, tokenizer: SentencePieceTokenizer, console: Console, progress: Progress) -> None:
    console.print(Rule("2. caches", align="left"))
    notes, chats = TextFiles([notes_dir()]), ChatFile(chats_file())
    build_pretrain_cache(
        notes.iterate(),
        str(out / "pretrain/notes"),
        tokenizer=tokenizer,
        max_train_tokens=UNLIMITED_TOKENS,
        max_val_tokens=UNLIMITED_TOKENS,
        val_frac=DEFAULT_VAL_FRAC,
        shard_bytes=DEFAULT_SHARD_BYTES,
        seed=seed,
        shuffle_buffer=100,
        source_name=notes.name,
        source_config=notes.config(),
        overwrite=True,
        progress=progress,
    )
    build_sft_cache(
        chats.iterate(),
        str(out / "sft/chats"),
        tokenizer=tokenizer,
        val_frac=DEFAULT_VAL_FRAC,
        seed=seed,
        source_name=chats.name,
        source_config=chats.config(),
        overwrite=True,
        progress=progress,
    )
    for cache in ("pretrain/notes", "sft/chats"):
        size = sum(record["bytes"] for record in open_meta(out / cache)["files"].values())
        console.print(f"{out / cache}: {size:,} bytes, each file with its sha256 in meta.json", soft_wrap=True)


def _batches(out: Path, seed: int, console: Console) -> None:
    import torch

    from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset

    generator = torch.Generator().manual_seed(seed)
    stream = PretrainTokenStreamDataset(str(out / "pretrain/notes/train"), T=T, device="cpu")
    x, y = stream.get_batch(B=B, generator=generator)
    # The demo asserts what it prints below, so that a printed claim is never false.
    assert torch.equal(x[:, 1:], y[:, :-1])
    console.print(f"pretrain  x {tuple(x.shape)}  y {tuple(y.shape)}  {x.dtype}; y[:, :-1] == x[:, 1:]")
    folder = out / "sft/chats"
    tokens, index = folder / "train_tokens.bin", folder / "train_idx.npy"
    eot = open_meta(folder)["special_token_ids"]["eot"]
    examples = SFTExampleDataset(str(tokens), str(index), T=T, device="cpu", eot_id=eot)
    x, y, y_masked = examples.get_batch(B=B, generator=generator)
    trained = int((y_masked != IGNORE_INDEX).sum())
    console.print(
        f"sft       x {tuple(x.shape)}  y {tuple(y.shape)}  y_masked {tuple(y_masked.shape)}; "
        f"{trained:,} of {y.numel():,} targets trained",
        soft_wrap=True,
    )


def _one_example(out: Path, console: Console) -> None:
    console.print(Rule("4. one example, token by token", align="left"))
    # The longest example that leaves room for four tokens, so that the picture also shows padding. The index holds
    # where each example starts, and the end: starts 0 5 9 are lengths 5 4.
    lengths = np.diff(np.load(out / "sft/chats" / "train_idx.npy"))
    # Longer ones count as 0, so that they are never the longest.
    number = int(np.argmax(np.where(lengths <= SHOWN_TOKENS - 4, lengths, 0)))
    view = view_example(out / "sft/chats", number, T=SHOWN_TOKENS)
    show_view(console, view, with_table=True)


def _counts(out: Path, console: Console) -> None:
    console.print(Rule("5. what there is", align="left"))
    table = table_of("cache", "split", right=("documents / examples", "tokens", "trained tokens", "loss share"))
    for cache, rows in (("pretrain/notes", "documents"), ("sft/chats", "examples")):
        for split, counts in open_meta(out / cache)["splits"].items():
            trained = counts.get("trained_tokens", counts["tokens"])  # pretraining trains everything
            share = f"{trained / max(1, counts['tokens']):.1%}"
            table.add_row(cache, split, f"{counts[rows]:,}", f"{counts['tokens']:,}", f"{trained:,}", share)
    console.print(table)


def _next_steps(out: Path, console: Console) -> None:
    steps = [
        ("look at more", f"niels-gpt show {out / 'sft/chats'} 3"),
        ("what a cache is made of", f"niels-gpt info {out / 'sft/chats'}"),
        ("check every byte", f"niels-gpt verify {out / 'sft/chats'}"),
        ("your own tokenizer", "niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000 --out tokenizer"),
        ("your own chats", "niels-gpt build --kind sft chats.jsonl --tokenizer tokenizer --out cache/sft/chats"),
        ("your own texts", "niels-gpt build notes/ --tokenizer tokenizer --out cache/pretrain/notes"),
    ]
    console.print(Rule("next, on your own data", align="left"))
    width = max(len(what) for what, _ in steps)
    for what, command in steps:
        console.print(Text.assemble((f"{what:<{width}}  ", "dim"), (command, "cyan")), soft_wrap=True)
