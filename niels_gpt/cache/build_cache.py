"""Build token caches: texts or conversations in, files on disk out.

A build is a pure function of the rows, the tokenizer, the options and the seed. It works on batches of about a million
characters, so memory does not grow with the input::

    texts          --DocumentTask--> chunks --split, shuffle buffer, budgets--> SplitWriter  of train and of val
    conversations  --ConversationTask--> chunks --split---------------------------> SplitWriter  of train and of val
                                                                                then meta.json, then the rename

Nothing has the cache's name before everything is written and flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from niels_gpt import ranges
from niels_gpt.builds.build import Build, BuildFields, BuildOptions, Kind, write_dataset
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.conversations import ConversationTask
from niels_gpt.builds.documents import (
    DocumentTask,
    SplitIds,
    TokenBudgets,
    document_encoder,
    with_split,
)
from niels_gpt.builds.encoder_protocol import CacheTokenizer, ConversationEncoder
from niels_gpt.builds.renderer_encoder import RenderingPolicy
from niels_gpt.builds.rows import MAX_MESSAGE_BYTES
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.builds.splits import ValidationSplit, shuffled
from niels_gpt.builds.tasks import Chunk
from niels_gpt.cache.formats import UNLIMITED_TOKENS, dtype_for
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.messages import ChatMsg as Message
from niels_gpt.messages import Conversation, check_text
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.manifest import Manifest
from niels_gpt.store.schema import EXAMPLES, FORMAT_VERSION, META_DTYPES, META_NAME, SPLITS, STREAM
from niels_gpt.store.writer import SplitWriter

# `Message` too, because the description of the cache format names it in this module.
__all__ = ["Message", "build_pretrain_cache", "build_sft_cache"]

PORTION_TOKENS = 1 << 20  # that are written at once
Ids = npt.NDArray[np.integer[Any]]

PRETRAIN = Kind(META_NAME, open_meta, "tokens", "text")
SFT = Kind(META_NAME, open_meta, "examples", "usable conversation")


def build_pretrain_cache(
    texts: Iterable[str | Document | Rejected],
    out_dir: str,
    *,
    tokenizer: Any,
    max_train_tokens: int,
    max_val_tokens: int,
    shard_bytes: int,
    seed: int,
    shuffle_buffer: int | None,
    val_frac: float | None = None,
    separator: str | None = None,
    token_dtype: str | None = None,
    streaming: bool | None = None,
    num_threads: int | None = None,
    **fields: Unpack[BuildFields],
) -> None:
    """Write `out_dir/{train,val}/shard_*.bin` and `out_dir/meta.json` from a stream of documents.

    Whole documents go to train or val. Reading stops when both budgets are full; the document that fills one is cut
    there. When one split is full, its documents go to the other.

    Args:
        texts: documents, in order; read once, never all in memory.
        tokenizer: a directory with tokenizer.json or spm.model, a name on the hub, a tokenizer object of transformers,
            `tokenizers` or this package, or anything with `encode`, `special_token_ids` and `vocab_size`.
        max_train_tokens, max_val_tokens: budgets, in tokens, separators included.
        shard_bytes: the largest size of a shard, in bytes.
        seed: of the split and of the shuffle buffer.
        shuffle_buffer: number of documents in the shuffle buffer; `None` retains the order.
        val_frac: fraction of documents for val; `None` means in proportion to the budgets. Documents of one group stay
            together, and documents that name their `split` go there.
        separator: the tokenizer's own "eos" after each document, "bos" before each, "eos+bos" (both), or "none". `None`
            means "eos" if the tokenizer has one (our own: end-of-turn), else "none". The manifest records it.
        token_dtype: "uint16" or "uint32"; `None` means the smaller that holds the vocabulary (65,536 ids in uint16).
        streaming: recorded: whether rows were read over the network during the build.
        num_threads: for encoding; the result does not depend on it.
        fields: how the build runs, see `BuildOptions`.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no text at all.
        TokenizerError: not a tokenizer, one without the separator's tokens, or ids outside the vocabulary.
        StorageError: the disk refused. After any error `out_dir` is as it was before.
    """
    options = BuildOptions(**fields)
    _check_numbers(seed, num_threads, val_frac)
    check_budgets(max_train_tokens, max_val_tokens)
    ranges.CACHE_SHARD_BYTES.check(shard_bytes)
    ranges.SHUFFLE_BUFFER.check(shuffle_buffer)
    total = max_train_tokens + max_val_tokens
    fraction = max_val_tokens / total if val_frac is None else val_frac
    # With a train budget of 0 the fraction would be 1, and nothing needs to be drawn: train is full from the start, and
    # its documents overflow to val.
    split = ValidationSplit(fraction if max_train_tokens else 0.0, seed)
    encoder = document_encoder(tokenizer, separator)
    meta = recipe(
        "pretrain",
        options,
        encoder.vocab_size,
        tokenizer_sha256=encoder.sha256,
        special_token_ids=encoder.special_ids,
        seed=seed,
        token_dtype=token_dtype,
        streaming=streaming,
        split_rule=_split_rule(fraction, "documents"),
        max_train_tokens=max_train_tokens,
        max_val_tokens=max_val_tokens,
        shard_bytes=shard_bytes,
        shuffle_buffer=shuffle_buffer,
        **encoder.joining,
    )
    dtype = META_DTYPES[meta["token_dtype"]]

    def open_writers(path: Path) -> dict[str, SplitWriter]:
        return {name: SplitWriter(path, name, STREAM, {"tokens": dtype}, shard_bytes=shard_bytes) for name in SPLITS}

    def fill(build: Build, writers: dict[str, SplitWriter]) -> dict[str, dict[str, int]]:
        budgets = TokenBudgets({"train": max_train_tokens, "val": max_val_tokens})
        known = total if total < UNLIMITED_TOKENS else None
        chunks = build.chunks(DocumentTask(encoder, num_threads), texts, total=known)
        with closing(chunks):  # full budgets stop the build before the last chunk, and then the workers must also stop
            documents: Iterable[SplitIds] = with_split(chunks, split)
            # After the split, which draws once per group of neighbouring documents: shuffling first would part them.
            if shuffle_buffer is not None:
                documents = shuffled(documents, shuffle_buffer, seed)
            return _write_documents(build, writers, documents, budgets)

    write_dataset(Path(out_dir), meta, options, PRETRAIN, open_writers, fill)


def _write_documents(
    build: Build, writers: dict[str, SplitWriter], documents: Iterable[SplitIds], budgets: TokenBudgets
) -> dict[str, dict[str, int]]:
    """Write documents until the budgets are full; the counts of each split."""
    for portion in _portions(documents, budgets):
        for name, parts in portion.items():
            writers[name].write({"tokens": np.concatenate([np.zeros(0, np.int64), *parts])})
        build.options.progress.advance(sum(len(ids) for parts in portion.values() for ids in parts))
    if budgets.full:
        # How far the last chunk reaches depends on the executor, the documents that are written do not.
        build.rejections.usable = sum(budgets.documents.values())
    return {name: {"documents": budgets.documents[name], "tokens": writer.tokens} for name, writer in writers.items()}


def _portions(documents: Iterable[SplitIds], budgets: TokenBudgets) -> Iterator[dict[str, list[Ids]]]:
    """The ids of documents by split, about a million tokens at a time, until the budgets are full."""
    portion, tokens = dict[str, list[Ids]]((name, []) for name in SPLITS), 0
    for drawn, whole in documents:
        name, ids = budgets.take(drawn, whole)
        portion[name].append(ids)
        tokens += len(ids)
        if tokens >= PORTION_TOKENS or budgets.full:
            yield portion
            portion, tokens = {name: [] for name in SPLITS}, 0
        if budgets.full:
            return
    yield portion


def build_sft_cache(
    examples: Iterable[Sequence[Message] | Conversation | Rejected],
    out_dir: str,
    *,
    tokenizer: Any,
    val_frac: float,
    seed: int,
    loss_on: LossOn | None = None,
    default_system_text: str = DEFAULT_SYSTEM_TEXT,
    token_dtype: str | None = None,
    streaming: bool | None = None,
    allow_partial: bool = False,
    on_unwritten: OnUnwritten | None = None,
    prove: bool = False,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    num_threads: int | None = None,
    **fields: Unpack[BuildFields],
) -> None:
    """Write `out_dir/{train,val}_{tokens.bin,idx.npy}` and `out_dir/meta.json` from conversations.

    Examples retain their order within a split; whole examples go to train or val. With a tokenizer they are serialised
    in the sentinel format (`niels_gpt.format.sft`), and readers compute the loss mask from the sentinels. A renderer's
    format has no sentinels, so its cache also has `{train,val}_mask.bin`, one byte per token.

    Args:
        examples: lists of messages, in order; read once, never all in memory.
        tokenizer: one with the four sentinels, or a renderer.
        val_frac: fraction of examples for val, 0 or more and below 1. Conversations of one group stay together.
        seed: of the split.
        loss_on: which tokens of a renderer are trained; default the sampled ones.
        default_system_text: the system turn of conversations that have none.
        token_dtype, streaming, num_threads: as for `build_pretrain_cache`.
        allow_partial, on_unwritten, prove: for renderers, see `RenderingPolicy`.
        max_message_bytes: a row with a longer message is rejected.
        fields: how the build runs, see `BuildOptions`.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no usable conversation. TokenizerError: ids outside the vocabulary.
        StorageError: the disk refused. After any error `out_dir` is as it was before.
    """
    options = BuildOptions(**fields)
    _check_numbers(seed, num_threads, val_frac)
    ranges.MAX_MESSAGE_BYTES.check(max_message_bytes)
    try:
        check_text(default_system_text)
    except MessageError as error:
        raise UsageError(f"default_system_text holds {error}") from error
    policy = RenderingPolicy(allow_partial, on_unwritten, prove)
    encoder = _sft_encoder(tokenizer, loss_on, policy, default_system_text, max_message_bytes, num_threads)
    split, masked = ValidationSplit(val_frac, seed), not isinstance(encoder, SentinelEncoder)
    special, sha256, encoder_options = _recorded(encoder, tokenizer, masked)
    meta = recipe(
        "sft",
        options,
        encoder.vocab_size or 0,
        tokenizer_sha256=sha256,
        special_token_ids=special,
        seed=seed,
        token_dtype=token_dtype,
        streaming=streaming,
        split_rule=_split_rule(val_frac, "examples"),
        val_frac=val_frac,
        **encoder_options,
    )
    dtype = META_DTYPES[meta["token_dtype"]]

    def open_writers(path: Path) -> dict[str, SplitWriter]:
        dtypes = {"tokens": dtype} | ({"mask": "u1"} if masked else {})
        return {name: SplitWriter(path, name, EXAMPLES, dtypes) for name in SPLITS}

    def fill(build: Build, writers: dict[str, SplitWriter]) -> dict[str, dict[str, int]]:
        trained = dict.fromkeys(SPLITS, 0)

        def write(name: str, rows: Chunk) -> None:
            mask = rows.weights > 0
            # Without a mask file the mask is only counted: readers find it by the sentinels.
            writers[name].write({"tokens": rows.ids, "mask": mask}, rows.lengths)
            trained[name] += int(mask.sum())

        chunks = build.chunks(ConversationTask(encoder, "uint8"), examples)
        build.divide(chunks, lambda chunk: split.draws(chunk.groups), write)
        return {
            name: {"examples": writer.rows, "tokens": writer.tokens, "trained_tokens": trained[name]}
            for name, writer in writers.items()
        }

    write_dataset(Path(out_dir), meta, options, SFT, open_writers, fill)


def _recorded(
    encoder: ConversationEncoder, tokenizer: Any, masked: bool
) -> tuple[dict[str, int], str | None, dict[str, Any]]:
    """What `meta.json` records of an encoder: special ids, the tokenizer's hash, and what else decides ids.

    With sentinels the format says what is trained, so only the keys of the cache format are recorded.
    """
    described = dict(encoder.describe())
    special, sha256 = described.pop("special_token_ids", None), described.pop("tokenizer_sha256")
    if encoder.vocab_size is None or not special:
        raise UsageError(
            f"{type(tokenizer).__name__} names no vocab_size, or no eos token, which a cache needs to pad with. Set "
            "eos_token"
        )
    if masked:
        return special, sha256, {"mask_dtype": "uint8", **described}
    return special, sha256, {name: described[name] for name in ("default_system_text", "max_message_bytes")}


def _sft_encoder(
    tokenizer: Any,
    loss_on: LossOn | None,
    policy: RenderingPolicy,
    default_system_text: str,
    max_message_bytes: int,
    num_threads: int | None,
) -> ConversationEncoder:
    """What makes ids and masks: a renderer, or the sentinel format of a tokenizer."""
    if not isinstance(tokenizer, CacheTokenizer):
        return as_encoder(tokenizer, loss_on, policy)
    if loss_on is not None:
        raise UsageError("loss_on is for renderers; with sentinels every assistant turn is trained")
    return SentinelEncoder(
        tokenizer,
        default_system_text=default_system_text,
        max_message_bytes=max_message_bytes,
        num_threads=num_threads,
        allow_message_weights=False,
    )


def _split_rule(fraction: float, rows: str) -> str:
    """The rule by which rows were split, as `meta.json` records it."""
    if not fraction:
        return f"all {rows} to train"
    # Recorded in meta.json and compared when a build is repeated: the wording must not change.
    with_split = f"one of every {1 / fraction:.6g} neighbouring {rows} to val, drawn by torch RNG"
    return with_split + (", unless the source says where one belongs" if rows == "documents" else "")


def _check_numbers(seed: int, num_threads: int | None, val_frac: float | None) -> None:
    ranges.SEED.check(seed)
    ranges.THREADS.check(num_threads)
    ranges.VAL_FRAC.check(val_frac)


def check_budgets(max_train_tokens: int, max_val_tokens: int) -> None:
    """Raise `UsageError` for budgets out of range, or if both are 0."""
    ranges.MAX_TRAIN_TOKENS.check(max_train_tokens)
    ranges.MAX_VAL_TOKENS.check(max_val_tokens)
    if max_train_tokens + max_val_tokens == 0:
        raise UsageError("max_train_tokens and max_val_tokens are both 0; nothing would be built")


def recipe(
    kind: str,
    options: BuildOptions,
    vocab_size: int,
    *,
    tokenizer_sha256: str | None,
    special_token_ids: dict[str, int],
    seed: int,
    token_dtype: str | None,
    streaming: bool | None,
    **more: Any,
) -> Manifest:
    """The recipe of a cache: the part of `meta.json` that is known before the build.

    Two builds of one recipe from the same rows give the same bytes.

    Args:
        more: further keys, in the order in which they are written.

    Raises:
        UsageError: `token_dtype` cannot hold the vocabulary.
    """
    return {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "dataset_name": options.source_name,
        "dataset_config": options.source_config,
        "streaming": bool(streaming),  # `None` from callers that do not know; the format has a bool
        "seed": seed,
        "token_dtype": dtype_for(token_dtype, vocab_size),
        "tokenizer_sha256": tokenizer_sha256,
        "vocab_size": vocab_size,
        "special_token_ids": special_token_ids,
        **more,
    }
