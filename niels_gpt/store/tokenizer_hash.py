"""The hash by which manifests identify a tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from niels_gpt.errors import Mismatch, UsageError, shown
from niels_gpt.store.checksums import file_record


def check_built_with(recorded: str, tokenizer: Any, where: Path) -> None:
    """Raise `Mismatch` unless a dataset, whose manifest has this hash, was built with a tokenizer."""
    found = tokenizer_sha256(tokenizer)
    if found != recorded:
        raise Mismatch(
            f"{where}: built with tokenizer {recorded[:12]} but opened with {found[:12]}; open it with the "
            "tokenizer it was built with, or build it again"
        )


# Digits, spaces, code and four scripts: two different tokenizers hardly agree on all of them.
_PROBE = "The quick brown fox, 1234567890 times!\n\tdef f(x): return x ** 2  # naïve, 你好, здравствуй"


def tokenizer_sha256(tokenizer: Any) -> str:
    """The hash by which manifests identify a tokenizer: the sha256 of its tokenizer.json or model file.

    Accepts such a file or its directory, encoders and renderers of this package, tokenizer objects of transformers and
    `tokenizers` (of which the JSON that they write is hashed), and our own tokenizer. For another tokenizer without
    `model_path` it is the sha256 of its behaviour: its special ids and its encoding of a probe text. Training jobs
    compare it with the tokenizer they use, see `check_built_with`.

    Raises:
        UsageError: `model_path` is not a path, or this is no tokenizer.
    """
    if isinstance(tokenizer, str | PathLike):
        # tokenizer.json first: it is what transformers loads where a directory has both.
        folder = Path(tokenizer)
        files = [folder / "tokenizer.json", folder / "spm.model"] if folder.is_dir() else [folder]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            raise UsageError(
                f"{folder}: no tokenizer there; expected a tokenizer.json, a spm.model, or their directory"
            )
        return file_record(found).sha256
    # Encoders and renderers of this package, which know the hashes of their files.
    fingerprints = getattr(tokenizer, "fingerprints", None)
    if isinstance(fingerprints, Mapping):
        return str(fingerprints.get("tokenizer") or fingerprints.get("tokenizer_sha256"))
    # A fast tokenizer of transformers holds one of `tokenizers`.
    rust = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(rust, "to_str"):
        return hashlib.sha256(rust.to_str().encode()).hexdigest()
    path = getattr(tokenizer, "model_path", None)
    if path is not None and not isinstance(path, str | PathLike):
        raise UsageError(f"the tokenizer's model_path is {shown(path)}; expected the path of its model, or None")
    if path is not None and Path(path).is_file():
        return file_record(Path(path)).sha256
    if not hasattr(tokenizer, "special_token_ids"):
        raise UsageError(
            f"found a {type(tokenizer).__name__}; expected a tokenizer: its directory or file, a renderer, or "
            "an object with encode() and special_token_ids()"
        )
    # Nothing to hash: the tokenizer is identified by what it does.
    behaviour = {
        "special_token_ids": {name: int(token) for name, token in sorted(tokenizer.special_token_ids().items())},
        "probe": [int(token) for token in tokenizer.encode(_PROBE)],
    }
    return hashlib.sha256(json.dumps(behaviour, sort_keys=True).encode()).hexdigest()
