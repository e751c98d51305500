"""Conversations of one shape are written once: the result is what the grammar writes for each, whatever the texts."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import random
import weakref
from dataclasses import fields
from typing import Any, Literal

import pytest

pytest.importorskip("tokenizers")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import MessageError, Mismatch
from niels_gpt.messages import normalise
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.filling import encoded_shapes
from niels_gpt.renderers.kinds import read_values
from niels_gpt.renderers.qwen3 import Qwen3Renderer
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.rendered import RenderedBatch, RenderedTokens
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.shapes import Shapes
from niels_gpt.renderers.tools import Tools
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.sweeps import Options, cases, chats, families
from tests.renderers.tiny_families import CASES, renderer_of

TAGS = (
    *("<think>", "</think>", "<tool_response>", "</tool_response>", "<tool_call>", "/nothink", "/no_think", "/think"),
    *(
        "</assistant>",
        "<|im_end|>",
        "<response>",
        "[INST]",
        "</s>",
        "〈|EOS|〉",
        "<",
        "%s",
        "%",
        "{}",
        "niels-gpt-0",
        '{"niels-gpt-0": 1}',
    ),
)
WORDS = ("hello", "a b", "ü", "é\u0301", "你好", "🤖", "\n", " ", "\u00a0", "\t", "\0", "x\n\ny", "1", *TAGS)


def same(one: RenderedBatch, other: RenderedBatch) -> None:
    """Everything, down to the types of the arrays."""
    for field in fields(RenderedBatch):
        here, there = getattr(one, field.name), getattr(other, field.name)
        if isinstance(here, np.ndarray):
            assert here.dtype == there.dtype, field.name
            assert here.tolist() == there.tolist(), field.name
        else:
            assert list(here) == list(there), field.name


def without_shapes(renderer: Family, conversations: list[Messages], tools: list[Any] | None = None) -> RenderedBatch:
    """Each conversation written by the grammar itself."""
    plain = type(renderer)(renderer.encoder, renderer.config)
    plain.__dict__["_shapes"] = None
    return plain.render_many(conversations, tools=tools)


def one_by_one(renderer: Family, data: list[Messages]) -> list[RenderedTokens]:
    """In a batch, one text that spells a control token would send all others the long way."""
    return [rendered for messages in data for rendered in renderer.render_many([messages])]


def writable(renderer: Family, messages: Messages, tools: Any = None) -> bool:
    """The grammar has a place for this conversation."""
    try:
        renderer.script(messages, tools=tools)
    except MessageError:
        return False
    return True


def texts(rng: random.Random) -> str:
    if rng.random() < 0.6:  # ordinary but for one word
        return f"hello{rng.choice(WORDS)}{rng.choice(('you', ''))}"
    return "".join(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 2, 3, 5))))


def conversations(family: str, number: int) -> list[Messages]:
    """Few orders of roles and many texts: what makes shapes, and what must not be taken for one."""
    rng = random.Random(family)
    orders = [
        ("user", "assistant"),
        ("system", "user", "assistant"),
        ("user", "assistant", "user", "assistant"),
        ("system", "user", "assistant", "user"),
        ("user",),
        ("assistant", "user", "user", "assistant", "assistant"),
        ("system", "system", "user", "assistant"),
    ]
    return [[{"role": role, "content": texts(rng)} for role in rng.choice(orders)] for _ in range(number)]


@cases
def test_shapes_change_nothing(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    data = [messages for messages in conversations(family, 400) if writable(renderer, messages)]
    expected = without_shapes(renderer, data)
    for _ in range(2):  # the first time it learns
        same(renderer.render_many(data), expected)
    assert one_by_one(renderer, data) == list(expected)
    assert [renderer.render(messages) for messages in data] == list(expected)


@pytest.mark.parametrize("family", [name for name, made in FAMILIES.items() if made.looks_for])
def test_what_a_family_looks_for_is_found_out(family: str) -> None:
    """Without it, the conversations above would come out wrong with some option: they can tell."""
    differing = 0
    for _, options in (case for case in CASES if case[0] == family):
        renderer = FAMILIES[family](renderer_of(family).encoder, renderer_of(family, *options).config)
        renderer._shapes = Shapes(renderer._script, renderer.encoder, ())  # type: ignore[arg-type]
        renderer._shapes._proof_at = 10**9  # the check of one in so many would find it too
        data = [messages for messages in conversations(family, 400) if writable(renderer, messages)]
        renderer.render_many(data)
        differing += one_by_one(renderer, data) != list(without_shapes(renderer, data))
    assert differing


@pytest.mark.parametrize("batch", [1, 64, 600])
def test_a_family_that_does_not_say_what_it_looks_for_is_caught(batch: int) -> None:
    """The first, the second, the fourth and so on is written by the grammar too, and one in 1,024."""

    class Shouting(type(renderer_of("chatml"))):  # type: ignore[misc]
        looks_for = ()

        def user(self, chat: Any, index: int, out: Any) -> None:
            text = chat.messages[index]["content"]
            out.turn("<|im_start|>user\n", text.upper() if len(text) < 4 else text, "<|im_end|>\n", index)

    renderer = Shouting(renderer_of("chatml").encoder)
    data = [ask(text) for text in ("quiet", "silent", *["so", "too"] * 400)]
    parts = [data[at : at + batch] for at in range(0, len(data), batch)]
    with pytest.raises(Mismatch, match=r"^chatml writes a conversation of user, assistant otherwise .* looks_for"):
        list(map(renderer.render_many, parts))


SPACES = (" ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", " \n ")


@cases
def test_white_space_at_the_ends_of_texts(family: str, options: Options) -> None:
    """Some formats write it, some do not, and Qwen's do so for some messages alone."""
    renderer = renderer_of(family, *options)
    rng = random.Random(family)

    def text(word: str) -> str:
        return rng.choice(("", rng.choice(SPACES))) + word + rng.choice(("", rng.choice(SPACES)))

    roles = [role for role in ("system", "user", "assistant", "user", "assistant") if role in renderer.roles]
    data = [[{"role": role, "content": text(f"{role} {n}")} for role in roles] for n in range(60)]
    data = [messages for messages in data if writable(renderer, messages)]
    expected = without_shapes(renderer, data)
    for _ in range(2):
        same(renderer.render_many(data), expected)
    assert [renderer.render(messages) for messages in data] == list(expected)


