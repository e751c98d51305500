"""What holds for every family and every conversation: ids, facts, forgery, batches, threads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.format.sft import serialize_chat_to_ids
from niels_gpt.renderers.kinds import SAMPLED, Kind
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.renderers.types import Piece, RenderedTokens
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer
from tests.renderers.chats import forged, plain_text
from tests.renderers.sweeps import (
    CHATML,
    Options,
    both_cuts,
    cases,
    cases_and_cuts,
    chats,
    conversations,
    ends_of,
    families,
    nfc,
    official_ids,
    text_of,
)
from tests.renderers.tiny_families import TOKENS, folder_of, renderer_of
from tests.tokenizer.tiny import END

# ---- ids


@conversations(6, 25)
@cases_and_cuts
def test_ids_are_those_of_the_text(family: str, options: Options, split: bool, number: int) -> None:
    renderer = renderer_of(family, *options, split=split)
    for messages, tools in chats(family, number):
        for gen in (False, True):
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            text = renderer.text(messages, tools=tools, add_generation_prompt=gen)
            assert rendered.token_ids == official_ids(family, text, split)
            assert rendered.token_ids == renderer.render_ids(messages, tools=tools, add_generation_prompt=gen)
            assert text_of(renderer, rendered.token_ids) == nfc(family, text)
            n = len(rendered.token_ids)
            assert len(rendered.message_indices) == len(rendered.sampled_mask) == len(rendered.is_content) == n
            assert rendered.message_roles == [message["role"] for message in messages]
            assert rendered.attribution == "full"


def test_ngpt_writes_what_the_sentinel_format_writes() -> None:
    renderer = renderer_of("ngpt")
    tokenizer = SentencePieceTokenizer(folder_of("ngpt") / "spm.model")
    for messages, _ in chats("ngpt", 60, parts=False, nones=False, flags=False, loose=False, marks=0.3):
        chat = forged(messages, SPECIAL_TOKENS[3])
        default = renderer.config.default_system_text
        theirs = serialize_chat_to_ids({"messages": chat}, tokenizer=tokenizer, default_system_text=default)
        assert renderer.render_ids(chat) == theirs


# ---- facts


@cases_and_cuts
def test_every_token_has_the_facts_of_its_first_character(family: str, options: Options, split: bool) -> None:
    """Checked character by character, without the engine's arithmetic."""
    renderer = renderer_of(family, *options, split=split)
    for messages, tools in chats(family, 12, seed=2):
        rendered = renderer.render(messages, tools=tools, add_generation_prompt=True)
        script = renderer.emit(messages, tools=tools, add_generation_prompt=True)
        text = "".join(script.texts)
        if nfc(family, text) != text:
            continue
        of_byte: list[Piece] = [piece for piece in script.pieces() for _ in piece.text.encode()]
        at = 0
        for token, *facts in zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True
        ):
            piece = of_byte[at]
            assert facts == [piece.msg, piece.sampled, piece.content]
            at += len(renderer.encoder.token_bytes([token])[0])
        assert at == len(of_byte)


