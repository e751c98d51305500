"""Whatever names or is a tokenizer becomes an encoder, or is refused in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from niels_gpt.errors import StorageError, TokenizerError
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer import load as opening_module
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.python_tokenizer import PythonEncoder
from niels_gpt.tokenizer.sentencepiece import SentencePieceEncoder
from tests.assets import ASSETS, needs_assets
from tests.tokenizer import tiny
from tests.tokenizer.python_tokenizers import Bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tiny.END}
    return tiny.save(tiny.cached(tiny.byte_level), tmp_path_factory.mktemp("fast"), **told)


def test_encoders_are_given_back(folder: Path, tokenizer: SentencePieceTokenizer) -> None:
    for made in (TokenizerAdapter.load(folder), SentencePieceEncoder(tokenizer)):
        assert open_encoder(made) is made


def test_paths_and_objects_of_fast_tokenizers(folder: Path) -> None:
    sources = [folder, str(folder), folder / "tokenizer.json", Tokenizer.from_file(str(folder / "tokenizer.json"))]
    sources.append(AutoTokenizer.from_pretrained(folder))
    found = [open_encoder(source) for source in sources]
    assert all(isinstance(made, TokenizerAdapter) for made in found)
    assert len({made.encode_pieces([tiny.START, "hello"], [True, False])[0].tobytes() for made in found}) == 1


def test_the_same_files_are_opened_once(folder: Path, tmp_path: Path) -> None:
    """By their bytes, as long as somebody uses them; more control tokens are opened once as well."""
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    made = open_encoder(copied)
    more = made.with_controls([tiny.THINK])
    assert open_encoder(str(copied)) is made
    assert made.with_controls([tiny.THINK]) is more is not made
    (copied / "chat_template.jinja").write_text("another")
    assert (made.template, open_encoder(copied).template) == (None, "another")


def test_our_own_tokenizer(tokenizer: SentencePieceTokenizer, tokenizer_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.model"
    shutil.copy(tokenizer_dir / "spm.model", other)
    for source in (tokenizer, tokenizer_dir, str(tokenizer_dir), tokenizer_dir / "spm.model", other):
        made = open_encoder(source)
        assert isinstance(made, SentencePieceEncoder)
        assert made.fingerprints == {"tokenizer": tokenizer.sha256}


def test_python_tokenizers_are_taken_as_objects() -> None:
    made = open_encoder(Bytes())
    assert isinstance(made, PythonEncoder)
    assert made.engine == "python"


@needs_assets
def test_kimi_without_tokenizer_json_is_taken_as_an_object_alone() -> None:
    pytest.importorskip("tiktoken")
    folder = ASSETS / "kimi-k2-slow"
    with pytest.raises(TokenizerError, match=r"Python code of its own and no tokenizer\.json.*moonshotai/Kimi-K2-Inst"):
        open_encoder(folder)
    official = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert isinstance(open_encoder(official), PythonEncoder)


def test_names_that_are_no_path_go_to_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str) -> object:
        asked.append(name)
        return tiny.cached(tiny.byte_level)

    monkeypatch.setattr(opening_module, "load_hf_tokenizer", load)
    assert isinstance(open_encoder("Qwen/Qwen2.5-0.5B"), TokenizerAdapter)
    assert isinstance(open_encoder("gpt2"), TokenizerAdapter)
    for path in ("./gpt2", "/no/where", "a/b/c", "no.model", "x/tokenizer.json", "~/x", "", Path("Qwen/Qwen3")):
        with pytest.raises(TokenizerError, match=r"found nothing there|expected an encoder"):
            open_encoder(path)
    assert asked == ["Qwen/Qwen2.5-0.5B", "gpt2"]


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="found a int; expected an encoder, a directory with"):
        open_encoder(3)
    with pytest.raises(TokenizerError, match="found an empty directory; expected an encoder"):
        open_encoder(tmp_path)
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(TokenizerError, match=r"found vocab\.txt; expected an encoder"):
        open_encoder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["code.Own", None]}}))
    with pytest.raises(TokenizerError, match=r"AutoTokenizer\.from_pretrained\(path, trust_remote_code=True\)"):
        open_encoder(tmp_path)
    (tmp_path / "no.model").write_bytes(b"no")
    with pytest.raises(TokenizerError, match="not a SentencePiece model"):
        open_encoder(tmp_path / "no.model")


def test_paths_that_no_system_takes() -> None:
    with pytest.raises(StorageError, match="give a shorter path"):
        open_encoder("x" * 5000)
    with pytest.raises(TokenizerError, match="found nothing there"):
        open_encoder("a/\0b")
    with pytest.raises(TokenizerError, match="Could not determine home directory"):
        open_encoder("~nobody-of-this-name/x")
