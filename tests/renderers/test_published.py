"""Templates as people publish them: nothing that is called fully attributed is wrong; and what once was."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")  # renders beside us
from niels_gpt.errors import MessageError
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from tests.folders import shared_folder
from tests.memory import shared
from tests.renderers.published import CONTROLS, MARKUPS, TODAY, Format, Messages, random_chat, random_format
from tests.renderers.published_source import source_of
from tests.renderers.served_messages import plainly
from tests.renderers.small import CHATML, assistant, call, result, user
from tests.renderers.tiny_families import Tokens, byte_level


@shared
def encoder(eos: str) -> Any:
    """A tiny tokenizer with the control tokens of all formats; completions end in one of them."""
    folder = shared_folder("tiny-published-")
    tokens = Tokens(controls=(eos, *(one for one in CONTROLS if one != eos)), added=("<think>", "</think>"))
    byte_level(tokens).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}), encoding="utf-8")
    return open_encoder(folder)


def made(source: str, eos: str = "<|im_end|>") -> TemplateRenderer:
    return TemplateRenderer(encoder(eos), template=source, clock=lambda form: TODAY, bos_token="<s>", eos_token=eos)


def published(number: str) -> tuple[Format, TemplateRenderer, random.Random]:
    """A random format and its template; now and then the tokenizer does not say that the format's stop is one."""
    rng = random.Random(f"published {number}")
    form = random_format(rng)
    source, eos = source_of(form, rng), form.markup.stop
    if form.stop == "turn" and not form.is_sliced and rng.random() < 0.25:
        eos = rng.choice([one.stop for one in MARKUPS.values() if one.stop not in source])
    return form, made(source, eos), rng


def judge(form: Format, renderer: TemplateRenderer, chat: Messages, tools: Any, gen: bool) -> tuple[str, list[str]]:
    """The attribution, and what is wrong with a rendering."""
    expected = form.expected(chat, tools, gen)
    text, plain = "".join(run.text for run in expected), plainly(renderer, chat, tools, gen, {"bos_token": "<s>"})
    try:
        out = renderer.emit(chat, tools=tools, add_generation_prompt=gen)
    except MessageError as error:
        return "refused", [] if plain is None else [f"refused, and transformers does not: {error}"]
    assert plain == text, renderer.source  # or the generator errs
    pieces = [piece for piece in out.pieces() for _ in piece.text]
    assert "".join(piece.text for piece in out.pieces()) == text
    wanted = [run for run in expected for _ in run.text]
    if out.attribution != "full":  # also then no data of another message is sampled
        crossed = [at for at, run in enumerate(wanted) if pieces[at].sampled and run.content and not run.sampled]
        return "partial", [f"sampled over data: {text[at : at + 20]!r}" for at in crossed[:1]]
    stops = [
        f"message {index} has no stop"
        for index, message in enumerate(chat)
        if message["role"] == "assistant" and not form.is_complete(chat, index, gen)
    ]
    return "full", [*stops, *_differences(text, wanted, pieces)]


def _differences(text: str, wanted: list[Any], pieces: list[Any]) -> Iterator[str]:
    for at, (run, piece) in enumerate(zip(wanted, pieces, strict=True)):
        content = piece.content if run.content is None else run.content
        if piece.msg not in run.owners or (piece.sampled, piece.content) != (run.sampled, content):
            found = piece._replace(text="")
            yield f"{text[max(0, at - 12) : at]!r}, {text[at : at + 24]!r}: found {found}, wanted {run}"
            return


def check(numbers: range, conversations: int) -> Counter[str]:
    counts = Counter[str]()
    for number in numbers:
        form, renderer, rng = published(str(number))
        for _ in range(conversations):
            chat, tools = random_chat(rng, form)
            attribution, wrong = judge(form, renderer, chat, tools, rng.random() < 0.3)
            counts[attribution] += 1
            assert not wrong, (number, wrong, chat, bool(tools), renderer.source)
    return counts


