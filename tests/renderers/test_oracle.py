"""Attribution is right or partial: on any template available, and on random ones with known facts."""

from __future__ import annotations

import gc
import pickle
import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import build_training_sample
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.proofs.proof import HEADER, PREFIX, USUAL, WITHOUT
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.chats import Wanted, conversation
from tests.renderers.every_template import SOURCES, VARIABLES, renderer_of
from tests.renderers.random_templates import Known, joined, random_template, runs
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.template_judge import faults
from tests.renderers.tiny_families import folder_of

STOP_IN_NEXT_TURN = (
    "{% for m in messages %}{% if not loop.first %}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% endfor %}<|im_end|>{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"
)
ONE_STOP_AT_THE_END = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}<|im_end|>{% endif %}"
)
PROMPT_ONLY_WITHOUT_THE_FLAG = (  # the two branches the wrong way round: with the flag, nothing is written
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
    "{% if not add_generation_prompt %}{{ '<|im_start|>assistant\n<|im_end|>' }}{% endif %}"
)
QUOTES_THE_USER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "Re: {{ messages[loop.index0 - 1].content }}\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
IN_JSON = CHATML.replace("m.content", "({'output': m.content} | tojson)", 1)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


CHAT = [
    system("be brief, please"),
    user('who "is" it?'),
    assistant("a man, or two."),
    user("one more"),
    assistant("yes"),
]


def made(source: str, **variables: Any) -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=source, stops=("<|im_end|>",), **variables)


# ---- single templates


def test_the_stop_is_sampled_wherever_it_is_written() -> None:
    renderer = made(STOP_IN_NEXT_TURN)
    assert [text for text, _, sampled, _ in runs(renderer, CHAT) if sampled] == [
        "a man, or two.<|im_end|>",
        "yes<|im_end|>",
    ]
    assert renderer.render(CHAT).attribution == "full"


def test_a_turn_whose_stop_is_missing_is_partial() -> None:
    renderer = made(ONE_STOP_AT_THE_END)
    assert renderer.render(CHAT).attribution.startswith("partial: message 2 ends without its stop")
    alone = renderer.render(CHAT[1:3])
    assert alone.attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, CHAT[1:3]) if sampled] == ["a man, or two.<|im_end|>"]


def test_a_span_never_crosses_data_of_another_message() -> None:
    renderer = made(QUOTES_THE_USER)
    rendered = renderer.render(CHAT)
    assert rendered.attribution == "partial: message 2 holds data of message 1"
    assert not any('who "is" it' in text for text, _, sampled, _ in runs(renderer, CHAT) if sampled)
    with pytest.raises(MessageError, match="partial"):
        build_training_sample(renderer, CHAT)
    assert any(build_training_sample(renderer, CHAT, allow_partial=True)[1])


def test_a_header_behind_the_end_of_the_served_text_is_not_left_out_of_a_proven_span() -> None:
    """The model is served `<|im_start|>user\\nhi` and writes the header itself, so that no prompt shows the start."""
    more_after_the_last_question = "{% if messages[-1].role == 'user' %}L{% endif %}"
    for template in (PROMPT_ONLY_WITHOUT_THE_FLAG, PROMPT_ONLY_WITHOUT_THE_FLAG + more_after_the_last_question):
        rendered = made(template).render([user("hi"), assistant("yes")])
        assert rendered.attribution == "partial: message 1 does not begin as the generation prompt"


def test_data_in_a_structure_that_the_template_builds_is_content() -> None:
    renderer = made(IN_JSON)
    assert renderer.render(CHAT).attribution == "full"
    found = [(text, index) for text, index, _, content in runs(renderer, CHAT[:2]) if content]
    assert found == [('"be brief, please"', 0), ('"who \\"is\\" it?"', 1)]


