"""Kinds: the facts that follow from them, in renderings, batches and bridges. Golden texts show those of families."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.renderers.kinds import CONTENT, CONTROL, MODEL_KINDS, SAMPLED, Kind, pack, unpack
from niels_gpt.tokenizer.pieces import SCAFFOLD
from tests.renderers.small import assistant, call, family, result, user

CHAT = [
    user("hello"),
    assistant("the fox", reasoning_content="the dog", tool_calls=[call()]),
    result(text="12"),
    assistant("the end", reasoning_content="x + 1"),
]


def test_the_facts_of_a_kind_are_bits_of_its_number() -> None:
    assert CONTROL == SCAFFOLD, "tokenizers read this bit"
    assert {kind.name for kind in Kind if kind & SAMPLED} == {"REPLY", "REASONING", "MARKUP", "STOP", "OPENER"}
    assert {kind.name for kind in Kind if kind & CONTENT} == {kind.name for kind in Kind} - {
        *("TEMPLATE", "LABEL", "OPENER"),
    }
    assert {kind.name for kind in Kind if not kind & CONTROL} == {"LABEL", "CONTEXT", "REPLY", "REASONING"}
    assert {kind for kind in Kind if kind & SAMPLED} == MODEL_KINDS
    assert all(unpack(pack(message, kind)) == (message, kind) for message in (-1, 0, 7) for kind in Kind)


def test_the_lists_of_the_contract_follow_from_kinds() -> None:
    rendered = family("qwen3").render(CHAT)
    assert rendered.sampled_mask == [bool(kind & SAMPLED) for kind in rendered.kinds]
    assert rendered.is_content == [bool(kind & CONTENT) for kind in rendered.kinds]
    assert type(rendered.kinds) is list


def test_a_bridge_knows_the_kinds_of_what_it_adds() -> None:
    renderer = family("qwen3")
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    answer = renderer.render([user(), assistant("hi")]).token_ids[len(prompt) : -1]
    bridge = renderer.bridge_to_next_turn(prompt, answer, [user("more")])
    before = len(prompt) + len(answer)
    assert bridge.kinds[:before] == [Kind.TEMPLATE] * before
    assert Kind.CONTEXT in bridge.kinds[before:]
    assert len(bridge.kinds) == len(bridge.token_ids)
