"""Progress of commands where stderr is no terminal: plain lines."""

from __future__ import annotations

import re
import time

import pytest

from niels_gpt.cli import terminal
from niels_gpt.cli.terminal import ShownProgress


def test_lines_come_where_nothing_advances(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    said, until = "", time.monotonic() + 60
    with ShownProgress() as progress:
        progress.begin("training unigram")
        while "\n" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
        progress.begin("notes", total=900, unit="tokens")
        progress.advance(600)
        while "notes" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
    assert re.match(r"training unigram: \d+ s\n", said)
    assert said.splitlines()[-1] == "notes: 600 of 900 tokens"


def test_quiet_progress_writes_notes_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    with ShownProgress(quiet=True) as progress:
        progress.begin("training unigram")
        progress.note("a note")
        time.sleep(0.6)
    assert capsys.readouterr().err == "a note\n"
