"""What the page shows of ids or text that were read back: the conversation, its tokens, what is lost, what differs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from niels_gpt.errors import NielsError, UsageError
from niels_gpt.explorer.drift import compare
from niels_gpt.explorer.inversion import Reading, Renderer, given_ids, read_conversation
from niels_gpt.explorer.inversion_loss import lost
from niels_gpt.explorer.loss_modes import MODES
from niels_gpt.explorer.renderer_list import MOST_CHARACTERS, Choice, RendererList
from niels_gpt.explorer.rendering import RAW, token_table
from niels_gpt.explorer.token_columns import TokenTable
from niels_gpt.messages import normalise

_TEXT_NOTE = (
    "The text was encoded anew, each control token's spelling as that token. In ids, a control "
    "token that a user typed is told from a real one; in text it is not."
)


def inverted(renderers: RendererList, choice: Choice, given: str) -> dict[str, Any]:
    """A conversation from ids or from rendered text.

    Returns:
        `read_as`: what was given. `state`: "same", "cut" (the ids end within the last message) or "differs", and a
        sentence about it (`verdict`). `conversation`. `prompt`: the ids end with a generation prompt. `note`: a
        remark. `lost`: sentences about what the ids do not hold. `table`: the given tokens with their owners; where
        the rendering differs, `again` and `drift` show how.

    Raises:
        UsageError: no tokenizer, too long, or no turn of this format in it. TokenizerError: an id is not in the
            vocabulary.
    """
    if choice.renderer == RAW:
        raise UsageError("bare text has no turns; choose the format that the ids were written in")
    if not choice.tokenizer:
        raise UsageError("ids are read with the tokenizer that wrote them: start with --tokenizer DIR, then choose it")
    renderer = renderers.renderer(choice)
    ids = given_ids(given)
    as_text = ids is None
    if ids is None:
        if not given or len(given) > MOST_CHARACTERS:
            raise UsageError(f"{len(given):,} characters were given; expected 1 to {MOST_CHARACTERS:,}")
        ids = renderer.encoder.encode_pieces([given], [True])[0].tolist()
    reading = read_conversation(renderer, ids)
    rendered = _rendered(renderers, choice, reading)
    state = _state(reading, ids)
    table = rendered if rendered is not None and state == "same" else _as_read(renderer, reading, ids, choice)
    differs = rendered is not None and state == "differs"
    return {
        "read_as": f"{len(given):,} characters, {len(ids):,} ids" if as_text else f"{len(ids):,} ids",
        "state": state,
        "verdict": _verdict(renderer, reading, ids, state),
        "conversation": {"messages": reading.messages, "tools": reading.tools},
        "prompt": reading.prompt,
        "note": _TEXT_NOTE if as_text else "",
        "lost": lost(renderer, reading),
        "table": table.to_json(),
        "again": rendered.to_json() if rendered is not None and differs else None,
        "drift": asdict(compare(table, rendered)) if rendered is not None and differs else None,
    }


def _rendered(renderers: RendererList, choice: Choice, reading: Reading) -> TokenTable | None:
    """The rendering of what was read, with its attribution; `None` where it cannot be rendered."""
    if not reading.ids:
        return None
    try:
        return renderers.table(reading.messages, reading.tools, choice, MODES, prompt=reading.prompt)
    except NielsError:
        return None


def _as_read(renderer: Renderer, reading: Reading, ids: list[int], choice: Choice) -> TokenTable:
    """The given ids with the owners that were read, where the renderer does not write the same ids."""
    owners = np.full(len(ids), -1, np.int64)
    sampled = np.zeros(len(ids), np.bool_)
    for index, part in enumerate(reading.parts):
        owners[part.start : part.stop] = index
        sampled[part.start : part.stop] = part.role == "assistant"
    facts = owners.tolist(), sampled.tolist(), (owners >= 0).tolist()
    return token_table(
        renderer.encoder,
        ids,
        facts,
        renderer.get_stop_token_ids(),
        normalise(reading.messages),
        MODES,
        note="Owners as read from the ids: the contents only. The renderer does not write these ids.",
        title=choice.renderer,
        renderer=choice.renderer,
        tokenizer=choice.tokenizer,
    )


def _state(reading: Reading, ids: list[int]) -> str:
    if reading.ids == ids:
        return "same"
    return "cut" if ids and reading.ids[: len(ids)] == ids else "differs"


def _verdict(renderer: Renderer, reading: Reading, ids: list[int], state: str) -> str:
    """A sentence: how far the ids and the conversation determine each other."""
    n = len(reading.messages)
    found = f"{n:,} {'message' if n == 1 else 'messages'}"
    if state == "same":
        end = ", and a generation prompt" if reading.prompt else ""
        return f"= {found}{end}. Rendered again, they give exactly these ids."
    if state == "cut":
        return f"= {found}. The ids end within the last message: rendered again, they give these ids and more."
    if reading.problem:
        return f"≠ {found}, which the format refuses: {reading.problem}"
    if renderer.encoder.decode(ids) == renderer.encoder.decode(reading.ids):
        return f"≠ {found}. Rendered again, they give the same text in other ids: the tokenizer does not write it so."
    first = next((at for at, pair in enumerate(zip(ids, reading.ids, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(ids), len(reading.ids)) if first is None else first
    return f"≠ {found}. Rendered again, they give other ids, first at token {at:,}; what differs is not recovered."