def test_arguments_that_a_template_sorts_are_followed() -> None:
    """Substitutes of keys sort as the keys do (Gemma 4: `arguments | dictsort`)."""
    calls = (
        "}}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | dictsort %}"
        "{{ k ~ ':' ~ v ~ ',' }}{% endfor %}{% endfor %}{{ "
    )
    source = CHATML.replace("+ '<|im_end|>", calls + "'<|im_end|>")
    arguments = {"place": "mill", "Near": "x", "days": "two"}
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    chat = [user("where?"), {**assistant(""), "tool_calls": [call]}]
    proof = made(source).proof(chat)
    (span,) = proof.sampled
    assert proof.problems == []
    assert proof.text[span.start : span.stop] == "days:two,Near:x,place:mill,<|im_end|>"


def test_the_stop_of_an_empty_answer_is_sampled_though_no_server_stops_there() -> None:
    """As in gpt-oss: history ends an answer in another token than the last answer, which serving stops at."""
    source = (
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
        "{% if loop.last and m.role == 'assistant' and not add_generation_prompt %}<|return|>{% else %}<|end|>"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    renderer = TemplateRenderer(folder_of("gpt-oss"), template=source, stops=("<|return|>",))
    chat = normalise([user("Hi"), assistant("")])
    proof = renderer.proof(chat, add_generation_prompt=True)
    (span,) = proof.sampled
    assert (span.stop_token, proof.problems) == ("<|end|>", [])
    assert proof.text[span.start : span.stop] == "<|message|><|end|>"
    emitted = renderer.emit(chat, add_generation_prompt=True)
    assert emitted.attribution == "full"
    assert "".join(p.text for p in emitted.pieces() if p.sampled) == "<|message|><|end|>"


def test_an_assistant_first_begins_as_the_prompt_after_another_conversation() -> None:
    """The template refuses to render no message, and writes a system turn of its own before the first message."""
    source = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
    renderer = made(source)
    assert renderer.render([assistant("Hello."), user("Hi")]).attribution == "full"
    proof = renderer.proof([assistant("Hello."), user("Hi")])
    assert [(proof.text[span.start : span.stop], span.rule) for span in proof.sampled] == [("Hello.<|im_end|>", USUAL)]


def test_a_prompt_that_ends_in_words_which_history_leaves_out() -> None:
    """The answer in the history begins at its content, and the rule says that the prompt had more (Apriel)."""
    source = CHATML.replace("assistant\n' }}", "assistant\nHere is my reasoning:\n' }}")
    assert source != CHATML
    proof = made(source).proof([user("Hi"), assistant("Hello.")])
    assert [(proof.text[span.start : span.stop], span.rule) for span in proof.sampled] == [("Hello.<|im_end|>", HEADER)]
    assert made(source).render([user("Hi"), assistant("Hello.")]).attribution == "full"


def test_an_assistant_first_where_nothing_is_rendered_before_any_message() -> None:
    """The template writes its prompt in the loop, so that without messages there is none (Zephyr)."""
    prompt = "{% if loop.last and add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}{% endfor %}"
    source = CHATML.partition("{% endfor %}")[0] + prompt
    renderer, chat = made(source), [assistant("Hello."), user("Hi")]
    assert renderer.render(chat).attribution == "full"
    assert [(text, index) for text, index, sampled, _ in runs(renderer, chat) if sampled] == [("Hello.<|im_end|>", 0)]


def test_instructions_that_the_template_puts_first() -> None:
    """As DeepSeek V3 does: what comes behind them is still in order."""
    source = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer, chat = made(source), [user("Hi"), assistant("Hello."), system("be brief"), user("So?"), assistant("So.")]
    proof = renderer.proof(chat)
    assert proof.problems == []
    assert [proof.text[span.start : span.stop] for span in proof.sampled] == ["Hello.<|im_end|>", "So.<|im_end|>"]
    assert proof.text.startswith("be brief")
    assert set((proof.states[:8] >> 4).tolist()) == {2}
    assert renderer.render(chat).attribution == "full"
    mixed = source.replace("m.role == 'system'", "m.role == 'user'").replace("m.role != 'system'", "m.role != 'user'")
    assert made(mixed).render(chat).attribution.startswith("partial: the template writes a message after a later one")


TOOL = {"role": "tool", "content": "sunny", "tool_call_id": "1"}
RESULTS = (
    "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]"
    "{% else %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>{{ m.role }}\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_answer_behind_a_result_without_another_header() -> None:
    """Serving writes the header again (Apertus); the model emits the content and its stop all the same."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
    chat = [user("Hi"), {**assistant(""), "tool_calls": [call]}, TOOL, assistant("It is.")]
    renderer = made(RESULTS)
    proof = renderer.proof(chat)
    assert [(proof.text[span.start : span.stop], span.rule) for span in proof.sampled] == [
        ("look<|im_end|>", PREFIX),
        ("It is.<|im_end|>", WITHOUT),
    ]
    assert renderer.render(chat).attribution == "full"
    other = made(RESULTS.replace("{{ m.content }}{% for c", "Answer: {{ m.content }}{% for c"))
    assert other.render(chat).attribution == "partial: message 3 does not begin as the generation prompt"


ENDED_BY_THE_NEXT_TURN = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if not loop.first %}<|im_end|>{% endif %}<|im_start|>user\n"
    "{% elif m.role == 'assistant' and messages[loop.index0 - 1].role != 'assistant' %}<|im_start|>assistant\n"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_stop_that_only_a_users_turn_writes_is_one() -> None:
    """Another answer would be joined to this one, so that not everybody who may speak next writes it (Apertus)."""
    renderer = made(ENDED_BY_THE_NEXT_TURN)
    chat = [user("Hi"), assistant("Hello."), user("So?"), assistant("So.")]
    assert renderer.render(chat).attribution == "partial: message 3 ends without its stop '<|im_end|>'"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["Hello.<|im_end|>", "So."]
    assert renderer.render(chat[:3]).attribution == "full"


def test_white_space_between_turns_may_be_of_either() -> None:
    """The prompt begins without it, and a turn in the history with it (Tulu's thinker)."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ '' if loop.last else '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    chat = [user("Hi"), assistant("Hello."), assistant("Well?")]
    proof = made(source).proof(chat)
    assert proof.problems == []
    assert [proof.text[span.start : span.stop] for span in proof.sampled] == ["Hello.<|im_end|>", "Well?<|im_end|>"]


STOP_UNLESS_LAST = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' ~ c.function.name ~ '</call>' }}{% endfor %}"
    "{% if not loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'assistant' %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_the_markup_of_a_call_is_not_its_stop() -> None:
    """A turn that ends the rendering has no stop (Qwen 1.5), so that the call's markup would seem to end it."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
    renderer, calls = made(STOP_UNLESS_LAST), {**assistant("Wait."), "tool_calls": [call]}
    chat = [user("Hi"), calls, TOOL, assistant("Sunny."), user("So?")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == [
        "Wait.<call>look</call><|im_end|>",
        "Sunny.<|im_end|>",
    ]
    assert renderer.render(chat[:2]).attribution == "partial: message 1 ends without its stop '<|im_end|>'"


def test_the_end_of_reasoning_is_no_stop() -> None:
    """A user who speaks next drops the reasoning, so that what follows this answer is not seen in the history."""
    thought = (
        "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content"
    )
    renderer = made(STOP_UNLESS_LAST.replace("+ m.content", "}}" + thought))
    chat = [user("Hi"), {**assistant(""), "reasoning_content": "hm"}]
    assert renderer.text(chat).endswith("<think>hm</think>")
    assert renderer.render(chat).attribution == "partial: message 1 ends without its stop '<|im_end|>'"


def test_the_opener_of_questions_is_not_missed_as_a_stop() -> None:
    """Models that stop where the next question opens (GLM) write no stop of their own after the last answer."""
    renderer = made(
        "{% for m in messages %}{% if m.role == 'user' %}<|im_end|>{{ m.content }}{% else %}"
        "<|im_start|>{{ '<think>' if loop.last else '' }}</think>{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|><think>{% endif %}"
    )
    chat = [user("Hi"), assistant("")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["</think>"]


@pytest.mark.parametrize("source", [STOP_UNLESS_LAST, CHATML.replace("add_g", "messages[-1].role == 'user' and add_g")])
def test_the_header_of_an_answer_after_an_answer_is_not_sampled(source: str) -> None:
    """The template writes no generation prompt there, but nobody would have the model write the header itself."""
    renderer, chat = made(source), [user("Hi"), assistant("Hello."), assistant("Well?"), user("So?")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["Hello.<|im_end|>", "Well?<|im_end|>"]
    assert renderer.render([*chat[:2], assistant("\n")]).attribution == (
        "full" if source is not STOP_UNLESS_LAST else "partial: message 2 ends without its stop '<|im_end|>'"
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_the_header_of_an_empty_message_is_its_own(hidden: bool) -> None:
    """Also where no loop writes to the output."""
    loop, _, prompt = CHATML.partition("{% if add")
    source = "{% set all %}" + loop + "{% endset %}{{ all }}{% if add" + prompt if hidden else CHATML
    for chat in ([user(""), assistant("Hello.")], [user("Hi"), assistant("")], [user("Hi"), user(""), assistant("A")]):
        found = runs(made(source), chat)
        for index, message in enumerate(chat):
            mine = "".join(text for text, owner, _, _ in found if owner == index)
            assert mine == f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"


def test_an_empty_result_in_a_turn_of_several_results() -> None:
    source = (
        "{% set all %}{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>{% else %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
        "{{ '\n<r>' + m.content + '</r>' }}"
        "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>{% endif %}{% endif %}{% endfor %}{% endset %}"
        "{{ all }}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = [user("Hi"), assistant("Wait."), TOOL, {**TOOL, "content": ""}, assistant("Sunny.")]
    assert [
        (text, index) for text, index, _, content in runs(made(source), chat) if index in (2, 3) and not content
    ] == [
        ("<|im_start|>user\n<r>", 2),
        ("</r>", 2),
        ("\n<r></r><|im_end|>", 3),
    ]


def test_white_space_between_the_generation_prompt_and_an_answer_is_sampled() -> None:
    """Without headers, serving ends with the question, and the model writes what stands between."""
    source = (
        "{% for m in messages %}{{ ' ' if not loop.first }}{{ m.content }}"
        "{% if loop.last and not add_generation_prompt %}<|im_end|>{% endif %}{% endfor %}"
    )
    renderer, chat = made(source), [user("Hi"), assistant("Hello.")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == [" Hello.<|im_end|>"]


def test_a_question_that_ends_as_its_stop_has_a_stop_all_the_same() -> None:
    """The next turn writes the stop, so that the text before it seems to have one already."""
    loop = STOP_IN_NEXT_TURN.partition("<|im_end|>{% if add")[0]
    end = "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
    renderer = made("{% set all %}" + loop + "{% endset %}{{ all }}" + end, final_stop="<|im_end|>")
    chat = [user("a <|im_end|>"), assistant("Hello.")]
    assert renderer.render(chat).attribution == "full"
    assert runs(renderer, chat)[2] == ("<|im_end|>\n", 0, False, False)


def test_an_answer_of_white_space_alone_is_sampled() -> None:
    """No letter shows where it is; its place is found by a letter in its place."""
    source = "{% for m in messages %}{{ m.content if m.role != 'user' else '[u] ' + m.content + ' [/u]' }}{% endfor %}"
    renderer, chat = made(source, final_stop="<|im_end|>"), [user("Hi"), assistant("\n")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["\n<|im_end|>"]


def test_the_header_of_an_answer_that_is_the_first_message_is_not_sampled() -> None:
    """The generation prompt writes the stop of the message before it, and there is none: only bos is the same."""
    end = "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
    renderer = made("{{ bos_token }}" + STOP_IN_NEXT_TURN.partition("<|im_end|>{% if add")[0] + end, bos_token="<s>")
    chat = [assistant("Hello."), user("Hi"), assistant("Yes."), user("So?")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["Hello.<|im_end|>", "Yes.<|im_end|>"]


def test_the_stop_of_a_last_result_is_its_own_behind_other_text() -> None:
    """The template closes the conversation after its loop."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '\n</r>' if m.role == 'tool' }}"
        "{{ '<|im_end|>\n' if not loop.last }}{% endfor %}<|im_end|>\n"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = [user("Hi"), assistant("Wait."), TOOL]
    assert runs(made(source), chat)[-1] == ("\n</r><|im_end|>\n", 2, False, False)


def test_a_control_token_that_an_answer_ends_in_is_no_stop() -> None:
    """The template only writes the token, from a mapping, but might as well compare contents with it."""
    source = (
        "{% set all %}{% for m in messages %}{{ {'user': '<|im_start|>', 'assistant': '<|endoftext|>'}[m.role] }}"
        "{{ m.content }}{% endfor %}{% endset %}{{ all }}{% if add_generation_prompt %}<|endoftext|>{% endif %}"
    )
    renderer, chat = made(source, final_stop="<|im_end|>"), [user("Hi"), assistant("a <|im_start|>"), user("So?")]
    assert renderer.render(chat).attribution == "full"
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["a <|im_start|><|im_end|>"]


def test_an_answer_of_which_nothing_is_left_has_its_header_and_stop() -> None:
    """The template drops the reasoning, which is all of it."""
    loop = CHATML.replace("m.content", "(m.content.split('</think>') | last)").replace("in messages", "in ns.l")
    source = (
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [dict(m, one=1)] %}{% endfor %}"
        + loop
    )
    renderer, chat = made(source), [user("Hi"), assistant("hm</think>"), user("So?"), assistant("So.")]
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["<|im_end|>", "So.<|im_end|>"]
    assert [index for text, index, _, _ in runs(renderer, chat) if "assistant" in text] == [1, 3]


def test_a_result_that_ends_in_a_sign_ends_with_the_markup_around_it() -> None:
    """Signs such as `<` have no substitute; the one in the content must not seem to open a tag of the template."""
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}[{{ {'r': m.content} | tojson }}]{% elif m.role == 'user' %}"
        "[{{ m.content }}]{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if not add_generation_prompt %}<|im_end|>{% endif %}"
    )
    renderer = made(source, final_stop="<|im_end|>")
    chat = [user("Hi"), assistant("Wait."), {**TOOL, "content": "one, <"}, assistant("Sunny.")]
    assert renderer.render(chat).attribution == "full"
    assert runs(renderer, chat)[-2:] == [("}]", 2, False, False), ("Sunny.<|im_end|>", 3, True, True)]


