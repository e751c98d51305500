"""Turns found in ids alone are those that the renderer wrote; the pieces of arithmetic beside slow references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.doctor.layouts.layout import Layout, sentinel_layout
from niels_gpt.doctor.layouts.turns import rows_of, turns_of
from niels_gpt.doctor.rows import ASSISTANT, covered
from niels_gpt.doctor.view import Scope, View
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.types import RenderedTokens
from tests.renderers.sweeps import answered, families
from tests.renderers.tiny_families import renderer_of

SPECIAL = {"sys": 1, "usr": 2, "asst": 3, "eot": 4}


def renderings(family: str) -> list[RenderedTokens]:
    """Conversations as odd as real ones: tools, reasoning, forged control tokens, white space at the ends."""
    made = []
    for messages, tools in answered(family, 40, seed=11):
        try:
            made.append(renderer_of(family).render(normalise(messages), tools=tools))
        except MessageError:  # a conversation that the format has no place for
            continue
    assert len(made) > 20
    return made


def by_assistant(made: RenderedTokens) -> list[bool]:
    pairs = zip(made.message_indices, made.sampled_mask, strict=True)
    return [said and owner >= 0 and made.message_roles[owner] == "assistant" for owner, said in pairs]


@families
def test_what_the_assistant_says_is_found_in_ids_alone(family: str) -> None:
    made = renderings(family)
    layout = infer_layout(renderer_of(family))
    if not layout.trusted:
        # Texts one after the other have no turns. Inkling's model begins several messages in one turn, of which only
        # the last ends in the stop; the doctor says that it cannot judge such ids without their labels' renderer.
        assert family in ("raw", "inkling")
        return
    rows = rows_of([one.token_ids for one in made])
    own = turns_of(layout, rows).assistants
    found = covered(own.body, own.sampled_end if layout.has_own_stop else own.end, len(rows.ids))
    either = np.zeros(len(rows.ids), dtype=np.bool_)
    if layout.repeats_opener:  # ids alone do not tell a new channel of a message from a new message of the same role
        either = covered(own.start[own.resumed], own.body[own.resumed], len(rows.ids))
    for row, one in enumerate(made):
        span = slice(int(rows.starts[row]), int(rows.starts[row + 1]))
        wanted = np.array(by_assistant(one)) | either[span]
        assert (found | either)[span].tolist() == wanted.tolist(), renderer_of(family).encoder.decode(one.token_ids)


@families
def test_odd_conversations_of_another_tool_are_no_error(family: str) -> None:
    rows = [
        {"input_ids": made.token_ids, "labels": [t if s else -100 for t, s in zip(made.token_ids, mask, strict=True)]}
        for made in renderings(family)
        for mask in [by_assistant(made)]
    ]
    report = diagnose(rows, renderer=renderer_of(family))
    assert report.rules("error") == []
    assert not {"mask-holes", "header-trained", "tail-trained"} & set(report.rules())


def slow_turns(ids: list[int]) -> list[tuple[int, int, int, int]]:
    """`(role, start, stop or -1, end)` of every sentinel turn of one row."""
    opens = [at for at, token in enumerate(ids) if token in (1, 2, 3)]
    made = []
    for at, end in zip(opens, [*opens[1:], len(ids)], strict=False):
        role = {1: 0, 2: 1, 3: 2}[ids[at]]
        stop = next((place for place in range(at + 1, end) if ids[place] == 4), -1) if role == ASSISTANT else -1
        made.append((role, at, stop, end))
    return made


row = st.lists(st.integers(1, 7), min_size=1, max_size=14)


@given(st.lists(row, min_size=1, max_size=4))
def test_turns_of_sentinels_are_those_of_a_slow_reading(many: list[list[int]]) -> None:
    rows = rows_of(many)
    turns = turns_of(sentinel_layout(SPECIAL, 8), rows)
    wanted = [
        (number, role, base + start, base + stop if stop >= 0 else -1, base + end)
        for number, (ids, base) in enumerate(zip(many, rows.starts.tolist(), strict=False))
        for role, start, stop, end in slow_turns(ids)
    ]
    columns = (turns.row, turns.role, turns.start, turns.stop, turns.end)
    assert [tuple(map(int, one)) for one in zip(*columns, strict=True)] == wanted


def slow_padding(ids: list[int], pad: int, stops: set[int]) -> list[bool]:
    n = len(ids)
    behind = next((k for k in range(n) if ids[n - 1 - k] != ids[-1]), n)
    padded = 0 if ids[-1] != pad else behind - (1 if pad in stops and behind < n else 0)
    before = next((k for k in range(n) if ids[k] != pad), n)
    before = before if 2 <= before < n else 0
    return [at >= n - padded or at < before for at in range(n)]


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=9), min_size=1, max_size=4), st.sampled_from([4, 6]))
def test_padding_is_found_as_by_a_slow_reading(many: list[list[int]], pad: int) -> None:
    from dataclasses import replace

    layout: Layout = replace(sentinel_layout(SPECIAL, 8), pad=pad, controls=frozenset())
    rows = rows_of(many)
    view = View(rows, Scope(layout), Counters(1))
    wanted: list[Any] = [flag for ids in many for flag in slow_padding(ids, pad, {4})]
    assert view.padding.tolist() == wanted
