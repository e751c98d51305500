"""A conversation as a strip: by a renderer with its tokenizer, by a family's words alone, or as bare text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.explorer.modes import Bools, LossMode
from niels_gpt.explorer.strip import Strip, rendered_strip, spelled
from niels_gpt.messages import Message
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.rendered import Piece
from niels_gpt.tokenizer.protocol import PieceEncoder

RAW = "raw"


def tokens_strip(
    by: Family | DefaultRenderer,
    messages: Sequence[Message],
    tools: Any,
    modes: Sequence[LossMode],
    *,
    prompt: bool,
    **told: str,
) -> Strip:
    """The tokens of a conversation.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    made = by.render(messages, tools=tools, add_generation_prompt=prompt)
    facts = made.message_indices, made.sampled_mask, made.is_content
    note = "" if made.attribution == "full" else f"Attribution is {made.attribution}."
    stop_ids = by.get_stop_token_ids()
    return _token_strip(by.encoder, made.token_ids, facts, stop_ids, messages, modes, note=note, **told)


def script_strip(
    family: Family, messages: Sequence[Message], tools: Any, modes: Sequence[LossMode], *, prompt: bool, **told: str
) -> Strip:
    """What a family writes, as pieces of text: all that can be known without its tokenizer.

    Raises:
        MessageError: the family refuses the conversation.
    """
    pieces = family.script(messages, tools=tools, add_generation_prompt=prompt).pieces()
    note = "Text without ids: no tokenizer of this family is at hand, so counts are in characters."
    return _piece_strip(pieces, messages, modes, (*family.controls, *family.stops), family.stops, note=note, **told)


def raw_strip(messages: Sequence[Message], modes: Sequence[LossMode], encoder: PieceEncoder | None, name: str) -> Strip:
    """The contents with a space between: the conversation as a base model would be given it, without any template."""
    pieces: list[Piece] = []
    for index, message in enumerate(messages):
        content = message["content"]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        pieces.append(Piece(f" {text}" if index else text, index, message["role"] == "assistant", True, False))
    told = {"title": "bare text", "renderer": RAW, "tokenizer": name}
    if encoder is None:
        return _piece_strip(pieces, messages, modes, (), (), note="Counted in characters.", **told)
    ids, owner = encoder.encode_pieces([piece.text for piece in pieces], [piece.scaffold for piece in pieces])
    own = [pieces[at] for at in owner.tolist()]
    facts = [piece.msg for piece in own], [piece.sampled for piece in own], [piece.body for piece in own]
    return _token_strip(encoder, ids.tolist(), facts, [], messages, modes, note="", **told)


def _token_strip(
    encoder: PieceEncoder,
    ids: list[int],
    facts: tuple[list[int], list[bool], list[bool]],
    stop_ids: Sequence[int],
    messages: Sequence[Message],
    modes: Sequence[LossMode],
    **told: str,
) -> Strip:
    texts, half = spelled(encoder.token_bytes(ids))
    owners, sampled, body = np.array(facts[0], np.int64), np.array(facts[1], np.bool_), np.array(facts[2], np.bool_)
    return rendered_strip(
        texts=texts,
        ids=ids,
        owners=owners,
        sampled=sampled,
        body=body,
        control=np.isin(ids, list(encoder.control_ids.values())),
        stops=stops_of(encoder, stop_ids, np.array(ids, np.int64), owners, sampled),
        half=half,
        messages=messages,
        modes=modes,
        **told,
    )


def stops_of(
    encoder: PieceEncoder,
    stop_ids: Sequence[int],
    ids: npt.NDArray[np.int64],
    owners: npt.NDArray[np.int64],
    sampled: Bools,
) -> Bools:
    """The ends of turn: the stops, and a control token that is the last that the model says in a message.

    The latter, because a template's stop may be no eos of its tokenizer::

        message   0 0 1 1 1 1 2         sampled  . . . # # . .         the last  . . . . # . .
    """
    goes_on = np.zeros(len(ids), np.bool_)
    goes_on[:-1] = sampled[1:] & (owners[1:] == owners[:-1])
    control = np.isin(ids, list(encoder.control_ids.values()))
    found: Bools = np.isin(ids, stop_ids) | (control & sampled & ~goes_on)
    return found


def _piece_strip(
    pieces: Sequence[Piece],
    messages: Sequence[Message],
    modes: Sequence[LossMode],
    controls: Sequence[str],
    stops: Sequence[str],
    **told: str,
) -> Strip:
    """Pieces as entries; control tokens in scaffold stand alone."""
    cut = (
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
    own = [piece for _, piece in parts]
    known = np.array([piece.scaffold for piece in own], np.bool_)
    return rendered_strip(
        texts=texts,
        ids=None,
        owners=np.array([piece.msg for piece in own], np.int64),
        sampled=np.array([piece.sampled for piece in own], np.bool_),
        body=np.array([piece.body for piece in own], np.bool_),
        control=np.isin(texts, list(controls)) & known if controls else np.zeros(len(texts), np.bool_),
        stops=np.isin(texts, list(stops)) & known if stops else np.zeros(len(texts), np.bool_),
        half=np.zeros(len(texts), np.bool_),
        messages=messages,
        modes=modes,
        **told,
    )
