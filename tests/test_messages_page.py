"""docs/messages.md, through every door: what it says of a key is what becomes of the key."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, NielsError
from niels_gpt.export.tokenize import Tokenize
from niels_gpt.messages import read_conversation
from niels_gpt.renderers.base import build_training_sample
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.sources.chat_files import record_to_conversation
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.rows.preference_rows import to_preference
from tests.conftest import REPOSITORY, run_cli
from tests.renderers.tiny_families import folder_of, renderer_of

PAGE: Final = (REPOSITORY / "docs" / "messages.md").read_text(encoding="utf-8")
ROW: Final = re.compile(r"^\| (message|part|call|tool|row) \| `(.+?)` \| (.+?) \| .*\|$", re.MULTILINE)
BASE: Final[dict[str, Any]] = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
TEMPLATE: Final = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ '' if m.content is undefined else m.content if m.content is string else m.content[0].text }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)


@dataclass(frozen=True)
class Case:
    """A line of the page: the row with the example, the row that it is read as, and what is said of it."""

    place: str
    example: str
    row: dict[str, Any]
    meant: dict[str, Any]
    refused: str
    changed: list[str]
    unread: list[str]

    def __str__(self) -> str:
        return f"{self.place} {self.example[:40]}"


def merged(place: str, text: str) -> dict[str, Any]:
    row, fields = copy.deepcopy(BASE), json.loads(f"{{{text}}}")
    last = row["messages"][-1]
    if place == "part":
        last["content"] = [{"type": "text", "text": "4"}]
    places = {
        "message": last,
        "part": last["content"][0],
        "call": last["tool_calls"][0]["function"],
        "tool": row["tools"][0]["function"],
        "row": row,
    }
    places[place].update(fields)
    return row


def cases() -> list[Case]:
    found = []
    for place, example, told in ROW.findall(PAGE):
        meant = re.match(r"as (?:`(.+?)`|nothing)", told)
        # What is not read stays out of the rendering, as if it were not there.
        same = (meant[1] or "") if meant else example if told.startswith("read") else ""
        refused = re.search(r"refused: `(.+?)`", told)
        codes = [re.findall(rf"{word}: `(.+?)`", told) for word in ("changed", "unread")]
        row = merged(place, example)
        found.append(Case(place, example, row, merged(place, same), refused[1] if refused else "", *codes))
    return found


CASES: Final = cases()


def template() -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=TEMPLATE)


def test_the_page_has_cases() -> None:
    assert len(CASES) > 80
    assert all(case.refused or case.changed or case.unread or case.meant for case in CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.place != "row" or "tools" in case.example], ids=str)
def test_python_calls_families_and_templates(case: Case) -> None:
    messages, tools = case.row["messages"], case.row["tools"]
    doors = (
        lambda row: read_conversation(row["messages"], row["tools"]).tools,
        lambda row: renderer_of("qwen3").render(row["messages"], tools=row["tools"]).token_ids,
        lambda row: build_training_sample(renderer_of("qwen3"), row["messages"], tools=row["tools"]),
        lambda row: template().text(row["messages"], tools=row["tools"]),
    )
    if case.refused:
        for door in doors:
            with pytest.raises(MessageError) as caught:
                door(case.row)
            assert caught.value.reason == case.refused
        return
    for door in doors[1:]:
        assert door(case.row) == door(case.meant)
    read = read_conversation(messages, tools)
    assert [[*read.changes], [*read.unread]] == [case.changed, case.unread]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_exports_and_preferences(case: Case) -> None:
    def preference(row: dict[str, Any]) -> Any:
        sides = {"prompt": row["messages"][:-1], "chosen": row["messages"][-1:], "rejected": "No."}
        rest = {name: value for name, value in row.items() if name != "messages"}
        return to_preference(sides | rest, "preference")

    tokenize = Tokenize(renderer_of("qwen3"), format="messages")
    chat = record_to_conversation(Record("r", case.row), "messages")
    if case.refused:
        assert isinstance(chat, Rejected)
        assert chat.reason == case.refused
        with pytest.raises(NielsError):
            tokenize([case.row])
        with pytest.raises(MessageError) as caught:
            preference(case.row)
        assert caught.value.reason == case.refused
        return
    assert not isinstance(chat, Rejected)
    for read in (chat, preference(case.row).prompt):
        assert [[*read.changes], [*read.unread]] == [case.changed, case.unread]
    if "weight" not in chat.messages[-1]:  # labels cannot express weights other than 0 and 1
        assert str(tokenize([case.row])) == str(tokenize([case.meant]))


def test_builds_count_what_the_page_says(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text("".join(json.dumps(case.row) + "\n" for case in CASES))
    options = ("--renderer", "qwen3", "--mask", "float32", "--format", "messages", "--max-bad-rows", "all")
    done = run_cli("build", rows, "--out", out, "--tokenizer", folder_of("qwen3"), *options)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (out / "rejected.jsonl").read_text().splitlines())
    refused = {f"rows.jsonl:{number}": case.refused for number, case in enumerate(CASES, 1) if case.refused}
    assert {line["where"].rpartition("/")[2]: line["reason"] for line in lines} == refused
    manifest = json.loads((out / "episodes.json").read_text())
    used = [case for case in CASES if not case.refused]
    codes = Counter(code for case in used for code in case.changed)
    assert {code: manifest["changed"].get(code) for code in codes} == codes
    assert manifest["unread_keys"] == Counter(key for case in used for key in case.unread)
    assert "keys that nothing reads" in done.stderr