def test_a_blank_answer_without_its_reasoning_ends_before_the_next_header() -> None:
    """Every control token that ends a turn opens the next one (GLM), and the reasoning is dropped from the history."""
    source = (
        "{% for m in messages %}{{ '<|im_end|>' if m.role == 'user' else '<|im_start|>' }}"
        "{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    chat = [user("Hi"), assistant(" ", reasoning_content="hm"), user("So?"), assistant("So.")]
    assert [text for text, _, sampled, _ in runs(made(source), chat) if sampled] == [" ", "So."]


def test_a_generation_prompt_that_is_text_is_not_cut_in_its_first_tag() -> None:
    """The tokenizer has only the stop; the prompt and the stop that it takes the place of begin alike."""
    source = (
        "{% for m in messages %}<|role|>{{ m.role }}\n{{ {'r': m.content} | tojson }}{% endfor %}"
        "{% if add_generation_prompt %}<|role|>assistant\n{% else %}<|im_end|>{% endif %}"
    )
    renderer, chat = made(source, final_stop="<|im_end|>"), [user("Hi"), assistant("Hello."), user("So?")]
    out = renderer.emit(normalise(chat), add_generation_prompt=True)
    assert out.attribution == "full"
    assert joined([(p.text, p.msg, p.sampled, p.content) for p in out.pieces()])[-1] == (
        "<|role|>assistant\n",
        -1,
        False,
        False,
    )


def test_a_block_before_an_answer_that_is_the_first_message_is_not_sampled() -> None:
    """Served without messages, the template writes nothing, and a default text before the first message."""
    source = (
        "{% if messages and messages[0].role != 'system' %}<|im_start|> Be kind. <|endoftext|>{% endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + '<|im_end|>' }}{% else %}"
        "{{ '<|im_start|> ' + m.content + ' <|endoftext|>' }}{% endif %}{% endfor %}"
    )
    assert made(source).render([user("Hi"), assistant("Hello.")]).attribution == "full"
    rendered = made(source).render([assistant("Hello."), user("Hi")])
    assert rendered.attribution == "partial: message 0 does not begin as the generation prompt"


def test_a_first_answer_begins_with_what_history_has_in_place_of_the_prompt() -> None:
    """GLM: the prompt ends in `<think>`, history has `</think>` in its place, and tools are a block before all."""
    source = (
        "{% if tools %}<|im_start|>{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ '</think>' if m.role == 'assistant' }}{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": "look"}}]
    pieces = made(source).pieces([assistant("Hello."), user("Hi")], tools=tools)
    assert "".join(piece.text for piece in pieces if piece.sampled) == "</think>Hello.<|im_end|>"
    assert made(source).render([assistant("Hello."), user("Hi")], tools=tools).attribution == "full"


