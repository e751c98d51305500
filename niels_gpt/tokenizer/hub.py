"""Load transformers tokenizers from the Hugging Face hub or a directory, without running unknown code.

A repository may contain Python code for its tokenizer. It is run for the few names in `TRUSTED_REVISIONS` only, at the
commit whose code was read. Files are downloaded first, all from one commit, and transformers then finds them in the
local cache. Where transformers downloads, it continues without a file that it failed to get, and the result may be a
tokenizer without its chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from niels_gpt.errors import SourceError, TokenizerError
from niels_gpt.extras import check_library
from niels_gpt.tokenizer.hf import CONFIG_NAME, ENGINE_MARK, FOLDER_MARK

# The only names whose Python code is run, each at the commit whose code was read.
TRUSTED_REVISIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "moonshotai/Kimi-K2-Instruct": "fd1984e2b7a3350dbf7305fe73a4ede25c14de50",
        "moonshotai/Kimi-K2.5": "4d01dfe0332d63057c186e0b262165819efb6611",
        "moonshotai/Kimi-K2.6": "2755962d07cb42aa2d988a35bcb65cd4a9c2de82",
    }
)

# Names for which the fastokens engine has other ids than the official tokenizer.
FASTOKENS_INCOMPATIBLE: Final[frozenset[str]] = frozenset(
    {
        "MiniMaxAI/MiniMax-M2",
        "MiniMaxAI/MiniMax-M2.5",
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3-Base",
    }
)

# The files of tokenizers. Weights are not downloaded, and code only if it is trusted.
_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_NOT_FILES = ["*.index.json", "*/*/*"]
TIMEOUT_SECONDS = 30.0


def load_hf_tokenizer(name_or_path: str | Path, *, use_fastokens: bool = True) -> Any:
    """The transformers tokenizer of a hub name or a local directory; its `name_or_path` is the argument.

    Python code of the repository is not run, except for the names in `TRUSTED_REVISIONS`, at that commit only. A local
    directory's code is never run. Without a connection, the local cache is used.

    Args:
        use_fastokens: renderers and encoders of this tokenizer may encode with a faster engine if its ids are proven to
            be equal (here gigatoken; the name is that of the `renderers` package). `False`: they use `tokenizers`.

    Raises:
        MissingExtra: transformers is not installed.
        SourceError: the hub cannot be reached, has no such repository, or refuses access.
        TokenizerError: the files are not a tokenizer, are damaged, or need code that is not trusted.
    """
    name = str(name_or_path)
    if Path(name).is_dir():  # a directory of a trusted name is still not the repository whose code was read
        tokenizer = _load_files(name, Path(name), trusted=False)
    else:
        check_library("transformers")  # which brings the hub's library
        from huggingface_hub import snapshot_download

        revision = TRUSTED_REVISIONS.get(name)
        with _hub_errors(name):
            path = snapshot_download(
                name,
                revision=revision,
                allow_patterns=_FILES if revision is None else [*_FILES, "*.py"],
                ignore_patterns=_NOT_FILES,
                etag_timeout=TIMEOUT_SECONDS,
            )
        # A snapshot's folder is named by its commit. With this revision, transformers uses the downloaded files and
        # does not look for a newer commit; code in a second repository is looked for at this commit too, where there
        # is none.
        folder = Path(path)
        commit = {"revision": folder.name, "code_revision": folder.name}
        tokenizer = _load_files(name, folder, trusted=revision is not None, **commit)
    if not use_fastokens:
        setattr(tokenizer, ENGINE_MARK, "tokenizers")
    return tokenizer


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Convert the errors of huggingface_hub to ours."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise TokenizerError(
            f"{name!r}: neither a local directory nor a name on the hub ({error}); expected 'owner/name' or a path"
        ) from error
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{name}: the hub gives it only to accounts that have accepted its terms; accept them at "
            f"https://huggingface.co/{name}, then log in: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"{name}: found no local directory and no repository on the hub; expected 'owner/name'. Check the "
            "spelling; for a private repository log in: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{name}: the hub no longer has commit {TRUSTED_REVISIONS.get(name, 'main')}, the only one whose code is "
            "trusted; download it elsewhere and pass the tokenizer object"
        ) from error
    # Everything else, because the HTTP library and its errors differ between versions of huggingface_hub.
    except Exception as error:
        raise SourceError(
            f"{name}: no local directory, and the hub cannot be reached or broke off ({_shortened(error)}); check the "
            "connection and HF_ENDPOINT, unset HF_HUB_OFFLINE, or give a local directory"
        ) from error


def _load_files(name: str, folder: Path, *, trusted: bool, **where: Any) -> Any:
    check_library("transformers")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trusted, **where)
    # Everything, because `tokenizers` raises plain `Exception`, and trusted code may raise anything.
    except Exception as error:
        if not trusted and wants_code(folder):
            raise TokenizerError(
                f"{name}: this tokenizer is Python code of its own, which is not run; code is run only for pinned "
                f"revisions of {', '.join(TRUSTED_REVISIONS)}. Read the code, load the tokenizer yourself with "
                "trust_remote_code=True, and pass the object"
            ) from error
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:12]) if folder.is_dir() else ""
        raise TokenizerError(
            f"{name}: transformers cannot load a tokenizer from it ({_shortened(error)}); found "
            f"{found or 'nothing'}; expected what save_pretrained() writes. Download it again, or name another model"
        ) from error
    if tokenizer.name_or_path != name:
        raise TokenizerError(f"{name}: transformers calls the loaded tokenizer {tokenizer.name_or_path!r}; update it")
    setattr(tokenizer, FOLDER_MARK, str(folder))  # generation_config.json is there, which the object does not hold
    return tokenizer


def wants_code(folder: Path) -> bool:
    """Whether a tokenizer directory names Python code that must be run to load it."""
    try:
        config = json.loads((folder / CONFIG_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):  # loading itself reports an unreadable config
        return False
    return isinstance(config, dict) and bool(config.get("auto_map"))


def _shortened(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
