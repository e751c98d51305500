"""Progress: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from niels_gpt.cli import terminal
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.samples import chats_file


def test_lines_come_where_nothing_advances(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    said, until = "", time.monotonic() + 60
    with ShownProgress() as progress:
        progress.begin("training unigram")
        while "\n" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
    lines = said.splitlines()
    assert lines
    assert all(re.fullmatch(r"training unigram: \d+ s", line) for line in lines)
    with ShownProgress(quiet=True) as progress:
        progress.begin("training unigram")
        time.sleep(0.6)
    assert capsys.readouterr().err == ""


def test_the_last_line_tells_the_whole_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)

    def said(progress: ShownProgress) -> list[str]:
        """What a phase has printed once it has a line."""
        progress.begin("notes", total=900, unit="tokens")
        progress.advance(600)
        lines, until = "", time.monotonic() + 60
        while "\n" not in lines and time.monotonic() < until:
            time.sleep(0.05)
            lines += capsys.readouterr().err
        progress.advance(300)
        return lines.splitlines()

    with ShownProgress() as progress:
        assert said(progress)[0] == "notes: 600 of 900 tokens"
    assert capsys.readouterr().err.splitlines()[-1:] == ["notes: 900 tokens"]
    with ShownProgress() as progress:
        progress.begin("short", total=900, unit="tokens")  # it has no line at all
    assert capsys.readouterr().err == ""
    with pytest.raises(KeyError), ShownProgress() as progress:  # noqa: PT012
        said(progress)
        raise KeyError
    assert "notes: 900 tokens\n" not in capsys.readouterr().err, "what broke off has no whole count"


def test_a_reader_that_leaves_is_no_failure() -> None:
    """As with `| head -1`: the pipe has no reader any more when the first line is written."""
    reading, writing = os.pipe()
    os.close(reading)
    for command in (["rules"], ["rules", "--json"]):
        code = f"import sys; sys.argv = ['niels-gpt', *{command!r}]; from niels_gpt.cli.main import main; main()"
        done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    os.close(writing)


@pytest.mark.parametrize("arguments", [["show", "nothing", "--json"], ["show", "--jsn", "--json"], ["sho", "--json"]])
def test_an_error_is_json_too(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one of a command line that cannot be parsed."""
    from niels_gpt.cli.main import app

    monkeypatch.setattr(sys, "argv", ["niels-gpt", *arguments])
    with pytest.raises(SystemExit) as ended:
        terminal.run(lambda: app(arguments))
    printed, said = capsys.readouterr()
    found = json.loads(printed)
    assert (found["exit_code"], f"error: {found['error']}\n") == (ended.value.code, said)


def test_brackets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes what is in brackets as the name of a style, and prints nothing."""
    terminal.out().print("pip install 'niels-gpt[hub]'")
    table = terminal.table_of("file")
    table.add_row("a[1].jsonl")
    terminal.out().print(table)
    terminal.err().print("b[2].jsonl")
    printed, said = capsys.readouterr()
    assert "niels-gpt[hub]" in printed
    assert "a[1].jsonl" in printed
    assert said == "b[2].jsonl\n"


@pytest.mark.parametrize("command", [["show", chats_file(), "3"], ["rules"], ["rules", "--json"], ["show", "\udcff"]])
def test_a_terminal_without_unicode(command: list[object]) -> None:
    """What its encoding lacks is escaped as in JSON; it was a traceback."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    program = [Path(sys.executable).parent / "niels-gpt", *command]
    done = subprocess.run(program, capture_output=True, env=environment, check=False)
    assert "Traceback" not in done.stderr.decode("ascii")
    assert done.returncode == (3 if command[-1] == "\udcff" else 0)
    if "--json" in command:
        assert not json.dumps(json.loads(done.stdout), ensure_ascii=False).isascii()


def test_a_full_disk_with_json() -> None:
    program = [Path(sys.executable).parent / "niels-gpt", "rules", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith("error: No space left on device; free some space")