def test_the_stop_of_an_empty_result_is_not_that_of_the_call_before_it() -> None:
    """The template closes the conversation once, and no letter of the last message is between the two turns."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function.name }}</call>{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|im_end|>{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
    renderer = made(source, final_stop="<|im_end|>")
    chat = [user("Hi"), {**assistant("Wait."), "tool_calls": [call]}, {**TOOL, "content": ""}]
    assert [text for text, _, sampled, _ in runs(renderer, chat) if sampled] == ["Wait.<call>look</call><|im_end|>"]


def test_a_generation_prompt_in_place_of_the_last_stop_is_of_no_message() -> None:
    """Without a prompt, the text goes on otherwise."""
    source = (
        "{% set all %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}{% endset %}{{ all }}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|im_end|>{% endif %}"
    )
    pieces = made(source).pieces([user("Hi")], add_generation_prompt=True)
    assert [piece.msg for piece in pieces if "assistant" in piece.text] == [-1]


def test_a_stop_alone_is_of_no_message() -> None:
    """Nothing shows whether the template leaves the message out."""
    source = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    assert runs(made(source), [system("")]) == [("<|im_end|>", -1, False, False)]


def test_a_stop_in_the_generation_prompt_is_not_written_again() -> None:
    """Whatever follows this answer, the template leaves out its tags, so that no other text shows what follows it."""
    loop = STOP_IN_NEXT_TURN.partition("<|im_end|>{% if add")[0]
    tags = "{% if m.role == 'assistant' and loop.last %}<think>\n</think>{% endif %}{{ m.content | trim }}"
    end = "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
    renderer = made(loop.replace("{{ m.content }}", tags) + end, final_stop="<|im_end|>")
    plain = made(renderer.source)
    chat = [user("Hi"), assistant("\n")]
    assert renderer.text(chat, add_generation_prompt=True) == plain.text(chat, add_generation_prompt=True)
    assert renderer.text(chat) == plain.text(chat) + "<|im_end|>"


MERGED = (
    "{% set ns = namespace(open='') %}{% for m in messages %}{% if ns.open != m.role %}{{ '<|im_end|>\n' if ns.open }}"
    "<|im_start|>{{ m.role }}\n{% set ns.open = m.role %}{% else %}{{ '\n\n' }}{% endif %}{{ m.content }}{% endfor %}"
    "<|im_end|>\n{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_blank_question_in_a_turn_of_several_has_its_stop() -> None:
    """The stop after the first question would seem to be the one here, except for white space."""
    assert runs(made(MERGED), [user("one"), user("\n"), assistant("Hello.")])[1:6] == [
        ("one", 0, False, True),
        ("\n\n", 1, False, False),
        ("\n", 1, False, True),
        ("<|im_end|>\n", 1, False, False),
        ("<|im_start|>assistant\n", 2, False, False),
    ]


def test_instructions_behind_a_later_message_have_no_proven_markup() -> None:
    """Nothing shows which markup in the later message's turn is theirs; without markup, everything is known."""
    source = "{% for m in messages | reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    rendered = made(source).render([system("be brief"), user("Hi")])
    assert rendered.attribution == "partial: message 0 is written after a later one, with markup of its own"
    in_the_question = (
        "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if loop.index0 == 1 and messages[0].role == 'system' %}{{ '\n\n' + messages[0].content }}{% endif %}"
        "<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = [system("be brief"), user("Hi"), assistant("Hello.")]
    assert made(in_the_question).render(chat).attribution == "full"
    assert ("be brief", 0, False, True) in runs(made(in_the_question), chat)


IN_THE_FIRST_QUESTION = (  # as Llama-2 does it
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}"
    "{{ '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' }}{% endif %}{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(IN_THE_FIRST_QUESTION, id="in the first question, with tags"),
        pytest.param(
            IN_THE_FIRST_QUESTION.replace("loop.index0 == 1", "m.role == 'user' and loop.last"),
            id="in the last question, with tags",
        ),
        pytest.param(
            IN_THE_FIRST_QUESTION.replace("m.role != 'system'", "true"), id="in its own turn and in the first question"
        ),
        pytest.param(
            IN_THE_FIRST_QUESTION.replace(" and messages[0].role == 'system'", "").replace(
                "messages[0].content", "(messages[0].content if messages[0].role == 'system' else 'Be kind.')"
            ),
            id="in the first question, with a default",
        ),
    ],
)
def test_instructions_in_the_turn_of_a_question_are_proven(source: str) -> None:
    chat = [system("be brief"), user("Hi"), assistant("Yo there."), user("More")]
    for length in (2, 3, 4):
        assert made(source).lists_unwritten().render(chat[:length]).attribution == "full"
    assert ("be brief", 0, False, True) in runs(made(source), chat)


