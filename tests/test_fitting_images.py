"""Renderings with images, cut to fit: never through an image."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("PIL")
from niels_gpt.builds.images import POLICIES, fit_rendered
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.format.fitting import beside_runs
from niels_gpt.renderers.base import LossOn, RenderedTokens, loss_weights
from niels_gpt.renderers.kinds import CONTENT, SAMPLED
from tests.memory import shared
from tests.renderers.sweeps import chats
from tests.renderers.tiny_images import WITH_IMAGES, illustrated, picture, seeing


@shared
def albums() -> list[tuple[RenderedTokens, int, Any]]:
    """Renderings with images: each with the token of its images, and its messages."""
    made = []
    for family in WITH_IMAGES:
        rng, renderer = random.Random(family), seeing(family)
        token = next(token for token, kind in renderer.mm_token_type_id_map.items() if kind == 1)
        for messages, tools in chats(family, 8, seed=20):
            chat, shown = illustrated(rng, messages)
            if shown:
                made.append((renderer.render(chat, tools=tools), token, chat))
    return made


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_cuts_hold_whole_images(data: st.DataObject) -> None:
    """Whatever the room: the ids are a stretch of the whole, and every image in it is there with its arrays."""
    whole, token, _ = data.draw(st.sampled_from(albums()))
    room = data.draw(st.integers(1, len(whole.token_ids) + 2))
    policy = data.draw(st.sampled_from(("head", "tail", "drop_partial_turn")))
    cut = fit_rendered(whole, room, policy)
    n, kept = len(whole.token_ids), len(cut.token_ids)
    assert kept <= room
    if n <= room:
        assert cut is whole
        return
    start = n - kept if policy == "tail" else 0
    assert cut.token_ids == whole.token_ids[start : start + kept]
    assert cut.message_indices == whole.message_indices[start : start + kept]
    assert cut.is_content == whole.is_content[start : start + kept]
    places = [] if cut.multi_modal_data is None else cut.multi_modal_data.mm_placeholders["image"]
    covered = np.zeros(kept, dtype=bool)
    for place in places:
        covered[place.offset : place.offset + place.length] = True
    assert np.array_equal(np.array(cut.token_ids, dtype=int) == token, covered)
    whole_media = whole.multi_modal_data
    assert whole_media is not None
    before = [place.offset for place in whole_media.mm_placeholders["image"]]
    inside = [before.index(place.offset + start) for place in places]
    if cut.multi_modal_data is not None:
        assert cut.multi_modal_data.mm_hashes["image"] == [whole_media.mm_hashes["image"][i] for i in inside]
        for i, item in zip(inside, cut.multi_modal_data.mm_items["image"], strict=True):
            assert item is whole_media.mm_items["image"][i]
    # No more was cut than had to be: one more token would have gone beyond the room, or into an image.
    lost = room - kept
    longest = max((place.length for place in whole_media.mm_placeholders["image"]), default=0)
    assert lost <= longest + 1


def test_no_opener_is_left_alone() -> None:
    renderer = seeing("qwen3-vl")
    chat = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "image", "image": picture(40, 40)}]}]
    whole = renderer.render(chat)
    ids = renderer.encoder.added_ids
    opens, closes = (whole.token_ids.index(ids[text]) for text in ("<|vision_start|>", "<|vision_end|>"))
    for room in range(opens + 1, closes + 1):
        cut = fit_rendered(whole, room)
        assert cut.token_ids == whole.token_ids[:opens]
        assert cut.multi_modal_data is None
        assert fit_rendered(whole, len(whole.token_ids) - room, "tail").token_ids == whole.token_ids[closes + 1 :]
    assert fit_rendered(whole, closes + 1).token_ids == whole.token_ids[: closes + 1]
    assert fit_rendered(whole, closes + 1).multi_modal_data == whole.multi_modal_data


def test_a_turn_that_was_cut_is_not_trained() -> None:
    renderer = seeing("qwen3-vl")
    image = {"type": "image", "image": picture()}
    chat: Any = [{"role": "user", "content": [image]}, {"role": "assistant", "content": "hello world " * 5}] * 2
    whole = renderer.render(chat)
    last = max(i for i, sampled in enumerate(whole.sampled_mask) if sampled)
    for room in (last + 1, last, last - 3):
        head, dropped = fit_rendered(whole, room), fit_rendered(whole, room, "drop_partial_turn")
        weights = loss_weights(dropped, chat, LossOn())
        assert head.sampled_mask == whole.sampled_mask[:room]
        assert dropped.token_ids == head.token_ids
        assert head.kinds == whole.kinds[:room]
        assert dropped.sampled_mask == [bool(kind & SAMPLED) for kind in dropped.kinds]
        assert dropped.is_content == [bool(kind & CONTENT) for kind in dropped.kinds]
        turns = {owner for owner, weight in zip(dropped.message_indices, weights, strict=True) if weight}
        assert turns == ({1, 3} if room > last else {1})


def test_what_is_refused() -> None:
    whole = albums()[0][0]
    with pytest.raises(MessageError, match=rf"{len(whole.token_ids)} tokens; expected at most 3\. Shorten") as caught:
        fit_rendered(whole, 3, "error")
    assert caught.value.reason == "too_long"
    assert fit_rendered(whole, 10**6, "error") is whole
    with pytest.raises(UsageError, match=r"policy is .haed.; expected one of head, tail, .*did you mean .head."):
        fit_rendered(whole, 3, "haed")
    with pytest.raises(UsageError, match="room is 0; expected 1 or more"):
        fit_rendered(whole, 0)
    assert POLICIES[0] == "head"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=4), st.integers(0, 30), st.integers(0, 30))
def test_beside_runs_is_the_largest_stretch_that_cuts_none(gaps: list[tuple[int, int]], one: int, other: int) -> None:
    """Beside trying all stretches."""
    runs, at = [], 0
    for gap, length in gaps:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    start, stop = min(one, other), max(one, other)
    starts, stops = (np.array([run[side] for run in runs], dtype=np.int64) for side in (0, 1))
    kept = beside_runs(slice(start, stop), starts, stops)

    def whole(lo: int, hi: int) -> bool:
        return not any(a < edge < b for a, b in runs for edge in (lo, hi))

    possible = [(lo, hi) for lo in range(start, stop + 1) for hi in range(lo, stop + 1) if whole(lo, hi)]
    assert kept.stop - kept.start == max((hi - lo for lo, hi in possible), default=0)
    assert start <= kept.start or kept.stop == kept.start
