"""Where turns end and answers stop, in small templates of classes on which an attribution was "full" and wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.random_templates import Run, runs
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.test_oracle import made, system
from tests.renderers.tiny_families import Tokens, byte_level

PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
NEWLINE_UNLESS_LAST = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}" + PROMPT
)
NEWLINE_UNLESS_FIRST = (
    "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}" + PROMPT
)
OPENERS = (
    "{% for m in messages %}{{ '<|im_end|>' if m.role == 'user' else '<|im_start|>' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
ASSISTANT_FIRST = [assistant("Hello."), user("Hi"), assistant("So?")]


def sampled(renderer: TemplateRenderer, messages: list[dict[str, Any]], **options: Any) -> list[str]:
    return [text for text, _, is_sampled, _ in runs(renderer, messages, **options) if is_sampled]


def scaffold(renderer: TemplateRenderer, messages: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(text, index) for text, index, is_sampled, content in runs(renderer, messages) if not is_sampled | content]


# ---- white space between turns


@pytest.mark.parametrize("source", [NEWLINE_UNLESS_LAST, NEWLINE_UNLESS_FIRST, CHATML])
@pytest.mark.parametrize("hidden", [False, True])
def test_white_space_after_a_stop_is_of_the_turn_that_it_ends(source: str, hidden: bool) -> None:
    """Wherever a template writes it, and whoever speaks first; also where no loop writes to the output."""
    renderer = made("{% set all %}" + source + "{% endset %}{{ all }}" if hidden else source)
    for chat in ([user("Hi"), *ASSISTANT_FIRST], ASSISTANT_FIRST):
        assert renderer.render(chat).attribution == "full"
        expected: list[Run] = []
        for index, message in enumerate(chat):
            answers = message["role"] == "assistant"
            newline = "" if index + 1 == len(chat) and source is not CHATML else "\n"
            expected.append((f"<|im_start|>{message['role']}\n", index, False, False))
            expected.append((message["content"] + "<|im_end|>" * answers, index, answers, True))
            expected.append(("<|im_end|>" * (not answers) + newline, index, False, False))
        assert runs(renderer, chat) == [run for run in expected if run[0]]


@pytest.mark.parametrize("flag", ["not loop.last", "loop.first"])
def test_a_line_between_turns_is_of_one_message_whoever_speaks_first(flag: str) -> None:
    line = "{% if " + flag + " %}{{ '---' }}{% endif %}"
    renderer = made(NEWLINE_UNLESS_LAST.replace("{% if not loop.last %}{{ '\n' }}{% endif %}", line))
    chats = ASSISTANT_FIRST[:2], [user("Hi"), assistant("Hello.")]
    owners = [{owner for text, owner, _, _ in runs(renderer, chat) if "---" in text} for chat in chats]
    assert owners[0] == owners[1]


# ---- stops


def test_an_opener_at_which_no_server_stops_is_no_stop() -> None:
    stopped = made(OPENERS)  # `<|im_end|>` is a stop of the tokenizer
    chat = [user("Hi"), assistant("Hello."), user("So?"), assistant("So.")]
    assert stopped.render(chat).attribution == "full"
    assert sampled(stopped, chat) == ["Hello.", "So."]
    source = OPENERS.replace("im_end", "vision_start").replace("im_start", "image_pad")
    assert made(source).render(chat).attribution == (
        "partial: no stop token follows message 1; '<|vision_start|>', which opens the next turn, is none"
    )
    assert made(source).render(chat[:1]).attribution == "full"
    ended = made(source, final_stop="<|im_end|>")
    assert ended.render(chat).attribution == "full"
    assert sampled(ended, chat) == ["Hello.<|im_end|>", "So.<|im_end|>"]


def test_white_space_before_an_opener_that_is_a_stop_is_sampled() -> None:
    renderer = made(OPENERS.replace("{{ m.content }}", "{{ m.content }}{{ '\n' if m.role == 'assistant' }}"))
    chat = [user("Hi"), assistant("Hello."), user("So?"), assistant("So.")]
    assert sampled(renderer, chat) == ["Hello.\n", "So.\n"]


def test_ordinary_text_is_no_stop_unless_it_is_named() -> None:
    source = (
        "{% for m in messages %}{{ 'Q: ' + m.content + '\n' if m.role == 'user' else 'A: <answer>' + m.content }}"
        "{{ '</answer>\n' if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}A: <answer>{% endif %}"
    )
    chat = [user("Hi"), assistant("Hello.")]
    assert made(source).render(chat).attribution == "partial: no stop token follows message 1"
    named = TemplateRenderer(made(source).encoder, template=source, stops=["</answer>"])
    assert named.render(chat).attribution == "full"
    assert sampled(named, chat) == ["Hello.</answer>"]


def test_the_header_of_an_empty_answer_is_no_stop() -> None:
    unless_last = NEWLINE_UNLESS_LAST.replace(" + '<|im_end|>' }}", " }}{{ '<|im_end|>' if not loop.last }}")
    source = unless_last.replace("add_generation_prompt", "false").replace("<|im_start|>' +", "<|vision_start|>' +")
    rendered = made(source).render([user("Hi"), assistant("Hello."), user("So?"), assistant("")])
    assert rendered.attribution.startswith("partial: ")


def test_the_opener_of_all_turns_is_no_stop_where_no_prompt_shows_it() -> None:
    """The tokenizer does not name the stop, and the template has no generation prompt."""
    source = NEWLINE_UNLESS_FIRST.replace("im_start", "vision_start").replace("im_end", "image_pad")
    calls = "m.content + (m.tool_calls[0].function.name if m.tool_calls else '')"
    renderer = made(source.replace(PROMPT.replace("im_start", "vision_start"), "").replace("m.content", calls))
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
    chat = [user("Hi"), {**assistant(""), "tool_calls": [call]}, {"role": "tool", "content": "4", "tool_call_id": "1"}]
    assert [text.strip() for text in sampled(renderer, chat)] == ["<|vision_start|>assistant\nlook<|image_pad|>"]


def test_a_stop_of_the_generation_config_need_not_be_special(tmp_path: Path) -> None:
    """As Laguna's `</assistant>`: a content that spells it is text."""
    tokenizer = byte_level(Tokens(controls=("<|im_end|>",), added=("</a>",)))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    stop = tokenizer.token_to_id("</a>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}', encoding="utf-8")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}), encoding="utf-8")
    turn = "{{ '<u>' + m.content + '</u>' if m.role == 'user' else '<a>' + m.content + '</a>' }}"
    source = "{% for m in messages %}" + turn + "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    renderer, chat = TemplateRenderer(tmp_path, template=source), [user("</a>"), assistant("Hello.")]
    assert renderer.render(chat).attribution == "full"
    assert sampled(renderer, chat) == ["Hello.</a>"]
    assert renderer.render_ids(chat).count(stop) == 1


# ---- where answers begin


def test_white_space_of_the_template_after_a_prompt_is_sampled() -> None:
    """The newline before the header depends on what follows, so that the served text is no beginning of the history."""
    renderer = made(NEWLINE_UNLESS_LAST.replace("m.content", "(' ' if m.role == 'assistant' else '') + m.content"))
    chat = [user("Hi"), assistant("Hello."), user("So?"), assistant("So.")]
    assert renderer.render(chat).attribution == "full"
    assert sampled(renderer, chat) == [" Hello.<|im_end|>", " So.<|im_end|>"]


def test_a_newline_of_the_header_is_not_taken_for_one_of_the_content() -> None:
    content = "(m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content)"
    renderer = made(NEWLINE_UNLESS_LAST.replace("m.content", content))
    chat = [user("Hi"), assistant("<think>\nHm.\n</think>\n\nHello.")]
    assert sampled(renderer, chat) == ["Hello.<|im_end|>"]


def test_a_span_begins_after_signs_of_another_message() -> None:
    """`>` has no substitute, and is a part of the system message all the same."""
    first = "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    rest = CHATML.replace("in messages %}", "in messages if m.role != 'system' %}", 1)
    chat = [assistant("Hello."), system("Be <kind>"), user("Hi")]
    found = runs(made(first + rest.replace("<|im_start|>", "<|vision_start|>", 1)), chat)
    assert all(index == 1 and not is_sampled for text, index, is_sampled, _ in found if ">" in text and "kind" in text)


