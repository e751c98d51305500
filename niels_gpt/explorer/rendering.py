"""A conversation as a token table: tokens with ids, pieces of text where there is no tokenizer, or bare text.

::

    renderer and tokenizer       tokens with ids
    family without tokenizer     pieces of text with the same attribution, counted in characters
    no renderer                  contents joined by spaces, as a base model would read them; tokens or pieces
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from niels_gpt.display.rows import TokenSpelling
from niels_gpt.errors import TokenizerError
from niels_gpt.explorer.token_columns import Entries, LossMode, TokenTable, spelled, table_of_entries
from niels_gpt.messages import Message
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.kinds import Kind, Piece
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.tokenizer.pieces import PieceEncoder

RAW = "raw"


class TextOnlyEncoder:
    """A `PieceEncoder` with a family's control tokens that encodes nothing: enough to write a conversation's text."""

    name, engine, vocab_size = "no tokenizer", "none", 0
    stop_ids: tuple[int, ...] = ()
    template: str | None = None
    special_tokens: Mapping[str, str] = {}
    fingerprints: Mapping[str, str] = {"tokenizer": ""}

    def __init__(self, controls: Sequence[str]) -> None:
        # No token has the id -1; grammars only ask whether a control token exists.
        self.added_ids = dict.fromkeys(controls, -1)
        self.control_ids: Mapping[str, int] = self.added_ids

    def _refuse(self, *_: Any) -> NoReturn:
        raise TokenizerError("no tokenizer is available, so there are no ids; pass --tokenizer DIR")

    # All methods of the protocol that would need ids.
    encode_pieces = encode_strings = token_bytes = decode = _refuse


def rendered_table(
    by: Family | DefaultRenderer,
    messages: Sequence[Message],
    tools: Any,
    modes: Sequence[LossMode],
    *,
    prompt: bool,
    **labels: str,
) -> TokenTable:
    """A conversation by a renderer; by a family over a `TextOnlyEncoder` as pieces of text.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    if isinstance(by, Family) and isinstance(by.encoder, TextOnlyEncoder):
        # The grammar's text before it is encoded: attribution is known without any tokenizer.
        pieces = by.emit(messages, tools=tools, add_generation_prompt=prompt).pieces()
        note = "Text without ids: no tokenizer of this family is available, so counts are in characters."
        entries = _of_pieces(pieces, {*by.controls, *by.stops})
    else:
        made = by.render(messages, tools=tools, add_generation_prompt=prompt)
        notes = [] if made.attribution == "full" else [f"Attribution is {made.attribution}."]
        note = " ".join([*notes, *(f"{one}: the format has no place for it." for one in made.unwritten)])
        entries = _of_ids(by.encoder, made.token_ids, made.message_indices, made.kinds)
    return table_of_entries(entries, messages, modes, note=note, **labels)


def bare_text_table(
    messages: Sequence[Message], modes: Sequence[LossMode], encoder: PieceEncoder | None, name: str
) -> TokenTable:
    """The contents joined by spaces: the conversation as a base model would read it, without any template."""
    pieces: list[Piece] = []
    for index, message in enumerate(messages):
        content = message["content"]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        kind = Kind.REPLY if message["role"] == "assistant" else Kind.CONTEXT
        pieces.append(Piece(f" {text}" if index else text, index, kind))
    labels = {"title": "bare text", "renderer": RAW, "tokenizer": name}
    if encoder is None:
        return table_of_entries(_of_pieces(pieces, set()), messages, modes, note="Counted in characters.", **labels)
    # Nothing is scaffold, so that a control token in a content is encoded as text.
    ids, owner = encoder.encode_pieces([piece.text for piece in pieces], [False] * len(pieces))
    owners = [pieces[at] for at in owner.tolist()]
    entries = _of_ids(encoder, ids.tolist(), [piece.msg for piece in owners], [int(piece.kind) for piece in owners])
    return table_of_entries(entries, messages, modes, **labels)


def _of_ids(encoder: PieceEncoder, ids: list[int], owners: Sequence[int], kinds: Sequence[int]) -> Entries:
    texts, half = spelled(list(map(TokenSpelling(encoder.token_bytes).raw, ids)))
    control = np.isin(ids, list(encoder.control_ids.values()))
    return Entries(texts, ids, np.array(owners, np.int64), np.array(kinds, np.int64), control, half)


def _of_pieces(pieces: Sequence[Piece], controls: set[str]) -> Entries:
    """Pieces of text; control tokens in scaffold become entries of their own."""
    # The longest first, because `re` takes the first branch that fits; the group makes `split` return the tokens.
    longest = sorted(map(re.escape, controls), key=len, reverse=True)
    cut = re.compile(f"({'|'.join(longest)})") if controls else None
    parts = [
        (part, piece)
        for piece in pieces
        for part in (cut.split(piece.text) if cut and piece.scaffold else [piece.text])
        if part
    ]
    return Entries(
        texts=[part for part, _ in parts],
        ids=None,
        owners=np.array([piece.msg for _, piece in parts], np.int64),
        kinds=np.array([piece.kind for _, piece in parts], np.int64),
        control=np.array([piece.scaffold and part in controls for part, piece in parts], np.bool_),
        half=np.zeros(len(parts), np.bool_),
    )
