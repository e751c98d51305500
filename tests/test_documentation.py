"""The code of the pages in `docs/`, run as it stands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from niels_gpt.inputs import Record, read_jsonl
from niels_gpt.samples import chats_file
from niels_gpt.sources.chat_file import ChatFile
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import REPOSITORY


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_page_on_episodes(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks in order, in one namespace, as a reader would type them."""
    from niels_gpt.episodes import build_episodes

    shutil.copytree(tokenizer_dir, tmp_path / "tokenizer")
    rows = [record.value for record in read_jsonl(chats_file()) if isinstance(record, Record)]
    sources = [row | {"source": "web" if number % 4 == 0 else "chats"} for number, row in enumerate(rows * 2)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sources))
    tokenizer = SentencePieceTokenizer(tokenizer_dir / "spm.model")
    build_episodes(ChatFile(chats_file()).iterate(), tmp_path / "episodes" / "more", encoder=tokenizer)
    monkeypatch.chdir(tmp_path)
    found = blocks(REPOSITORY / "docs" / "episodes.md")
    assert len(found) >= 8
    names: dict[str, object] = {}
    for number, block in enumerate(found):
        exec(compile(block, f"docs/episodes.md, block {number}", "exec"), names)  # our own page, run on purpose


def test_the_page_on_renderers(tmp_path: Path) -> None:
    """All blocks in order, with a tiny tokenizer of the family in the place of the model."""
    pytest.importorskip("tokenizers")
    from tests.renderers.small import CHATML
    from tests.renderers.tiny_families import folder_of

    model = tmp_path / "model"
    shutil.copytree(folder_of("qwen3"), model)
    (model / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    found = blocks(REPOSITORY / "docs" / "renderers.md")
    assert len(found) >= 7
    names: dict[str, object] = {}
    for number, block in enumerate(found):
        code = block.replace("~/models/Qwen3-8B", str(model))
        exec(compile(code, f"docs/renderers.md, block {number}", "exec"), names)


def test_the_page_on_the_doctor(tmp_path: Path) -> None:
    """All blocks in order; the table of rules is that of the registry, and the JSON has the report's fields."""
    pytest.importorskip("tokenizers")
    from niels_gpt.doctor import RULES, diagnose
    from tests.renderers.tiny_families import folder_of

    page = REPOSITORY / "docs" / "doctor.md"
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(page)):
        code = block.replace("~/models/Qwen3-8B", str(folder_of("chatml")))
        exec(compile(code, f"docs/doctor.md, block {number}", "exec"), names)
    text = page.read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", text, flags=re.MULTILINE)
    assert told == [(rule.id, rule.severity, ", ".join(rule.applies), rule.title) for rule in RULES.values()]
    (block,) = re.findall(r"^```json\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    shown, real = json.loads(block), diagnose([{"input_ids": [1, 2], "labels": [-100, -100]}]).to_json()
    assert shown.keys() == real.keys()
    for level in ("findings", "evidence", "window"):
        shown, real = shown[level][0], real[level][0]
        assert shown.keys() == real.keys()
