"""Pretraining caches with any tokenizer: the ids of each text alone, joined by that tokenizer's own separators."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from niels_gpt.builds import rows as build_rows
from niels_gpt.builds.documents import SEPARATORS, document_encoder
from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cli import options
from niels_gpt.datasets import open_dataset
from niels_gpt.errors import DataError, Mismatch, TokenizerError, UsageError
from niels_gpt.progress import SILENT
from niels_gpt.samples import notes_dir
from niels_gpt.store.documents import DocumentSplit
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer.load import open_encoder
from tests.assets import ASSETS, encoder_at
from tests.conftest import FakeTokenizer
from tests.test_cache_determinism import digests
from tests.tokenizer.tiny import END, START, THINK, byte_level, metaspace, spaced

KINDS = {"bytes": byte_level, "NFC": lambda: byte_level(form="NFC"), "spaces": spaced, "metaspace": metaspace}
NAMES = {"eos_token": END, "bos_token": START}


def directory(folder: Path, tokenizer: Tokenizer, **names: str) -> Path:
    """A tokenizer directory as save_pretrained() writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: directory(root / kind, make(), **NAMES) for kind, make in KINDS.items()}


def build(out: Path, texts: Any, tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """A cache of all texts in order, without validation."""
    options: dict[str, Any] = {"max_train_tokens": 1 << 40, "max_val_tokens": 0, "shard_bytes": 4096}
    options |= {"seed": 0, "shuffle_buffer": None, "overwrite": True}
    build_pretrain_cache(texts, str(out), tokenizer=tokenizer, **options | changes)
    return open_meta(out)


def stored(out: Path, split: str = "train") -> list[int]:
    dtype = {"uint16-le": "<u2", "uint32-le": "<u4"}[open_meta(out)["token_dtype"]]
    return [token for path in sorted((out / split).glob("*.bin")) for token in np.fromfile(path, dtype).tolist()]


def by_hand(folder: Path, texts: list[str], separator: str) -> list[int]:
    """Each text alone through `tokenizers`, control tokens switched off, and the separators beside it."""
    official = Tokenizer.from_file(str(folder / "tokenizer.json"))
    official.encode_special_tokens = True
    names = json.loads((folder / "tokenizer_config.json").read_text())
    bos, eos = (official.token_to_id(names[f"{name}_token"]) for name in ("bos", "eos"))
    before, after = ([bos] if "bos" in separator else []), ([eos] if "eos" in separator else [])
    return [
        token for text in texts for token in (*before, *official.encode(text, add_special_tokens=False).ids, *after)
    ]


words = st.sampled_from(
    ["hello", " world", "\n", START, END, THINK, "<|im_", "end|>", " é", "e\u0301", "中文", "  ", "x"]
)
some_texts = st.lists(st.lists(words, min_size=1, max_size=6).map("".join), min_size=1, max_size=12)
# A text of white space alone is no document.
documents = some_texts.filter(lambda texts: any(map(str.strip, texts)))


@cache
def opened(folder: Path, separator: str) -> Any:
    return document_encoder(folder, separator)


@given(texts=documents, separator=st.sampled_from(SEPARATORS), batch=st.integers(1, 60))
@settings(deadline=None, max_examples=150)
@pytest.mark.parametrize("kind", ["bytes", "NFC", "spaces"])
def test_ids_are_those_of_each_text_alone(
    kind: str,
    folders: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    separator: str,
    batch: int,
) -> None:
    """Whatever the batches are, and control tokens that a text spells are text."""
    out = tmp_path_factory.getbasetemp() / f"property-{kind}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_rows, "BATCH_CHARACTERS", batch)
        meta = build(out, texts, opened(folders[kind], separator))
    expected = by_hand(folders[kind], list(filter(str.strip, texts)), separator)
    assert stored(out) == expected
    assert meta["totals"]["train_tokens"] == len(expected)
    assert meta["separator"] == separator


@pytest.mark.parametrize("separator", SEPARATORS)
def test_the_manifest_says_how_documents_are_joined(folders: dict[str, Path], tmp_path: Path, separator: str) -> None:
    encoder = open_encoder(folders["bytes"])
    eos, bos = encoder.control_ids[END], encoder.control_ids[START]
    meta = build(tmp_path / "c", ["hello", "world"], folders["bytes"], separator=separator)
    assert meta["special_token_ids"] == {"eos": eos, "bos": bos}
    assert meta["separator_ids"] == {
        "before": [bos] if "bos" in separator else [],
        "after": [eos] if "eos" in separator else [],
    }
    assert meta["separate_documents"] == (separator != "none")
    assert meta["tokenizer_sha256"] == hashlib.sha256((folders["bytes"] / "tokenizer.json").read_bytes()).hexdigest()
    assert meta["vocab_size"] == encoder.vocab_size


def test_the_default_is_eos_and_without_one_there_is_none(folders: dict[str, Path], tmp_path: Path) -> None:
    """Documents that run into each other must be somebody's choice."""
    assert build(tmp_path / "eos", ["a"], folders["bytes"])["separator"] == "eos"
    nameless = directory(tmp_path / "nameless", byte_level())
    only_bos = directory(tmp_path / "bos", byte_level(), bos_token=START)
    for folder, choices in ((nameless, "none"), (only_bos, "bos or none")):
        with pytest.raises(
            TokenizerError, match=rf"names no eos_token.*choose --separator \(separator=\): {choices}\."
        ):
            build(tmp_path / "c", ["a"], folder)
        assert not (tmp_path / "c").exists()
        assert build(tmp_path / f"{folder.name}-none", ["a"], folder, separator="none")["separator"] == "none"


def test_eos_that_is_no_control_token_is_one_here(tmp_path: Path) -> None:
    """<think> is an ordinary added token, which texts contain; as the separator they cannot."""
    folder = directory(tmp_path / "t", byte_level(), eos_token=THINK)
    eos = open_encoder(folder).added_ids[THINK]
    build(tmp_path / "c", [f"hello {THINK} world", "x"], folder)
    ids = stored(tmp_path / "c")
    assert [at for at, token in enumerate(ids) if token == eos] == [ids.index(eos), len(ids) - 1]
    assert ids.count(eos) == 2


def test_the_dtype_follows_from_the_vocabulary(tmp_path: Path) -> None:
    for size, expected in ((65_536, "uint16-le"), (65_537, "uint32-le")):
        assert build(tmp_path / "c", ["a b"], FakeTokenizer(size))["token_dtype"] == expected
        assert (len(stored(tmp_path / "c")), stored(tmp_path / "c")[-1]) == (3, 4)
    assert build(tmp_path / "c", ["a b"], FakeTokenizer(), token_dtype="uint32")["token_dtype"] == "uint32-le"
    with pytest.raises(UsageError, match="65,537 ids but uint16 holds 65,536"):
        build(tmp_path / "c", ["a"], FakeTokenizer(65_537), token_dtype="uint16")


def test_every_form_of_a_tokenizer_gives_the_same_cache(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["bytes"]
    texts = ["hello world", f"the {END} fox"]
    encoder = open_encoder(folder)
    for name, form in {"path": folder, "text": str(folder), "encoder": encoder}.items():
        build(tmp_path / name, texts, form)
        assert digests(tmp_path / name) == digests(tmp_path / "path")
    build(tmp_path / "object", texts, Tokenizer.from_file(str(folder / "tokenizer.json")), separator="none")
    build(tmp_path / "none", texts, folder, separator="none")
    assert stored(tmp_path / "object") == stored(tmp_path / "none")


@pytest.mark.parametrize("separator", ["eos", "bos", "eos+bos"])
@pytest.mark.parametrize("block", [1, 3, 1000])
def test_documents_are_found_again(
    folders: dict[str, Path], tmp_path: Path, separator: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["hello world", "x", "the quick brown fox", "x"]
    build(tmp_path / "c", texts, folders["bytes"], separator=separator, shard_bytes=14)
    rows = [by_hand(folders["bytes"], [text], separator) for text in texts]
    split = open_dataset(tmp_path / "c").split("train")
    assert isinstance(split, DocumentSplit)
    assert len(split) == len(texts)
    chunks = [chunk.ids[a:b].tolist() for chunk in split.chunks(block) for a, b in pairs(chunk.starts)]
    assert chunks == rows
    assert [split.rows(np.array([n])).ids.tolist() for n in range(4)] == rows


def pairs(starts: Any) -> list[tuple[int, int]]:
    return list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))


def test_readers_open_it(folders: dict[str, Path], tmp_path: Path) -> None:
    notes = [path.read_text() for path in sorted(notes_dir().rglob("*.md"))]
    meta = build(tmp_path / "c", notes, folders["bytes"])
    assert list(verify_dataset(tmp_path / "c", progress=SILENT)) == []
    encoder = open_encoder(folders["bytes"])
    for same in (folders["bytes"], str(folders["bytes"] / "tokenizer.json"), encoder):
        windows = PretrainTokenStreamDataset(str(tmp_path / "c" / "train"), T=8, device="cpu", tokenizer=same)
    x, y = windows.get_batch(B=4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert int(y.max()) < meta["vocab_size"]
    with pytest.raises(Mismatch, match="built with tokenizer"):
        PretrainTokenStreamDataset(str(tmp_path / "c" / "train"), T=8, device="cpu", tokenizer=folders["spaces"])


def test_a_text_without_ids_is_a_bad_row(tmp_path: Path) -> None:
    """Where control tokens take the space beside them, a text that spells one cannot be encoded as text."""
    tokenizer = byte_level()
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["lstrip"] = token["special"]
    folder = directory(tmp_path / "t", Tokenizer.from_str(json.dumps(data)), eos_token=END)
    texts = ["hello", f"hello {END}", "world"]
    with pytest.raises(DataError, match="document 1"):
        build(tmp_path / "c", texts, folder)
    meta = build(tmp_path / "c", texts, folder, max_bad_rows=1)
    assert meta["dropped"] == {"not_encodable": 1}
    assert stored(tmp_path / "c") == by_hand_of(folder, ["hello", "world"])


def by_hand_of(folder: Path, texts: list[str]) -> list[int]:
    official = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [token for text in texts for token in (*official.encode(text).ids, official.token_to_id(END))]


def test_the_command_knows_the_separators() -> None:
    assert options.SEPARATORS == SEPARATORS


# That an encoder gives the ids of its own tokenizer is tested for all of them in tests/tokenizer. The slow ones take
# seconds to read, and the builder treats them as it treats the others.
REAL = (
    "qwen3-8b",
    "gpt-oss-20b",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("llama-3.1-8b-instruct", "gemma-3-1b-it")),
)


@pytest.mark.assets
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers(name: str, tmp_path: Path) -> None:
    folder = ASSETS / name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer in {folder} (set NGPT_ASSETS)")
    encoder = encoder_at(folder)
    control = next(iter(encoder.control_ids))
    texts = [path.read_text() for path in sorted(notes_dir().rglob("*.md"))]
    texts += [f"about {control} and {control}", control, "e\u0301 A\u030a", "\n\n", " ", "中文 🤖" * 50]
    held = filter(str.strip, texts)  # a text of white space alone is no document
    meta = build(tmp_path / "c", texts, encoder, shard_bytes=1 << 16)
    eos = encoder.added_ids[encoder.special_tokens["eos_token"]]
    official = Tokenizer.from_file(str(folder / "tokenizer.json"))
    official.encode_special_tokens = True
    expected = [t for text in held for t in (*official.encode(text, add_special_tokens=False).ids, eos)]
    assert stored(tmp_path / "c") == expected
    assert meta["separator_ids"] == {"before": [], "after": [eos]}
    assert meta["token_dtype"] == "uint32-le"
    with pytest.raises(UsageError, match="token_dtype"):
        build(tmp_path / "d", texts, encoder, token_dtype="uint16")
