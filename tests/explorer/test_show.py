"""An example in the terminal: running text, table and JSON, and the commands that print it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.display.example import Example
from niels_gpt.display.rows import CONTEXT, PADDING, TRAINED, TokenSpelling
from niels_gpt.display.table import example_text
from niels_gpt.samples import chats_file
from tests.conftest import run_cli

WORDS = ["", " one", "two\n", "日本", " ", "\x1b[2J"]


def example(n: int, padding: int = 0) -> Example:
    """A stored row of `n` inputs."""
    ids = np.arange(n + 1) % len(WORDS)
    colours = np.where(np.arange(n + 1) % 7 < 3, TRAINED, CONTEXT)
    colours[n - padding + (padding == 0) :] = PADDING
    return Example("title", ids, colours, WORDS.__getitem__)


@pytest.mark.parametrize("padding", [0, 5])
def test_a_long_example_is_printed_whole(padding: int) -> None:
    n = 30_000
    shown = example_text(example(n, padding), colour=False)
    text = "".join(WORDS[at % len(WORDS)] for at in range(n - padding)).replace("\n", "⏎\n").replace("\x1b", "\\u001b")
    assert text in shown
    rows = [line.split()[0] for line in shown.partition("kind    ")[2].splitlines()[1:]]
    assert rows == [*map(str, range(n - max(0, padding - 2))), *(["⋮"] if padding > 2 else [])]


def test_the_table_has_the_target_of_each_position() -> None:
    row = Example("t", np.array([1, 3, 4]), np.array([CONTEXT, TRAINED, CONTEXT]), WORDS.__getitem__)
    lines = [line.split() for line in example_text(row, colour=False).splitlines()[-2:]]
    assert lines == [["0", "1", "·one", "context", "3", "日本", "●"], ["1", "3", "日本", "trained", "-100", "·", "·"]]


def test_json_has_what_is_predicted_from_each_position() -> None:
    told = json.loads(example(2).to_json())
    expected = {"position": 1, "id": 1, "text": " one", "kind": "trained", "target": 2, "target_text": "two\n"}
    expected |= {"target_trained": True, "segment": 0, "role": None, "sampled": None, "body": None}
    assert (told["title"], len(told["tokens"]), told["tokens"][1]) == ("title", 2, expected)


def test_characters_of_several_tokens_are_joined() -> None:
    """In running text; the table and JSON show the bytes of each token."""
    words = [b"na", b"\xc3", b"\xaf", b"ve", b"\xff"]
    spelling = TokenSpelling(lambda ids: [words[token] for token in ids])
    view = Example("t", np.array([0, 1, 2, 3, 4, 0, 0]), np.full(7, CONTEXT), spelling)
    shown = example_text(view, colour=False)
    assert "naïve\\xffna" in shown
    assert "\\xc3" in shown.split("pos", 1)[1]
    assert [token["text"] for token in view.tokens()][1:3] == ["\\xc3", "\\xaf"]


def test_a_missing_file_is_named_before_a_tokenizer_is_loaded(tmp_path: Path) -> None:
    """Loading one takes seconds, and a hub that cannot be reached more."""
    done = run_cli("render", tmp_path / "nowhere.jsonl", "--tokenizer", "nobody/no-tokenizer")
    assert done.returncode == 3
    assert "nowhere.jsonl: no such file" in done.stderr


def test_show_prints_nothing_beside_the_row(tokenizer_dir: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    done = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", built)
    assert done.returncode == 0, done.stderr
    shown = run_cli("show", built, "3", "--tokenizer", tokenizer_dir)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "<eot>\n<usr>" in shown.stdout
