"""What messages say, each fault beside texts that look like it: tags of reasoning, damage, templates, calls."""

from __future__ import annotations

from time import monotonic
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


# ---- tags of reasoning


@pytest.mark.parametrize(
    "prompt",
    [
        "Think in <scratchpad></scratchpad> tags first, then answer.",
        "Put your reasoning into <thoughts>...</thoughts> and the rest after it.",
        "The process is enclosed in <think> </think>, i.e., <think> reasoning process here </think>.",
    ],
)
def test_prompts_may_explain_tags(prompt: str) -> None:
    sum_of_two = [user("Two and two?"), assistant("It is four, as before.")]
    assert rules([{"messages": [{"role": "system", "content": prompt}, *sum_of_two]}]) == []
    assert rules([{"messages": [user(prompt), sum_of_two[1]]}]) == []
    left = "<think>They ask for a sum of two numbers, and I know both of them.</think> Two and two?"
    assert rules([{"messages": [user(left), assistant("It is four, as before.")]}]) == ["think-tags-in-content"]


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>The user",
        "◁think▷The user◁/think▷",
        "The user </THINK>",
        "<seed:think>The user</seed:think>",
    ],
)
def test_reasoning_of_other_formats_is_reported(text: str) -> None:
    assert rules(with_answer(text)) == ["think-tags-in-content"]


# ---- damage


@pytest.mark.parametrize(
    "text", ["ССЅР № 5, РЖД и США; 20 °C и 5 µm.", "Ђорђе и Љубица у Ћуприји.", "Її їжак, ґанок і Європа."]
)
def test_sound_cyrillic_is_not_damaged(text: str) -> None:
    made = conversations(1)
    made[0]["messages"] = [user(text), assistant(text)]
    assert rules(made) == []


@pytest.mark.parametrize("page", ["cp1252", "cp437", "cp1254"])
def test_utf_8_that_was_read_in_another_code_page_is_damaged(page: str) -> None:
    assert rules(with_answer(" " + "Après le déjeuner, ça va déjà.".encode().decode(page, "ignore"))) == [
        "text-damaged"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "ÀÁÂÃ ÄÅÆÇ ÈÉÊË ÌÍÎÏ ÐÑÒÓ ÔÕÖØ ÙÚÛÜ are the letters of Latin-1.",
        "┌──────────────┐\n│ Имя   │ Дата │\n├───────┼──────┤\n│ Ольга │ 1991 │\n└───────┴──────┘",
        "Öööö, das wäre schön: äöü, ÄÖÜ, ß, åäö und éèê.",
        "声调写作“ā”“á”“ǎ”“à”，字母有“é”“è”“ê”。",
        "Les lettres «é»«è»«à»«ê» portent un accent.",
    ],
)
def test_letters_and_tables_are_not_damaged(text: str) -> None:
    assert rules(with_answer(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "UTF-8 that is read as Latin-1 looks so: Ã© for é, and â€™ for ’.",
        "Such mojibake (ÐŸÑ€Ð¸Ð²ÐµÑ‚) comes from a wrong charset.",
        "The character \ufffd is the replacement character of Unicode.",
    ],
)
def test_what_damage_looks_like_may_be_told(text: str) -> None:
    assert rules([{"messages": [user("Why is é shown as Ã© there?"), assistant(text)]}]) == []
    code = 'Use this:\n```\nopen(path, encoding="utf-8")\n```\nThe cafÃ© is closed.'
    assert rules([{"messages": [user("How do I open a file?"), assistant(code)]}]) == ["text-damaged"]


@pytest.mark.parametrize("text", ["आज मौसम बहुत अच्छा है", "วันนี้อากาศดีมาก", "오늘은 날씨가 좋습니다", "আজ আবহাওয়া ভালো"])
def test_utf_8_of_other_scripts_that_was_read_as_western_is_damaged(text: str) -> None:
    assert rules(with_answer(" " + text)) == []
    assert rules(with_answer(" " + text.encode().decode("cp1252", "ignore"))) == ["text-damaged"]
    damaged = f"{text} {text} {text}".encode().decode("cp1252", "ignore")
    assert rules(with_answer(f" This is about UTF-8, and the text is damaged: {damaged}")) == ["text-damaged"]


def test_a_nul_is_damage() -> None:
    assert rules(with_answer(" One\0two.")) == ["text-damaged"]


@pytest.mark.parametrize(
    "text",
    [
        "Não são apenas as ações dos cidadãos; põem-se questões e corações em situações várias, e a mãe já está lá.",
        "Õunapuud õitsevad võõras õues, kus söövad käod ja põõsad on rõõmsad. José ja Pelé sõid õhtul õunu.",
        "Røde æbler på øen. Bjørn sørger for grøn føde. Søren siger: città più bella, e così più virtù.",
        "L'élève a où être près du château, là où l'œuvre naïve brûle; ça va très bien, 5 m³ et 20 ºC, ±3 µm.",
        "Það er þess vegna sem þú ferð þangað með æðri öflum og þegir þó um það.",
        "¿Qué? Nº 3: 1ª vez, ¿cómo? Hola,¿qué tal? El niño comió piñas, n.º 4; ¿cuándo? ¿dónde?",
        "x³y + y³z, 3¼ cups, a±b. One¹ and another¹ and a third¹ note.",
        "Der Name Dvořák, Škoda, žena, und très près de la mère, du père, du frère.",
    ],
)
def test_sound_text_of_other_languages_is_not_damaged(text: str) -> None:
    assert rules(with_answer(f" {text}")) == []


