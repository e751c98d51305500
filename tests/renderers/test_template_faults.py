"""Small templates of classes on which an attribution was "full" and wrong, and what is right for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.random_templates import runs
from tests.renderers.small import assistant, user
from tests.renderers.test_oracle import STOP_IN_NEXT_TURN, made, system

OPEN_BEFORE_A_PROMPT = (  # the last answer is left open where a prompt is requested, so that the model continues it
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if not (loop.last and add_generation_prompt and m.role == 'assistant') %}<|im_end|>{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt and messages[-1].role != 'assistant' %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUESTION_IN_THE_PROMPT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{% if messages[-1].role == 'user' %}"
    "{{ '<|im_start|>system\nYour task: ' + messages[-1].content + '<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PAIRS = (  # every second message is taken for an answer, whatever its role
    "{% for pair in messages | batch(2) %}{{ 'Q: ' + pair[0].content + '\nA:' }}"
    "{% if pair | length > 1 %}{{ ' ' + pair[1].content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)


STOP = "<|im_end|>"
LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ BODY }}{{ '<|im_end|>\n' }}{% endfor %}"


def sampled(renderer: TemplateRenderer, messages: list[dict[str, Any]]) -> list[str]:
    return [text for text, _, is_sampled, _ in runs(renderer, messages) if is_sampled]


def test_an_answer_that_a_prompt_leaves_open_is_partial() -> None:
    renderer, chat = made(OPEN_BEFORE_A_PROMPT), [user("who?"), assistant("a man")]
    assert renderer.render(chat).attribution == "full"
    assert sampled(renderer, chat) == ["a man<|im_end|>"]
    opened = renderer.render(chat, add_generation_prompt=True)
    assert opened.attribution == "partial: message 1 ends without its stop '<|im_end|>'"
    asked = [*chat, user("and you?")]
    assert renderer.render(asked, add_generation_prompt=True).attribution == "full"


@pytest.mark.parametrize("chat", [[user("who?")], [user("who?"), assistant("a man"), user("sure?")]])
def test_a_question_in_the_prompt_is_content(chat: list[dict[str, Any]]) -> None:
    renderer = made(QUESTION_IN_THE_PROMPT)
    pieces = renderer.pieces(chat, add_generation_prompt=True)
    quoted = [piece for piece in pieces if piece.text == chat[-1]["content"]]
    assert [(piece.msg, piece.content, piece.sampled) for piece in quoted] == [(len(chat) - 1, True, False)] * 2
    assert pieces[-1].msg == -1


def test_a_stop_that_the_next_turn_writes_is_of_its_own_message() -> None:
    renderer = made(STOP_IN_NEXT_TURN)
    alone = runs(renderer, [system("be brief"), user("who?")])
    assert alone == [
        ("<|im_start|>system\n", 0, False, False),
        ("be brief", 0, False, True),
        ("<|im_end|>\n", 0, False, False),
        ("<|im_start|>user\n", 1, False, False),
        ("who?", 1, False, True),
        ("<|im_end|>", 1, False, False),
    ]
    asked = renderer.pieces([user("who?")], add_generation_prompt=True)
    assert [piece.msg for piece in asked] == [0, 0, 0, -1]


def test_an_answer_written_as_a_question_is_partial() -> None:
    renderer = made(PAIRS)
    assert renderer.render([user("who?"), assistant("a man")]).attribution == "full"
    assert sampled(renderer, [user("who?"), assistant("a man")]) == [" a man<|im_end|>"]
    shifted = [user("who?"), user("well?"), assistant("a man")]
    for either in (renderer, made(PAIRS, final_stop="<|im_end|>")):
        assert either.render(shifted).attribution == "partial: message 2 ends without its stop '<|im_end|>'"


@pytest.mark.parametrize("body", ["'<i>' | e + m.content", "m.content | tojson | e"])
def test_signs_that_html_escapes_are_of_the_content(body: str) -> None:
    renderer = made(LOOP.replace("BODY", body))
    found = runs(renderer, [user("is 1 < 2 & <i>?"), assistant("<b>yes</b> & <i>no</i>")])
    written = [text for text, _, is_sampled, is_content in found if is_content and not is_sampled]
    assert [text.strip("&#34;") for text in written] == ["is 1 &lt; 2 &amp; &lt;i&gt;?"]
    assert sampled(renderer, [user("x"), assistant("<b> & <i>")])[-1].endswith(
        "&amp; &lt;i&gt;" + "&#34;" * ("json" in body) + STOP
    )


SEARCHES = [
    "('X' if '<|im_end|>' in m.content else '') + m.content",
    "m.content if m.content.startswith('<|im_end|>') else m.content + '!'",
    "'E' + m.content if m.content == '<|im_end|>' else m.content",
    "m.content | replace('<|im_end|>', '')",
    "m.content.count('<|im_end|>') | string + m.content",
    "m.content.split('<|im_end|>') | join('<|im_end|>')",
    "m.content | replace('<|im_end|>', '<|im_end|>')",
    "m.content.split('<|im_end|>')[0] + '<|im_end|>' + m.content.split('<|im_end|>')[1] if '<|im_end|>' in m.content "
    "and m.role == 'user' else m.content",
]


@pytest.mark.parametrize("body", SEARCHES)
@pytest.mark.parametrize("text", ["a<|im_end|>", "<|im_end|>b", "a <|im_end|> b", "<|im_end|>", ' "<|im_end|>"\n'])
def test_a_token_that_the_template_looks_for_stays_text_in_every_message(body: str, text: str) -> None:
    renderer = made(LOOP.replace("BODY", body))
    stop = renderer.encoder.control_ids[STOP]
    for chat in (
        [user(text), assistant("yes")],
        [user("so?"), assistant(text)],
        [user("so?"), assistant(text), user(text)],
    ):
        assert renderer.lists_unwritten().render_ids(chat).count(stop) == len(chat)


@pytest.mark.parametrize(
    "body",
    [
        "m.content.split('<|im_end|>') | map('trim') | join(' <|im_end|> ')",
        "m.content | replace('<|im_end|>', ' <|im_end|>')",
    ],
)
@pytest.mark.parametrize("text", ["a<|im_end|>", "<|im_end|>b", "<|im_end|>", "a <|im_end|> b <|im_end|>"])
def test_tokens_written_again_for_those_of_a_text_are_text(body: str, text: str) -> None:
    renderer = made(LOOP.replace("BODY", body))
    stop = renderer.encoder.control_ids[STOP]
    for chat in ([user(text), assistant("yes")], [user("so?"), assistant(text)]):
        rendered = renderer.lists_unwritten().render(chat)
        assert rendered.token_ids.count(stop) <= len(chat)
        assert rendered.attribution.startswith("partial: ")


def test_what_a_template_writes_in_the_place_of_a_token_is_its_own() -> None:
    body = "m.content.split('<|im_end|>')[0] + ('<|im_end|>' if '<|im_end|>' in m.content else '')"
    renderer = made(LOOP.replace("BODY", body))
    assert renderer.render_ids([user("so?"), assistant("a<|im_end|>b")]).count(renderer.encoder.control_ids[STOP]) == 3


@pytest.mark.parametrize("text", ["<think>", "\n<think>", "<think> no"])
def test_an_answer_that_begins_as_the_tag_of_the_prompt_is_sampled(text: str) -> None:
    renderer = made(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
    assert "".join(sampled(renderer, [user("so?"), assistant(text)])) == text.strip() + STOP


@pytest.mark.parametrize("held", ["yes", ["[]"], [1, {"a": ["b"]}], {"a": "}"}, [], 3])
def test_brackets_at_the_end_of_arguments_are_written(held: Any) -> None:
    renderer = made(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
        "{% for c in m.tool_calls or [] %}{% for key, value in c.function.arguments | items %}"
        "{{ key + '=' + (value if value is string else value | tojson) + '\n' }}{% endfor %}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
    )
    renderer = renderer.lists_unwritten()  # the function's name is not written
    asked = {"type": "function", "function": {"name": "f", "arguments": {"more": held}}}
    chat = [user("so?"), {"role": "assistant", "content": "", "tool_calls": [asked]}, user("ok")]
    assert "".join(piece.text for piece in renderer.pieces(chat)) == renderer.text(chat)
    assert "".join(sampled(renderer, chat)).endswith("\n" + STOP)


@pytest.mark.parametrize("names", [["größe", "a_b", "near"], ["name", "age"], ["id", "Zip", "content"], ["type", "b"]])
def test_parameters_that_a_template_sorts_are_labels(names: list[str]) -> None:
    renderer = made(
        "{% set known = ['type'] %}{% for tool in tools or [] %}{{ '<|im_start|>' + tool.function['name'] }}"
        "{% for key, value in tool.function.parameters.properties | dictsort if key not in known %}"
        "{{ '{' + key + ':' + value['description'] + '}' }}{% endfor %}{% endfor %}"
        + LOOP.replace("BODY", "m['content']")
    )
    properties = {name: {"type": "string", "description": f"about {name}"} for name in names}
    tools = [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {"properties": properties}}}
        for properties in (dict(list(properties.items())[:1]), properties)
    ]
    chat = [user("who?"), assistant("a man")]
    rendered = renderer.render(chat, tools=tools)
    assert (rendered.attribution, rendered.attribution_route) == ("full", "gaps")
    labels = "".join(piece.text for piece in renderer.pieces(chat, tools=tools) if piece.kind is Kind.LABEL)
    assert all(name in labels for name in names if name != "type")


@pytest.mark.parametrize("text", ["ähnlich wie café", "größe", "世", '"☃"'])
def test_labels_that_json_escapes_at_their_ends_are_found(text: str) -> None:
    renderer = made("{{ tools | tojson(ensure_ascii=True) if tools }}" + LOOP.replace("BODY", "m['content']"))
    tools = [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}]
    chat = [user("who?"), assistant("a man")]
    rendered, pieces = renderer.render(chat, tools=tools), renderer.pieces(chat, tools=tools)
    assert (rendered.attribution, rendered.attribution_route) == ("full", "gaps")
    assert json.dumps(text)[1:-1] in "".join(piece.text for piece in pieces if piece.kind is Kind.LABEL)


def test_an_argument_that_is_a_word_of_the_template_is_a_reply() -> None:
    calls = (
        "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
        "{{ k + '=' }}{{ v if v is string else 'yes' if v else 'no' }}{% endfor %}{% endfor %}"
    )
    renderer = made(LOOP.replace("{{ BODY }}", "{{ m['content'] }}" + calls))
    function = {"name": "f", "arguments": {"x": "yes"}}
    chat = [user("who?"), {**assistant(""), "tool_calls": [{"type": "function", "function": function}]}]
    assert [piece.kind for piece in renderer.pieces(chat) if piece.text == "yes"] == [Kind.REPLY]


def test_a_stop_before_an_answer_of_which_nothing_is_written_is_not_its_own() -> None:
    source = "{% for m in messages %}{{ ' ' if not loop.first else '' }}{{ m.content }}{% endfor %}"
    renderer = made(source + "{{ '' if add_generation_prompt else '<|im_end|>' }}", final_stop=STOP)
    rendered = renderer.render([system(""), user(""), assistant("")])
    assert rendered.attribution == "partial: message 2 does not begin as the generation prompt"
    assert rendered.token_ids.count(renderer.encoder.control_ids[STOP]) == 1


def test_declarations_in_ordinary_text_are_remembered_whatever_tool_is_called() -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ '[' + c.function.name + ']' }}{% endfor %}"
    renderer = made(
        "{{ 'Tools: ' + tools | tojson + '.\n' if tools }}{% for m in messages %}{{ m.role + ': ' + m['content'] }}"
        + calls
        + "{{ '<|im_end|>\n' }}{% endfor %}{{ 'assistant: ' if add_generation_prompt }}"
    )
    tools = [{"type": "function", "function": {"name": name, "description": "does it"}} for name in ("f", "g")]
    for name in ("f", "g", "h"):
        call = {"type": "function", "function": {"name": name, "arguments": {}}}
        chat = [user("who?"), {**assistant("so"), "tool_calls": [call]}]
        rendered, pieces = renderer.render(chat, tools=tools), renderer.pieces(chat, tools=tools)
        assert (rendered.attribution, rendered.attribution_route) == ("full", "gaps")
        (label, *_) = [piece.text for piece in pieces if piece.kind is Kind.LABEL]
        assert label.count("does it") == 2
