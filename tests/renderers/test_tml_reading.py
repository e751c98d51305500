"""Our families beside tml-renderers: completions as both read them, placeholders of images."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("tml_renderers", reason="no tml-renderers")
from tml_renderers import chat

from niels_gpt.renderers.registry import FAMILIES
from tests.renderers import tml
from tests.renderers.chats import Messages
from tests.renderers.small import user
from tests.renderers.test_tml import plain_arguments, random_chat
from tests.renderers.tiny_images import png

# ---- reading completions

# Completions that the two read otherwise, by a family; `None`: they refuse it.
READ: dict[str, tuple[str, str, tml.Read, tml.Read | None]] = {
    "the newline before a call": (
        "qwen3",
        'y\n<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call><|im_end|>',
        tml.Read("y", "", [("get", {})]),
        tml.Read("y\n", "", [("get", {})]),
    ),
    "the newline between calls": (
        "qwen3.5 without thinking",
        "<tool_call>\n<function=get>\n</function>\n</tool_call>\n<tool_call>\n<function=get>\n</function>\n</tool_call>"
        "<|im_end|>",
        tml.Read("", "", [("get", {})] * 2),
        tml.Read("\n", "", [("get", {})] * 2),
    ),
    "a large integer": (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n"
        '{"a": 1000000000000000000000000000001}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
        tml.Read("", "", [("get", {"a": 10**30 + 1})]),
        tml.Read("", "", [("get", {"a": 1e30})]),
    ),
    "a boolean as Qwen3.5's template writes it": (
        "qwen3.5 without thinking",
        "<tool_call>\n<function=get>\n<parameter=a>\nTrue\n</parameter>\n</function>\n</tool_call><|im_end|>",
        tml.Read("", "", [("get", {"a": True})]),
        tml.Read("", "", [("get", {"a": "True"})]),
    ),
    "an empty answer": ("gpt-oss, low effort", "<|channel|>final<|message|><|return|>", tml.Read("", "", []), None),
    "blank reasoning": (
        "kimi-k2.5",
        "\n</think>y<|im_end|>",
        tml.Read("y", "", []),
        tml.Read("y", "\n", []),
    ),
    "newlines around reasoning": (
        "kimi-k2.5",
        "\n\nr\n</think>y<|im_end|>",
        tml.Read("y", "r", []),
        tml.Read("y", "\n\nr\n", []),
    ),
    "newlines around the end of R1's reasoning": (
        "deepseek-r1",
        "r\n</think>\n\ny<｜end▁of▁sentence｜>",
        tml.Read("y", "r", []),
        tml.Read("\n\ny", "r\n", []),
    ),
    "quotation marks around a text of GLM": (
        "glm-5.2",
        '</think><tool_call>get<arg_key>a</arg_key><arg_value>"x"</arg_value></tool_call><|observation|>',
        tml.Read("", "", [("get", {"a": '"x"'})]),  # what its template writes of this text
        tml.Read("", "", [("get", {"a": "x"})]),
    ),
    "spaces around reasoning": (
        "glm-5.2",
        " r\t</think>y<|user|>",
        tml.Read("y", " r\t", []),
        tml.Read("y", "r", []),
    ),
}


def ids_of(name: str, text: str) -> list[int]:
    """A completion's ids, markup recognised."""
    ids: list[int] = tml.encoder_of(tml.JUDGED[name].kind).encode_pieces([text], [True])[0].tolist()
    return ids


@pytest.mark.parametrize("case", READ)
def test_completions_that_are_read_otherwise(case: str) -> None:
    name, text, ours, theirs = READ[case]
    assert tml.read_by_us(name, ids_of(name, text)) == ours
    if theirs is None:
        with pytest.raises(ValueError, match="without message content"):
            tml.read_by_them(name, [user()], ids_of(name, text))
    else:
        assert tml.read_by_them(name, [user()], ids_of(name, text)) == theirs


