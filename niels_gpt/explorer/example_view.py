"""A conversation, or a row of a dataset of ours, token by token: its kind, its target, its loss.

Rows of examples and episodes come through the loaders, so that what is shown is what a training step sees. Those of
episodes need torch, which takes seconds to load, and are imported where they are used; caches are shown without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from niels_gpt.config import TrainingConfig
from niels_gpt.datasets import Dataset, open_dataset, token_text_of
from niels_gpt.display.example import Bools, ExampleView, Ints, TokenColumns
from niels_gpt.display.rows import CONTEXT, LABEL, PADDING, SAMPLED, SCAFFOLD, TRAINED, TokenSpelling
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Conversation
from niels_gpt.preferences.dataset import describe_completion
from niels_gpt.ranges import BLOCK_SIZE, LENGTH
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.masks import batch_weights, loss_weights
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.store.documents import DocumentSplit
from niels_gpt.store.kinds import require_rows
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.store.rows import TokenText

if TYPE_CHECKING:
    from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader


def view_example(
    cache: Path,
    number: int,
    *,
    split: str = "train",
    T: int | None = None,
    tokenizer: Path | None = None,
    token_text: TokenText | None = None,
) -> ExampleView:
    """One row of a dataset: an example, an episode, or training window `number` of a pretraining cache.

    Args:
        number: of an episode, in the whole index: empty ones count.
        T: inputs shown; by default a whole example or episode, or 64 tokens of a pretraining cache.
        tokenizer: by default the one in a `tokenizer` directory near the dataset, if its checksum fits.
        token_text: the text of an id, where a tokenizer is open already.

    Raises:
        CacheError: no dataset, or a damaged one. UsageError: no such row, or one without tokens. Mismatch: not the
            dataset's tokenizer.
    """
    LENGTH.check(T)
    dataset = open_dataset(cache)
    if dataset.kind == "episodes":
        lengths = dataset.split(split).lengths
        if not len(lengths):
            raise UsageError(f"{dataset.path}: {split} has no episodes; look at another split")
        if not 0 <= number < len(lengths):
            raise UsageError(f"{dataset.path}: {split} has episodes 0 to {len(lengths) - 1:,}; no {number:,}")
        if not lengths[number]:
            raise UsageError(f"{dataset.path}: episode {number:,} of {split} has no tokens; look at another one")
        # A loader leaves empty episodes out: of lengths 4 0 7 2, episode 3 is its row 2.
        row = int(np.count_nonzero(lengths[:number]))
        # The last token is only a target, so a whole episode has one input less than tokens.
        width = T or max(1, int(lengths[number]) - 1)
        return view_episode(cache, row, split=split, T=width, tokenizer=tokenizer, token_text=token_text)
    text = token_text or token_text_of(cache, dataset.manifest, tokenizer)
    view = _view_sft if dataset.kind == "sft" else _view_pretrain
    return view(dataset, number, split, T, text)


def view_rendered(renderer: Family | DefaultRenderer, chat: Conversation, on: LossOn | None = None) -> ExampleView:
    """The tokens of a conversation; by default the tokens that the model itself would emit are trained.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    renderer = renderer.with_kwargs(chat.chat_template_kwargs)
    try:
        made = renderer.render_many([chat.messages], tools=[chat.tools])  # arrays; `render` returns lists
        trained = np.asarray(batch_weights(made, on or LossOn(), allow_partial=True) > 0, np.bool_)
    except MessageError:
        rendered = renderer.render(chat.messages, tools=chat.tools)
        loss_weights(rendered, chat.messages, on or LossOn(), allow_partial=True)  # its error names no batch
        raise
    ids, sampled, body = made.ids, made.sampled, made.is_content
    conditions = [trained, sampled, body, made.kinds == Kind.LABEL]
    tokens = TokenColumns(
        ids=ids,
        targets=np.append(ids[1:], 0),
        kinds=np.select(conditions, [TRAINED, SAMPLED, CONTEXT, LABEL], SCAFFOLD).astype(np.uint8),
        target_trained=np.append(trained[1:], False),
        spelling=TokenSpelling(renderer.encoder.token_bytes),
        no_target=True,
        segments=made.message_indices + 1,
        roles=[message["role"] for message in chat.messages],
        sampled=sampled,
        body=body,
    )
    name = renderer.name if isinstance(renderer, Family) else "template"
    title = (
        f"{chat.where}: {len(ids):,} tokens, {int(sampled.sum()):,} sampled, {int(trained.sum()):,} trained, "
        f"renderer {name}, attribution {made.attribution[0]}"
    )
    return ExampleView(title, tokens, has_text=True)


