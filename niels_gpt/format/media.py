"""Renderings with images, made to fit: a cut never goes through the tokens of an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.format.fitting import beside_runs
from niels_gpt.renderers.rendered import MultiModalData, PlaceholderRange, RenderedTokens

POLICIES = ("head", "tail", "drop_partial_turn", "error")


def fit_rendered(rendered: RenderedTokens, room: int, policy: str = "head") -> RenderedTokens:
    """A rendering of at most `room` tokens, with the images that are still in it.

    A cut that would go through an image, or through the one token on either side of it that opens or closes it, moves
    outwards, so that the image leaves as a whole, and its arrays with it: fewer tokens stay rather than half an image.

    Args:
        policy: "head" and "tail" keep the first or last tokens; "drop_partial_turn" is "head" where a turn that was cut
            is not sampled, so that it gets no loss; "error" refuses.

    Raises:
        UsageError: no such policy, or room below 1. MessageError: `too_long`, by the policy "error".
    """
    if policy not in POLICIES:
        meant = did_you_mean(policy, POLICIES)
        raise UsageError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}{meant}")
    if room < 1:
        raise UsageError(f"room is {room}; expected 1 or more tokens")
    n = len(rendered.token_ids)
    if n <= room:
        return rendered
    if policy == "error":
        raise MessageError("too_long", f"{n} tokens; expected at most {room}. Shorten the conversation or drop the row")
    media = rendered.multi_modal_data or MultiModalData()
    places = [place for held in media.mm_placeholders.values() for place in held]
    starts = np.sort(np.array([place.offset for place in places], dtype=np.int64)) - 1
    stops = np.sort(np.array([place.offset + place.length for place in places], dtype=np.int64)) + 1
    kept = beside_runs(slice(n - room, n) if policy == "tail" else slice(0, room), starts, stops)
    cut = _cut(rendered, kept)
    if policy == "drop_partial_turn" and rendered.sampled_mask[kept.stop] and cut.sampled_mask:
        trained = np.asarray(cut.sampled_mask)
        trained[np.flatnonzero(~trained).max(initial=-1) + 1 :] = False
        cut = replace(cut, sampled_mask=trained.tolist())
    return cut


def _cut(rendered: RenderedTokens, kept: slice) -> RenderedTokens:
    lists = ("token_ids", "message_indices", "sampled_mask", "is_content")
    told: dict[str, Any] = {name: getattr(rendered, name)[kept] for name in lists}
    media = rendered.multi_modal_data
    return replace(rendered, **told, multi_modal_data=None if media is None else _media_in(media, kept))


def _media_in(media: MultiModalData, kept: slice) -> MultiModalData | None:
    """The media whose tokens stay, at their new places."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[PlaceholderRange]] = {}
    items: dict[str, list[dict[str, Any]]] = {}
    for kind, held in media.mm_placeholders.items():
        inside = [i for i, at in enumerate(held) if kept.start <= at.offset and at.offset + at.length <= kept.stop]
        if inside:
            hashes[kind] = [media.mm_hashes[kind][i] for i in inside]
            places[kind] = [PlaceholderRange(held[i].offset - kept.start, held[i].length) for i in inside]
            items[kind] = [media.mm_items[kind][i] for i in inside]
    return MultiModalData(hashes, places, items) if places else None
