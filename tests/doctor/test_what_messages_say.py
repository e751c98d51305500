"""What messages say, each fault beside texts that look like it: tags, secrets, loops, damage, refusals, calls."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import Report, diagnose
from niels_gpt.doctor.rules.contents import LONG, damage_in
from niels_gpt.doctor.rules.secrets import redacted, secret_in, without_keys
from niels_gpt.doctor.rules.shares import REFUSAL
from tests.doctor.made import Row, assistant, chats, report_on, tool_chats, user
from tests.doctor.planted_contents import answer, conversations
from tests.renderers.tiny_families import renderer_of

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


@pytest.mark.parametrize(
    "prompt",
    [
        "Think in <scratchpad></scratchpad> tags first, then answer.",
        "Put your reasoning into <thoughts>...</thoughts> and the rest after it.",
        "The process is enclosed in <think> </think>, i.e., <think> reasoning process here </think>.",
        "Read this: <diary><Reflection>What did we learn this week, and what do we do next?</Reflection></diary>",
    ],
)
def test_prompts_may_explain_tags(prompt: str) -> None:
    sum_of_two = [user("Two and two?"), assistant("It is four, as before.")]
    assert rules([{"messages": [{"role": "system", "content": prompt}, *sum_of_two]}]) == []
    assert rules([{"messages": [user(prompt), sum_of_two[1]]}]) == []
    left = "<think>They ask for a sum of two numbers, and I know both of them.</think> Two and two?"
    assert rules([{"messages": [user(left), assistant("It is four, as before.")]}]) == ["think-tags-in-content"]


@pytest.mark.parametrize(
    "code", ["<Reflection>\n  <Tree />\n</Reflection>", "<entry><thoughts>I was tired.</thoughts></entry>"]
)
def test_elements_of_code_may_have_the_names_of_tags(code: str) -> None:
    assert rules(with_answer(f"\n\n```xml\n{code}\n```\nThat is all.")) == []
    assert rules(with_answer(f" {code}")) == ["think-tags-in-content"]


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>analysis<|message|>The user",
        "◁think▷The user◁/think▷",
        "The user </THINK>",
        "<seed:think>The user</seed:think>",
        "<scratchpad>The user",
        "<Reflection>The user</Reflection>",
    ],
)
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
        ("a private key", r'"private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC'),
        ("a private key", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\nlQOYBF7rAbcBCADLr4qkYVnQ"),
        ("a private key", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEpAIBAAKCAQEA"),
        ("an OpenRouter key", "sk-or-v1-" + "0a1b2c3d" * 8),
        ("a DeepSeek key", "sk-" + "0a1b2c3d" * 4),
        ("a Databricks token", "dapi" + "0a1b2c3d" * 4),
        ("a Mailgun key", 'MAILGUN_API_KEY="key-' + "0a1b2c3d" * 4 + '"'),
        ("a Mailgun key", "curl --user 'api:key-" + "0a1b2c3d" * 4 + "'"),
        ("a Replicate token", "r8_" + "aB3dE5gH7j" * 3 + "kLmNoPq"),
        ("an NVIDIA key", "nvapi-" + "aB3dE5gH7j" * 6 + "kLmN"),
        ("a Perplexity key", "pplx-" + "aB3dE5gH" * 6),
        ("a Vault token", "hvs." + "aB3dE5gH7j" * 9),
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


@pytest.mark.parametrize(
    "text",
    [
        "It is cached under cache-key-d41d8cd98f00b204e9800998ecf8427e, or key-d41d8cd98f00b204e9800998ecf8427e.",
        "A key looks like sk-0123456789abcdef0123456789abcdef.",
        "DATABRICKS_TOKEN=dapi1234567890abcdef1234567890abcdef",
        "VAULT_TOKEN=hvs.your-vault-token-goes-here-1",
        *(
            f"KEY={start}{'x' * n}"
            for start, n in (("lin_api_", 40), ("ntn_", 43), ("nvapi-", 64), ("pplx-", 48), ("gsk_", 52))
        ),
        *(f"KEY={start}{'0' * n}" for start, n in (("dop_v1_", 64), ("sk-or-v1-", 64), ("shpat_", 32))),
        r'"private_key": "-----BEGIN PRIVATE KEY-----\nxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n-----END PRIVATE KEY-----"',
    ],
)
def test_placeholders_and_hashes_are_no_keys(text: str) -> None:
    assert secret_in(text) is None
    assert str(secret_in(f"{text} and gsk_{'aB3dE5gH7jKlM' * 4}")).startswith("a Groq key")


def test_no_note_of_another_rule_shows_a_secret() -> None:
    rows = conversations(40)
    for row in rows[:20]:
        answer(row)["content"] = "The river carries the lamps, and the key of the north wall is " + KEY + " and the"
    report = diagnose(rows)
    assert {"answer-cut", "secrets-in-content"} <= set(report.rules("info"))
    assert not shows_key(report)


def shows_key(report: Report) -> bool:
    notes = " ".join(piece.note + finding.summary for finding in report.findings for piece in finding.evidence)
    return any(KEY[at : at + 8] in notes for at in range(8, len(KEY) - 8))


def as_arguments(arguments: Any) -> list[Row]:
    """A conversation that calls a tool with these arguments."""
    return tool_chats(lambda n: arguments, 1)


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (as_arguments({"city": KEY}), "secrets-in-content"),
        (as_arguments({"city": ["x", {"key": KEY}]}), "secrets-in-content"),
        (as_arguments(json.dumps({"city": KEY})), "secrets-in-content"),
        (as_arguments(f"key={KEY}"), "tool-arguments-not-json"),
        (as_arguments(json.dumps(json.dumps({"city": KEY}))), "tool-arguments-double-encoded"),
        (as_arguments({"city": "x", KEY: 1}), "tool-arguments-unknown"),
        (as_arguments({"city": "x", "days": KEY}), "tool-arguments-unknown"),
        ([{"messages": [user("x"), {"role": KEY, "content": "y"}]}], "role-order"),
        ([{"messages": [user("x"), assistant((KEY + " ") * 40)]}], "endless-repetition"),
        ([{"messages": [{"role": "user", "content": {"x": KEY}}]}, *as_arguments({})], "unusable-row"),
    ],
)
def test_no_note_shows_a_key_wherever_it_is(rows: list[Row], rule: str) -> None:
    report = diagnose(rows, renderer=renderer_of("qwen2.5"))
    assert rule in report.rules()
    assert not shows_key(report)


def test_names_of_tools_are_no_keys() -> None:
    names = ("getUserProfileV2ById", "get_user_profile_by_id_2", "functions.search:0", "Coder-32B-Instruct")
    assert [without_keys(name) for name in names] == list(names)


# ---- loops and damage


CARD = """  <div class="card">
    <img src="placeholder.jpg" alt="Product">
    <h3>Product name</h3><p>A short description of the product.</p>
    <button>Add to cart</button>
  </div>
