"""The copy of the tokenizer beside the caches of `build-all`, by which they can be read without the original.

::

    CACHE_DIR/tokenizer/spm.model, meta.json                                   a SentencePiece model
    CACHE_DIR/tokenizer/tokenizer.json, tokenizer_config.json, meta.json       any other

`meta.json` records what decides the ids, so that replaced files are noticed: the sha256 of the file with the
vocabulary, the ids of eos and bos, and the sha256 of the chat template.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from niels_gpt.builds.documents import DocumentEncoder
from niels_gpt.cache.meta import read_meta, write_meta
from niels_gpt.errors import UsageError
from niels_gpt.store.files import read_file, write_atomic
from niels_gpt.store.schema import META_NAME
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.hf import TOKENIZER_NAME, saved_files
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME


class TokenizerCopy:
    """The files that a tokenizer has beside caches.

    Raises:
        UsageError: a tokenizer in Python, which has no such files.
    """

    def __init__(self, encoder: DocumentEncoder) -> None:
        tokenizer = encoder.tokenizer
        if isinstance(tokenizer, SentencePieceTokenizer):
            self.files = {MODEL_NAME: read_file(Path(tokenizer.model_path))}
        elif isinstance(tokenizer, TokenizerAdapter):
            self.files = saved_files(tokenizer.parts)
        else:
            raise UsageError(
                f"a {type(tokenizer).__name__} cannot be copied beside the caches; expected a {MODEL_NAME} or a "
                f"tokenizer with a {TOKENIZER_NAME}. Build the caches one by one"
            )
        vocabulary = next(iter(self.files.values()))
        self.meta: dict[str, Any] = {
            "kind": "tokenizer",
            "sha256": hashlib.sha256(vocabulary).hexdigest(),
            "bytes": len(vocabulary),
            "vocab_size": encoder.vocab_size,
            "special_token_ids": encoder.special_ids,
        }
        if isinstance(tokenizer, TokenizerAdapter):
            self.meta["template_sha256"] = tokenizer.fingerprints.get("template")

    def is_in(self, folder: Path) -> bool:
        """Whether a folder holds these files and their record, unchanged."""
        if not (folder / META_NAME).is_file() or read_meta(str(folder / META_NAME)) != self.meta:
            return False
        return all((folder / name).is_file() and read_file(folder / name) == data for name, data in self.files.items())

    def write(self, folder: Path) -> None:
        """Write the files, whole or not at all.

        Raises:
            StorageError: the disk refused.
        """
        with StagedDirectory(folder, manifest=META_NAME, overwrite=True) as staged:
            for name, data in self.files.items():
                write_atomic(staged.path / name, data)
            write_meta(str(staged.path / META_NAME), self.meta)
            staged.commit()
