"""`open_encoder`: any tokenizer, by name, path or object, as a `PieceEncoder`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from niels_gpt.errors import TokenizerError, storage_errors
from niels_gpt.tokenizer.byte_tokenizer import ByteTokenizer, is_byte_tokenizer
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.hf import ENGINE_MARK, TOKENIZER_NAME, FastTokenizer, RustTokenizer, TokenizerFiles, read_files
from niels_gpt.tokenizer.hub import TRUSTED_REVISIONS, load_hf_tokenizer, wants_code
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.python_tokenizer import PythonEncoder, PythonTokenizer
from niels_gpt.tokenizer.sentencepiece import (
    MODEL_NAME,
    SentencePieceEncoder,
    SentencePieceTokenizer,
    load_sentencepiece,
)

_ACCEPTED = (
    f"an encoder, a directory with {TOKENIZER_NAME} or {MODEL_NAME}, one of these files, a name on the "
    "Hugging Face hub ('owner/name'), a tokenizers.Tokenizer, a transformers tokenizer, a SentencePieceTokenizer, or "
    "an object with encode and decode_bytes, such as tiktoken's and mistral-common's"
)
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def open_encoder(source: Any) -> PieceEncoder:
    """An encoder for a tokenizer.

    Args:
        source: an encoder (returned unchanged); a directory with tokenizer.json or spm.model, or one of these files; a
            name on the hub, if no such path exists; a `tokenizers.Tokenizer`; a transformers tokenizer, fast or not;
            a `SentencePieceTokenizer`; tiktoken's `Encoding`, mistral-common's `Tekkenizer`; or any object with
            `encode(text)` and `decode_bytes(ids)`, and `special_tokens`, spelling -> id, if it has control tokens.

    Raises:
        TokenizerError: the source is not a tokenizer, or one whose pieces cannot be proven.
        SourceError: the hub cannot be reached, does not have the name, or refuses access.
        MissingExtra: a library that this kind of tokenizer needs is not installed.
    """
    if isinstance(source, PieceEncoder):
        return source
    if isinstance(source, SentencePieceTokenizer):
        return SentencePieceEncoder(source)
    if isinstance(source, str | Path):
        if not str(source):  # as a path it would be the current directory
            raise TokenizerError(f"the tokenizer is an empty text; expected {_ACCEPTED}")
        return _from_path(source)
    # Before Python tokenizers, whose methods the fast ones of transformers also have.
    if isinstance(source, FastTokenizer | RustTokenizer):
        return TokenizerAdapter.load(source, engine=getattr(source, ENGINE_MARK, "auto"))
    if isinstance(source, PythonTokenizer):
        return PythonEncoder(source)
    if is_byte_tokenizer(source):
        return PythonEncoder(ByteTokenizer(source))
    raise TokenizerError(f"found a {type(source).__name__}; expected {_ACCEPTED}")


def is_sentencepiece(tokenizer: str | Path) -> bool:
    """Whether a path names a SentencePiece model: a .model file, or a directory with spm.model and no tokenizer.json.

    Conversations are then written by our own sentinels, unless a renderer is chosen. A name on the hub is no such path.
    A name without a slash that is not there counts as a directory for a model: loading it says how to train one.
    """
    path = Path(tokenizer)
    if not path.exists():
        return path.suffix == ".model" or len(path.parts) == 1
    folder = path.parent if path.is_file() else path
    return path.suffix == ".model" or ((folder / MODEL_NAME).is_file() and not (folder / TOKENIZER_NAME).is_file())


# Those in use. Opening a tokenizer takes half a second, and up to 600 MB: renderers of the same files share it.
_OPEN: WeakValueDictionary[TokenizerFiles, TokenizerAdapter] = WeakValueDictionary()


def _adapter(files: TokenizerFiles) -> TokenizerAdapter:
    found = _OPEN.get(files)
    if found is None:
        found = _OPEN[files] = TokenizerAdapter.load(files)
    return found


def _from_path(source: str | Path) -> PieceEncoder:
    try:
        path = Path(source).expanduser()
    except RuntimeError as error:  # "~name" of an unknown user
        raise TokenizerError(f"{source}: {error}; expected {_ACCEPTED}") from error
    with storage_errors("reading the tokenizer", path):
        if path.is_file() and path.suffix == ".model":
            return SentencePieceEncoder(load_sentencepiece(path))
        # tokenizer.json before spm.model: a directory of transformers may hold both, and then the former decides.
        if path.is_file() or (path / TOKENIZER_NAME).is_file():
            return _adapter(read_files(path))
        if (path / MODEL_NAME).is_file():
            return SentencePieceEncoder(load_sentencepiece(path / MODEL_NAME))
        if path.is_dir():
            if wants_code(path):
                raise TokenizerError(
                    f"{path}: found a tokenizer that is Python code of its own and no {TOKENIZER_NAME}; code is run "
                    f"only for pinned revisions of {', '.join(TRUSTED_REVISIONS)}. Read the code, load it yourself "
                    "with AutoTokenizer.from_pretrained(path, trust_remote_code=True), and pass the object"
                )
            found = ", ".join(sorted(entry.name for entry in path.iterdir())[:12]) or "an empty directory"
            raise TokenizerError(f"{path}: found {found}; expected {_ACCEPTED}")
    # A path comes first: "owner/name" may be a directory here.
    if isinstance(source, str) and _HUB_NAME.fullmatch(source) and path.suffix not in (".json", ".model"):
        return open_encoder(load_hf_tokenizer(source))
    raise TokenizerError(f"{source}: found nothing there; expected {_ACCEPTED}")