def test_nothing_fully_attributed_is_wrong() -> None:
    counts = check(range(20), 3)
    assert counts["full"] > 4 * counts["partial"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_nothing_fully_attributed_is_wrong_in_twenty_thousand_pairs(part: int) -> None:
    check(range(1000 + 200 * part, 1200 + 200 * part), 5)


def test_the_judge_finds_a_stop_that_is_not_sampled() -> None:
    found = 0
    for number in range(12):
        form, renderer, rng = published(str(number))
        chat, tools = random_chat(rng, form)
        if judge(form, renderer, chat, tools, False)[0] != "full":
            continue
        out = renderer.emit(chat, tools=tools)
        out.facts[:] = [fact & ~15 | Kind.TEMPLATE if fact & 15 == Kind.STOP else fact for fact in out.facts]
        renderer.emit = lambda *args, out=out, **more: out  # type: ignore[method-assign]
        found += bool(judge(form, renderer, chat, tools, False)[1])
    assert found > 3


# ---- what was silently wrong


def runs(renderer: TemplateRenderer, chat: Messages, **options: Any) -> list[tuple[str, int, bool, bool]]:
    assert renderer.emit(chat, **options).attribution == "full"
    joined: list[tuple[str, int, bool, bool]] = []
    for piece in renderer.pieces(chat, **options):
        same = joined and joined[-1][1:] == (piece.msg, piece.sampled, piece.content)
        text = joined.pop()[0] if same else ""
        joined.append((text + piece.text, piece.msg, piece.sampled, piece.content))
    return joined


LATE_THOUGHTS = CHATML.replace(
    "+ m.content", "+ ('<think>\n\n</think>\n\n' if loop.last and m.role == 'assistant' else '') + m.content"
)


def test_the_stop_of_an_empty_answer_whose_history_is_written_otherwise() -> None:
    """As the last one it begins with `<think>`, in the history with its stop; both begin with `<`."""
    hidden = "{% set all %}" + LATE_THOUGHTS.replace("{% if add", "{% endset %}{{ all }}{% if add")
    chat = [user("Hi"), assistant(""), user("So?"), assistant("So.")]
    assert [text for text, _, sampled, _ in runs(made(hidden), chat) if sampled] == [
        "<|im_end|>",
        "<think>\n\n</think>\n\nSo.<|im_end|>",
    ]


def test_the_end_of_a_question_that_is_only_written_if_something_follows() -> None:
    source = CHATML.replace("+ '<|im_end|>\n'", "+ ('' if loop.last and not add_generation_prompt else '<|im_end|>\n')")
    assert runs(made(source), [user("Hi"), user("So?")])[:3] == [
        ("<|im_start|>user\n", 0, False, False),
        ("Hi", 0, False, True),
        ("<|im_end|>\n", 0, False, False),
    ]


def test_the_stop_of_an_empty_answer_is_not_that_of_the_question_before() -> None:
    """Where nothing but a stop is written of it (BLOOM), or its spaces (Llama 2)."""
    bloom = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    chat = [user("Hi"), assistant(""), user("So?")]
    assert [text for text, _, sampled, _ in runs(made(bloom, "</s>"), chat) if sampled] == ["</s>"]
    spaced = MISTRAL.replace("m.content + '</s>'", "' ' + m.content + ' </s>'")
    assert [text for text, _, sampled, _ in runs(made(spaced, "</s>"), chat) if sampled] == ["  </s>"]


def test_results_of_white_space_alone_are_content() -> None:
    source = CHATML.replace("m.content", "({'output': m.content} | tojson)")
    chat = [user("Hi"), assistant("Wait."), result(text="\n\t"), result(text="  ")]
    found = [(text, index) for text, index, _, content in runs(made(source), chat) if content and index > 1]
    assert found == [("\\n\\t", 2), ("  ", 3)]


def test_results_without_a_letter_are_content_wherever_they_are_written() -> None:
    twice = CHATML.replace("m.content", "({'a': m.content, 'b': [m.content]} | tojson)")
    for text, form in (("\n", "\\n"), ('"', '\\"')):
        found = runs(made(twice), [user("Hi"), assistant("Wait."), result(text=text)])
        assert [(text, index) for text, index, _, content in found if content and index == 2] == [(form, 2), (form, 2)]


def test_a_part_of_a_result_that_is_one_sign_is_content() -> None:
    """Beside an answer that is nothing but a tag which the template searches for, where fewer texts are replaced."""
    check(range(4770, 4771), 5)


def test_a_text_that_the_output_does_not_show_is_partial() -> None:
    backwards = CHATML.replace("m.content", "m.content[::-1]")
    assert made(backwards).emit([user(" \n"), assistant("Yes?")]).attribution == (
        "partial: the template changes the contents: with other letters it writes another text; "
        "changed or left out: content of message 1"
    )


def test_a_header_that_is_written_unasked_is_no_stop() -> None:
    """A template that always writes its prompt, in ordinary text, writes `### Assistant:` behind the last answer."""
    asked = (
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{% endfor %}{{ '### assistant:\n' }}"
    )
    out = made(asked).emit([user("Hi"), assistant("Yes?")])
    assert out.attribution == "partial: no stop token follows message 1"
    assert "".join(piece.text for piece in out.pieces() if piece.sampled) == "Yes?"


def test_a_headers_newline_is_not_that_of_a_part_which_the_template_strips() -> None:
    joined = "{% set ns = namespace(t='') %}{% for p in m.content %}{% set ns.t = ns.t + p.text %}{% endfor %}"
    source = CHATML.replace("{{ '<|im_start|>'", joined + "{{ '<|im_start|>'").replace("m.content +", "ns.t.strip() +")
    parts = [{"type": "text", "text": text} for text in ("\nHow", "\tfar", "\n", "\nis it?\n")]
    found = runs(made(source), [{"role": "user", "content": parts}])
    assert found[0][0] == "<|im_start|>user\n"
    assert [text for text, _, _, content in found if content] == ["How\tfar\n\nis it?"]


def test_the_header_of_an_empty_first_question_that_is_one_token() -> None:
    turns = "<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>"
    source = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}" + turns + "{% endif %}{% endfor %}"
    hidden = "{% set all %}" + source + "{% endset %}{{ all }}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
    found = runs(made(hidden, "<｜end▁of▁sentence｜>"), [user(""), assistant("Hello.")])
    assert ("<｜User｜>", 0) in [(text.removeprefix("<s>"), index) for text, index, _, _ in found]