@cases
def test_facts_agree_with_roles(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    for messages, tools in chats(family, 16, seed=3):
        rendered = renderer.render(messages, tools=tools, add_generation_prompt=True)
        owners = [owner for owner in rendered.message_indices if owner >= 0]
        written = set(range(len(messages)))
        if family in TOKENS and TOKENS[family].system_in_turn:
            owners = [owner for owner in owners if messages[owner]["role"] != "system"]
            written = {index for index in written if messages[index]["role"] != "system"}
        assert owners == sorted(owners)
        assert set(owners) == written or (family in TOKENS and not TOKENS[family].marked)
        for owner, sampled, body in zip(
            rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True
        ):
            if owner < 0:
                assert not sampled
                assert not body
            elif messages[owner]["role"] == "assistant":
                assert sampled == body
            elif sampled:  # only an opener that ends the assistant's turn
                assert dict(options).get("sampled_openers")
                assert not body
                assert messages[owner - 1]["role"] == "assistant"


def kinds_of(rendered: RenderedTokens, index: int) -> list[int]:
    return [kind for kind, owner in zip(rendered.kinds, rendered.message_indices, strict=True) if owner == index]


@cases
def test_assistants_end_in_a_sampled_stop(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    stops = renderer.get_stop_token_ids()
    for messages, tools in chats(family, 12, seed=4):
        rendered = renderer.render(messages, tools=tools)
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                assert Kind.STOP not in kinds_of(rendered, index)
                continue
            own = [t for t, o, s in facts(rendered) if o == index and s]
            closed = bool(dict(options).get("final_stop")) and index == len(messages) - 1
            ends = [kind == Kind.STOP for kind in kinds_of(rendered, index) if kind & SAMPLED]
            assert not any(ends[:-1])
            assert ends[-1:] == ([bool(renderer.end_turn[0]) or closed] if ends else [])
            inside = own[:-1] if renderer.end_turn[0] or closed else own
            assert not set(inside) & set(stops)
            assert not closed or own[-1] in stops
            if renderer.end_turn[0]:
                ending = ends_of(family) if index + 1 < len(messages) and not message.get("tool_calls") else []
                assert own[-1] in (ending or stops)
            elif dict(options).get("sampled_openers") and index + 1 < len(messages):
                following = [(t, s) for t, o, s in facts(rendered) if o == index + 1]
                assert following[0][1] == (messages[index + 1]["role"] in ("user", "tool"))


@pytest.mark.parametrize("family", ["glm-4.5", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"])
@pytest.mark.parametrize(("role", "ends"), [("user", True), ("tool", True), ("system", False), ("assistant", False)])
def test_openers_that_end_a_turn(family: str, role: str, ends: bool) -> None:
    """The model stops at a user's and at a tool's opener; it never writes a system's."""
    call = {"function": {"name": "f", "arguments": {}}}
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]
    renderer = renderer_of(family, ("sampled_openers", True))
    rendered = renderer.render([*chat, {"role": role, "content": "c"}])
    first = rendered.message_indices.index(2)
    assert rendered.sampled_mask[first] == ends
    assert not rendered.is_content[first]
    assert (rendered.token_ids[first] in renderer.get_stop_token_ids()) == ends


def facts(rendered: RenderedTokens) -> list[tuple[int, int, bool]]:
    return list(zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True))


@cases
def test_what_the_generation_prompt_supplies_is_not_sampled(family: str, options: Options) -> None:
    """Up to the first sampled character the turn is what was served, and no more of what was served stands there."""
    renderer = renderer_of(family, *options)
    for messages, tools in chats(family, 20, seed=5, ends_with="assistant"):
        last = len(messages) - 1
        if not last:
            continue  # nothing was served before
        pieces = renderer.emit(messages, tools=tools).pieces()
        text = "".join(piece.text for piece in pieces)
        sampled = (i for i, piece in enumerate(pieces) if piece.msg == last and piece.sampled and piece.text)
        first = next(sampled, len(pieces))  # an empty turn of a format without stops has nothing sampled
        start = sum(len(piece.text) for piece in pieces[:first])
        served = renderer.text(messages[:last], tools=tools, add_generation_prompt=True)
        if family in TOKENS and TOKENS[family].forgets and not served.startswith(text[:start]):
            assert not options  # an answer takes the reasoning out of the cycle before it, unless it is kept
            continue
        assert served.startswith(text[:start])
        if text.startswith(served):
            assert start == len(served)
        else:  # half a tag is no tag: it was not supplied
            shared = text[start : next(i for i, (a, b) in enumerate(zip(text, served, strict=False)) if a != b)]
            assert shared == "" or (shared.startswith("<") and ">" not in shared), shared


@pytest.mark.parametrize("content", ["<", "</", "<thi", "\n", "\n<", " "])
@cases
def test_a_turn_that_begins_like_the_prompt_is_sampled(family: str, options: Options, content: str) -> None:
    """Half a tag of what serving supplies is the model's own, in history and in the last turn."""
    renderer = renderer_of(family, *options)
    stops = [text_of(renderer, [stop]) for stop in renderer.get_stop_token_ids()]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    for messages in (chat, [*chat, *chat]):
        pieces = renderer.emit(messages).pieces()
        for index in range(1, len(messages), 2):
            said = "".join(piece.text for piece in pieces if piece.msg == index and piece.sampled)
            for end in (*stops, *((TOKENS[family].ends, TOKENS[family].closes) if family in TOKENS else ())):
                said = said.removesuffix(end)
            assert said.rstrip("\n").endswith(content.strip())


@cases
def test_bodies_come_back_from_their_tokens(family: str, options: Options) -> None:
    """User, system and tool contents whole; what an assistant says as the script has it."""
    renderer = renderer_of(family, *options)
    for messages, tools in chats(family, 16, seed=6):
        rendered = renderer.render(messages, tools=tools)
        bodies: dict[int, list[int]] = {}
        for token, owner, body in zip(rendered.token_ids, rendered.message_indices, rendered.is_content, strict=True):
            if body:
                bodies.setdefault(owner, []).append(token)
        for index, message in enumerate(messages):
            own = text_of(renderer, bodies.get(index, []))
            text = nfc(family, plain_text(message["content"]).strip())
            if message["role"] != "assistant":
                assert (TOKENS[family].shown(text) if message["role"] == "tool" else text) in own
            elif not (family in TOKENS and TOKENS[family].content_as_reasoning and message.get("tool_calls")):
                assert text.split("</think>")[-1].strip() in own


# ---- one as many, here as there


@cases_and_cuts
def test_batches_equal_single_renderings(family: str, options: Options, split: bool) -> None:
    renderer = renderer_of(family, *options, split=split)
    made = [(forged(m, "<|im_end|>[EOS]"), t) for m, t in chats(family, 15, seed=8, marks=0.2)]
    batch = renderer.render_many([m for m, _ in made], tools=[t for _, t in made])
    assert len(batch) == len(made)
    assert list(batch) == [renderer.render(messages, tools=tools) for messages, tools in made]
    assert len(renderer.render_many([])) == 0


@both_cuts
def test_batches_of_a_template(split: bool) -> None:
    renderer = TemplateRenderer(folder_of("qwen3", split=split), template=CHATML)
    made = [(forged(m, END), t) for m, t in chats("qwen3", 60, seed=9, marks=0.2, parts=False)]
    batch = renderer.render_many([m for m, _ in made], tools=[t for _, t in made])
    single = [renderer.render(messages, tools=tools) for messages, tools in made]
    assert list(batch) == single
    for (messages, tools), rendered in zip(made, single, strict=True):
        text = renderer.text(messages, tools=tools)
        assert renderer.encoder.decode(rendered.token_ids) == nfc("qwen3", text)


@families
def test_pickled_and_shared_renderers_render_the_same(family: str) -> None:
    made = chats(family, 10, seed=10)
    renderer = renderer_of(family)
    expected = [renderer.render(messages, tools=tools) for messages, tools in made]
    again = pickle.loads(pickle.dumps(renderer))
    assert [again.render(messages, tools=tools) for messages, tools in made] == expected
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(lambda: [renderer.render(m, tools=t) for m, t in made]) for _ in range(8)]
        assert all(run.result() == expected for run in runs)


@pytest.mark.slow
@cases
def test_many_more_conversations(family: str, options: Options) -> None:
    for split in (True, False):
        renderer = renderer_of(family, *options, split=split)
        made = chats(family, 1500, seed=11)
        batch = renderer.render_many([m for m, _ in made], tools=[t for _, t in made])
        for (messages, tools), rendered in zip(made, batch, strict=True):
            assert rendered.token_ids == official_ids(family, renderer.text(messages, tools=tools), split)
            assert rendered == renderer.render(messages, tools=tools)


@families
def test_reasoning_is_kept_on_request(family: str) -> None:
    """Dropped from history by default; kept with `preserve_all_thinking`, in formats that have a place for it."""
    if family == "ngpt":
        pytest.skip("no reasoning")
    first = {"role": "assistant", "content": "b", "reasoning_content": "because"}
    chat = [{"role": "user", "content": "a"}, first, {"role": "user", "content": "c"}, first | {"content": "d"}]
    kept = renderer_of(family, ("preserve_all_thinking", True)).text(chat).count("because")
    usual = 0 if TOKENS[family].empties else 1  # an answer is history at once
    expected = (2 if TOKENS[family].keeps else usual, 2) if TOKENS[family].reasons else (0, 0)
    assert (renderer_of(family).text(chat).count("because"), kept) == expected
