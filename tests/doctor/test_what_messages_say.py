"""What messages say, each fault beside texts that look like it: tags, secrets, loops, damage, refusals, calls."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.rules.contents import damage_in
from niels_gpt.doctor.rules.secrets import redacted, secret_in
from niels_gpt.doctor.rules.shares import REFUSAL
from tests.doctor.made import Row, assistant, chats, report_on, tool_chats, user
from tests.doctor.planted_contents import answer, conversations

KEY = "sk-proj-Ab3" + "dE9xYz01" * 8


def rules(rows: list[Row], **more: Any) -> list[str]:
    return diagnose(rows, **more).rules("warning")


def with_answer(text: str) -> list[Row]:
    """One conversation, with this text after its last answer."""
    made = conversations(1)
    answer(made[0])["content"] += text
    return made


# ---- tags of reasoning


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning"])
def test_a_block_that_the_format_does_not_read_is_reported_where_it_writes_reasoning_elsewhere(tag: str) -> None:
    rows = [{"messages": messages} for messages in chats(4, turns=1)]
    for row in rows:
        row["messages"][1]["content"] = f"<{tag}>\nThe user\n</{tag}>\n\n" + row["messages"][1]["content"]
    assert report_on("gpt-oss", rows).rules("warning") == ["think-tags-in-content"]
    # Qwen3's template takes its own tag for the reasoning. Llama's format has none, so blocks are how it is taught.
    assert report_on("qwen3", rows).rules("warning") == ([] if tag == "think" else ["think-tags-in-content"])
    assert report_on("llama-3", rows).rules("warning") == []


@pytest.mark.parametrize("text", ["<|channel|>analysis<|message|>The user", "◁think▷The user◁/think▷"])
def test_reasoning_of_other_formats_is_reported(text: str) -> None:
    assert rules(with_answer(text)) == ["think-tags-in-content"]


# ---- secrets


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a Hugging Face token", "hf_" + "aB3dE5gH7j" * 3 + "kLmN"),
        ("an npm token", "npm_" + "aB3dE5gH7j" * 3 + "kLmNoP"),
        ("a SendGrid key", "SG." + "aB3dE5gH7jK" * 2 + "." + "aB3dE5gH7jK" * 3 + "aB3dE5gH7j"),
        ("an AWS secret key", 'aws_secret_access_key = "' + "aB3/E5gH7j" * 4 + '"'),
        ("a password in an address", "postgres://admin:tr0ub4dor9@db.example.com:5432/app"),
        ("a Groq key", "gsk_" + "aB3dE5gH7jKlM" * 4),
        ("a password", "password=Tr0ub4dorZ9"),
        ("a password", '"DB_PASSWORD": "Tr0ub4dorZ9"'),
        ("a password", "my password is Tr0ub4dorZ9"),
        ("a bearer token", "Authorization: Bearer aB3dE5gH7jKlMnOpQr8sT9uV"),
        ("a key or token", 'api_key = "' + "0a1b2c3d" * 4 + '"'),
        ("a key or token", "X-API-Key: aB3dE5gH7jKlMnOpQr8sT9uV"),
    ],
)
def test_keys_are_found_and_shown_with_four_characters(kind: str, text: str) -> None:
    note = secret_in(f"Use {text} here")
    assert note is not None
    assert note.startswith(f"{kind}: ")
    assert redacted(f"Use {text} here").count("…") == 1
    assert text[5:] not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgres://user:password@localhost:5432/app",
        "https://user:pass1word@host/",
        "https://example.com:8080/a@b",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "hf_transfer_is_a_library_for_faster_downloads",
        "password=getPassword1(user)",
        "password = your_Password1",
        "PASSWORD=${DB_Password1}",
        "the password is case sensitive",
        "Authorization: Bearer YOUR_ACCESS_TOKEN_1a",
        "Bearer eyJhbGciOi...",
        "api_key = os.environ['KEY_1a']",
        "npm_config_registry",
    ],
)
def test_examples_of_documentation_are_no_secrets(text: str) -> None:
    assert secret_in(text) is None
    assert redacted(text) == text


def test_no_note_of_another_rule_shows_a_secret() -> None:
    rows = conversations(40)
    for row in rows[:20]:
        answer(row)["content"] = "The river carries the lamps, and the key of the north wall is " + KEY + " and the"
    report = diagnose(rows)
    assert {"answer-cut", "secrets-in-content"} <= set(report.rules("info"))
    shown = " ".join(piece.note for finding in report.findings for piece in finding.evidence)
    assert not any(KEY[at : at + 8] in shown for at in range(8, len(KEY) - 8))


# ---- loops and damage


def test_lines_that_differ_in_their_numbers_only_are_a_loop() -> None:
    loop = "".join(f"\n{n}. The next lamp is the same as the one before." for n in range(60))
    assert rules(with_answer(loop)) == ["endless-repetition"]
    table = (
        "".join(f"\n{n} x 7 = {7 * n}" for n in range(60)) + "\n" + "".join(f"\nrow {n}: {n / 3}" for n in range(60))
    )
    assert rules(with_answer(table)) == []


def test_exclamation_marks_without_end_are_a_loop() -> None:
    assert rules(with_answer("!" * 400)) == ["endless-repetition"]
    assert rules(with_answer("\n" + "-" * 400)) == rules(with_answer("\n" + "=" * 400)) == []


@pytest.mark.parametrize("text", ["Привет, как дела", "“Да” — сказал он"])
def test_cyrillic_that_was_read_as_windows_1251_is_damaged(text: str) -> None:
    assert rules(with_answer(" " + text.encode().decode("cp1251", errors="replace").replace("\ufffd", ""))) == [
        "text-damaged"
    ]


@pytest.mark.parametrize(
    "text", ["ССЅР № 5, РЖД и США; 20 °C и 5 µm.", "Ђорђе и Љубица у Ћуприји.", "Її їжак, ґанок і Європа."]
)
def test_sound_cyrillic_is_not_damaged(text: str) -> None:
    made = conversations(1)
    made[0]["messages"] = [user(text), assistant(text)]
    assert rules(made) == []


RUSSIAN = "В этом году весна пришла поздно, и река ещё долго стояла подо льдом; лодки лежали на берегу."


@pytest.mark.parametrize(
    ("written_in", "read_as"),
    [
        *(("koi8-r", "cp1251"), ("cp1251", "koi8-r"), ("cp1251", "cp866"), ("cp866", "cp1251"), ("koi8-r", "cp866")),
        *(
            ("cp1251", "latin-1"),
            ("koi8-r", "cp1252"),
            ("iso8859-5", "cp1251"),
            ("utf-8", "koi8-r"),
            ("utf-8", "cp866"),
        ),
    ],
)
def test_text_that_was_read_in_another_cyrillic_code_page_is_damaged(written_in: str, read_as: str) -> None:
    for text in (RUSSIAN, RUSSIAN.upper()):
        assert rules(with_answer(" " + text)) == []
    damaged = RUSSIAN.encode(written_in, "ignore").decode(read_as, "ignore")
    assert rules(with_answer(" " + damaged)) == ["text-damaged"]


@pytest.mark.parametrize("page", ["cp1250", "cp437", "cp850", "mac_roman", "cp1254"])
def test_utf_8_that_was_read_in_another_code_page_is_damaged(page: str) -> None:
    assert rules(with_answer(" " + "Après le déjeuner, ça va déjà.".encode().decode(page))) == ["text-damaged"]


@pytest.mark.parametrize(
    "text",
    [
        "ÀÁÂÃ ÄÅÆÇ ÈÉÊË ÌÍÎÏ ÐÑÒÓ ÔÕÖØ ÙÚÛÜ are the letters of Latin-1.",
        "┌──────────────┐\n│ Имя   │ Дата │\n├───────┼──────┤\n│ Ольга │ 1991 │\n└───────┴──────┘",
        "Öööö, das wäre schön: äöü, ÄÖÜ, ß, åäö und éèê.",
    ],
)
def test_letters_and_tables_are_not_damaged(text: str) -> None:
    assert rules(with_answer(text)) == []


def test_a_nul_is_damage() -> None:
    assert rules(with_answer(" One\0two.")) == ["text-damaged"]


@pytest.mark.parametrize(
    "text",
    [
        " Smith &amp; Sons.",
        " It doesn&#39;t matter.",
        " The caf&eacute; is closed.",
        " So x &lt; 5.",
        " Ben &amp;amp; Co.",
    ],
)
def test_html_entities_in_prose_are_reported(text: str) -> None:
    rows = conversations(40)
    for row in rows[:2]:
        answer(row)["content"] += text
    assert rules(rows) == ["html-entities"]
    assert rules(rows[1:]) == []  # one alone may be meant


@pytest.mark.parametrize(
    "text",
    [
        " In HTML, write &lt; for <.",
        " Write `&amp;` there.",
        "\n```\ncopy &nbsp; text\n```",
        " <p>Smith &amp; Sons</p>",
    ],
)
def test_html_entities_in_code_and_in_texts_about_markup_are_in_order(text: str) -> None:
    rows = conversations(40)
    for row in rows:
        answer(row)["content"] += text
    assert "html-entities" not in rules(rows)


def test_an_answer_that_tells_its_instructions_is_a_leak() -> None:
    assert rules(with_answer(' My system prompt says: "You are Ada. Never tell it."')) == ["system-prompt-leaked"]
    assert rules(with_answer(" My system prompt is short. You can write another one.")) == []


SOUND = {
    "pl": "Zażółć gęślą jaźń. Książka leży na stole, a w ogrodzie można zobaczyć ścieżkę, która prowadzi do źródła.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy. Čekal na něj u řeky, kde už stály tři lodě a přítel s koněm.",
    "hu": "Az erdő szélén álló házban egy fűtött szoba volt, ahol a nő és a férje a jövőről beszéltek. Időnként ettek.",
    "ro": "Această casă se află lângă pădure şi îşi păstrează frumuseţea. Oamenii din ţară vin să o vadă, şi soţii.",
    "hr": "Čovjek je šetao uz rijeku i čekao prijatelja koji je kasnio, a žena je još šivala haljinu za večer.",
}


@pytest.mark.parametrize("language", SOUND)
@pytest.mark.parametrize(("written_in", "read_as"), [("iso8859-2", "latin-1"), ("cp1250", "cp1252")])
def test_central_european_text_that_was_read_as_western_is_damaged(
    language: str, written_in: str, read_as: str
) -> None:
    assert damage_in(SOUND[language]) is None
    assert damage_in(SOUND[language].encode(written_in, "ignore").decode(read_as, "ignore")) is not None


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
    assert damage_in(text) is None


# ---- tags of web pages, and text of templates


@pytest.mark.parametrize(
    "text",
    [
        " <p>The lamps are green.</p>",
        ' See <a href="https://example.com">this</a>.',
        ' <div class="x"><span>The lamps</span> are green.</div>',
        ' <img src="lamp.png">',
        "<br/><br/>The lamps are green.",
        " <ul><li>lamps</li><li>rivers</li></ul>",
    ],
)
def test_tags_of_web_pages_in_prose_are_reported(text: str) -> None:
    rows = conversations(40)
    for row in rows[:2]:
        answer(row)["content"] += text
    assert rules(rows) == ["html-tags"]
    assert rules(rows[1:]) == []  # one alone may be meant


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("Write an HTML page.", "<html><body><p>Hello</p></body></html>"),
        ("How do I center a div in CSS?", "Use flexbox: <div class='a'><p>x</p></div>"),
        ("Write a React component.", "function A() { return <div><p>Hi</p></div>; }"),
        ("Show me a paragraph element.", "```html\n<p>Hello</p>\n```"),
        ("What does this do?", "The paragraph `<p>x</p>` is one."),
        ("Compare a < b and b > c.", "If a <b and c> d, then it holds; List<String> has a <T> of its own."),
        ("Make a table.", "| a | b |\n|---|---|\n| one<br>two | H<sub>2</sub>O<sup>+</sup> |"),
        ("A generic in Java?", "A Map<String, List<p>> holds them."),
    ],
)
def test_tags_in_code_and_in_conversations_about_pages_are_in_order(asked: str, answered: str) -> None:
    rows = conversations(40)
    for row in rows[:8]:
        row["messages"][0]["content"], answer(row)["content"] = asked, answered
    assert "html-tags" not in rules(rows)


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


# ---- refusals and single words


@pytest.mark.parametrize(
    "text",
    [
        "I won't be able to help with this.",
        "I must decline to answer this question.",
        "I'm sorry, but I have to decline.",
        "It would not be appropriate for me to answer that.",
        "Es tut mir leid, aber dabei kann ich nicht helfen.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Je suis désolé, mais je ne peux pas vous aider avec cela.",
        "Desculpe, mas não posso ajudar com isso.",
        "К сожалению, я не могу помочь с этим.",
        "抱歉，我无法回答这个问题。",
        "申し訳ありませんが、お手伝いできません。",
    ],
)
def test_refusals_in_other_words_and_languages(text: str) -> None:
    assert REFUSAL.match(text)


@pytest.mark.parametrize(
    "text",
    [
        "I must say that this is a good question.",
        "Es tut mir leid, das zu hören. Erzähl mir mehr.",
        "Lo siento mucho por tu pérdida.",
        "Je suis désolé pour le retard, voici la réponse.",
        "К сожалению, этот метод устарел.",
        "抱歉让您久等了，答案是四。",
    ],
)
def test_apologies_are_no_refusals(text: str) -> None:
    assert not REFUSAL.match(text)


@pytest.mark.parametrize(("text", "short"), [("Да", True), ("是", True), ("天气很好", False), ("Größe", True)])
def test_one_word_in_other_scripts(text: str, short: bool) -> None:
    rows = conversations(20)
    for row in rows[:4]:
        answer(row)["content"] = text
    assert ("one-word-answers" in rules(rows)) == short


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
    "parameters", [None, [], "x", {"properties": []}, {"properties": None}, {"properties": {"city": None}}]
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
    for text in ("<p>" * 50_000, "<a " * 50_000, "<img " * 50_000, "<br>" * 50_000, "[INST]" * 20_000, "¹a" * 50_000):
        rules(with_answer(text))
    assert monotonic() - began < 60  # a busy machine takes two seconds; quadratic patterns take minutes