def said_in(rng: random.Random, name: str) -> tuple[Messages, Any, list[int]]:
    """A conversation whose last answer is in neither list, its tools, and the ids of that answer."""
    while True:
        messages, tools = random_chat(rng, name)
        messages = plain_arguments(messages)
        last = messages[-1]
        holds = [last["content"] or "", last.get("reasoning_content") or "x"]
        arguments = [value for each in last.get("tool_calls") or [] for value in each["function"]["arguments"].values()]
        literal = any(isinstance(value, bool) or value is None for value in arguments)
        if not all(map(str.strip, holds)) or (literal and tml.JUDGED[name].family == "qwen3.5"):
            continue
        if name.startswith("glm") and '"x"' in arguments:
            continue
        turn = tml.turns_of(tml.our_samples(name, messages, tools))[-1]
        return messages, tools, [*turn.ids[turn.start :]]


@pytest.mark.parametrize("number", [8, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in tml.JUDGED if name != "kimi-k2"])  # their K2 opens with reasoning
def test_all_else_is_read_alike(name: str, number: int) -> None:
    rng = random.Random(name)
    for _ in range(number):
        messages, tools, said = said_in(rng, name)
        theirs = tml.read_by_them(name, messages[:-1], said, tools)
        if theirs.calls and name.startswith("qwen"):
            theirs = theirs._replace(content=theirs.content.rstrip("\n"))
        if name.startswith(("kimi", "deepseek-v4", "deepseek-r1")):
            theirs = theirs._replace(reasoning=theirs.reasoning.strip("\n"))
        if name == "deepseek-r1":
            theirs = theirs._replace(content=theirs.content.lstrip("\n"))
        ours = tml.read_by_us(name, said, tools)
        if name.startswith("glm"):
            ours = ours._replace(reasoning=ours.reasoning.strip())
        assert ours == theirs


# ---- efforts


@pytest.mark.parametrize("effort", [0, 0.2, 0.55, 0.9, 0.99])
def test_prompts_of_inkling_with_an_effort(effort: float) -> None:
    """Their samples have none; the prompts are equal."""
    rng = random.Random(str(effort))
    renderer = FAMILIES["inkling"](tml.encoder_of("v0.Renderer"), thinking_effort=effort, sampled_header=True)
    for _ in range(20):
        messages, tools = random_chat(rng, "inkling")
        given = tml.as_tml(messages[:-1], tools, inkling=True)
        spans, _ = tml.theirs("inkling").render_for_completion_with_effort(given, effort)
        assert renderer.render_ids(messages[:-1], tools=tools, add_generation_prompt=True) == tml.ids_of(spans)


# ---- images


@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3.5"])
def test_images_have_as_many_placeholders(name: str) -> None:
    """As Transformers' processor with the models' sizes: patches of 16 x 16, four to a token, from 64 tokens on."""
    images = pytest.importorskip("PIL.Image")
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = module.Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=2, temporal_patch_size=2, size={"shortest_edge": 65536, "longest_edge": 16777216}
    )
    ours = tml.ours(name)
    renderer: Any = FAMILIES[ours.name](ours.encoder, ours.config, processor=processor)  # type: ignore[call-arg]
    author, rng = chat.Author(chat.AuthorKind.User), random.Random(name)
    for _ in range(6):
        width, height = rng.randint(20, 900), rng.randint(20, 900)
        part = {"type": "image", "image": png(images.new("RGB", (width, height)))}
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "hi"}]}]
        ids = renderer.render_ids(messages, add_generation_prompt=True)
        pointer = chat.ImagePointer("a.png", chat.ImageFormat.Png, width, height)
        asked = [chat.Message(pointer, author), chat.Message(chat.Text("hi"), author)]
        before, image, after = (span.span for span in tml.theirs(name).render_for_completion(asked)[0])
        pad = renderer.encoder.added_ids["<|image_pad|>"]
        assert ids == [*before.tokens, *[pad] * image.num_tokens, *after.tokens]
