"""A conversation, or a row of a dataset of ours, token by token: its colour, its target, its loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.datasets import open_dataset, token_text_of
from niels_gpt.display.example import Example
from niels_gpt.display.rows import TokenSpelling
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.explorer.training_rows import Fit, TrainingRows
from niels_gpt.messages import Conversation
from niels_gpt.ranges import LENGTH
from niels_gpt.renderers import kinds
from niels_gpt.renderers.display import TokenColumns
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.loss import LossOn
from niels_gpt.renderers.masks import batch_weights
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.store.kinds import require_rows
from niels_gpt.store.rows import TokenText

_NAMES = {"episodes": "episode", "sft": "example", "pretrain": "window"}


def view_example(
    path: Path,
    number: int,
    *,
    split: str = "train",
    T: int | None = None,
    packed: bool = False,
    tokenizer: Path | None = None,
    token_text: TokenText | None = None,
) -> Example:
    """One row of a dataset: an episode, an example, a training window of a pretraining cache, or a packed row.

    Args:
        number: of an episode or example, in the whole index: empty ones count; of a window or a packed row.
        T: inputs shown; default the whole episode or example, 64 tokens of a pretraining cache, 1,024 of a packed row.
        packed: a row of several episodes, as packing makes it.
        tokenizer: by default the one in a `tokenizer` directory near the dataset, if its checksum fits.
        token_text: the text of an id, where a tokenizer is open already.

    Raises:
        CacheError: no dataset, or a damaged one. UsageError: no such row, or one without tokens. Mismatch: not the
            dataset's tokenizer.
    """
    LENGTH.check(T)
    dataset = open_dataset(path)
    is_stream = dataset.kind == "pretrain"
    if packed:
        require_rows(path)
    text = token_text or token_text_of(path, dataset.manifest, tokenizer)
    what = "row" if packed else _NAMES[dataset.kind]
    lengths = None if packed or is_stream else dataset.split(split).lengths
    if lengths is not None and 0 <= number < len(lengths):
        if not lengths[number]:
            raise UsageError(f"{path}: {what} {number:,} of {split} has no tokens; look at another one")
        # The last token is only a target, so a whole episode has one input less than tokens.
        T = T or max(1, int(lengths[number]) - 1)
    fit = Fit(T or (64 if is_stream else 1024), "head", packed)
    rows = TrainingRows(path, text, min_tokens=0)
    n = rows.count(split, fit)
    if not n:
        raise UsageError(f"{path}: {split} has no {what}s; look at another split")
    if not 0 <= number < n:
        raise UsageError(f"{path}: {split} has {what}s 0 to {n - 1:,}; no {number:,}")
    return rows.example(split, fit, number)


def view_rendered(renderer: Family | DefaultRenderer, chat: Conversation, on: LossOn | None = None) -> Example:
    """The tokens of a conversation; by default the tokens that the model itself would emit are trained.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    renderer = renderer.with_kwargs(chat.chat_template_kwargs)
    try:
        made = renderer.render_many([chat.messages], tools=[chat.tools])  # arrays; `render` returns lists
        weights = batch_weights(made, on or LossOn(), allow_partial=True)
    except MessageError:
        rendered = renderer.render(chat.messages, tools=chat.tools)
        rendered.weights(on or LossOn(), messages=chat.messages, allow_partial=True)  # its error names no batch
        raise
    roles = [message["role"] for message in chat.messages]
    columns = TokenColumns(made.ids, made.message_indices, made.kinds.astype(np.int64), weights, roles, None)
    name = renderer.name if isinstance(renderer, Family) else "template"
    title = (
        f"{chat.where}: {len(made.ids):,} tokens, {int(columns.sampled.sum()):,} sampled, "
        f"{int(np.count_nonzero(weights)):,} trained, renderer {name}, attribution {made.attribution[0]}"
    )
    return Example(
        title,
        made.ids,
        columns.colours(),
        TokenSpelling(renderer.encoder.token_bytes),
        made.message_indices + 1,
        roles,
        sampled=columns.sampled,
        body=(made.kinds & kinds.CONTENT) != 0,
    )
