"""Turns found in ids alone are those that the renderer wrote."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.doctor.layouts.turns import rows_of, turns_of
from niels_gpt.doctor.rows import covered
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.types import RenderedTokens
from tests.renderers.sweeps import answered, families
from tests.renderers.tiny_families import renderer_of


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