def test_white_space_that_is_written_keeps_the_shape() -> None:
    told = {}
    for family in ("chatml", "qwen3", "llama-3"):
        renderer = taught(family)
        shapes = renderer._shapes
        assert shapes is not None
        told[family] = [bool(shapes.of([ask(*texts)], [None]).numbers) for texts in ((" hi\n",), ("hi", " yes\n"))]
    assert told == {"chatml": [True, True], "qwen3": [True, False], "llama-3": [False, False]}


@families
def test_shapes_are_used(family: str) -> None:
    """Else the tests above show nothing."""
    renderer = renderer_of(family)
    assert "looks_for" in vars(type(renderer)), "each family says it for itself"
    plain = [[{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}!"}] for n in range(3)]
    renderer.render_many(plain)
    shapes = renderer._shapes
    if shapes is None:  # only gigatoken encodes strings whole
        assert getattr(renderer.encoder, "flat", None) is None
        return
    assert shapes.of(plain, [None] * len(plain)).numbers == list(range(len(plain)))


@families
def test_among_conversations_of_all_kinds(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = renderer_of(family)
    rng = random.Random(7)
    data = chats(family, 60, seed=5) + [(messages, None) for messages in conversations(family, 100)]
    data = [(messages, tools) for messages, tools in data if tools or writable(renderer, messages)]
    rng.shuffle(data)
    given_, tools = [messages for messages, _ in data], [own for _, own in data]
    expected = without_shapes(renderer, given_, tools)
    same(renderer.render_many(given_, tools=tools), expected)
    for block in (1, 7, 64):
        monkeypatch.setattr("niels_gpt.renderers.batch.BLOCK", block)
        same(renderer.render_many(given_, tools=tools), expected)


def varied(messages: Messages, rng: random.Random) -> Messages:
    """The same kind of conversation with other values, most of them."""
    names = {call.get("id"): texts(rng) for message in messages for call in message.get("tool_calls") or ()}
    made = copy.deepcopy(messages)
    for message in made:
        for field in ("content", "reasoning_content"):
            if isinstance(message.get(field), str) and message[field] and rng.random() < 0.7:
                message[field] = texts(rng)
        if "tool_call_id" in message:
            message["tool_call_id"] = names.get(message["tool_call_id"], "nobody's")
        for call in message.get("tool_calls") or ():
            if "id" in call:
                call["id"] = names[call["id"]]
            call["function"]["arguments"] = arguments(call["function"]["arguments"], rng)
    return made


def arguments(given_: Any, rng: random.Random) -> Any:
    """Other arguments, as an object or as JSON text, as these are."""
    made = {texts(rng): rng.choice((texts(rng), 1, None, [texts(rng)])) for _ in range(rng.randint(0, 2))}
    return json.dumps(made, indent=rng.choice((None, 1)), ensure_ascii=False) if isinstance(given_, str) else made


@cases
def test_calls_results_and_reasoning(family: str, options: Options) -> None:
    """Kinds of conversations that come again with other values, each rendered by itself and all in batches."""
    renderer = renderer_of(family, *options)
    rng = random.Random(f"kinds {family}")
    wanted = {"parts": False, "nones": False, "flags": False, "spaces": False, "late_system": False}
    if FAMILIES[family].calls is not None and family != "mistral":  # a call without id, and its result, have no kind
        wanted["call_id"] = lambda name, number: f"call_{number}"
    data = [(varied(messages, rng), tools) for messages, tools in chats(family, 14, seed=6, **wanted) for _ in range(7)]
    data = [(messages, tools) for messages, tools in data if writable(renderer, messages, tools)]
    expected = [without_shapes(renderer, [messages], [tools]) for messages, tools in data]
    for _ in range(2):
        for (messages, tools), batch in zip(data, expected, strict=True):
            same(renderer.render_many([messages], tools=[tools]), batch)
    given_, offered = [messages for messages, _ in data], [tools for _, tools in data]
    same(renderer.render_many(given_, tools=offered), without_shapes(renderer, given_, offered))


def as_arrow(messages: Messages) -> Messages:
    """Every key in every message and call, as a file of Arrow's gives them back."""
    calls = [
        call | {"id": call.get("id"), "type": call.get("type")} for m in messages for call in m.get("tool_calls", ())
    ]
    keys = dict.fromkeys(("reasoning_content", "tool_calls", "tool_call_id", "name", "train", "weight"))
    made, at = [], 0
    for message in messages:
        own = calls[at : at + len(message.get("tool_calls", ()))]
        at += len(own)
        made.append({**keys, **message, "content": message["content"] or None} | ({"tool_calls": own} if own else {}))
    return made


@families
def test_keys_that_hold_nothing(family: str) -> None:
    renderer, rng = new(family), random.Random(3)
    offered = [TOOLS[0]]
    plain = [called(id=texts(rng), content=texts(rng)) if n % 2 else ask(f"hi {n}") for n in range(12)]
    if family == "mistral":  # looks at ids
        plain = [called(id="abcdefgh1") if n % 2 else ask(f"hi {n}") for n in range(12)]
    for chat in plain[1::4]:
        del chat[1]["tool_calls"][0]["id"]
        del chat[2:]
    for tools in (None, offered):
        data = [as_arrow(chat) for chat in plain if writable(renderer, chat, tools)]
        assert tools or len(data) >= 6
        expected = [without_shapes(renderer, [chat], [tools]) for chat in data]
        for _ in range(3):
            for chat, batch in zip(data, expected, strict=True):
                same(renderer.render_many([chat], tools=[tools]), batch)
    renderer.render_many([ask()] * 2)
    if renderer._shapes is not None:
        assert renderer._shapes.of([as_arrow(ask())], [None]).numbers


CALLING = [name for name, made in FAMILIES.items() if made.calls is not None and name != "mistral"]


@pytest.mark.parametrize("family", CALLING)
def test_calls_have_shapes(family: str) -> None:
    renderer = new(family)
    shapes = renderer._shapes
    assert shapes is not None
    for number in range(3):
        chat = called(arguments={"city": f"Oslo {number}"}, content=f"{number} degrees", id=f"id{number}")
        tools = [copy.deepcopy(TOOLS[0])]
        renderer.render_many([chat], tools=[tools])
    assert shapes.of([chat], [tools]).numbers
    assert not shapes.of([called(content=None)], [tools]).numbers
    assert not shapes.of([called(arguments='{"city": "Oslo"}')], [tools]).numbers, "text and object are two kinds"
    assert not shapes.of([called()], [[TOOLS[1]]]).numbers


def test_a_format_whose_calls_have_no_shapes_is_given_up() -> None:
    """Mistral looks at ids. Its calls are then not read twice; conversations without calls keep their shapes."""
    renderer = new("mistral")
    shapes = renderer._shapes
    assert shapes is not None
    for turns in range(1, 12):
        for _ in range(2):
            renderer.render_many([[*called(id="abcdefgh1"), ask()[1]] * turns], tools=[[TOOLS[0]]])
    assert (shapes._calls_known, shapes._calls_tried) == (0, 8)
    renderer.render_many([ask()] * 2)
    assert shapes.of([ask()], [None]).numbers


def test_what_is_not_written_is_checked_all_the_same() -> None:
    """ChatML drops reasoning; half of a surrogate pair in it is refused as ever."""
    renderer = new("chatml")
    for _ in range(3):
        chat = [ask()[0], {"role": "assistant", "content": "yes", "reasoning_content": "Hm."}, *ask()]
        renderer.render_many([chat])
        for reasoning in ("\ud800", "é\ud800"):
            chat[1] = chat[1] | {"reasoning_content": reasoning}
            with pytest.raises(MessageError, match="message 1: reasoning_content holds half of a surrogate pair"):
                renderer.render_many([chat])


def test_tools_that_come_once_are_not_kept() -> None:
    renderer = new("qwen3")
    for number in range(5):
        tools = copy.deepcopy(TOOLS[:1])
        tools[0]["function"]["description"] = f"the {number}th"
        renderer.render_many([called()], tools=[tools])
    assert renderer._shapes is not None
    assert not renderer._shapes._met


def test_copies_begin_anew() -> None:
    """Tools are told apart by where they are in memory, which means nothing elsewhere."""
    renderer = new("qwen3")
    renderer.render_many([called()] * 3, tools=[[TOOLS[0]]] * 3)
    for made in (pickle.loads(pickle.dumps(renderer)), copy.deepcopy(renderer), copy.copy(renderer._shapes)):
        shapes = getattr(made, "_shapes", made)
        assert not shapes._known
        assert not shapes._met
    assert renderer._shapes is not None
    assert renderer._shapes._known


def test_names_that_look_like_stand_ins() -> None:
    renderer = new("glm-5")
    odd = {"type": "function", "function": {"name": "f", "description": "niels-gpt-1", "parameters": {}}}
    for chat, tools in (
        (called(arguments={"niels-gpt-0": "x"}), [TOOLS[0]]),
        (called(name="niels-gpt-0"), [TOOLS[0]]),
        (called(), [odd]),
    ):
        for _ in range(3):
            expected = without_shapes(renderer, [chat], [tools])
            same(renderer.render_many([chat], tools=[tools]), expected)


LOOKS = (
    'say "hi"',
    "C:\\new",
    "two\nlines",
    "a\tb",
    "<b>&amp;",
    "5 > 3",
    "ü",
    "你好",
    "x" * 300,
    "MiXed",
    "'",
    "\x7f",
    "\0",
)


@pytest.mark.parametrize("family", CALLING)
def test_what_a_format_writes_in_its_own_way_is_no_value(family: str) -> None:
    """Llama and gpt-oss write results as JSON, Llama also arguments that were text already."""
    renderer = new(family)
    for text in (*LOOKS, " ", "\nx "):
        for chat in (
            called(content=text),
            called(arguments={"city": text}),
            called(arguments=json.dumps({"city": text}, separators=(",", ":"))),
            called(arguments=json.dumps({"city": text}, ensure_ascii=False)),
            called(id=f"call {text}."),
            [*called(), {"role": "assistant", "content": text}],
            [*called(), {"role": "assistant", "content": text, "reasoning_content": f"because {text}."}],
        ):
            expected = without_shapes(renderer, [chat], [[TOOLS[0]]])
            for _ in range(2):
                same(renderer.render_many([chat], tools=[[TOOLS[0]]]), expected)


@pytest.mark.parametrize(
    "arguments", ["[1]", "null", "1", '"x"', '{"a": 1, "a": 2}', '{"a":1}', '{"b": 1, "a": 2}', "{}"]
)
@pytest.mark.parametrize("family", CALLING)
def test_arguments_that_are_text_but_no_object(family: str, arguments: str) -> None:
    """Formats that need an object refuse them every time, others write them as they are."""
    renderer = new(family)
    for known in ('{"city": "Rome"}', '{"city": "Oslo"}', '{"city": "Bern"}'):
        renderer.render_many([called(arguments=known)], tools=[[TOOLS[0]]])
    chat = called(arguments=arguments)

    def outcome(render: Any) -> str:
        try:
            batch = render([chat], tools=[[TOOLS[0]]])
        except MessageError as error:
            return str(error)
        return renderer.encoder.decode(batch.ids)

    expected = outcome(lambda given_, tools: without_shapes(renderer, given_, tools))
    assert [outcome(renderer.render_many) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("role", [None, 1, True, ("user",), ["user"], {"a": 1}])
def test_a_role_that_is_no_text_is_an_error_every_time(role: Any) -> None:
    renderer = new("qwen3")
    for _ in range(3):
        with pytest.raises(MessageError, match="conversation 0: message 0: role is"):
            renderer.render_many([[{"role": role, "content": "x"}]])


def called(*, arguments: Any = None, content: Any = "cold", id: str = "1", **more: Any) -> Messages:
    """A call and its result."""
    call = {"id": id, "function": {"name": "get_weather", "arguments": arguments or {"city": "Rome"}} | more}
    return [
        {"role": "user", "content": "And there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": content},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        called(arguments="{"),
        called(arguments=" {}"),
        called(arguments='{"a": "\\ud800"}'),
        called(arguments={1: 2}),
        called(arguments={"a": {1, 2}}),
        called(arguments=[1]),
        called(strict=True),
        called(id=""),
        called(id=7),  # type: ignore[arg-type]
        called(id=None),  # type: ignore[arg-type]
        [*called()[:2], {"role": "tool", "tool_call_id": "2", "content": "cold"}],
        [*called(), {"role": "tool", "tool_call_id": "1", "content": "x", "reasoning_content": "y"}],
        [called()[0], called()[2]],
        [{"role": "user", "content": "a", "tool_calls": []}],
        [{"role": "assistant", "content": "a", "reasoning_content": ""}],
        [{"role": "assistant", "content": ["a"], "reasoning_content": "b"}],
        [{"role": "assistant", "content": "a", "refusal": "no"}],
        [{"role": "assistant"}],
    ],
    ids=lambda wrong: repr(wrong[-1])[-60:],
)
def test_messages_without_a_kind(wrong: Any) -> None:
    roles, contents = ([message.get(key) for message in wrong] for key in ("role", "content"))
    assert read_values(wrong, roles, contents) is None


def test_mistrals_ids_are_looked_at_every_time() -> None:
    """It refuses ids that are not nine letters or digits; a stand-in that it accepts would hide that."""
    renderer = new("mistral")
    for _ in range(3):
        renderer.render_many([called(id="abcdefgh1")], tools=[[TOOLS[0]]])
        with pytest.raises(MessageError, match="nine letters"):
            renderer.render_many([called(id="call_1")], tools=[[TOOLS[0]]])


def test_messages_are_normalised_all_the_same() -> None:
    renderer = taught()
    for _ in range(3):
        chat = called()
        batch = renderer.render_many([chat], tools=[[TOOLS[0]]])
        assert batch.messages[0] == normalise(chat)
    assert chat[1]["content"] is None, "what the caller gave is not changed"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.text(max_size=12), min_size=2, max_size=2), min_size=1, max_size=6))
