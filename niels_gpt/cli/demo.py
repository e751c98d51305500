"""`niels-gpt demo`: the main job on the bundled samples: tokenizer, caches, batches, one example, counts, next steps.

Only the batches need torch; without it that step prints how to install it, and the other steps run.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from niels_gpt.cli.options import Seed, grouped
from niels_gpt.cli.terminal import ShownProgress, out, table_of
from niels_gpt.errors import EXTRA_OF_LIBRARY
from niels_gpt.options import Option
from niels_gpt.progress import Progress
from niels_gpt.seeds import DEFAULT_SEED

VOCAB_SIZE = 2000  # small, because SentencePiece refuses more pieces than a text gives
T, B = 128, 8
SHOWN_TOKENS = 80
CACHES = {"pretrain/notes": "documents", "sft/chats": "examples"}  # place -> what its rows are


@grouped
def demo(
    directory: Annotated[
        Path, Option("The directory to create; an earlier demo there is replaced.", "DIR", flag="--out")
    ] = Path("niels-gpt-demo"),
    seed: Seed = DEFAULT_SEED,
) -> None:
    """Run the main job on bundled samples: tokenizer, caches, batches, an example, counts.

    Example: niels-gpt demo --out /tmp/demo
    """
    with ShownProgress() as progress:
        run_demo(directory, seed=seed, console=out(), progress=progress)


def run_demo(out: Path, *, seed: int, console: Console, progress: Progress) -> None:
    """Build everything below `out` (replacing an earlier demo) and show it on `console`.

    Raises:
        OutputExists: something below `out` is not an earlier demo's.
    """
    # Here, so that the help page does not wait for all that builds need.
    import niels_gpt as ng
    from niels_gpt.cache.formats import UNLIMITED_TOKENS
    from niels_gpt.samples import chats_file, notes_dir
    from niels_gpt.tokenizer import train_tokenizer

    started = time.perf_counter()
    console.print(Rule("1. a tokenizer", align="left"))
    options: dict[str, Any] = {"seed": seed, "overwrite": True, "progress": progress}
    tokenizer = train_tokenizer([chats_file(), notes_dir()], out / "tokenizer", vocab_size=VOCAB_SIZE, **options)
    special = ", ".join(f"{name} {token}" for name, token in tokenizer.special_token_ids().items())
    console.print(f"{tokenizer.model_path}: {tokenizer.vocab_size:,} pieces; sentinels: {special}", soft_wrap=True)

    console.print(Rule("2. caches", align="left"))
    budgets: dict[str, Any] = {
        "max_train_tokens": UNLIMITED_TOKENS,
        "max_val_tokens": UNLIMITED_TOKENS,
        "val_frac": 0.1,
    }
    place = out / "tokenizer"
    notes = ng.build(notes_dir(), out / "pretrain/notes", place, shuffle_buffer=100, **budgets, **options)
    chats = ng.build(chats_file(), out / "sft/chats", place, kind="sft", **options)
    for cache in (notes, chats):
        size = sum(record["bytes"] for record in cache.manifest["files"].values())
        console.print(f"{cache.path}: {size:,} bytes, each file with its sha256 in meta.json", soft_wrap=True)

    console.print(Rule("3. batches, straight from the mapped files", align="left"))
    if find_spec("torch"):
        _batches(out, chats.special_token_ids["eot"], seed, console)
    else:
        remedy = f"pip install 'niels-gpt[{EXTRA_OF_LIBRARY['torch']}]'"
        line = Text(f"batches are tensors of torch, which is not installed: {remedy}", style="yellow")
        console.print(line, soft_wrap=True)
    _one_example(chats, console)

    console.print(Rule("5. what there is", align="left"))
    table = table_of("cache", "split", right=("documents / examples", "tokens", "trained tokens", "loss share"))
    for cache, (name, rows) in zip((notes, chats), CACHES.items(), strict=True):
        for split, counts in cache.manifest["splits"].items():
            trained = counts.get("trained_tokens", counts["tokens"])  # pretraining trains everything
            share = f"{trained / max(1, counts['tokens']):.1%}"
            table.add_row(name, split, f"{counts[rows]:,}", f"{counts['tokens']:,}", f"{trained:,}", share)
    console.print(table)
    console.print(Text(f"\ndone in {time.perf_counter() - started:.1f} s\n", style="dim"))
    _next_steps(out, console)


def _batches(out: Path, eot: int, seed: int, console: Console) -> None:
    import torch

    from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
    from niels_gpt.cache.sft_dataset import SFTExampleDataset
    from niels_gpt.store.masks import IGNORE_INDEX

    generator = torch.Generator().manual_seed(seed)
    stream = PretrainTokenStreamDataset(str(out / "pretrain/notes/train"), T=T, device="cpu")
    x, y = stream.get_batch(B=B, generator=generator)
    # The demo asserts what it prints below, so that a printed claim is never false.
    assert torch.equal(x[:, 1:], y[:, :-1])
    console.print(f"pretrain  x {tuple(x.shape)}  y {tuple(y.shape)}  {x.dtype}; y[:, :-1] == x[:, 1:]")
    files = [str(out / "sft/chats" / name) for name in ("train_tokens.bin", "train_idx.npy")]
    examples = SFTExampleDataset(*files, T=T, device="cpu", eot_id=eot)
    x, y, y_masked = examples.get_batch(B=B, generator=generator)
    trained = int((y_masked != IGNORE_INDEX).sum())
    console.print(
        f"sft       x {tuple(x.shape)}  y {tuple(y.shape)}  y_masked {tuple(y_masked.shape)}; "
        f"{trained:,} of {y.numel():,} targets trained",
        soft_wrap=True,
    )


def _one_example(chats: Any, console: Console) -> None:
    import numpy as np

    from niels_gpt.display.table import example_text
    from niels_gpt.explorer.example_view import view_example

    console.print(Rule("4. one example, token by token", align="left"))
    # The longest example that leaves room for four tokens, so that the picture also shows padding.
    lengths = chats.split("train").lengths
    # Longer ones count as 0, so that they are never the longest.
    number = int(np.argmax(np.where(lengths <= SHOWN_TOKENS - 4, lengths, 0)))
    example = view_example(chats.path, number, T=SHOWN_TOKENS)
    print(example_text(example, colour=console.is_terminal), end="", file=console.file)


def _next_steps(out: Path, console: Console) -> None:
    steps = [
        ("look at more", f"niels-gpt show {out / 'sft/chats'} 3"),
        ("what a dataset is made of", f"niels-gpt info {out / 'sft/chats'}"),
        ("check every byte", f"niels-gpt verify {out / 'sft/chats'}"),
        ("your own tokenizer", "niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000 --out tokenizer"),
        ("your own chats", "niels-gpt build chats.jsonl --tokenizer tokenizer --out episodes/chats"),
        ("your own texts", "niels-gpt build notes/ --tokenizer tokenizer --out cache/pretrain/notes"),
    ]
    console.print(Rule("next, on your own data", align="left"))
    width = max(len(what) for what, _ in steps)
    for what, command in steps:
        console.print(Text.assemble((f"{what:<{width}}  ", "dim"), (command, "cyan")), soft_wrap=True)