def view_episode(
    dataset: Path,
    number: int,
    *,
    split: str = "train",
    T: int = 1024,
    packed: bool = False,
    too_long: str = "head",
    tokenizer: Path | None = None,
    token_text: TokenText | None = None,
) -> ExampleView:
    """Row `number` that the loader makes of a dataset with rows of `T` inputs: an episode, or several if packed.

    Args:
        number: of the rows of the loader, which leaves out empty episodes, and those that the policy leaves out.
        T: inputs in a row.
        packed: several episodes in a row.
        too_long: the loader's policy for episodes of more than T + 1 tokens.
        tokenizer, token_text: see `view_example`.

    Raises:
        CacheError: no dataset, or a damaged one. UsageError: no such episode. Mismatch: not the dataset's tokenizer.
    """
    BLOCK_SIZE.check(T)
    require_rows(dataset)
    opened = open_dataset(dataset)
    special = opened.special_token_ids
    # Any id serves as padding, which is known by its position.
    loader = _loader_in_order(dataset, T, special.get("eot", 0), packed=packed, too_long=too_long)
    source = loader.batch_source(split)
    n = loader.steps_per_epoch(split)
    # Checked after opening, because only the packing plan knows how many rows there are.
    if not 0 <= number < n:
        raise UsageError(f"{dataset}: {split} has {'rows' if packed else 'episodes'} 0 to {n - 1:,}; no {number:,}")
    batch = source[Place(0, number)]
    # With one row per batch and no shuffling, position `number` of epoch 0 is row `number`.
    x, y, in_loss = batch.x[0].numpy(), batch.y[0].numpy(), batch.mask[0].numpy() > 0
    trained = np.concatenate([[False], in_loss[:-1]])  # `in_loss` is aligned with targets: input i + 1 is target i
    kinds = _kinds(x, batch.num_tokens, trained, special.values())
    text = token_text or token_text_of(dataset, opened.manifest, tokenizer)
    segments = None if batch.segment_ids is None else batch.segment_ids[0].numpy()
    tokens = _columns(x, y, kinds, in_loss, text, segments)
    episodes = ", ".join(map(str, batch.episodes.tolist()))
    # The first is the only one unless rows are packed.
    episode = int(batch.episodes[0])
    total = len(opened.split(split))
    what = f"row {number:,} of {n:,}: episodes {episodes}," if packed else f"episode {episode:,} of {total:,}:"
    if opened.manifest.get("kind") == "preferences" and not packed:
        what = f"{what} {describe_completion(dataset, split, episode)},"
    title = f"{dataset} {split} {what} {batch.num_tokens:,} tokens, {batch.num_trained_tokens:,} trained"
    return ExampleView(title, tokens, text is not None, tuple(batch.episodes.tolist()), batch.num_tokens)


def _loader_in_order(dataset: Path, T: int, pad_token_id: int, *, packed: bool, too_long: str) -> GPTEpisodeDataLoader:
    """A loader of batches of one row each, in the order of the dataset."""
    from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader

    class AnyEpisodes(GPTEpisodeDataLoader):
        reads_preferences = True  # to look at, not to train on

    return AnyEpisodes(
        TrainingConfig(batch_size=1, block_size=T),
        dataset_dir=dataset,
        pad_token_id=pad_token_id,
        epoch_shuffle=False,
        epoch_drop_last=False,
        episode_min_tokens=1,
        packing=packed,
        too_long=too_long,
    )


def _view_sft(dataset: Dataset, number: int, split: str, T: int | None, text: TokenText | None) -> ExampleView:
    from niels_gpt.cache.sft_dataset import SFTExampleDataset

    cache, rows = dataset.path, dataset.split(split)
    if not 0 <= number < len(rows):
        raise UsageError(f"{cache}: {split} has examples 0 to {len(rows) - 1:,}; there is no {number:,}")
    length = int(rows.lengths_of(np.array([number]))[0])
    T = T or max(1, length - 1)
    special = dataset.special_token_ids
    loader = SFTExampleDataset(
        str(cache / f"{split}_tokens.bin"),
        str(cache / f"{split}_idx.npy"),
        T=T,
        device="cpu",
        eot_id=special.get("eot", 0),
    )
    x, y, y_masked = (values[0] for values in loader.arrays(np.array([number])))
    in_loss = y_masked != IGNORE_INDEX
    trained = np.concatenate([[False], in_loss[:-1]])  # as in `view_episode`
    kinds = _kinds(x, length, trained, special.values())
    cut = f", cut to the first {T + 1:,}" if length > T + 1 else ""
    title = (
        f"{cache} {split} example {number:,} of {len(rows):,}: {length:,} tokens{cut}, {int(in_loss.sum()):,} trained"
    )
    shown = _columns(x, y, kinds, in_loss, text)
    return ExampleView(title, shown, text is not None, n_tokens=min(length, T + 1))


def _view_pretrain(dataset: Dataset, number: int, split: str, T: int | None, text: TokenText | None) -> ExampleView:
    if number < 0:
        raise UsageError(f"{dataset.path}: windows are counted from 0; there is no {number:,}")
    T = T or 64
    documents = dataset.split(split)
    assert isinstance(documents, DocumentSplit)
    windows = documents.windows(T)
    if number >= len(windows):
        raise UsageError(
            f"{dataset.path}: {split} has fewer than {number + 1:,} windows of {T:,} tokens; ask for an earlier one"
        )
    row = windows.row(number).ids
    # Pretraining has no mask: every target counts, the ends of documents too.
    in_loss = np.ones(len(row) - 1, dtype=np.bool_)
    kinds = np.where(np.isin(row[:-1], list(dataset.special_token_ids.values())), SCAFFOLD, TRAINED)
    shard, start, length = (int(found[0]) for found in windows.locate(np.array([number])))
    where = f"{windows.shards[shard].path}: tokens {start:,} to {start + length - 1:,}"
    title = f"{where} of {len(windows.shards[shard].tokens):,}, all trained"
    shown = _columns(row[:-1], row[1:], kinds, in_loss, text)
    return ExampleView(title, shown, text is not None, n_tokens=len(row))


def _kinds(x: Ints, length: int, trained: Bools, sentinels: Iterable[int]) -> Ints:
    # The first that holds decides: padding may have the id of a sentinel, and a trained end of turn is one.
    known = [np.arange(len(x)) >= length, trained, np.isin(x, list(sentinels))]
    return np.select(known, [PADDING, TRAINED, SCAFFOLD], CONTEXT).astype(np.uint8)


def _columns(
    x: Ints, y: Ints, kinds: Ints, in_loss: Bools, text: TokenText | None, segments: Ints | None = None
) -> TokenColumns:
    # An empty text makes the views show the id.
    return TokenColumns(x, y, kinds, in_loss, text or (lambda token: ""), segments=segments)