def test_any_texts(pairs: list[list[str]]) -> None:
    renderer = renderer_of("qwen3")
    data = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in pairs]
    data = [messages for messages in data if writable(renderer, messages)]
    if data:
        same(renderer.render_many(data), without_shapes(renderer, data))


def ask(content: Any = "hi", answer: Any = "yes") -> Messages:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


def taught(family: str = "qwen3") -> Family:
    """A renderer that knows the shape of `ask` alone."""
    model = new(family)
    model.render_many([ask(), ask()])
    return model


def new(family: str) -> Family:
    """A renderer of its own that knows no shapes."""
    return FAMILIES[family](renderer_of(family).encoder)


@pytest.mark.parametrize(
    "messages",
    [
        ask(""),
        ask(" \n"),
        ask(" <b>"),
        ask(answer="\n\nyes"),
        ask("<tool_response>\nx\n</tool_response>"),
        ask(answer="a</think>b"),
        ask(None),
        ask([{"type": "text", "text": "hi"}]),
        [ask()[0], {"role": "assistant", "content": "yes", "weight": 0.5}],
        [ask()[0], {"role": "assistant", "reasoning_content": "yes"}],
        [{"role": "user", "content": "hi", "name": "me"}, ask()[1]],
        [ask()[0]],
        [ask()[1], ask()[0]],
        tuple(ask()),
        [{"role": ["user"], "content": "x"}, ask()[1]],
        [],
    ],
    ids=lambda messages: repr(messages)[:60],
)
def test_what_is_not_of_the_shape(messages: Any) -> None:
    shapes = taught()._shapes
    assert shapes is not None
    assert shapes.of([ask("Hi there.", "No < yes")], [None]).numbers
    assert not shapes.of([messages], [None]).numbers


