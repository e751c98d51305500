"""`niels-gpt explore` as a user starts it, and what it says when it cannot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from niels_gpt.samples import chats_file

MAIN = "import sys; from niels_gpt.cli.main import main; sys.argv[0] = 'niels-gpt'; main()"
PLAIN = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


def refused(*arguments: object, before: str = "") -> str:
    """What the command says when it ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", before + MAIN, "explore", "--no-browser", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=PLAIN,
        timeout=100,
        check=False,
    )
    assert done.returncode in (2, 3), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_serves_until_interrupted() -> None:
    command = [sys.executable, "-c", MAIN, "explore", str(chats_file()), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        assert httpx.get(found[0] + "api/session").json()["dataset"]["rows"] >= 0
        running.send_signal(signal.SIGINT)
        running.wait(60)
        assert "Traceback" not in (running.stderr.read() if running.stderr else "")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.jsonl")
    report = tmp_path / "report.json"
    report.write_text('{"version": 2}')
    assert "version" in refused("--findings", report)
    assert "no tokenizer there" in refused("--tokenizer", tmp_path)


def test_missing_extra_is_named() -> None:
    without = "import sys; sys.modules['starlette'] = None; sys.modules['uvicorn'] = None; "
    assert "pip install 'niels-gpt[explorer]'" in refused(before=without)


@pytest.mark.parametrize(
    ("option", "value"), [("--renderer", "quen3"), ("--date", "today"), ("--template", "none.jinja")]
)
def test_wrong_options_are_told_before_the_page_opens(option: str, value: str) -> None:
    said = refused(option, value)
    assert any(words in said for words in ("did you mean 'qwen3'", "expected a day", "none.jinja: no such file")), said
