"""`fit_rendered`: cut a rendering to a number of tokens without cutting through an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.format.fitting import beside_runs
from niels_gpt.renderers.images.processors import MultiModalData, PlaceholderRange
from niels_gpt.renderers.types import RenderedTokens

POLICIES = ("head", "tail", "drop_partial_turn", "error")


def fit_rendered(rendered: RenderedTokens, room: int, policy: str = "head") -> RenderedTokens:
    """Cut a rendering to at most `room` tokens, with the data of the images that are still in it.

    An image occupies a run of placeholder tokens, with one token before and after it that open and close it. A cut that
    would fall inside moves so that the whole image is dropped, with its arrays: the result is shorter than `room`
        rather
    than holding half an image::

        tokens   a b < i i i > c      room 5     head: a b      (cutting after 5 tokens would split the image)

    Args:
        room: the largest number of tokens.
        policy: "head" and "tail" retain the first or last tokens; "drop_partial_turn" is "head" with the turn that was
            cut marked as not sampled, so that it gets no loss; "error" raises.

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
    places = [place for placeholders in media.mm_placeholders.values() for place in placeholders]
    # Each run with its opening and closing token: an image of 3 tokens at 3 occupies 2 to 7.
    starts = np.sort(np.array([place.offset for place in places], dtype=np.int64)) - 1
    stops = np.sort(np.array([place.offset + place.length for place in places], dtype=np.int64)) + 1
    window = beside_runs(slice(n - room, n) if policy == "tail" else slice(0, room), starts, stops)
    cut = _cut(rendered, window)
    if policy == "drop_partial_turn" and rendered.sampled_mask[window.stop] and cut.sampled_mask:
        # The cut fell inside a sampled turn. It begins after the last token that is not sampled: F F T F T T -> from 4.
        sampled = np.asarray(cut.sampled_mask)
        sampled[np.flatnonzero(~sampled).max(initial=-1) + 1 :] = False
        cut = replace(cut, sampled_mask=sampled.tolist())
    return cut


def _cut(rendered: RenderedTokens, window: slice) -> RenderedTokens:
    lists = ("token_ids", "message_indices", "sampled_mask", "is_content")
    parts: dict[str, Any] = {name: getattr(rendered, name)[window] for name in lists}
    media = rendered.multi_modal_data
    return replace(rendered, **parts, multi_modal_data=None if media is None else _media_in(media, window))


def _media_in(media: MultiModalData, window: slice) -> MultiModalData | None:
    """The media whose placeholder tokens are inside the window, with offsets relative to it."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[PlaceholderRange]] = {}
    items: dict[str, list[dict[str, Any]]] = {}
    for kind, placeholders in media.mm_placeholders.items():
        inside = [
            number
            for number, place in enumerate(placeholders)
            if window.start <= place.offset and place.offset + place.length <= window.stop
        ]
        if inside:
            hashes[kind] = [media.mm_hashes[kind][i] for i in inside]
            places[kind] = [
                PlaceholderRange(placeholders[i].offset - window.start, placeholders[i].length) for i in inside
            ]
            items[kind] = [media.mm_items[kind][i] for i in inside]
    return MultiModalData(hashes, places, items) if places else None