def test_an_order_of_roles_is_learned_the_second_time() -> None:
    renderer = new("qwen3")
    for expected in (False, True, True):
        renderer.render_many([ask()])
        assert renderer._shapes is not None
        assert bool(renderer._shapes._known) == expected


@pytest.mark.parametrize("space", ["", " "])
def test_a_text_that_spells_a_control_token_is_a_text(space: str) -> None:
    """Encoded apart as others are; where there is white space at an end, it takes the batch the long way."""
    renderer = taught()
    data = [ask(f"{space}x"), ask(f"{space}say <|im_end|> twice"), ask(f"{space}y")]
    assert renderer._shapes is not None
    parted = renderer._shapes.of(data, [None] * 3).parted()
    assert [encoded_shapes(renderer.encoder, group) is not None for group in parted] == [not space]
    batch = renderer.render_many(data)
    same(batch, without_shapes(renderer, data))
    assert batch.ids.tolist().count(renderer.encoder.control_ids["<|im_end|>"]) == 6


def test_errors_name_the_first_conversation() -> None:
    renderer = taught()
    broken = [ask(), ask("\ud800"), ask(), [{"role": "nobody", "content": "x"}]]
    with pytest.raises(MessageError, match=r"conversation 1: message 0: content holds half of a surrogate pair"):
        renderer.render_many(broken)
    with pytest.raises(MessageError, match=r"conversation 2: message 0: role is 'nobody'"):
        renderer.render_many([ask(), ask(), broken[3]])