def test_the_renderings_of_a_conversation_are_freed_when_it_is_proven() -> None:
    """Those of 40 messages of 1,700 characters take 60 MB, which would wait for a garbage collection."""
    renderer = made(CHATML)
    gc.collect()
    gc.disable()
    try:
        before = sum(type(value) is Renderings for value in gc.get_objects())  # which other tests hold
        assert not renderer.proof(CHAT).problems
        assert sum(type(value) is Renderings for value in gc.get_objects()) == before
    finally:
        gc.enable()


def test_a_first_header_with_a_number_of_its_own_is_the_first_messages() -> None:
    """Only its end is as in a later header, but it is no text that the template adds before all messages."""
    source = CHATML.replace("m.role + '\n'", "m.role + ' (' ~ m.content.split() | length ~ ' words)\n'")
    chat = [user("one two three four"), assistant("Yes.")]
    assert [owner for text, owner, _, _ in runs(made(source), chat) if "user (4 words)" in text] == [0]
    block = "{% if loop.first %}<|im_start|>Be kind. {% endif %}{{ 'USER: ' +"
    found = runs(made(CHATML.replace("{{ '<|im_start|>' +", block, 1)), chat)
    assert found[:2] == [("<|im_start|>Be kind. ", -1, False, False), ("USER: user\n", 0, False, False)]