# ---- whose the beginning is


@pytest.mark.parametrize(
    "turn",
    [
        "USER: {{ m.content }}\n{% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }}<|im_end|>\n",
        "<|vision_start|>{{ m.content }}{% elif m.role == 'assistant' %}<|image_pad|>{{ m.content }}<|im_end|>",
    ],
)
@pytest.mark.parametrize("chat", [[user("Hi")], [user("Hi"), assistant("Hello.")], ASSISTANT_FIRST])
def test_a_default_text_without_a_stop_is_of_no_message(turn: str, chat: list[dict[str, Any]]) -> None:
    source = (
        "{% set all %}Be kind.\n\n{% for m in messages %}{% if m.role == 'user' %}" + turn + "{% endif %}{% endfor %}"
    )
    prompt = "ASSISTANT:" if "USER" in turn else "<|image_pad|>"
    renderer = made(source + "{% endset %}{{ all }}{% if add_generation_prompt %}" + prompt + "{% endif %}")
    assert renderer.render(chat).attribution == "full"
    assert set((renderer.proof(chat).states[:8] >> 4).tolist()) == {-1}
    assert runs(renderer, chat)[0][:2] in (("Be kind.\n\n", -1), ("Be kind.", -1))


def test_a_number_in_the_first_header_is_no_default_text() -> None:
    turn = "[Round {{ loop.index }}] {{ m.role }}: {{ m.content }}<|im_end|>"
    renderer = made("{% set all %}{% for m in messages %}" + turn + "{% endfor %}{% endset %}{{ all }}")
    chat = [user("Hi"), assistant("Hello.")]
    assert scaffold(renderer, chat)[0] == ("[Round 1] user: ", 0)


