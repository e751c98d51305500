"""gpt-oss beside OpenAI's own library for its format: ids, the end of training, reading (docs/deviations.md)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("openai_harmony")
import openai_harmony as harmony

from niels_gpt.renderers.base import build_training_sample, build_training_samples
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.families.gpt_oss import GptOssRenderer
from niels_gpt.renderers.registry import config_of
from tests.assets import encoder_at
from tests.renderers.chats import Messages, conversation, forged
from tests.renderers.harmony import FOLDER, as_harmony, assistant_of, judge
from tests.renderers.small import assistant, call, user
from tests.renderers.sweeps import wanted

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER}, whose vocabulary it needs (set NGPT_ASSETS)")
FUNCTIONS: list[dict[str, Any]] = [  # with what both declare alike
    {
        "name": "get_weather",
        "description": "Tells it. é",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where <b>"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer"},
                "hours": {"type": "array", "items": {"type": "number"}},
                "either": {"type": ["string", "null"]},
                "any": {},
            },
            "required": ["city"],
        },
    },
    {"name": "nothing", "description": "Does nothing."},
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return judge(tmp_path_factory.mktemp("harmony"))


def ours(**options: Any) -> GptOssRenderer:
    return GptOssRenderer(encoder_at(FOLDER), config_of({"name": "gpt-oss", "on_unwritten": "drop", **options}))  # type: ignore[arg-type]


def chats(number: int, seed: int) -> list[tuple[Messages, Any]]:
    """Random conversations; instructions come with tools, for without them the two write another end."""
    rng, made = random.Random(seed), []
    for at in range(number):
        messages, tools = conversation(rng, wanted("gpt-oss", nones=False, parts=False, marks=0.3))
        tools = TOOLS if tools else None
        if not tools and messages[0]["role"] == "system":
            messages = messages[1:] or [user()]
        made.append((forged(messages, ("<|end|>", "<|call|>", "<|start|>assistant")[at % 3]), tools))
    return made


def thoughtless(messages: Messages) -> Messages:
    """The first turn, without the answer's reasoning: the drop rules of both say the same of it."""
    answers = (at for at, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls"))
    first = messages[: next(answers, len(messages)) + 1]
    last = {key: value for key, value in first[-1].items() if key != "reasoning_content"}
    return first if first[-1].get("tool_calls") else [*first[:-1], last]


# ---- rendering


def whole() -> Any:
    return harmony.RenderConversationConfig(auto_drop_analysis=False)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_conversations_of_which_nothing_is_dropped(theirs: Any, seed: int) -> None:
    renderer = ours(preserve_all_thinking=True, conversation_start_date="2026-01-31", reasoning_effort="high")
    told = {"conversation_start_date": "2026-01-31", "reasoning_effort": harmony.ReasoningEffort.HIGH}
    for messages, tools in chats(60 if seed == 1 else 3000, seed):
        given = as_harmony(messages, tools, **told)
        trained = theirs.render_conversation_for_training(given, whole())
        assert renderer.render_ids(messages, tools=tools) == trained
        served = theirs.render_conversation_for_completion(given, harmony.Role.ASSISTANT, whole())
        assert renderer.render_ids(messages, tools=tools, add_generation_prompt=True) == served


def test_first_turns_by_default(theirs: Any) -> None:
    """The reasoning of a tool cycle under way is kept, and dropped once an answer is there: by both."""
    dropped = 0
    for messages, tools in chats(120, 3):
        turn = thoughtless(messages)
        given = as_harmony(turn, tools)
        trained = theirs.render_conversation_for_training(given)
        assert ours().render_ids(turn, tools=tools) == trained
        dropped += trained != theirs.render_conversation_for_training(given, whole())
        if turn[-1]["role"] in ("user", "tool"):
            served = theirs.render_conversation_for_completion(given, harmony.Role.ASSISTANT)
            assert ours().render_ids(turn, tools=tools, add_generation_prompt=True) == served
    assert dropped > 3


def test_the_end_of_what_is_trained(theirs: Any) -> None:
    """An answer that is last ends in `<|return|>`, which is trained; a call ends in `<|call|>`, a user in `<|end|>`."""
    asked, calling = user("x"), assistant("", tool_calls=[call("get")])
    stops = {text: encoder_at(FOLDER).control_ids[text] for text in ("<|return|>", "<|call|>", "<|end|>")}
    for chat, end in (([asked, assistant("y")], "<|return|>"), ([asked, calling], "<|call|>"), ([asked], "<|end|>")):
        ids, mask = build_training_sample(ours(), chat)
        assert ids == theirs.render_conversation_for_training(as_harmony(chat, None))
        assert (ids[-1], mask[-1]) == (stops[end], end != "<|end|>")
    assert ours().get_stop_token_ids() == [stops["<|return|>"], stops["<|call|>"]]
    assert set(ours().get_stop_token_ids()) == set(theirs.stop_tokens_for_assistant_actions())
    samples = build_training_samples(ours(), [asked, assistant("y"), asked, assistant("z")])
    assert [ids[-1] for ids, _ in samples] == [stops["<|return|>"]] * 2  # each answer as it was produced
    first = theirs.render_conversation_for_training(as_harmony([asked, assistant("y")], None))
    assert samples[0][0] == first


# ---- reading

Read = tuple[str, str, list[tuple[str | None, Any]]]


def read_by_us(ids: list[int]) -> Read:
    parsed = ours().parse_response(ids)
    assert all(found.status is Status.OK for found in parsed.tool_calls)
    calls = [(found.name, found.arguments) for found in parsed.tool_calls]
    return parsed.content, parsed.reasoning_content or "", calls


def read_by_them(theirs: Any, ids: list[int]) -> Read:
    texts: dict[bool, list[str]] = {True: [], False: []}
    calls: list[tuple[str | None, Any]] = []
    for message in theirs.parse_messages_from_completion_tokens(ids, harmony.Role.ASSISTANT):
        text = message.content[0].text
        if message.recipient:
            calls.append((message.recipient.removeprefix("functions."), json.loads(text)))
        else:
            texts[message.channel == "analysis"].append(text)
    return "\n".join(texts[False]), "\n".join(texts[True]), calls


def test_what_we_write_both_read_alike(theirs: Any) -> None:
    called = thought = 0
    for messages, tools in chats(60, 4):
        rendered = ours(preserve_all_thinking=True).render(messages, tools=tools)
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            facts = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True)
            ids = [token for token, owner, sampled in facts if sampled and owner == at]
            read = read_by_us(ids)
            assert read == read_by_them(theirs, ids)
            called += len(read[2])
            thought += bool(read[1])
    assert min(called, thought) > 50