def test_escaped_letters_are_followed() -> None:
    """Substitutes are no ASCII, so `ensure_ascii` escapes them (Reka); letters that it also escapes are not proven."""
    source = CHATML.replace("m.content", "({'c': m.content} | tojson(ensure_ascii=True))")
    renderer, chat = made(source), [user('a "b"'), assistant("Hello.")]
    assert renderer.render(chat).attribution == "full"
    assert [(text, index) for text, index, _, content in runs(renderer, chat[:1]) if content] == [('"a \\"b\\""', 0)]
    assert renderer.render([user("caf\u00e9"), assistant("Hello.")]).attribution.startswith("partial: ")


def test_a_rendering_does_not_depend_on_what_was_rendered_before() -> None:
    """What is remembered grows with use, but depends on the kinds of the messages alone."""
    source = STOP_IN_NEXT_TURN
    alone = made(source).render(CHAT)
    used = made(source)
    for chat in (CHAT[1:3], CHAT[:3], [user("a")], CHAT[1:]):
        used.render(chat)
    assert used.render(CHAT) == alone
    assert pickle.loads(pickle.dumps(used)).render(CHAT) == alone


def test_a_word_for_which_the_template_writes_another_text() -> None:
    """For this word the template quotes the user in the answer, which stand-ins without the word do not show."""
    source = QUOTES_THE_USER.replace("m.role == 'assistant'", "m.role == 'assistant' and 'magic' in m.content")
    renderer = made(source)
    assert renderer.render(CHAT).attribution == "full"
    chat = [user("a question"), assistant("a magic answer")]
    assert renderer.render(chat).attribution == "partial: message 1 holds data of message 0"


