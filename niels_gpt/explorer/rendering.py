"""A conversation as a token table: rendered with a tokenizer, as text by a family without one, or as bare text.

::

    rendered_table     renderer and tokenizer     tokens with ids
    text_only_table    family without tokenizer   pieces of text with the same attribution, counted in characters
    bare_text_table    no template at all         contents joined by spaces, as a base model would read them
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from niels_gpt.explorer.token_columns import LossMode, TokenFacts, TokenTable, spelled, table_of_rendering
from niels_gpt.messages import Message
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.kinds import Kind, Piece
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.tokenizer.pieces import PieceEncoder

RAW = "raw"


def rendered_table(
    by: Family | DefaultRenderer,
    messages: Sequence[Message],
    tools: Any,
    modes: Sequence[LossMode],
    *,
    prompt: bool,
    **labels: str,
) -> TokenTable:
    """The tokens of a conversation.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    rendered = by.render(messages, tools=tools, add_generation_prompt=prompt)
    notes = [] if rendered.attribution == "full" else [f"Attribution is {rendered.attribution}."]
    notes += [f"{one}: the format has no place for it." for one in rendered.unwritten]
    note = " ".join(notes)
    facts = rendered.message_indices, rendered.kinds
    return token_table(by.encoder, rendered.token_ids, facts, messages, modes, note=note, **labels)


def text_only_table(
    family: Family, messages: Sequence[Message], tools: Any, modes: Sequence[LossMode], *, prompt: bool, **labels: str
) -> TokenTable:
    """The text that a family writes, in pieces with their attribution; ids need its tokenizer.

    Raises:
        MessageError: the family refuses the conversation.
    """
    # The grammar's text before it is encoded: attribution is known without any tokenizer.
    pieces = family.emit(messages, tools=tools, add_generation_prompt=prompt).pieces()
    note = "Text without ids: no tokenizer of this family is available, so counts are in characters."
    return _piece_table(pieces, messages, modes, (*family.controls, *family.stops), note=note, **labels)


def bare_text_table(
    messages: Sequence[Message], modes: Sequence[LossMode], encoder: PieceEncoder | None, name: str
) -> TokenTable:
    """The contents joined by spaces: the conversation as a base model would read it, without any template."""
    pieces: list[Piece] = []
    for index, message in enumerate(messages):
        content = message["content"]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        pieces.append(
            Piece(f" {text}" if index else text, index, Kind.REPLY if message["role"] == "assistant" else Kind.CONTEXT)
        )
    labels = {"title": "bare text", "renderer": RAW, "tokenizer": name}
    if encoder is None:
        return _piece_table(pieces, messages, modes, (), note="Counted in characters.", **labels)
    # `scaffold` is False for all, so that a control token in a content is encoded as text.
    ids, owner = encoder.encode_pieces([piece.text for piece in pieces], [piece.scaffold for piece in pieces])
    owners = [pieces[at] for at in owner.tolist()]
    facts = [piece.msg for piece in owners], [int(piece.kind) for piece in owners]
    return token_table(encoder, ids.tolist(), facts, messages, modes, note="", **labels)


def token_table(
    encoder: PieceEncoder,
    ids: list[int],
    facts: tuple[list[int], list[int]],
    messages: Sequence[Message],
    modes: Sequence[LossMode],
    **labels: str,
) -> TokenTable:
    """Tokens with their facts.

    Args:
        facts: message and kind of each token, as in `RenderedTokens`.
    """
    texts, half = spelled(encoder.token_bytes(ids))
    control = np.isin(ids, list(encoder.control_ids.values()))
    known = TokenFacts(np.array(facts[0], np.int64), np.array(facts[1], np.int64), control, half)
    return table_of_rendering(texts, ids, known, messages, modes, **labels)


def _piece_table(
    pieces: Sequence[Piece],
    messages: Sequence[Message],
    modes: Sequence[LossMode],
    controls: Sequence[str],
    **labels: str,
) -> TokenTable:
    """Pieces as entries of a table; control tokens in scaffold become entries of their own."""
    cut = (
        # The longest first, because `re` takes the first branch that fits; the group makes `split` return the tokens
        # too.
        re.compile("(" + "|".join(map(re.escape, sorted(set(controls), key=len, reverse=True))) + ")")
        if controls
        else None
    )
    parts = [
        (part, piece)
        for piece in pieces
        for part in (cut.split(piece.text) if cut and piece.scaffold else [piece.text])
        if part
    ]
    texts = [part for part, _ in parts]
    owners = [piece for _, piece in parts]
    known = np.array([piece.scaffold for piece in owners], np.bool_)
    facts = TokenFacts(
        owners=np.array([piece.msg for piece in owners], np.int64),
        kinds=np.array([piece.kind for piece in owners], np.int64),
        control=np.isin(texts, list(controls)) & known if controls else np.zeros(len(texts), np.bool_),
        half=np.zeros(len(texts), np.bool_),
    )
    return table_of_rendering(texts, None, facts, messages, modes, **labels)
