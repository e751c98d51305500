"""The copy of the tokenizer beside the caches of `build-all`, by which they can be read without the original.

::

    CACHE_DIR/tokenizer/spm.model, meta.json                                   a SentencePiece model
    CACHE_DIR/tokenizer/tokenizer.json, tokenizer_config.json, meta.json       any other

`meta.json` records what decides the ids: the sha256 of the file with the vocabulary, the ids of eos and bos, and the
sha256 of the chat template. So a replaced file is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.builds.documents import DocumentEncoder
from niels_gpt.cache.meta import read_meta, sha256_file, write_meta
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.store.files import read_file, write_atomic
from niels_gpt.store.schema import META_NAME
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.hf import TOKENIZER_NAME, saved_files
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME

TOKENIZER_META_NAME = "tokenizer_meta.json"


def files_of(encoder: DocumentEncoder) -> dict[str, bytes]:
    """File name -> content of a tokenizer's files, the one with the vocabulary first.

    Raises:
        UsageError: a tokenizer in Python, which has no such files.
    """
    tokenizer = encoder.tokenizer
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {MODEL_NAME: read_file(Path(tokenizer.model_path))}
    if isinstance(tokenizer, TokenizerAdapter):
        return saved_files(tokenizer.parts)
    raise UsageError(
        f"a {type(tokenizer).__name__} cannot be copied beside the caches; expected a {MODEL_NAME} or a tokenizer with "
        f"a {TOKENIZER_NAME}. Build the caches one by one"
    )


def check_copy(tokenizer: DocumentEncoder, folder: Path) -> None:
    """Check that a tokenizer is the one that `folder` has a copy of, and that the copy is whole.

    Args:
        tokenizer: the one that was named, or the copy itself.

    Raises:
        Mismatch: it is another one, or the copy was replaced.
    """
    recorded = read_meta(str(folder / META_NAME))
    # The copy's own file first: a damaged copy would look like another tokenizer. It may be of either kind.
    model = next((path for name in (TOKENIZER_NAME, MODEL_NAME) if (path := folder / name).is_file()), None)
    found = None if model is None else sha256_file(str(model))
    checked: list[tuple[Any, str, Any, Any]] = [(model or folder, "sha256", found, recorded.get("sha256"))]
    # A key that is missing was not recorded by the version that wrote the file, so it says nothing.
    name = getattr(tokenizer.tokenizer, "name", "the tokenizer")
    checked += [(name, key, value, recorded.get(key, value)) for key, value in _described(tokenizer).items()]
    for place, key, value, expected in checked:
        if value != expected:
            raise Mismatch(
                f"{place}: {key} is {value}, but {folder / META_NAME} records {expected}, as the caches here were "
                "built; put those files back, choose another --cache-dir, or pass --overwrite to build all caches again"
            )


def _described(tokenizer: DocumentEncoder) -> dict[str, Any]:
    """What decides ids, by its key in `meta.json`: tokenizers with one tokenizer.json can differ in the others."""
    described: dict[str, Any] = {"sha256": tokenizer.sha256, "special_token_ids": tokenizer.special_ids}
    if isinstance(tokenizer.tokenizer, TokenizerAdapter):
        described["template_sha256"] = tokenizer.tokenizer.fingerprints.get("template")
    return described


def copy_tokenizer(tokenizer: DocumentEncoder, files: dict[str, bytes], source: Any, folder: Path) -> None:
    """Write a tokenizer's files and their `meta.json` to `folder`, whole or not at all.

    Args:
        files: what `files_of` returns.
        source: the tokenizer as the user named it; if the record of its training is beside it, that is copied too.

    Raises:
        StorageError: the disk refused.
    """
    with StagedDirectory(folder, manifest=META_NAME, overwrite=True) as staged:
        # `files_of` has the file with the vocabulary first: its hash is the tokenizer's.
        record, *_ = [write_atomic(staged.path / name, data) for name, data in files.items()]
        path = Path(source) if isinstance(source, str | Path) else Path()
        trained = (path if path.is_dir() else path.parent) / TOKENIZER_META_NAME
        meta = {
            "kind": "tokenizer",
            "sha256": record.sha256,
            "bytes": record.bytes,
            "vocab_size": tokenizer.vocab_size,
            **{key: value for key, value in _described(tokenizer).items() if key != "sha256"},
            "training": read_meta(str(trained)) if trained.is_file() else None,
        }
        write_meta(str(staged.path / META_NAME), meta)
        staged.commit()