@pytest.mark.parametrize("written", ["m.role != 'tool'", "m.role != 'tool' or m.content"])
def test_results_that_the_template_passes_over_have_no_pieces(written: str) -> None:
    loop, prompt = CHATML.split("{% endfor %}")
    renderer = made(loop.replace("{{", "{% if " + written + " %}{{") + "{% endif %}{% endfor %}" + prompt)
    renderer = renderer.lists_unwritten()
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
    chat = [user("Hi"), assistant("", tool_calls=[call]), {**TOOL, "content": ""}, assistant("Sunny.")]
    assert renderer.render(chat).attribution == "full"
    assert all(index != 2 for _, index, _, _ in runs(renderer, chat))


# ---- templates with known facts


def check_known(known: Known, renderer: TemplateRenderer, rng: random.Random) -> None:
    for _ in range(3):
        chat = [system("be kind, always")] if rng.random() < 0.5 else []
        for turn in range(rng.randint(1, 3)):
            thought = {"reasoning_content": f"thought {turn}: hm"} if known.think and rng.random() < 0.7 else {}
            chat += [
                user(f"question {turn}, {rng.random()}?"),
                assistant(f'answer "{turn}", {rng.random()}.', **thought),
            ]
        expected = known.expected(chat)
        rendered = renderer.render(chat)
        assert renderer.text(chat) == "".join(run[0] for run in expected), known.source
        if rendered.attribution != "full":
            assert rendered.attribution.startswith("partial: ")
            continue
        assert runs(renderer, chat) == joined(expected), known.source


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_random_templates_have_their_known_facts(seed: int) -> None:
    partial = 0
    for number in range(50):
        rng = random.Random(f"{seed} {number}")
        known = random_template(rng)
        renderer = made(known.source, bos_token="<s>")
        check_known(known, renderer, rng)
        partial += renderer.render([user("a"), assistant("b")]).attribution != "full"
    assert partial <= 2


