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
from niels_gpt.cache.formats import META_NAME
from niels_gpt.cache.meta import read_meta, sha256_file, write_meta
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.storage.files import read_file, write_atomic
from niels_gpt.storage.staging import StagedDirectory
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


def is_copied(tokenizer: DocumentEncoder, folder: Path, *, overwrite: bool) -> bool:
    """Whether this tokenizer is in `folder`, as the `meta.json` there records it.

    Raises:
        Mismatch: another one is there, and it is not to be overwritten.
    """
    if not (folder / META_NAME).is_file():
        return False
    # The copy may be of either kind, whatever the tokenizer is now.
    names = (folder / name for name in (TOKENIZER_NAME, MODEL_NAME))
    model = next((path for path in names if path.is_file()), folder / MODEL_NAME)
    recorded = read_meta(str(folder / META_NAME)).get("sha256")
    found = sha256_file(str(model)) if model.is_file() else None
    # With --overwrite nothing is refused: a copy that is not this tokenizer, whole and with its template, is replaced.
    if overwrite:
        return found == recorded == tokenizer.sha256 and not differences(tokenizer, folder)
    if found != recorded:
        problem = "is missing" if found is None else f"has sha256 {found[:12]}"
        raise Mismatch(
            f"{model}: {problem}, but {META_NAME} beside it records {str(recorded)[:12]}, the tokenizer of the caches "
            "here; put that model back, choose another --cache-dir, or pass --overwrite to build all caches again"
        )
    # First whether the copy is whole, then whether it is this tokenizer: a damaged copy would look like another one.
    if recorded != tokenizer.sha256:
        raise Mismatch(
            f"{folder}: holds tokenizer {str(recorded)[:12]}, now {tokenizer.sha256[:12]}; choose another --cache-dir, "
            "or pass --overwrite to build all caches again"
        )
    check_copy(tokenizer, folder)
    return True


def check_copy(tokenizer: DocumentEncoder, folder: Path) -> None:
    """Check that a tokenizer has the special ids and the chat template that `meta.json` records.

    Tokenizers with one tokenizer.json can differ in them: tokenizer_config.json names the tokens and the template.

    Args:
        tokenizer: the one that was named, or the copy in `folder`.

    Raises:
        Mismatch: it has others. A `meta.json` from before templates were recorded is compared without them.
    """
    for key, (recorded, found) in differences(tokenizer, folder).items():
        raise Mismatch(
            f"{getattr(tokenizer.tokenizer, 'name', folder)}: {key} is {found}, but {folder / META_NAME} records "
            f"{recorded}, as the caches here were built; put that tokenizer_config.json back, choose another "
            "--cache-dir, or pass --overwrite to build all caches again"
        )


def differences(tokenizer: DocumentEncoder, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Key of `meta.json` -> recorded value and the tokenizer's, where they differ."""
    # A key that is missing was not recorded by the version that wrote the file, so it says nothing.
    recorded = read_meta(str(folder / META_NAME))
    found = _decided_elsewhere(tokenizer)
    return {key: (recorded[key], found[key]) for key in found if recorded.get(key, found[key]) != found[key]}


def _decided_elsewhere(tokenizer: DocumentEncoder) -> dict[str, Any]:
    """What decides ids and is not in the file with the vocabulary, by its key in `meta.json`."""
    known: dict[str, Any] = {"special_token_ids": tokenizer.special_ids}
    if isinstance(tokenizer.tokenizer, TokenizerAdapter):
        known["template_sha256"] = tokenizer.tokenizer.fingerprints.get("template")
    return known


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
            **_decided_elsewhere(tokenizer),
            "training": read_meta(str(trained)) if trained.is_file() else None,
        }
        write_meta(str(staged.path / META_NAME), meta)
        staged.commit()