def test_what_they_write_we_read(theirs: Any) -> None:
    header = theirs.encode("<|start|>assistant", allowed_special="all")
    for messages, _ in chats(60, 5):
        for message in messages:
            if message["role"] == "assistant":
                ids = [token for each in assistant_of(message, message["content"]) for token in theirs.render(each)]
                assert ids[: len(header)] == header
                assert read_by_us(ids[len(header) :]) == read_by_them(theirs, ids[len(header) :])


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
        " to=functions.f<|channel|>commentary<|message|>{}<|call|>",
        " to=functions.f<|channel|>analysis json<|message|>{}<|call|>",
        " to=browser.search<|channel|>analysis<|message|>{}<|call|>",
        "<|channel|>commentary<|message|>a<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
        "{}<|call|>",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>final<|message|>c<|return|>",
        "<|channel|>final<|message|>cut",
        "<|channel|>final<|message|>a<|channel|>b<|message|>c<|start|>d<|return|>",
        "<|message|>no channel<|return|>",
        "<|channel|>final<|message|><|return|>",
        "<|channel|>final<|message|> \n<|return|>",
        "<|channel|>analysis<|message|>hm<|end|>",
    ],
)
def test_completions_that_both_read_alike(theirs: Any, text: str) -> None:
    ids = theirs.encode(text, allowed_special="all")
    assert read_by_us(ids) == read_by_them(theirs, ids)


# What the library refuses, or reads as a recipient that nobody named: text -> what we read.
OTHERWISE: dict[str, tuple[Read, list[Status]]] = {
    "hello<|return|>": (("hello", "", []), []),
    "": (("", "", []), []),
    "<|channel|>fin": (("", "", []), []),
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant to": (("", "a", []), []),
    "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>": (("b", "a", []), []),
    "<|channel|><|message|>a<|end|>": (("a", "", []), []),
    "<|channel|>final <|constrain|>json<|message|>{}<|return|>": (("{}", "", []), []),
    "<|channel|>commentary code to=functions.f<|message|>{}<|call|>": (("", "", [("f", {})]), [Status.OK]),
    " to=functions.<|channel|>commentary json<|message|>{}<|call|>": (("", "", [(None, {})]), [Status.MISSING_NAME]),
    " to=functions.f<|channel|>commentary": (("", "", [("f", None)]), [Status.UNCLOSED_BLOCK]),
    " to=functions.f<|channel|>commentary<|call|>": (("", "", [("f", None)]), [Status.MALFORMED_STRUCTURE]),
    " to=functions.f<|channel|>commentary<|message|>[1]<|call|>": (
        ("", "", [("f", "[1]")]),
        [Status.MALFORMED_STRUCTURE],
    ),
    " to=functions.f<|channel|>commentary<|message|>{<|call|>": (("", "", [("f", "{")]), [Status.INVALID_JSON]),
    " to=functions.f<|channel|>commentary<|message|>{": (("", "", [("f", "{")]), [Status.UNCLOSED_BLOCK]),
}


@pytest.mark.parametrize("text", OTHERWISE)
def test_completions_that_they_read_otherwise(theirs: Any, text: str) -> None:
    expected, statuses = OTHERWISE[text]
    ids = theirs.encode(text, allowed_special="all")
    parsed = ours().parse_response(ids)
    calls = [(found.name, found.arguments) for found in parsed.tool_calls]
    assert (parsed.content, parsed.reasoning_content or "", calls) == expected
    assert [found.status for found in parsed.tool_calls] == statuses
    try:
        other: Read | None = read_by_them(theirs, ids)
    except (harmony.HarmonyError, ValueError):  # ValueError: arguments that are no JSON
        other = None
    assert other != expected


def test_the_vocabulary_is_theirs(theirs: Any) -> None:
    """Ids of texts and of markup; the file that the library reads is the published one, by its sha256."""
    encoder = encoder_at(FOLDER)
    for text in ("hello", " wörld 你好", "a\n\n\n b\t12345", "👩‍👩‍👧 e\u0301", "<|end|>"):
        assert theirs.encode(text, disallowed_special=()) == encoder.encode_pieces([text], [False])[0].tolist()
    for text in ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"):
        assert theirs.encode(text, allowed_special="all") == [encoder.control_ids[text]]
