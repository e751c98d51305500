"""Builds token caches (document 001): conversations and texts in, files on disk out.

A build is a pure function of the rows, the tokenizer, the options and the seed. It works on batches of about a
million characters, so memory does not grow with the input::

    rows -> usable rows -> batches -> ids -> train or val (-> shuffle buffer) -> files aside -> meta.json -> rename

Nothing carries the cache's name before everything is written and flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt import ranges
from niels_gpt.builds import Build, CacheTokenizer, already_built, recipe, tell_changes
from niels_gpt.cache.formats import (
    MAX_MESSAGE_BYTES,
    SPLITS,
    TOKEN_DTYPES,
    UNLIMITED_TOKENS,
    ExampleWriter,
    ShardWriter,
)
from niels_gpt.documents import DocumentWork, DrawnDocument, Rooms, drawn, joined
from niels_gpt.encoders import Choices, Encoder, OnUnsupported, SentinelEncoder, encoder_of
from niels_gpt.errors import DataError, MessageError, UsageError
from niels_gpt.format.rows import batches
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.inputs import Document, Rejected
from niels_gpt.messages import ChatMsg as Message
from niels_gpt.messages import Conversation, check_text
from niels_gpt.portions import SERIAL, CacheWork, Engine, finishing
from niels_gpt.progress import SILENT, Progress
from niels_gpt.renderers.loss import LossOn
from niels_gpt.splits import ValidationSplit, shuffled

__all__ = ["Message", "build_pretrain_cache", "build_sft_cache"]


def build_pretrain_cache(
    texts: Iterable[str | Document | Rejected],
    out_dir: str,
    *,
    tokenizer: CacheTokenizer,
    max_train_tokens: int,
    max_val_tokens: int,
    shard_bytes: int,
    seed: int,
    shuffle_buffer: int | None,
    val_frac: float | None = None,
    separate_documents: bool = True,
    token_dtype: str = "uint16",
    source_name: str | None = None,
    source_config: dict[str, Any] | None = None,
    streaming: bool | None = None,
    max_bad_rows: int = 0,
    num_threads: int | None = None,
    overwrite: bool = False,
    engine: Engine = SERIAL,
    read_share: Callable[[], float | None] = lambda: None,
    progress: Progress = SILENT,
) -> None:
    """Write `out_dir/{train,val}/shard_*.bin` and `out_dir/meta.json` from a stream of documents.

    Whole documents go to train or val. Reading stops when both budgets are full; the document that fills one is cut
    there. A split whose budget is full hands its documents to the other.

    Args:
        texts: documents, in order; consumed once, never held.
        max_train_tokens, max_val_tokens: budgets, in tokens, separators included.
        shard_bytes: the most bytes of one shard.
        seed: of the split and of the shuffle buffer.
        shuffle_buffer: documents held for shuffling; `None` keeps the order.
        val_frac: share of documents for val; `None` means in proportion to the budgets. Documents of one group stay
            together, and documents that name their `split` go there.
        separate_documents: an end-of-turn id after each document, so that windows know where text ends.
        token_dtype: "uint16", or "uint32" for vocabularies above 65 536.
        source_name, source_config, streaming: recorded; a cache of the same `source_config` is not built twice.
        max_bad_rows: how many unusable rows to leave out (into `rejected.jsonl`) before giving up.
        num_threads: for encoding; the result does not depend on it.
        overwrite: replace an earlier cache at `out_dir`.
        engine: runs the work, see `scale`; the bytes do not depend on it.
        read_share: how much of the input has been read, 0 to 1, to tell the time left.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no text at all. TokenizerError: ids that should not be.
        StorageError: the disk refused. Whatever is raised, `out_dir` is as it was before.
    """
    _check_numbers(seed, num_threads, max_bad_rows, val_frac)
    check_budgets(max_train_tokens, max_val_tokens)
    ranges.SHARD_BYTES.check(shard_bytes)
    ranges.SHUFFLE_BUFFER.check(shuffle_buffer)
    fraction = max_val_tokens / (max_train_tokens + max_val_tokens) if val_frac is None else val_frac
    split = ValidationSplit(fraction if max_train_tokens else 0.0, seed)
    meta = recipe(
        "pretrain",
        tokenizer,
        seed=seed,
        token_dtype=token_dtype,
        source_name=source_name,
        source_config=source_config,
        streaming=streaming,
        split_rule=_split_rule(fraction, "documents"),
        max_train_tokens=max_train_tokens,
        max_val_tokens=max_val_tokens,
        shard_bytes=shard_bytes,
        shuffle_buffer=shuffle_buffer,
        separate_documents=separate_documents,
    )
    out = Path(out_dir)
    if not overwrite and already_built(out, meta, progress):
        engine.discard(out)
        return
    with finishing(engine, out, progress), Build(out, meta, max_bad_rows=max_bad_rows, overwrite=overwrite) as build:
        writers = {
            name: build.add(ShardWriter(build.path / name, TOKEN_DTYPES[meta["token_dtype"]], shard_bytes))
            for name in SPLITS
        }
        rooms = Rooms({"train": max_train_tokens, "val": max_val_tokens})
        budget = max_train_tokens + max_val_tokens
        progress.begin(out.name, total=budget if budget < UNLIMITED_TOKENS else None, unit="tokens")
        work = DocumentWork(tokenizer, separate_documents, num_threads)
        portions = engine.portions(work, texts, build.rejections, out=out, recipe=meta, progress=progress)
        with closing(portions):  # a full budget is met before the last of them
            for batch in batches(_ordered(drawn(portions, split), shuffle_buffer, seed), _characters):
                ids, lengths, in_val = joined(batch)
                for name, chosen in rooms.assign(in_val, lengths).items():
                    writers[name].write(rooms.cut(name, ids[np.repeat(chosen, lengths)]))
                progress.advance(len(ids))
                if budget >= UNLIMITED_TOKENS:
                    share = read_share() or engine.read_share()
                    _expect(progress, sum(writer.tokens for writer in writers.values()), share)
                if rooms.full:
                    break
        build.close_writers()
        totals = {f"{name}_tokens": writer.tokens for name, writer in writers.items()}
        _refuse_empty(out, sum(totals.values()), "text", build)
        build.finish(totals, {n: {"documents": rooms.documents[n], "tokens": w.tokens} for n, w in writers.items()})


def _ordered(documents: Iterable[DrawnDocument], buffer: int | None, seed: int) -> Iterable[DrawnDocument]:
    """Shuffled, if wanted: after the split, so that a group stays together."""
    return documents if buffer is None else shuffled(documents, buffer, seed)


def _characters(document: DrawnDocument) -> int:
    return document.characters


def build_sft_cache(
    examples: Iterable[Sequence[Message] | Conversation | Rejected],
    out_dir: str,
    *,
    tokenizer: Any,
    val_frac: float,
    seed: int,
    loss_on: LossOn | None = None,
    default_system_text: str = DEFAULT_SYSTEM_TEXT,
    token_dtype: str = "uint16",
    source_name: str | None = None,
    source_config: dict[str, Any] | None = None,
    streaming: bool | None = None,
    max_bad_rows: int = 0,
    allow_partial: bool = False,
    on_unsupported: OnUnsupported = "drop",
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    num_threads: int | None = None,
    overwrite: bool = False,
    engine: Engine = SERIAL,
    read_share: Callable[[], float | None] = lambda: None,
    progress: Progress = SILENT,
) -> None:
    """Write `out_dir/{train,val}_{tokens.bin,idx.npy}` and `out_dir/meta.json` from conversations.

    Examples keep their order within a split; whole examples go to train or val. With a tokenizer they are serialised as
    document 000 says, and sentinels tell what is trained. With a renderer `{train,val}_mask.bin` says so, one byte a
    token: its format has no sentinels to read a mask from.

    Args:
        examples: lists of messages, in order; consumed once, never held.
        tokenizer: one with the four sentinels, or a renderer.
        loss_on: which tokens of a renderer's are trained; default what the model itself would emit.
        val_frac: share of examples for val, 0 or more and below 1. Conversations of one group stay together.
        seed: of the split.
        allow_partial, on_unsupported: of renderers, see `encoders.Choices`.
        default_system_text: the system turn of conversations that have none.
        max_message_bytes: a longer message makes its row unusable.
        token_dtype, source_name, source_config, streaming, max_bad_rows, num_threads, overwrite, engine, read_share:
            as for `build_pretrain_cache`.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no usable conversation. TokenizerError: ids that should not be.
        StorageError: the disk refused. Whatever is raised, `out_dir` is as it was before.
    """
    _check_numbers(seed, num_threads, max_bad_rows, val_frac)
    _check_chat_options(max_message_bytes, default_system_text)
    choices = Choices(allow_partial, on_unsupported)
    encoder = _sft_encoder(tokenizer, loss_on, choices, default_system_text, max_message_bytes, num_threads)
    split = ValidationSplit(val_frac, seed)
    meta = recipe(
        "sft",
        tokenizer,
        seed=seed,
        token_dtype=token_dtype,
        source_name=source_name,
        source_config=source_config,
        streaming=streaming,
        split_rule=_split_rule(val_frac, "examples"),
        val_frac=val_frac,
        **_sft_options(encoder),
    )
    out = Path(out_dir)
    if not overwrite and already_built(out, meta, progress):
        engine.discard(out)
        return
    with finishing(engine, out, progress), Build(out, meta, max_bad_rows=max_bad_rows, overwrite=overwrite) as build:
        writers = {
            name: build.add(
                ExampleWriter(build.path, name, TOKEN_DTYPES[meta["token_dtype"]], masked="mask_dtype" in meta)
            )
            for name in SPLITS
        }
        trained = dict.fromkeys(SPLITS, 0)
        progress.begin(out.name, unit="tokens")
        work = CacheWork(encoder)
        for portion in engine.portions(work, examples, build.rejections, out=out, recipe=meta, progress=progress):
            in_val = np.fromiter((split.draw(group) for group in portion.groups), dtype=np.bool_)
            for name, chosen in (("train", ~in_val), ("val", in_val)):
                own = np.repeat(chosen, portion.lengths)
                mask = portion.weights[own] > 0
                writers[name].write(portion.ids[own], portion.lengths[chosen], mask)
                trained[name] += int(mask.sum())
            progress.advance(len(portion.ids))
            share = read_share() or engine.read_share()
            _expect(progress, sum(writer.tokens for writer in writers.values()), share)
        build.close_writers()
        totals = {f"{name}_examples": writer.examples for name, writer in writers.items()}
        _refuse_empty(out, sum(totals.values()), "usable conversation", build)
        splits = {
            name: {"examples": writer.examples, "tokens": writer.tokens, "trained_tokens": trained[name]}
            for name, writer in writers.items()
        }
        build.finish(totals, splits)
        tell_changes(out, build.rejections.changed, progress)


def _sft_encoder(
    tokenizer: Any,
    loss_on: LossOn | None,
    choices: Choices,
    default_system_text: str,
    max_message_bytes: int,
    num_threads: int | None,
) -> Encoder:
    if not isinstance(tokenizer, CacheTokenizer):
        return encoder_of(tokenizer, loss_on, choices)
    if loss_on is not None:
        raise UsageError("loss_on is for renderers; with sentinels every assistant turn is trained")
    return SentinelEncoder(
        tokenizer,
        default_system_text=default_system_text,
        max_message_bytes=max_message_bytes,
        num_threads=num_threads,
        keeps_flags=False,
    )


def _sft_options(encoder: Encoder) -> dict[str, Any]:
    """What the meta records of the encoder beside its tokenizer."""
    told = encoder.describe()
    if isinstance(encoder, SentinelEncoder):
        return {name: told[name] for name in ("default_system_text", "max_message_bytes")}
    return {"mask_dtype": "uint8", **{name: held for name, held in told.items() if name != "tokenizer_sha256"}}


def _expect(progress: Progress, tokens: int, share: float | None) -> None:
    """A quarter read and a million tokens written: four million are to be expected."""
    if share:
        progress.expect(int(tokens / share))


def _split_rule(fraction: float, rows: str) -> str:
    if not fraction:
        return f"all {rows} to train"
    drawn = f"one of every {1 / fraction:.6g} neighbouring {rows} to val, drawn by torch RNG"
    return drawn + (", unless the source says where one belongs" if rows == "documents" else "")


def _check_numbers(seed: int, num_threads: int | None, max_bad_rows: int, val_frac: float | None) -> None:
    ranges.SEED.check(seed)
    ranges.THREADS.check(num_threads)
    ranges.MAX_BAD_ROWS.check(max_bad_rows)
    ranges.VAL_FRAC.check(val_frac)


def _check_chat_options(max_message_bytes: int, default_system_text: str) -> None:
    ranges.MAX_MESSAGE_BYTES.check(max_message_bytes)
    try:
        check_text(default_system_text)
    except MessageError as error:
        raise UsageError(f"default_system_text holds {error}") from error


def check_budgets(max_train_tokens: int, max_val_tokens: int) -> None:
    """Raise `UsageError` for budgets out of range, or two of 0."""
    ranges.MAX_TRAIN_TOKENS.check(max_train_tokens)
    ranges.MAX_VAL_TOKENS.check(max_val_tokens)
    if max_train_tokens + max_val_tokens == 0:
        raise UsageError("max_train_tokens and max_val_tokens are both 0; nothing would be built")


def _refuse_empty(out: Path, rows: int, what: str, build: Build) -> None:
    if not rows:
        dropped = dict(build.rejections.dropped) or "none"
        raise DataError(f"{out}: the input holds no {what}, so nothing was written; rows left out: {dropped}")