MISTRAL = (
    "{% for i in range(messages | length) %}{% set m = messages[i] %}{% if m.role == 'user' %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)


def test_the_header_of_an_empty_question_in_a_loop_over_indices() -> None:
    chat = [user("Hi"), assistant("Yes?"), user(""), assistant("")]
    assert runs(made(MISTRAL, "</s>"), chat)[-2:] == [
        ("[INST][/INST]", 2, False, False),
        ("</s>", 3, True, True),
    ]
    for prompt in (False, True):
        assert runs(made(MISTRAL, "</s>"), chat[:3], add_generation_prompt=prompt)[-1][1] == 2


def test_a_turn_that_the_template_adds_and_no_stop_ends() -> None:
    source = "{% set all %}[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT]" + MISTRAL + "{% endset %}{{ all }}"
    assert runs(made(source, "</s>"), [user("Hi")])[:2] == [
        ("[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT]", -1, False, False),
        ("[INST]", 0, False, False),
    ]


def test_a_turn_that_the_template_adds_before_a_question_that_begins_with_a_sign() -> None:
    asked = "{% if messages[0].role %}{% endif %}"  # without messages the template fails
    source = asked + "{% set all %}[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT]" + MISTRAL + "{% endset %}{{ all }}"
    for text in ("&amp;", '"Hi"', "<b>"):
        assert runs(made(source, "</s>"), [user(text)])[:2] == [
            ("[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT]", -1, False, False),
            ("[INST]", 0, False, False),
        ]


def test_a_quote_in_a_call_hides_no_contents_from_the_proof() -> None:
    """Where JSON escapes a text that is one quote, other texts of a word or a sign are followed all the same."""
    text = "({'output': m.content} | tojson if m.role == 'tool' else m.content)"
    calls = "~ (m.tool_calls[0].function.arguments | tojson if m.tool_calls else '')"
    asked = call()
    asked["function"]["arguments"] = {"city": '"'}
    for word in ("tool", "<", "🤖"):
        chat = [user("Hi"), assistant("", tool_calls=[asked]), result(text=word)]
        found = runs(made(CHATML.replace("m.content +", f"{text} {calls} +")), chat)
        # The quotes around it may be of the result or of the template.
        assert [text.strip('"') for text, index, _, content in found if content and index == 2] == [word]


def test_the_stop_of_an_empty_answer_whose_turn_is_written_otherwise_before_a_prompt() -> None:
    """As the last message it has a thought, before a prompt it has none (gpt-oss); no letter shows its place."""
    turn = "<|start_of_role|>{{ m.role }}<|end_of_role|>"
    thought = "{% if m.thinking is defined and loop.last and not add_generation_prompt %}[thought]{% endif %}"
    prompt = "{% if add_generation_prompt %}<|start_of_role|>assistant{% endif %}"
    source = "{% for m in messages %}" + turn + thought + "final{{ m.content }}<|end|>{% endfor %}" + prompt
    chat = [user(""), assistant("", reasoning_content="")]
    assert [text for text, _, sampled, _ in runs(made(source), chat, add_generation_prompt=True) if sampled] == [
        "<|end_of_role|>final<|end|>"
    ]


def test_an_answer_of_which_nothing_is_sampled_is_partial() -> None:
    source = CHATML.replace(" + '<|im_end|>\n'", "")
    rendered = made(source).render([user("Hi"), assistant(""), user("So?")])
    assert rendered.attribution.startswith("partial: ")
