"""One example of a cache, token by token: what each is, what is predicted after it, and whether that counts.

What makes rows as a training step sees them is imported where one is made: it needs torch, which takes seconds to load,
and lists of rows, token streams and mistakes do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES, index_name, tokens_name
from niels_gpt.cache.meta import Meta, open_meta, tokenizer_sha256
from niels_gpt.cache.mmap import ExampleIndex, map_tokens
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import is_episode_indexed_dataset, open_manifest
from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.explorer.example import CONTEXT, PADDING, SCAFFOLD, TRAINED, Bools, ExampleView, Ints, TokenColumns
from niels_gpt.format.masks import IGNORE_INDEX
from niels_gpt.ranges import BLOCK_SIZE, LENGTH
from niels_gpt.tokenizer import SentencePieceTokenizer, load_tokenizer

Spelling = Callable[[int], str]
TOKENIZER_PLACES = ("tokenizer", "../tokenizer", "../../tokenizer", "../../../tokenizer")


def view_example(
    cache: Path,
    number: int,
    *,
    split: str = "train",
    T: int | None = None,
    tokenizer: Path | None = None,
    spelling: Spelling | None = None,
) -> ExampleView:
    """Example `number` (SFT) or the `number`-th run of `T` tokens (pretrain) of a cache.

    Args:
        T: tokens shown; by default a whole SFT example, or 64 tokens of a stream.
        tokenizer: by default the one found in a `tokenizer` directory near the cache, if its hash fits.
        spelling: how ids are spelled, where that is known already.

    Raises:
        CacheError: no cache, or a damaged one. UsageError: no such example. Mismatch: not the cache's tokenizer.
    """
    LENGTH.check(T)
    if is_episode_indexed_dataset(cache):
        return view_episode(cache, number, split=split, T=T, tokenizer=tokenizer, spelling=spelling)
    meta = open_meta(cache)
    text = spelling or spelling_of(cache, meta, tokenizer)
    view = _sft if meta["kind"] == "sft" else _pretrain
    return view(cache, meta, number, split, T, text)


def view_episode(
    dataset: Path,
    number: int,
    *,
    split: str = "train",
    T: int | None = None,
    packed: bool = False,
    too_long: str = "head",
    tokenizer: Path | None = None,
    spelling: Spelling | None = None,
) -> ExampleView:
    """Episode `number` of a dataset, or row `number` of its packing into rows of `T` inputs, as the loader gives it.

    `too_long` is the loader's; `spelling` says how ids are spelled, where that is known already.

    Raises:
        CacheError: no dataset, or a damaged one. UsageError: no such episode. Mismatch: not the dataset's tokenizer.
    """
    from niels_gpt.episodes.loader import GPTEpisodeDataLoader

    BLOCK_SIZE.check(T)
    manifest = open_manifest(dataset) or {}
    if T is None:
        opened = EpisodeSplit([dataset], split)
        longest = opened.lengths()[number] if 0 <= number < len(opened) else 2
        T = 1024 if packed else max(1, int(longest) - 1)
    special = manifest.get("special_token_ids") or {}
    loader = GPTEpisodeDataLoader(
        TrainingConfig(batch_size=1, block_size=T),
        dataset_dir=dataset,
        pad_token_id=special.get("eot", 0),
        epoch_shuffle=False,
        epoch_drop_last=False,
        episode_min_tokens=1,
        packing=packed,
        too_long=too_long,
    )
    feed = loader.feed(split)
    n = loader.steps_per_epoch(split)
    if not 0 <= number < n:
        raise UsageError(f"{dataset}: {split} has {'rows' if packed else 'episodes'} 0 to {n - 1:,}; no {number:,}")
    batch, _ = feed.batch(Place(0, number))
    x, y, graded = batch.x[0].numpy(), batch.y[0].numpy(), batch.mask[0].numpy() > 0
    trained = np.concatenate([[False], graded[:-1]])
    kinds = _kinds(x, batch.num_tokens, trained, special.values())
    text = spelling
    if text is None and manifest.get("tokenizer_sha256"):
        text = spelling_of(dataset, manifest, tokenizer)
    segments = None if batch.segment_ids is None else batch.segment_ids[0].numpy()
    tokens = _columns(x, y, kinds, graded, text, segments)
    what = f"row {number:,} of {n:,}: episodes {', '.join(map(str, batch.episodes.tolist()))}," if packed else ""
    what = what or f"episode {number:,} of {n:,}:"
    title = f"{dataset} {split} {what} {batch.num_tokens:,} tokens, {batch.num_trained_tokens:,} trained"
    return ExampleView(title, tokens, text is not None, tuple(batch.episodes.tolist()), batch.num_tokens)


def _sft(cache: Path, meta: Meta, number: int, split: str, T: int | None, text: Spelling | None) -> ExampleView:
    from niels_gpt.cache.sft_dataset import SFTExampleDataset

    tokens_path, idx_path = cache / tokens_name(split), cache / index_name(split)
    tokens = map_tokens(tokens_path, TOKEN_DTYPES[meta["token_dtype"]])
    index = ExampleIndex(idx_path, len(tokens))
    if not 0 <= number < len(index):
        raise UsageError(f"{cache}: {split} has examples 0 to {len(index) - 1:,}; there is no {number:,}")
    starts, stops = index.spans(np.array([number]))
    length = int(stops[0] - starts[0])
    T = T or max(1, length - 1)
    special = meta["special_token_ids"]
    dataset = SFTExampleDataset(str(tokens_path), str(idx_path), T=T, device="cpu", eot_id=special.get("eot", 0))
    x, y, y_masked = (tensor[0].numpy() for tensor in dataset.rows(np.array([number])))
    graded = y_masked != IGNORE_INDEX
    trained = np.concatenate([[False], graded[:-1]])
    kinds = _kinds(x, length, trained, special.values())
    cut = f", cut to the first {T + 1:,}" if length > T + 1 else ""
    title = (
        f"{cache} {split} example {number:,} of {len(index):,}: {length:,} tokens{cut}, {int(graded.sum()):,} trained"
    )
    shown = _columns(x, y, kinds, graded, text)
    return ExampleView(title, shown, text is not None, n_tokens=min(length, T + 1))


def _pretrain(cache: Path, meta: Meta, number: int, split: str, T: int | None, text: Spelling | None) -> ExampleView:
    if number < 0:
        raise UsageError(f"{cache}: runs are counted from 0; there is no {number:,}")
    T = T or 64
    shards = sorted((cache / split).glob("shard_*.bin"))
    start = number * T
    for path in shards:
        tokens = map_tokens(path, TOKEN_DTYPES[meta["token_dtype"]])
        if 0 <= start < len(tokens) - 1:
            break
        start -= -(-max(0, len(tokens) - 1) // T) * T
    else:
        raise UsageError(f"{cache}: {split} has fewer than {number + 1:,} runs of {T:,} tokens; ask for an earlier one")
    row = tokens[start : start + T + 1]
    graded = np.ones(len(row) - 1, dtype=np.bool_)
    eot = meta["special_token_ids"]["eot"]
    kinds = np.where(row[:-1] == eot, SCAFFOLD, TRAINED)
    title = f"{path}: tokens {start:,} to {start + len(row) - 1:,} of {len(tokens):,}, all trained"
    shown = _columns(row[:-1], row[1:], kinds, graded, text)
    return ExampleView(title, shown, text is not None, n_tokens=len(row))


def _kinds(x: Ints, length: int, trained: Bools, sentinels: Iterable[int]) -> Ints:
    known = [np.arange(len(x)) >= length, trained, np.isin(x, list(sentinels))]
    return np.select(known, [PADDING, TRAINED, SCAFFOLD], CONTEXT).astype(np.uint8)


def _columns(
    x: Ints, y: Ints, kinds: Ints, graded: Bools, text: Spelling | None, segments: Ints | None = None
) -> TokenColumns:
    return TokenColumns(x, y, kinds, graded, text or (lambda token: ""), segments=segments)


def spelling_of(cache: Path, meta: Meta, given: Path | None) -> Spelling | None:
    """How ids are spelled; `None` if the cache's tokenizer is neither given nor near."""
    if given is not None and (given / "tokenizer.json").is_file():
        return _hf_spelling(cache, meta, given)
    if given is not None:
        tokenizer = load_tokenizer(given)
        if tokenizer_sha256(tokenizer) != meta["tokenizer_sha256"]:
            raise Mismatch(f"{given}: not the tokenizer that {cache} was built with; pass that one")
        return _spelling(tokenizer, meta)
    for place in TOKENIZER_PLACES:
        near = cache / place / "spm.model"
        if near.is_file():
            tokenizer = load_tokenizer(near)
            if tokenizer_sha256(tokenizer) == meta["tokenizer_sha256"]:
                return _spelling(tokenizer, meta)
    return None


def _hf_spelling(cache: Path, meta: Meta, given: Path) -> Spelling:
    """How a Hugging Face tokenizer spells its ids."""
    from niels_gpt.tokenizer.encoder import Encoder

    encoder = Encoder.load(given)
    if encoder.fingerprints["tokenizer"] != meta["tokenizer_sha256"]:
        raise Mismatch(f"{given}: not the tokenizer that {cache} was built with; pass that one")
    return lambda token: encoder.decode([token])


def _spelling(tokenizer: SentencePieceTokenizer, meta: Meta) -> Spelling:
    names = {token: f"<{name}>" for name, token in meta["special_token_ids"].items()}
    return lambda token: names.get(token) or tokenizer.piece(token)