def test_a_stop_before_any_words_ends_no_turn() -> None:
    """Nemotron's `<extra_id_1>User`: the opener of questions is a stop, and words follow it."""
    renderer = made("{% for m in messages %}{{ '<|im_end|>' + m.role + '\n' + m.content + '\n' }}{% endfor %}")
    assert runs(renderer, [user("Hi")])[0] == ("<|im_end|>user\n", 0, False, False)


def test_a_system_message_that_is_moved_with_its_markup_is_partial() -> None:
    sorted_first = (
        "{% set messages = (messages | selectattr('role', 'equalto', 'system') | list) + "
        "(messages | rejectattr('role', 'equalto', 'system') | list) %}{% set all %}"
    )
    renderer = made(sorted_first + CHATML + "{% endset %}{{ all }}")
    chat = [system("Be kind."), user("Hi"), assistant("Hello.")]
    assert renderer.render(chat).attribution == "full"
    late = [*chat, system("Be brief."), user("So?")]
    assert renderer.render(late).attribution == (
        "partial: message 3 is written before an earlier one, with markup of its own"
    )


def test_the_end_of_a_system_message_that_cannot_be_rendered_alone() -> None:
    """No stop ends it. The header of a question elsewhere shows where the next turn begins."""
    renderer = made(
        "{% if messages | length < 2 %}{{ raise_exception('more') }}{% endif %}{% set all %}{% for m in messages %}"
        "{% if m.role == 'system' %}<|vision_start|>{{ m.content }}<|image_pad|>{% else %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}{% endset %}{{ all }}"
    )
    assert scaffold(renderer, [system("Be kind."), user("Hi"), assistant("Hello.")])[:3] == [
        ("<|vision_start|>", 0),
        ("<|image_pad|>", 0),
        ("<|im_start|>user\n", 1),
    ]


def test_turns_without_text_have_owners_in_templates_without_a_prompt() -> None:
    """Bos is a stop here, and the template writes the same with a generation prompt as without."""
    turn = "{{ '<|vision_start|>' + m.role + '\n' + m.content + '\n' }}"
    turn += "{{ '<|im_end|>\n' if m.role == 'assistant' }}"
    renderer = made("{% set all %}<|im_end|>{% for m in messages %}" + turn + "{% endfor %}{% endset %}{{ all }}")
    found = renderer.proof([system(""), user(""), assistant("Hello.")])
    assert found.states[found.text.index("system")] >> 4 == 0
    assert found.states[found.text.index("user")] >> 4 == 1


def test_the_stop_of_an_empty_question_that_is_written_after_the_loop() -> None:
    source = "{% for m in messages %}{% if not loop.first %}<|im_end|>{% endif %}{{ '<|im_start|>' + m.role + '\n' }}"
    renderer = made(source + "{{ m.content }}{% endfor %}<|im_end|>" + PROMPT)
    assert runs(renderer, [user("")]) == [("<|im_start|>user\n<|im_end|>", 0, False, False)]


def test_an_answer_is_not_begun_by_a_prompt_of_which_nothing_is_written() -> None:
    """The prompt is `<think>` alone, history has a space in its place: is the space what the model emits?"""
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
        "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    )
    rendered = made(source).render([user("How?"), assistant("So.")])
    assert rendered.attribution == "partial: message 1 does not begin as the generation prompt"
