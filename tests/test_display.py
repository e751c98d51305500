"""How batches, stored rows, datasets, findings and renderers show themselves: repr, terminal, notebook."""

from __future__ import annotations

import html
import json
import os
import pickle
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import niels_gpt as ng
from niels_gpt.display.example import Example
from niels_gpt.display.html import notebook_html
from niels_gpt.display.rows import CONTEXT, PADDING, TRAINED, TokenRow, TokenSpelling, weighted_row, whole
from niels_gpt.display.table import example_text
from niels_gpt.display.terminal import terminal_text
from niels_gpt.doctor.report import Evidence, Finding, Report, WindowToken
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.episodes.batch import Batch
from niels_gpt.errors import UsageError
from niels_gpt.samples import chats_file
from tests.conftest import run_cli
from tests.episodes.made import write_split
from tests.renderers.small import family

SPAN = re.compile(r'<span class="ng-(\w+)" title="(\d+): id (\d+), ([^"]*)">([^<]*)</span>')
IDS = [[10, 11, 12, 13], [20, 21], [30, 31, 32]]
MASKS = [[0, 0, 1, 1], [0, 1], [0, 0, 1]]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_split(tmp_path / "data" / "train", IDS, MASKS)
    return tmp_path / "data"


def batch_of(dataset: Path, *, packing: bool = False, rows: int = 3) -> Batch:
    config = {"batch_size": rows, "block_size": 8, "device": "cpu"}
    options = {"pad_token_id": 0, "epoch_shuffle": False, "epoch_drop_last": False, "packing": packing}
    return GPTEpisodeDataLoader(config, dataset_dir=dataset, **options).next_batch()


def word(token: int) -> str:
    return f"<w{token}>"


@pytest.mark.parametrize("packing", [False, True])
def test_a_batch_shows_every_token_of_every_row_once_with_its_weight(dataset: Path, *, packing: bool) -> None:
    batch = batch_of(dataset, packing=packing)
    page = batch._repr_html_()
    spans = SPAN.findall(page)
    assert sorted(int(span[2]) for span in spans) == sorted(token for ids in IDS for token in ids)
    trained = {int(token) for kind, _, token, *_ in spans if kind == "trained"}
    assert trained == {12, 13, 21, 32}
    assert all(("loss weight 1" in facts) == (kind == "trained") for kind, _, _, facts, _ in spans)
    assert batch.lengths is not None
    assert int(batch.lengths.sum()) == batch.num_tokens
    paddings = [int(n) for n in re.findall(r"(\d+) × padding", page)]
    assert paddings == [9 - length for length in batch.lengths.tolist() if length < 9]


def test_texts_of_a_packed_row_are_apart(dataset: Path) -> None:
    (row, *_) = batch_of(dataset, packing=True)._rows(1)
    texts = [row.ids[part].tolist() for part in row.texts()]
    assert sorted(texts) == sorted(IDS)
    shown = terminal_text([row])
    assert [f"── text {n} ──" in shown for n in (1, 2, 3, 4)] == [False, True, True, False]
    assert "text 3, loss weight" in notebook_html("", [row])


def test_a_batch_shows_text_where_a_tokenizer_is_passed(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = batch_of(dataset)
    batch.show(word, rows=1)
    shown = capsys.readouterr().out
    assert "row 0: 4 tokens, 2 trained" in shown
    assert "<w10><w11>\x1b[1;30;42m<w12><w13>\x1b[0m" in shown
    assert "<w20>" not in shown
    batch.show()
    assert "10 11 \x1b[1;30;42m12 13 \x1b[0m" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"decode\(ids\)"):
        batch.show(3)


def test_print_in_a_real_terminal_is_in_colour(dataset: Path) -> None:
    code = (
        "from pathlib import Path\nimport niels_gpt as ng\nfrom tests.test_display import batch_of\n"
        f"print(batch_of(Path({str(dataset)!r})))\nprint(ng.open({str(dataset)!r}))\n"
        f"print(ng.open({str(dataset)!r}).splits['train'].row(1))\n"
    )
    main, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run([sys.executable, "-c", code], stdout=terminal, env=environment, check=True)
    os.close(terminal)
    shown = os.read(main, 1 << 16).decode()
    os.close(main)
    for line in ("<Batch: 3 x 8", "<episodes dataset ", "<Row 1: 2 tokens, 1 trained>"):
        assert line in shown
    assert shown.count("\x1b[1;30;42m12 13 \x1b[0m") == 2
    assert shown.count("\x1b[1;30;42m21 \x1b[0m") == 3


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 12))
def test_a_preview_is_a_prefix_and_says_how_much_is_left_out(sizes: list[int], most: int) -> None:
    rows = [weighted_row(np.arange(size) + 100 * at, np.ones(size)) for at, size in enumerate(sizes)]
    shown = re.sub(r"\x1b\[[\d;]*m", "", terminal_text(rows, most=most)).partition("\n\n")[2]
    body, _, rest = shown.partition("and ")
    everything = [int(token) for row in rows for token in row.ids]
    assert [int(token) for token in body.split()] == everything[:most]
    assert rest == (f"{len(everything) - most} more tokens\n" if len(everything) > most else "")


def test_long_html_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.display.html.MOST_TOKENS", 5)
    row = weighted_row(np.arange(8), np.ones(8), np.array([1, 1, 1, 2, 2, 2, 3, 3]))
    page = notebook_html("head", [row])
    assert len(SPAN.findall(page)) == 5
    assert "and 3 more tokens" in page
    assert "text 3<" not in page


