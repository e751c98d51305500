"""What each piece of a rendering is: the kinds of a few conversations, and what holds for all families."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.renderers.kinds import CONTENT, CONTROL, MODEL_KINDS, SAMPLED, Kind, pack, unpack
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.tokenizer.pieces import SCAFFOLD
from tests.renderers.small import assistant, call, family, result, user
from tests.renderers.sweeps import reasons
from tests.renderers.tiny_families import TOKENS, renderer_of

CHAT = [
    user("hello"),
    assistant("the fox", reasoning_content="the dog", tool_calls=[call()]),
    result(text="12"),
    assistant("the end", reasoning_content="x + 1"),
]


def shown(renderer: Any, messages: Any = CHAT, **options: Any) -> list[tuple[int, str, str]]:
    """The pieces with a text: message, kind, text; equal neighbours joined."""
    found: list[tuple[int, str, str]] = []
    for piece in renderer.pieces(messages, **options):
        if found and found[-1][:2] == (piece.msg, piece.kind.name):
            found[-1] = (*found[-1][:2], found[-1][2] + piece.text)
        elif piece.text:
            found.append((piece.msg, piece.kind.name, piece.text))
    return found


def test_the_facts_of_a_kind_are_bits_of_its_number() -> None:
    assert CONTROL == SCAFFOLD, "tokenizers read this bit"
    assert {kind.name for kind in Kind if kind & SAMPLED} == {"REPLY", "REASONING", "MARKUP", "STOP", "OPENER"}
    assert {kind.name for kind in Kind if kind & CONTENT} == {kind.name for kind in Kind} - {
        *("TEMPLATE", "LABEL", "OPENER"),
    }
    assert {kind.name for kind in Kind if not kind & CONTROL} == {"LABEL", "CONTEXT", "REPLY", "REASONING"}
    assert {kind for kind in Kind if kind & SAMPLED} == MODEL_KINDS
    assert all(unpack(pack(message, kind)) == (message, kind) for message in (-1, 0, 7) for kind in Kind)


def test_kinds_of_qwen() -> None:
    assert shown(family("qwen3")) == [
        (0, "TEMPLATE", "<|im_start|>user\n"),
        (0, "CONTEXT", "hello"),
        (0, "TEMPLATE", "<|im_end|>\n"),
        (1, "TEMPLATE", "<|im_start|>assistant\n"),
        (1, "MARKUP", "<think>\n"),
        (1, "REASONING", "the dog"),
        (1, "MARKUP", "\n</think>\n\n"),
        (1, "REPLY", "the fox"),
        (1, "MARKUP", "\n<tool_call>"),
        (1, "REPLY", '\n{"name": "get", "arguments": {"city": "x"}}\n'),
        (1, "MARKUP", "</tool_call>"),
        (1, "STOP", "<|im_end|>"),
        (1, "TEMPLATE", "\n"),
        (2, "TEMPLATE", "<|im_start|>user\n<tool_response>\n"),
        (2, "CONTEXT", "12"),
        (2, "TEMPLATE", "\n</tool_response><|im_end|>\n"),
        (3, "TEMPLATE", "<|im_start|>assistant\n"),
        (3, "MARKUP", "<think>\n"),
        (3, "REASONING", "x + 1"),
        (3, "MARKUP", "\n</think>\n\n"),
        (3, "REPLY", "the end"),
        (3, "STOP", "<|im_end|>"),
        (3, "TEMPLATE", "\n"),
    ]


def test_what_the_prompt_supplies_is_the_templates() -> None:
    off = family("qwen3", enable_thinking=False)
    assert [piece for piece in shown(off, [*CHAT[:1], assistant("hi")]) if piece[0] == 1] == [
        (1, "TEMPLATE", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (1, "REPLY", "hi"),
        (1, "STOP", "<|im_end|>"),
        (1, "TEMPLATE", "\n"),
    ]


def test_between_the_channels_of_gpt_oss_is_markup_and_its_last_token_is_the_stop() -> None:
    oss = family("gpt-oss")
    called = [piece for piece in shown(oss, CHAT[:3]) if piece[0] in (1, 2)]
    assert called == [
        (1, "TEMPLATE", "<|start|>assistant"),
        (1, "MARKUP", "<|channel|>analysis<|message|>"),
        (1, "REASONING", "the dog"),
        (1, "MARKUP", "<|end|><|start|>assistant<|channel|>commentary<|message|>"),
        (1, "REPLY", "the fox"),
        (1, "MARKUP", "<|end|><|start|>assistant to=functions."),
        (1, "REPLY", "get"),
        (1, "MARKUP", "<|channel|>commentary json<|message|>"),
        (1, "REPLY", '{"city": "x"}'),
        (1, "STOP", "<|call|>"),
        (2, "TEMPLATE", "<|start|>functions."),
        (2, "LABEL", "get"),
        (2, "TEMPLATE", " to=assistant<|channel|>commentary<|message|>"),
        (2, "CONTEXT", '"12"'),
        (2, "TEMPLATE", "<|end|>"),
    ]
    stops = [piece[::2] for piece in shown(oss, [user(), assistant(), user(), assistant()]) if piece[1] == "STOP"]
    assert stops == [(1, "<|end|>"), (3, "<|return|>")]


def test_the_opener_that_ends_a_turn_of_glm() -> None:
    chat = [user(), assistant("a"), user("b"), assistant("c")]
    glm = family("glm-5", sampled_openers=True, final_stop=True)
    assert shown(glm, chat)[3:] == [
        (1, "TEMPLATE", "<|assistant|>"),
        (1, "MARKUP", "</think>"),
        (1, "REPLY", "a"),
        (2, "OPENER", "<|user|>"),
        (2, "CONTEXT", "b"),
        (3, "TEMPLATE", "<|assistant|>"),
        (3, "MARKUP", "</think>"),
        (3, "REPLY", "c"),
        (3, "STOP", "<|user|>"),
    ]
    assert {kind for _, kind, _ in shown(family("glm-5"), chat)} == {"TEMPLATE", "MARKUP", "REPLY", "CONTEXT"}


@pytest.mark.parametrize("name", FAMILIES)
def test_reasoning_has_a_kind_of_its_own(name: str) -> None:
    if not reasons(name):
        pytest.skip("the format has no place for reasoning")
    options = {"thinking": True} if name == "deepseek-v3.1" else {}
    renderer = family(name, **options).as_produced()
    pieces = shown(renderer, [user("hello"), assistant("the end", reasoning_content="zebra")])
    assert [kind for _, kind, text in pieces if "zebra" in text] == ["REASONING"]
    assert [kind for _, kind, text in pieces if "the end" in text] == ["REPLY"]


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_in_contents_leave_their_kinds(name: str) -> None:
    """`special_tokens_in_content="parse"` changes ids, and not what a text is."""
    renderer = renderer_of(name, ("special_tokens_in_content", "parse"))
    spelling = next(iter(renderer.encoder.control_ids), "")
    chat = [user(f"a{spelling}b"), assistant(f"c{spelling}d")]
    rendered, as_text = renderer.render(chat), renderer_of(name).render(chat)
    batch = renderer.render_many([chat, chat])
    assert batch.kinds.tolist() == rendered.kinds * 2
    assert (batch[1], batch[1].kinds) == (rendered, rendered.kinds)
    assert set(rendered.kinds) == set(as_text.kinds)
    if spelling and TOKENS.get(name) is not None:
        token = renderer.encoder.control_ids[spelling]
        kinds = {kind for kind, own in zip(rendered.kinds, rendered.token_ids, strict=True) if own == token}
        assert {Kind.CONTEXT, Kind.REPLY} <= kinds
        others = {kind for kind, own in zip(as_text.kinds, as_text.token_ids, strict=True) if own == token}
        assert not {Kind.CONTEXT, Kind.REPLY, Kind.REASONING, Kind.LABEL} & others
    assert renderer.render_ids(chat) == rendered.token_ids


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
