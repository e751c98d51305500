"""No alarm where nothing is wrong: the bundled chats by every family, as conversations and as another tool's ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import diagnose
from niels_gpt.doctor.layouts.inference import infer_layout
from niels_gpt.doctor.layouts.turns import occurrences
from niels_gpt.doctor.rows import ASSISTANT
from niels_gpt.errors import MessageError, NielsError
from niels_gpt.messages import Conversation
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, RendererOptions
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_files import chat_files
from tests.assets import ASSETS, family_encoder, needs_assets
from tests.doctor.made import chats as made_chats
from tests.renderers.tiny_families import renderer_of

families = pytest.mark.parametrize("family", FAMILIES)
# Real tokenizers of families whose formats differ.
REAL = {"qwen3": "qwen3-8b", "glm-5": "glm-5", "gemma": "gemma-3-1b-it", "mistral": "mistral-nemo-instruct-2407"}


def conversations() -> list[Conversation]:
    return [chat for chat in chat_files([chats_file()]).iterate() if isinstance(chat, Conversation)]


def rendered_rows(renderer: Any) -> list[dict[str, Any]]:
    """What another tool would have written, had it done everything right; refused conversations are left out."""
    rows = []
    for chat in conversations():
        try:
            made = renderer.render(chat.messages, tools=chat.tools)
        except MessageError:
            continue
        labels = [token if said else -100 for token, said in zip(made.token_ids, made.sampled_mask, strict=True)]
        rows.append({"input_ids": made.token_ids, "labels": labels})
    return rows


def check_chats(renderer: Any) -> None:
    report = diagnose(chats_file(), renderer=renderer, evidence=1000)
    chats = conversations()
    for finding in report.findings:
        for evidence in finding.evidence if finding.severity == "error" else ():
            chat = chats[evidence.row]
            if finding.rule == "system-dropped":  # Mistral's template writes it where the user's is the last message
                assert str(chat.messages[0]["content"]) not in renderer.text(chat.messages, tools=chat.tools)
                continue
            assert finding.rule == "template-raises"
            with pytest.raises(MessageError):  # no false alarm: the format does refuse this row
                renderer.render(chat.messages, tools=chat.tools)


@families
def test_the_samples_are_no_error_as_conversations(family: str) -> None:
    check_chats(renderer_of(family))


@families
def test_the_samples_are_no_error_as_ids_of_another_tool(family: str) -> None:
    renderer = renderer_of(family)
    report = diagnose(rendered_rows(renderer), renderer=renderer)
    assert report.rules("error") == []
    assert not {"header-trained", "mask-holes", "tail-trained"} & set(report.rules())


@needs_assets
@pytest.mark.parametrize("family", REAL)
def test_the_samples_are_no_error_by_real_tokenizers(family: str) -> None:
    folder = ASSETS / REAL[family]
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no {folder}")
    renderer = FAMILIES[family](family_encoder(folder, family))
    check_chats(renderer)
    assert diagnose(rendered_rows(renderer), renderer=renderer).rules("error") == []


@needs_assets
@pytest.mark.parametrize(("name", "options"), [("qwen3-8b", {}), ("gpt-oss-20b", {"date": "2026-01-31"})])
def test_the_samples_are_no_error_by_official_templates(name: str, options: dict[str, str]) -> None:
    if not (ASSETS / name / "tokenizer.json").is_file():
        pytest.skip(f"no {name}")
    try:
        renderer = RendererOptions("template", **options).open(str(ASSETS / name))  # type: ignore[arg-type]
    except NielsError as error:
        pytest.skip(str(error))
    assert not isinstance(renderer, Family)
    assert infer_layout(renderer).trusted
    check_chats(renderer)
    assert diagnose(rendered_rows(renderer), renderer=renderer).rules("error") == []


# ---- formats whose turns are not one header, one text and one stop


def labelled(renderer: Any, conversations: Any) -> list[dict[str, Any]]:
    made = [renderer.render(messages) for messages in conversations]
    return [{"input_ids": list(one.token_ids), "labels": list(one.labels())} for one in made]


HEADERLESS = [
    [made_chats(1)[0][1], *made_chats(3)[2]],
    [{"role": "system", "content": "Be brief"}, made_chats(1)[0][1], *made_chats(3)[2]],
    [*made_chats(3)[2], made_chats(1)[0][1], *made_chats(4)[3]],
]


@pytest.mark.parametrize("messages", HEADERLESS)
def test_answers_without_a_header_are_turns_of_their_own(messages: list[Any]) -> None:
    renderer = renderer_of("deepseek-v3.1")
    made = renderer.render(messages)
    row = {"input_ids": made.token_ids, "labels": made.labels()}
    turns = ["turn-order"] if len(messages) > 5 and messages[0]["role"] == "user" else []  # two answers in a row
    assert diagnose([row], renderer=renderer).rules("warning") == turns
    first = next(at for at, role in enumerate(made.message_roles) if role == "assistant" and at in (0, 1, 4))
    own = [at for at, owner in enumerate(made.message_indices) if owner == first]
    row["labels"][own[-1]] = -100
    assert "eot-not-trained" in diagnose([row], renderer=renderer).rules("error")
    for at in own:
        row["labels"][at] = -100
    assert diagnose([row], renderer=renderer).rules("error") == []


def test_an_answer_of_several_messages_is_one_turn() -> None:
    """Inkling: only the last message of an answer has the stop, and the model writes the headers between them."""
    renderer = renderer_of("inkling")
    layout = infer_layout(renderer)
    assert layout.joins_parts
    rows = labelled(renderer, made_chats(turns=1, reasons=True))
    assert diagnose(rows, renderer=renderer).rules() == []
    for row in rows:
        row["labels"] = [-100 if token == layout.stops[0] else token for token in row["labels"]]
    assert diagnose(rows, renderer=renderer).rules("error") == ["eot-not-trained"]


def opener_of(renderer: Any) -> tuple[int, ...]:
    return next(ids for role, ids in infer_layout(renderer).openers if role == ASSISTANT)


@pytest.mark.parametrize("openers", [True, False])
def test_openers_of_channels_may_be_trained_or_not(openers: bool) -> None:
    renderer = renderer_of("gpt-oss")
    opener = opener_of(renderer)
    rows = labelled(renderer, made_chats(turns=1, reasons=True))
    for row in rows:
        _, inner = occurrences(np.array(row["input_ids"]), opener).tolist()
        for at in range(inner, inner + len(opener)):
            row["labels"][at] = row["input_ids"][at] if openers else -100
    assert set(diagnose(rows, renderer=renderer).rules()) == {"eot-not-in-stop-set"}
    for row in rows:  # and what is a header still is
        at = occurrences(np.array(row["input_ids"]), opener)[0]
        row["labels"][at] = row["input_ids"][at]
    assert "header-trained" in diagnose(rows, renderer=renderer).rules()


# Text between `<|start|>assistant` and `<|message|>` of gpt-oss, with control tokens, and a message before the last
# answer. The model writes the channel itself, so it is sampled text, but a server reads answers by it.
HEADERS = [
    *((header, "", ["header-drift"]) for header in ("", "<|channel|>thoughts", "<|channel|>", "analysis")),
    ("<|channel|>final", "", []),
    ("<|channel|>commentary to=functions.rain <|constrain|>json", "", []),
    (" to=functions.rain<|channel|>commentary json", "", []),
    ("<|channel|>analysis to=browser.search code", "", []),
    *(("<|channel|>final", tool, []) for tool in ("browser.search", "python", "functions.rain")),
]


@pytest.mark.parametrize(("header", "tool", "errors"), HEADERS)
def test_headers_of_gpt_oss_are_those_of_its_channels(header: str, tool: str, errors: list[str]) -> None:
    renderer = renderer_of("gpt-oss")
    opener, message = opener_of(renderer), renderer.encoder.added_ids["<|message|>"]
    words = renderer.encoder.encode_pieces([header], [True])[0].tolist()
    result = f"<|start|>{tool} to=assistant<|channel|>commentary<|message|>4 degrees<|end|>"
    result_ids = renderer.encoder.encode_pieces([result], [True])[0].tolist() if tool else []
    rows = labelled(renderer, made_chats(turns=2))
    for row in rows:
        ids, labels = row["input_ids"], row["labels"]
        for start in occurrences(np.array(ids), opener).tolist()[::-1]:
            first = start + len(opener)
            stop = ids.index(message, first)
            ids[first:stop], labels[first:stop] = words, words
        at = occurrences(np.array(ids), opener)[-1]
        ids[at:at], labels[at:at] = result_ids, [-100] * len(result_ids)
    report = diagnose(rows, renderer=renderer)
    assert report.rules("error") == errors
    assert {finding.count for finding in report.findings if finding.rule in errors} <= {16}


@pytest.mark.parametrize("shift", [0, -3, 3])
def test_packed_texts_begin_with_the_message_that_the_template_inserts(shift: int) -> None:
    """gpt-oss's template writes a system message of its own before the conversation's, which is for developers."""
    renderer = renderer_of("gpt-oss")
    told = {"role": "system", "content": "Be brief"}
    made = labelled(renderer, [[told, *messages] if n % 2 else messages for n, messages in enumerate(made_chats())])
    rows = []
    for one, two in zip(made[::2], made[1::2], strict=True):
        lengths = [len(one["labels"]) + shift, len(two["labels"]) - shift]
        rows.append({name: one[name] + two[name] for name in one} | {"seq_lengths": lengths})
    assert ("packing-lengths" in diagnose(rows, renderer=renderer).rules()) == bool(shift)
    for row in rows:
        del row["seq_lengths"]
    assert "attention-crosses" in diagnose(rows, renderer=renderer).rules()
