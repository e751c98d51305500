"""Training: a pure function of files and options, with provenance, and refusals that say what to do."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

import niels_gpt
from niels_gpt.errors import InputError, OutputExists, TokenizerError, UsageError
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer, train_tokenizer
from niels_gpt.tokenizer.training import LINE_CHARACTERS

WORDS = [
    f"{start}{middle}{end}" for start in "bcdfgklm" for middle in ("a", "e", "ai", "ou") for end in ("n", "rt", "st")
]
# Lines of four words each; enough for 320 pieces, trained in milliseconds.
LINES = [" ".join(WORDS[(7 * i + 11 * j * j) % len(WORDS)] for j in range(4)) for i in range(400)]
SMALL: dict[str, Any] = {"vocab_size": 320}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small text file."""
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def meta_of(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((folder / "tokenizer_meta.json").read_text())
    return meta


def test_same_files_and_options_give_the_same_bytes_anywhere(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of the samples, read by relative paths from another working directory."""
    shutil.copy(chats_file(), tmp_path / "chats.jsonl")
    shutil.copytree(notes_dir(), tmp_path / "copy" / "of" / "notes")
    monkeypatch.chdir(tmp_path / "copy")
    train_tokenizer(["../chats.jsonl", "of"], "../out", vocab_size=2000)
    assert files_of(tmp_path / "out") == files_of(tokenizer_dir)


@pytest.mark.parametrize(
    "options", [{"vocab_size": 321}, {"model_type": "bpe"}, {"character_coverage": 0.98}, {"max_lines": 300}]
)
def test_options_change_the_bytes(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    train_tokenizer([corpus], tmp_path / "plain", **SMALL)
    train_tokenizer([corpus], tmp_path / "other", **SMALL | options)
    assert files_of(tmp_path / "plain").keys() == files_of(tmp_path / "other").keys()
    for name, data in files_of(tmp_path / "plain").items():
        assert data != (tmp_path / "other" / name).read_bytes()


def test_the_seed_matters_only_where_lines_are_sampled(corpus: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        train_tokenizer([corpus], tmp_path / f"all{seed}", seed=seed, **SMALL)
        train_tokenizer([corpus], tmp_path / f"some{seed}", seed=seed, max_lines=200, **SMALL)
        train_tokenizer([corpus], tmp_path / f"again{seed}", seed=seed, max_lines=200, **SMALL)
        assert files_of(tmp_path / f"some{seed}") == files_of(tmp_path / f"again{seed}")
        assert meta_of(tmp_path / f"some{seed}")["lines"] == {"read": 400, "used": 200}
    models = {name: (tmp_path / name / "spm.model").read_bytes() for name in ("all1", "all2", "some1", "some2")}
    assert models["all1"] == models["all2"]
    assert models["some1"] != models["some2"]


def test_meta_tells_what_the_model_was_made_of(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "more.md").write_text("a few\nmore lines\n")
    train_tokenizer([corpus, tmp_path / "more.md"], tmp_path / "out", seed=5, max_lines=10_000, **SMALL)
    model = (tmp_path / "out" / "spm.model").read_bytes()

    def content(data: bytes, name: str) -> dict[str, Any]:
        return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    assert meta_of(tmp_path / "out") == {
        "format_version": 1,
        "vocab_size": 320,
        "model_type": "unigram",
        "character_coverage": 1.0,
        "seed": 5,
        "max_lines": 10_000,
        "special_tokens": list(SPECIAL_TOKENS),
        "versions": {"niels_gpt": niels_gpt.__version__, "sentencepiece": sentencepiece.__version__},
        "lines": {"read": 402, "used": 402},
        "inputs": [content(corpus.read_bytes(), "corpus.txt"), content(b"a few\nmore lines\n", "more.md")],
        "model": content(model, "spm.model"),
    }


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_trained_tokenizer_works(corpus: Path, tmp_path: Path, model_type: Any) -> None:
    tokenizer = train_tokenizer([corpus], tmp_path / "out", model_type=model_type, **SMALL)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.model_path == str(tmp_path / "out" / "spm.model")
    assert tokenizer.vocab_size == 320
    text = f"{LINES[0]}  never seen: 你好 \u2581 {SPECIAL_TOKENS[0]}\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(LINES[0])) < len(LINES[0])


def test_json_lines_give_their_text_and_their_messages(tmp_path: Path) -> None:
    """The same lines as plain text, `text` and `messages` give the same model."""
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": line, "id": 1}) + "\n" for line in LINES))
    chats = [
        {"messages": [{"role": "user", "content": line}, {"role": "assistant", "content": LINES[i + 1]}]}
        for i, line in enumerate(LINES)
        if i % 2 == 0
    ]
    chats[0]["messages"].insert(1, {"role": "tool", "content": None})
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    for name in ("a.txt", "b.jsonl", "c.jsonl"):
        train_tokenizer([tmp_path / name], tmp_path / f"out-{name}", **SMALL)
    models = {(tmp_path / f"out-{name}" / "spm.model").read_bytes() for name in ("a.txt", "b.jsonl", "c.jsonl")}
    assert len(models) == 1


@pytest.mark.parametrize("letter", ["x", "你"])  # one byte and three: SentencePiece counts in bytes
def test_long_lines_are_cut_not_lost(corpus: Path, tmp_path: Path, letter: str) -> None:
    """A letter that only the long line holds gets a piece, so the trainer has seen the line."""
    corpus.write_text("\n".join([*LINES, letter * 2 * LINE_CHARACTERS]))
    tokenizer = train_tokenizer([corpus], tmp_path / "out", **SMALL)
    assert meta_of(tmp_path / "out")["lines"] == {"read": 402, "used": 402}
    assert [tokenizer.piece(token) for token in tokenizer.encode(letter)] == [letter]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_too_small_a_text_names_a_size_that_works(tmp_path: Path, model_type: Any) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES[:50]))
    with pytest.raises(TokenizerError, match="the text is too small for 2,000 pieces; give more text or at") as caught:
        train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", vocab_size=2000, model_type=model_type)
    most = int(str(caught.value).rpartition(" ")[2])
    assert train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", vocab_size=most, model_type=model_type).vocab_size


def test_too_many_characters_name_a_size_that_works(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(chr(0x4E00 + i) * 3 for i in range(200)))
    with pytest.raises(TokenizerError, match=r"(\d+) pieces are needed before any word; raise --vocab-size") as caught:
        train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", **SMALL)
    needed = int(str(caught.value).partition(" pieces")[0].rpartition(" ")[2])
    train_tokenizer([tmp_path / "a.txt"], tmp_path / "out", vocab_size=needed + 1)


@pytest.mark.parametrize(
    ("name", "data", "kind", "expected"),
    [
        ("a.txt", b"", InputError, "a.txt: the file is empty"),
        ("a.txt", b" \n\t\n", TokenizerError, "the input contains no text; expected at least some hundred lines"),
        ("a.jsonl", b'{"text": ""}\n', TokenizerError, "the input contains no text"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', InputError, r"a.jsonl:3: not valid JSON at column"),
        ("a.jsonl", b'{"prompt": "a", "n": 1}\n', InputError, r"a.jsonl:1: no 'text' .*; keys found: 'prompt', 'n'"),
        ("a.jsonl", b"[1]\n", InputError, r"a.jsonl:1: no 'text' and no 'messages' with content; keys found: none"),
    ],
)
def test_unusable_input(tmp_path: Path, name: str, data: bytes, kind: type[Exception], expected: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(kind, match=expected):
        train_tokenizer([tmp_path / name], tmp_path / "out", **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"vocab_size": 299}, "vocab_size is 299; expected at least 300"),
        ({"model_type": "word"}, "model_type is 'word'; expected 'unigram' or 'bpe'"),
        ({"character_coverage": 0.97}, "character_coverage is 0.97; expected at least 0.98"),
        ({"max_lines": 0}, "max_lines is 0; expected at least 1"),
    ],
)
def test_bad_options(corpus: Path, tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        train_tokenizer([corpus], tmp_path / "out", **SMALL | options)


def test_a_taken_place_is_refused_and_an_earlier_tokenizer_replaced_on_request(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_tokenizer([corpus], out, **SMALL)
    before = files_of(out)
    with pytest.raises(OutputExists, match="not empty"):
        train_tokenizer([corpus], out, vocab_size=330)
    with pytest.raises(TokenizerError, match="too small"):
        train_tokenizer([corpus], out, vocab_size=50_000, overwrite=True)
    assert files_of(out) == before
    assert train_tokenizer([corpus], out, vocab_size=330, overwrite=True).vocab_size == 330
    assert files_of(out).keys() == before.keys()
