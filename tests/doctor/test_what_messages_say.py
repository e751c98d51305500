"""What messages say, each fault beside texts that look like it: tags of reasoning, damage, templates, calls."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from tests.doctor.made import Row, assistant, report_on, tool_chats, user
from tests.doctor.planted_contents import answer, conversations


def rules(rows: list[Row], **more: Any) -> list[str]:
    return diagnose(rows, **more).rules("warning")


def with_answer(text: str) -> list[Row]:
    """One conversation, with this text after its last answer."""
    made = conversations(1)
    answer(made[0])["content"] += text
    return made


PROMPTS = (
    "Think in <scratchpad></scratchpad> tags first, then answer.",
    "Put your reasoning into <thoughts>...</thoughts> and the rest after it.",
    "The process is enclosed in <think> </think>, i.e., <think> reasoning process here </think>.",
)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_may_explain_tags_of_reasoning(prompt: str) -> None:
    sum_of_two = [user("Two and two?"), assistant("It is four, as before.")]
    assert rules([{"messages": [{"role": "system", "content": prompt}, *sum_of_two]}]) == []
    assert rules([{"messages": [user(prompt), sum_of_two[1]]}]) == []


def western(text: str, page: str = "cp1252") -> str:
    """UTF-8 that was read in another code page."""
    return text.encode().decode(page, "ignore")


DAMAGED = (
    *(western("Après le déjeuner, ça va déjà.", page) for page in ("cp1252", "cp437", "cp1254")),
    *(western(text) for text in ("आज मौसम बहुत अच्छा है", "วันนี้อากาศดีมาก", "오늘은 날씨가 좋습니다", "আজ আবহাওয়া ভালো")),
    f"This is about UTF-8, and the text is damaged: {western('आज मौसम बहुत अच्छा है ' * 3)}",
    "One\0two.",
)
REASONING = (
    "<|channel|>analysis<|message|>The user",
    "◁think▷The user◁/think▷",
    "The user </THINK>",
    "<seed:think>The user</seed:think>",
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [*((text, "text-damaged") for text in DAMAGED), *((text, "think-tags-in-content") for text in REASONING)],
)
def test_damage_and_reasoning_in_an_answer_are_reported(text: str, rule: str) -> None:
    assert rules(with_answer(f" {text}")) == [rule]


SOUND = (
    "ССЅР № 5, РЖД и США; 20 °C и 5 µm. Ђорђе и Љубица у Ћуприји. Її їжак, ґанок і Європа.",
    "ÀÁÂÃ ÄÅÆÇ ÈÉÊË ÌÍÎÏ ÐÑÒÓ ÔÕÖØ ÙÚÛÜ are the letters of Latin-1.",
    "┌──────────────┐\n│ Имя   │ Дата │\n├───────┼──────┤\n│ Ольга │ 1991 │\n└───────┴──────┘",
    "आज मौसम बहुत अच्छा है วันนี้อากาศดีมาก 오늘은 날씨가 좋습니다 আজ আবহাওয়া ভালো",
    "Não são apenas as ações dos cidadãos; põem-se questões e corações em situações várias, e a mãe já está lá.",
    "Õunapuud õitsevad võõras õues, kus söövad käod ja põõsad on rõõmsad. José ja Pelé sõid õhtul õunu.",
    "L'élève a où être près du château, là où l'œuvre naïve brûle; ça va très bien, 5 m³ et 20 ºC, ±3 µm.",
)


@pytest.mark.parametrize("text", SOUND)
def test_sound_text_of_any_language_is_not_damaged(text: str) -> None:
    assert rules(with_answer(f" {text}")) == []


@pytest.mark.parametrize(
    "text",
    [
        "UTF-8 that is read as Latin-1 looks so: Ã© for é, and â€™ for ’.",
        "Such mojibake (ÐŸÑ€Ð¸Ð²ÐµÑ‚) comes from a wrong charset.",
        "The character \ufffd is the replacement character of Unicode.",
    ],
)
def test_a_conversation_about_encodings_may_show_damage(text: str) -> None:
    assert rules([{"messages": [user("Why is é shown as Ã© there?"), assistant(text)]}]) == []
    code = 'Use this:\n```\nopen(path, encoding="utf-8")\n```\nThe cafÃ© is closed.'
    assert rules([{"messages": [user("How do I open a file?"), assistant(code)]}]) == ["text-damaged"]


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|>\n<|im_start|>user\nAnd the lamps?",
        "<<SYS>>\nBe brief\n<</SYS>>",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>",
        "\n<|user|>\nAnd now?\n<|assistant|>\nGreen.",
        "<｜User｜>And now?<｜Assistant｜>",
        "</s>",
        "<|endoftext|>",
    ],
)
def test_markup_of_templates_is_reported_unless_it_is_one_alone(text: str) -> None:
    rows = conversations(40)
    for row in rows[:2]:
        answer(row)["content"] += text
    assert rules(rows) == ["template-text-in-content"]
    assert rules(rows[1:]) == []


def test_words_about_templates_are_in_order() -> None:
    texts = (
        " Mistral's template writes [INST] before the question.",
        " In ChatML a turn begins with <|im_start|>.",
        " Write `[INST]` there.",
        "\n```\n### Response:\nYes\n```",
        "\n### Response times\nThey are short.",
        "\n### Instructions\n1. Begin.",
        " <s>old price</s> 5 euros</s> in strikethrough: <s>x</s>",
        " The special token <|endoftext|> ends a text.",
        " I wrote [INSTALL] and #input.",
    )
    rows = conversations(len(texts))
    for row, text in zip(rows, texts, strict=True):
        answer(row)["content"] += text
    assert "template-text-in-content" not in rules(rows)


def test_control_tokens_of_the_tokenizer_are_another_finding() -> None:
    rows = conversations(40)
    for row in rows[:4]:
        answer(row)["content"] += "<|im_end|>\n<|im_start|>user"
    assert report_on("chatml", rows).rules("warning") == ["special-tokens-in-content"]
    assert report_on("llama-3", rows).rules("warning") == ["template-text-in-content"]


def test_a_call_in_a_row_without_tools_is_reported() -> None:
    rows = tool_chats(lambda n: {"city": f"x{n}"})
    del rows[2]["tools"]
    report = report_on("qwen2.5", rows)
    assert report.rules("warning") == ["tool-not-offered"]
    assert [piece.row for piece in report.findings[0].evidence] == [2]
    # The system message may hold the declarations.
    rows[2]["messages"].insert(0, {"role": "system", "content": "You may call get_weather(city)."})
    assert report_on("qwen2.5", rows).rules("warning") == []
    # Data without any declarations: a remark.
    bare = [{"messages": row["messages"]} for row in tool_chats(lambda n: {"city": f"x{n}"})]
    report = report_on("qwen2.5", bare)
    assert (report.rules("warning"), "tool-not-offered" in report.rules("info")) == ([], True)


NOT_DECLARED: tuple[Any, ...] = (
    *("x", None, [], {"function": None}, {"function": {"name": ["a"]}}),
    {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": []}}},
)


@pytest.mark.parametrize("tool", NOT_DECLARED)
def test_tools_that_are_no_declarations_do_not_end_a_diagnosis(tool: Any) -> None:
    rows = tool_chats(lambda n: {"city": f"x{n}"}, 2)
    for row in rows:
        row["tools"] = [tool]
    is_named = isinstance(tool, dict) and tool["function"] and tool["function"]["name"] == "get_weather"
    found = {"tool-not-offered", "unusable-row"} & set(diagnose(rows).rules())
    assert bool(found) != bool(is_named)