# ---- text of templates


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|>\n<|im_start|>user\nAnd the lamps?",
        " [INST] And the lamps? [/INST]",
        "<<SYS>>\nBe brief\n<</SYS>>",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>",
        "<end_of_turn>\n<start_of_turn>user",
        "\n### Instruction:\nName a lamp.\n\n### Response:\nGreen.",
        "\n<|user|>\nAnd now?\n<|assistant|>\nGreen.",
        "<｜User｜>And now?<｜Assistant｜>",
        "</s>",
        "<|endoftext|>",
    ],
)
def test_markup_of_templates_in_contents_is_reported(text: str) -> None:
    rows = conversations(40)
    for row in rows[:2]:
        answer(row)["content"] += text
    assert rules(rows) == ["template-text-in-content"]
    assert rules(rows[1:]) == []  # one alone may be meant


@pytest.mark.parametrize(
    "text",
    [
        " Mistral's template writes [INST] before the question.",
        " In ChatML a turn begins with <|im_start|>.",
        " Write `[INST]` there.",
        "\n```\n### Response:\nYes\n```",
        "\n### Response times\nThey are short.",
        "\n### Instructions\n1. Begin.",
        " <s>old price</s> 5 euros</s> in strikethrough: <s>x</s>",
        " The special token <|endoftext|> ends a text.",
        " I wrote [INSTALL] and #input.",
    ],
)
def test_words_about_templates_are_in_order(text: str) -> None:
    rows = conversations(40)
    for row in rows[:8]:
        answer(row)["content"] += text
    assert "template-text-in-content" not in rules(rows)


def test_control_tokens_of_the_tokenizer_itself_are_another_finding() -> None:
    rows = conversations(40)
    for row in rows[:4]:
        answer(row)["content"] += "<|im_end|>\n<|im_start|>user"
    assert report_on("chatml", rows).rules("warning") == ["special-tokens-in-content"]
    assert report_on("llama-3", rows).rules("warning") == ["template-text-in-content"]


@pytest.mark.parametrize("text", ["\u200b", "\ufeff\n", " \u200b \u2060", "\u00a0"])
def test_an_answer_that_shows_nothing_is_empty(text: str) -> None:
    made = conversations(1)
    answer(made[0])["content"] = text
    assert rules(made) == ["empty-answer"]


# ---- calls


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
    assert report.rules("warning") == []
    assert "tool-not-offered" in report.rules("info")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"city": 7}, "'city' is 7; its type is string"),
        ({"city": "Oslo", "days": "3"}, "'days' is '3'; its type is integer"),
        ({"city": "Oslo", "days": True}, "'days' is True; its type is integer"),
        ({"city": "Oslo", "days": 3}, None),
        ({"city": "Oslo", "days": 3.0}, None),
        ({"city": "Oslo", "days": None}, None),
        ('{"city": "Oslo", "days": "3"}', "'days' is '3'; its type is integer"),
    ],
)
def test_values_of_another_type_than_declared(arguments: Any, fault: str | None) -> None:
    report = report_on("qwen2.5", tool_chats(lambda _: arguments, n=1))
    notes = [piece.note for f in report.findings if f.rule == "tool-arguments-unknown" for piece in f.evidence]
    assert notes == ([] if fault is None else [f"get_weather: {fault}"])


@pytest.mark.parametrize(
    "parameters", [None, [], "", {"properties": []}, {"properties": None}, {"properties": {"city": None}}]
)
def test_parameters_that_declare_nothing_are_no_reason_to_stop(parameters: Any) -> None:
    rows = tool_chats(lambda n: {"city": f"x{n}"}, 2)
    for row in rows:
        row["tools"] = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    assert "unusable-row" not in rules(rows)


@pytest.mark.parametrize("tools", [["x"], [None], [{"function": None}], [{"function": {"name": ["a"]}}], [[]]])
def test_tools_that_are_no_declarations_offer_nothing(tools: Any) -> None:
    rows = tool_chats(lambda n: {"city": f"x{n}"}, 2)
    for row in rows:
        row["tools"] = tools
    report = diagnose(rows)
    assert {"tool-not-offered", "unusable-row"} & set(report.rules())


def test_a_text_of_tags_takes_no_time() -> None:
    began = monotonic()
    for text in ("<think>" * 20_000, "[INST]" * 20_000, "Ã" * 50_000, "├ " * 50_000):
        rules(with_answer(text))
    assert monotonic() - began < 60  # a busy machine takes two seconds; quadratic patterns take minutes