# ---- templates available


def judge(name: str, number: int, seed: int) -> Counter[str]:
    renderer, rng, counts = renderer_of(name), random.Random(f"{name} {seed}"), Counter[str]()
    for _ in range(number):
        wanted = Wanted(tools=rng.random() < 0.4, reasoning=rng.random() < 0.3)
        messages, tools = conversation(rng, wanted)
        try:
            attribution = renderer.emit(messages, tools=tools).attribution
        except (MessageError, TemplateError):
            counts["refused"] += 1
            continue
        counts["partial" if attribution != "full" else "full"] += 1
        found = faults(renderer, messages, tools, VARIABLES)
        assert not found, (name, attribution, messages, found[:3])
    return counts


@needs_assets
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))])
def test_no_template_has_a_silent_error(part: int) -> None:
    for name in sorted(SOURCES)[part::8]:
        judge(name, 2, seed=part)


@needs_assets
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_no_template_has_a_silent_error_in_many_conversations(name: str) -> None:
    judge(name, 120, seed=9)


def test_the_judge_finds_faults() -> None:
    renderer = made(STOP_IN_NEXT_TURN)
    assert not faults(renderer, CHAT, None)
    out = renderer.emit(CHAT)
    out.facts[:] = [fact & ~15 | Kind.TEMPLATE if fact & 15 == Kind.STOP else fact for fact in out.facts]
    renderer.emit = lambda messages, **options: out  # type: ignore[method-assign]
    assert "the stop of message 2, '<|im_end|>', is not sampled" in faults(renderer, CHAT, None)