def test_stored_rows_and_datasets_show_their_first_tokens(
    dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = ng.open(dataset)
    split = opened.splits["train"]
    row = split.row(0)
    assert repr(row) == "<Row 0: 4 tokens, 2 trained>"
    assert repr(split.rows(np.array([2, 1]))) == "<Rows: 2 rows, 5 tokens, 2 trained>"
    assert repr(split) == "<Split train: 9 tokens>"
    row.show(word)
    assert "<w10><w11>\x1b[1;30;42m<w12><w13>\x1b[0m" in capsys.readouterr().out
    assert [int(span[2]) for span in SPAN.findall(row._repr_html_())] == IDS[0]
    assert [int(span[2]) for span in SPAN.findall(opened._repr_html_())] == [*IDS[0], *IDS[1]]
    opened.show(word, rows=3)
    assert "\x1b[1;30;42m<w32>" in capsys.readouterr().out
    assert [row.ids.tolist() for row in pickle.loads(pickle.dumps(opened)).splits["train"]] == IDS
    # Where the dataset has its tokenizer, as text.
    monkeypatch.setattr("niels_gpt.datasets.token_text_of", lambda *_: word)
    assert "<w20>" in html.unescape(ng.open(dataset).splits["train"].row(1)._repr_html_())


def test_a_finding_shows_its_evidence_in_colour(capsys: pytest.CaptureFixture[str]) -> None:
    window = (WindowToken(7, "a<b", trained=True), WindowToken(8, "\x1b[31m", trained=False, role="user"))
    evidence = Evidence(0, "chats.jsonl:1", "a <note>", window=window, mark=1)
    words = {"cause": "c", "fix": "do <this>", "thread": "t"}
    finding = Finding("some-rule", "error", "a title", 1, 1, "in 1 of 2 rows", evidence=(evidence,), **words)
    report = Report({"kind": "rows", "name": "x"}, 2, 4, 1, (finding,))
    assert repr(finding) == "<Finding some-rule (error, 1 rows): a title>"
    page = report._repr_html_()
    assert '<span class="ng-trained" title="id 7, trained">a&lt;b</span>' in page
    assert '<u><span class="ng-context" title="id 8, user, not trained">' in page
    assert "<this>" not in page
    assert "<note>" not in page
    assert "\x1b" not in page
    report.show()
    text = capsys.readouterr().out
    assert "\x1b[1;30;42ma<b" in text
    assert "\x1b[31m" not in text.replace("\x1b[1;31m", "")


def test_a_renderer_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    made = family("qwen3")
    made.show()
    shown = capsys.readouterr().out
    assert shown.startswith("<Qwen3Renderer for ")
    assert "What is 2 + 2?" in shown
    page = made._repr_html_()
    assert page.startswith("<div>&lt;Qwen3Renderer for ")
    assert {span[0] for span in SPAN.findall(page)} >= {"trained", "context", "scaffold"}


def test_characters_of_several_tokens_are_joined() -> None:
    """Where the tokens follow each other; bytes where a token stands alone; no text is lost on the way."""
    spelling = TokenSpelling(lambda ids: [[b" \xc3", b"\xa9", b"\xff", b"\x1b"][token] for token in ids])
    row = TokenRow(np.array([0, 1, 0, 2, 3]), np.full(5, CONTEXT), lambda at: "")
    assert terminal_text([row], spelling).split("\n\n")[1] == " é \\xc3\\xff\\u001b\n"
    apart = [" \\xc3", "\\xa9", " \\xc3", "\\xff", "\\u001b"]
    assert [text for *_, text in SPAN.findall(notebook_html("", [row], spelling))] == apart
    assert whole(spelling.raw(0) + spelling.raw(1)) == " é"


# ---- one example: `niels-gpt show` and `render`

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


def test_an_example_has_the_target_of_each_position() -> None:
    row = Example("t", np.array([1, 3, 4]), np.array([CONTEXT, TRAINED, CONTEXT]), WORDS.__getitem__)
    lines = [line.split() for line in example_text(row, colour=False).splitlines()[-2:]]
    assert lines == [["0", "1", "·one", "context", "3", "日本", "●"], ["1", "3", "日本", "trained", "-100", "·", "·"]]
    answered = json.loads(row.to_json())
    expected = {"position": 0, "id": 1, "text": " one", "kind": "context", "target": 3, "target_text": "日本"}
    expected |= {"target_trained": True, "segment": 0, "role": None, "sampled": None, "body": None}
    assert (answered["title"], len(answered["tokens"]), answered["tokens"][0]) == ("t", 2, expected)


def test_show_prints_nothing_beside_the_row(tokenizer_dir: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    done = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--out", built)
    assert done.returncode == 0, done.stderr
    shown = run_cli("show", built, "3", "--tokenizer", tokenizer_dir)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "<eot>\n<usr>" in shown.stdout


def test_show_names_a_missing_file_before_it_loads_a_tokenizer(tmp_path: Path) -> None:
    """Loading one takes seconds, and a hub that cannot be reached more."""
    done = run_cli("show", tmp_path / "nowhere.jsonl", "--tokenizer", "nobody/no-tokenizer")
    assert (done.returncode, "nowhere.jsonl: no such file" in done.stderr) == (3, True)