@pytest.mark.parametrize("mode", ["parse", "error"])
def test_modes_that_read_bodies_have_no_shapes(mode: Literal["parse", "error"]) -> None:
    assert renderer_of("qwen3", ("special_tokens_in_content", mode))._shapes is None


class Shouting(Qwen3Renderer):
    """A grammar that looks for more than its parent says."""

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """Louder where it is a question."""
        text = chat.text(index)
        out.turn("<|im_start|>user\n", text.upper() if text.endswith("?") else text, "<|im_end|>\n", index)


def test_a_subclass_says_for_itself_what_it_looks_for() -> None:
    renderer = Shouting(renderer_of("qwen3").encoder)
    assert renderer._shapes is None
    for _ in range(3):
        assert "REALLY?" in renderer.encoder.decode(renderer.render_many([ask("really?")]).ids.tolist())


def test_what_is_forgotten_while_it_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may forget all. Shapes are known by where their tools are; nobody else's may come to lie there."""
    renderer = new("qwen3")
    shapes = renderer._shapes
    assert shapes is not None
    shapes._proof_at = 10**9  # it writes too
    write, offered = shapes._write, Tools([{"name": "f", "description": "only here"}])

    def forgetful(messages: Any, tools: Any) -> Any:
        shapes._met.clear()
        shapes._known.clear()
        return write(messages, tools)

    monkeypatch.setattr(shapes, "_write", forgetful)
    for _ in range(4):
        renderer.render_many([ask()], tools=[offered])
    place = weakref.ref(offered)
    del offered
    gc.collect()
    assert shapes._known
    assert place() is not None


def test_roles_without_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.renderers.shapes._MOST_KINDS", 3)
    renderer = taught()
    for turns in range(1, 9):
        for _ in range(2):
            renderer.render_many([ask() * turns])
    shapes = renderer._shapes
    assert shapes is not None
    assert len(shapes._met) <= 3
    assert len(shapes._known) <= 3
