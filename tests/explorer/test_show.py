"""The terminal's view of a long example: little memory, made once for each id, the same in parts as whole."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from niels_gpt.display.example import ExampleView, TokenColumns, TokenView
from niels_gpt.display.rows import COLOURS, CONTEXT, PADDING, TRAINED, TokenSpelling
from niels_gpt.display.table import print_view, show_view
from niels_gpt.samples import chats_file
from tests.conftest import run_cli

WORDS = ["", " one", "two\n", "日本", " ", "\x1b[2J"]


def columns(n: int, padding: int = 0) -> TokenColumns:
    ids = np.arange(n) % len(WORDS)
    kinds = np.where(np.arange(n) % 7 < 3, TRAINED, CONTEXT)
    kinds[n - padding :] = PADDING
    asked: list[int] = []

    def spelling(token: int) -> str:
        asked.append(token)
        assert len(asked) == len(set(asked)), "an id is spelled once"
        return WORDS[token]

    return TokenColumns(ids, np.roll(ids, -1), kinds, kinds == TRAINED, spelling, no_target=True)


def printed(view: ExampleView, *, table: bool, terminal: bool = False) -> str:
    screen = io.StringIO()
    show_view(Console(file=screen, width=40, force_terminal=terminal), view, with_table=table)
    return screen.getvalue()


def test_columns_are_the_tokens() -> None:
    tokens = columns(20_000)
    assert list(tokens)[9_000:9_003] == tokens[9_000:9_003] == [tokens[at] for at in range(9_000, 9_003)]
    expected = TokenView(
        9_001, 1, " one", COLOURS[int(tokens.kinds[9_001])], 2, "two\n", bool(tokens.target_trained[9_001])
    )
    assert tokens[9_001] == expected
    assert (tokens[-1].target_text, len(tokens)) == ("", 20_000)


@pytest.mark.parametrize("padding", [0, 5])
def test_a_long_example_is_printed_whole(padding: int) -> None:
    n = 30_000
    shown = printed(ExampleView("title", columns(n, padding), True), table=True)
    text = "".join(WORDS[at % len(WORDS)] for at in range(n - padding)).replace("\n", "⏎\n").replace("\x1b", "\\u001b")
    assert text in shown, "a file gets every line as it is, not cut at the width of no terminal"
    rows = [line.split()[0] for line in shown.partition("kind    ")[2].splitlines()[1:]]
    last = ["⋮"] if padding > 2 else []
    assert rows == [*map(str, range(n - max(0, padding - 2))), *last]


def test_json_is_the_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    for n in (0, 1, 3_000):
        tokens = columns(n)
        print_view(ExampleView('a "title"', tokens, True))
        told = json.loads(capsys.readouterr().out)
        assert told == {"title": 'a "title"', "tokens": [token.to_json() for token in tokens]}


@pytest.mark.parametrize("terminal", [True, False])
def test_memory_does_not_grow_with_the_rows(terminal: bool) -> None:
    peaks = []
    for n in (3_000, 12_000):
        view = ExampleView("title", columns(n), True)
        tracemalloc.start()
        with open("/dev/null", "w") as nowhere:  # noqa: PTH123
            show_view(Console(file=nowhere, force_terminal=terminal), view, with_table=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 100 * 9_000, "bytes for each further token"


def test_a_missing_file_is_told_before_a_tokenizer_is_looked_for(tmp_path: Path) -> None:
    """Loading one takes seconds, and a hub that cannot be reached more."""
    done = run_cli("render", tmp_path / "nowhere.jsonl", "--tokenizer", "nobody/no-tokenizer")
    assert done.returncode == 3
    assert "nowhere.jsonl: no such file" in done.stderr


def test_characters_of_several_tokens_are_joined(tmp_path: Path) -> None:
    """In running text; the table and JSON show the bytes of each token."""
    words = [b"na", b"\xc3", b"\xaf", b"ve", b"\xff"]
    kinds = np.full(6, CONTEXT)
    spelling = TokenSpelling(lambda ids: [words[token] for token in ids])
    ids = np.array([0, 1, 2, 3, 4, 0])
    view = ExampleView("t", TokenColumns(ids, np.roll(ids, -1), kinds, kinds == TRAINED, spelling), has_text=True)
    shown = printed(view, table=True)
    assert "naïve\\xffna" in shown
    assert "\\xc3" in shown.split("pos", 1)[1]
    assert [token.to_json()["text"] for token in view.tokens][1:3] == ["\\xc3", "\\xaf"]


def test_no_counts_of_the_loader_are_printed(tokenizer_dir: Path, tmp_path: Path) -> None:
    """They are about the whole dataset, and how many episodes are too long for a length that nobody chose."""
    built = tmp_path / "built"
    done = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", built)
    assert done.returncode == 0, done.stderr
    shown = run_cli("show", built, "3", "--tokenizer", tokenizer_dir)
    assert (shown.returncode, shown.stderr) == (0, "")