"""
OBJECT = """    {
      "id": "string", "name": "string", "description": "string", "price": 0,
      "tags": ["string"], "dimensions": {}, "remarks": ""
    },
"""
EMPTY = (
    "| item | description of the item in a few words | price of the item "
    "| remarks on delivery, storage and so on, in one line |\n"
)
UNROLLED = """    mov rax, [rsi]
    add rax, [rsi + 8]
    imul rax, rbx
    mov [rdi], rax
    add rsi, 16
    add rdi, 8
    dec rcx
"""


@pytest.mark.parametrize("piece", [CARD, OBJECT, EMPTY, UNROLLED])
def test_code_and_forms_may_say_the_same_a_few_times(piece: str) -> None:
    assert len(piece) >= LONG
    assert rules(with_answer("\n\n```\n" + piece * 6 + "```\nThese are six.")) == []
    assert rules(with_answer("\n\n```\n" + piece * 22)) == ["endless-repetition"]


def test_boards_of_squares_are_no_loop() -> None:
    assert rules(with_answer("\n" + "||🟦||||🟩||\n" * 40 + "\nChoose one.")) == []


SENTENCES = (
    "The committee met again on Tuesday to discuss the matter of the bridge and the old mill beside it.",
    "After a long debate it was decided that nothing could be done before the report was there.",
    "Nobody had read the letter that lay on the table, and so the meeting ended as it had begun.",
)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_long_paragraphs_that_come_again_are_a_loop(n: int) -> None:
    paragraph = "\n\n" + " ".join([*SENTENCES[:n], SENTENCES[0]])
    assert rules(with_answer(paragraph * 4)) == ["endless-repetition"]
    assert "endless-repetition" in rules(with_answer(paragraph * 5 + paragraph[:77]))  # cut off by a limit
    assert rules(with_answer(paragraph * 3)) == []


def test_long_lines_of_a_plan_that_differ_in_their_numbers_are_no_loop() -> None:
    line = "Run {} km in the park at an easy pace, walk for {} minutes, and stretch your legs and your back after it."
    plan = "".join(f"\n{n}. Day {n}: {line.format(n + 2, 5 * n)}" for n in range(1, 8))
    assert rules(with_answer(plan)) == []


@pytest.mark.parametrize("piece", ["\n", "😂", "\n\n\n   "])
def test_signs_without_end_are_a_loop(piece: str) -> None:
    assert rules(with_answer(piece * 300 + "And an end.")) == ["endless-repetition"]


def test_empty_rows_of_a_table_are_no_loop() -> None:
    assert rules(with_answer("\n" + "|   |   |   |\n" * 40 + "\nFill it in.")) == []


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


def test_lists_that_break_off_in_their_last_item() -> None:
    item = "The {} lamp is moved to the other side of the house when winter comes{}"
    words = ("first", "second", "third", "fourth")

    def rows(stop: str, last: str) -> list[Row]:
        made = conversations(40)
        for number, row in enumerate(made[:12]):
            lines = [f"{n}. **{word.title()}**: {item.format(word, stop)}" for n, word in enumerate(words, 1)]
            ending = item.format("last", "")[: 52 - number] if last == "cut" else item.format("last", stop)
            answer(row)["content"] = "\n".join([f"Answer {number}:", *lines, f"5. **Last**: {ending}"])
        return made

    assert "answer-cut" in rules(rows(".", "cut"))
    assert "answer-cut" not in rules(rows(".", "whole"))
    assert "answer-cut" not in rules(rows("", "whole"))  # no item of these lists has a full stop


@pytest.mark.parametrize("text", ["\u200b", "\ufeff\n", " \u200b \u2060", "\u00a0"])
def test_an_answer_that_shows_nothing_is_empty(text: str) -> None:
    made = conversations(1)
    answer(made[0])["content"] = text
    assert rules(made) == ["empty-answer"]


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
        "I'm afraid I can't do that.",
        "No, I can't help with that.",
        "I’m not going to help with that.",
        "I'm designed to be safe, so I cannot provide that.",
        "It is not ethical to provide such instructions.",
        "Ich kann Ihnen dabei leider nicht helfen.",
        "Ich kann Ihnen diese Frage nicht beantworten.",
        "No puedo ayudarte con eso.",
        "Je ne peux pas vous aider avec cela.",
        "Het spijt me, maar daar kan ik niet bij helpen.",
        "Przykro mi, ale nie mogę w tym pomóc.",
        "Üzgünüm, bu konuda yardımcı olamam.",
        "죄송하지만, 그 요청은 도와드릴 수 없습니다.",
        "عذراً، لا يمكنني مساعدتك في ذلك.",
    ],
)
def test_refusals_in_other_words_and_languages(text: str) -> None:
    assert REFUSAL.match(text)


@pytest.mark.parametrize("before", ["**", "<think>\nThey ask for it.\n</think>\n\n"])
def test_refusals_after_markup_and_reasoning(before: str) -> None:
    rows = conversations(20)
    for row in rows[:4]:
        answer(row)["content"] = before + "I'm sorry, but I can't help with that."
    assert "refusals" in rules(rows)


@pytest.mark.parametrize(
    "text",
    [
        "I must say that this is a good question.",
        "Es tut mir leid, das zu hören. Erzähl mir mehr.",
        "Lo siento mucho por tu pérdida.",
        "Je suis désolé pour le retard, voici la réponse.",
        "К сожалению, этот метод устарел.",
        "抱歉让您久等了，答案是四。",
        "Ich kann nicht sagen, ob Tee helfen wird.",
        "Ich kann dir zeigen, warum das nicht immer helfen würde, und was stattdessen geht.",
        "I can't help but notice the bridge in the second picture.",
        "Sadly, I cannot help but think of the old house.",
        "No puedo esperar a leerlo.",
        "I'm just happy that we can help.",
        "죄송합니다, 다시 설명하겠습니다.",
        "No, I can't see a difference between them.",
    ],
)
def test_apologies_are_no_refusals(text: str) -> None:
    assert not REFUSAL.match(text)


@pytest.mark.parametrize(
    ("text", "short"), [("Да", True), ("是", True), ("天气很好", False), ("Größe", True), ("👍", False), ("...", True)]
)
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
