"""Checks of paths on a command line, before any library or tokenizer is loaded: a wrong path fails at once.

::

    existing(...)            an option or argument that names files: the settings that typer needs to check it
    EXISTING                 the same, without a description of what is expected
    must_exist, existing_tokenizer, existing_or_hub, must_be_writable    the checks as calls
    IN_HOME                  the settings of an option that names what to write, or data that may be on the hub

What is only a name (on the hub, in a store) and patterns are left to the readers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError

CHAT_SUFFIXES: Final = (".jsonl", ".json", ".parquet", ".gz", ".zst")


def existing(expected: str = "", what: str = "file or directory") -> dict[str, Any]:
    """typer settings of a path or a list of paths: a missing one is refused before any library is loaded.

    Patterns and URLs are left to the reader, which resolves them.

    Args:
        expected: what the file should be, for the message.
        what: "file", "directory" or both, for the message.
    """

    def checked(value: Any) -> Any:
        # typer calls it with a list for several values, and with None where an option is not used.
        for text in map(str, value if isinstance(value, list) else [] if value is None else [value]):
            if "://" not in text and not any(sign in text for sign in "*?[") and not _is_there(text):
                remedy = f"expected {expected}. Check the path" if expected else "check the path"
                raise InputError(f"{text}: no such {what}; {remedy} (it is relative to {Path.cwd()})")
        return in_home(value)

    return {"callback": checked}


def in_home(value: Any) -> Any:
    """A path, text or list of them with the home directory in place of a `~` in front; any other value unchanged.

    A shell leaves the ~ of `--out=~/cache` to the program, which would write into a directory of that name.
    """
    if isinstance(value, list):
        return [in_home(each) for each in value]
    try:
        if isinstance(value, Path):
            return value.expanduser()
        # Other texts may be names or URLs, whose slashes a `Path` would change.
        return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value
    except RuntimeError:  # "~name" of an unknown user
        return value


IN_HOME: Final[dict[str, Any]] = {"callback": in_home}


def _is_there(text: str) -> bool:
    found: Path = in_home(Path(text))
    return found.exists()


def existing_tokenizer(text: str | Path | None) -> Path | None:
    """The path or hub name of a tokenizer; what cannot be a name on the hub must exist. `None`: an unused option.

    Raises:
        InputError: the path does not exist.
    """
    if text is None:
        return None
    shown = str(text)
    # A name on the hub is NAME or OWNER/NAME. `mistral/tokenizer.model` looks like one, and is a file.
    # Shells complete the name of a directory with a slash at its end.
    as_paths_end = ("/", ".model", ".json", ".jinja")
    is_path = shown.startswith((".", "/", "~")) or shown.count("/") > 1 or shown.endswith(as_paths_end)
    if is_path and "://" not in shown and not _is_there(shown):
        raise InputError(
            f"{shown}: no such file or directory; expected a tokenizer: a directory with tokenizer.json or spm.model, "
            f"or a name on the Hugging Face hub. Check the path (it is relative to {Path.cwd()})"
        )
    path: Path = in_home(Path(text))
    return path


def existing_or_hub(text: str) -> None:
    """Refuse a path that does not exist, unless it can be the name of a dataset on the hub (OWNER/NAME).

    Raises:
        InputError: the path does not exist.
    """
    # What looks like a path is one, so that a typing error is not looked up online.
    is_path = text.count("/") != 1 or text.startswith((".", "/", "~")) or text.endswith(("/", *CHAT_SUFFIXES, ".arrow"))
    # Megatron names its two files without their suffixes.
    if is_path and "://" not in text and not _is_there(text) and not _is_there(f"{text}.idx"):
        raise InputError(f"{text}: no such file or directory, and no name of a dataset on the hub; check the path")


EXISTING: Final = existing()


def must_exist(text: str) -> None:
    """The check of `EXISTING` as a call, for commands that first report other mistakes in their options.

    Raises:
        InputError: the path does not exist.
    """
    EXISTING["callback"](text)


def _tokenizers_there(value: Any) -> Any:
    for text in value if isinstance(value, list) else [] if value is None else [value]:
        existing_tokenizer(text)
    return in_home(value)


EXISTING_TOKENIZER: Final[dict[str, Any]] = {"callback": _tokenizers_there}  # for options that stay text


def must_be_writable(file: Path | None) -> None:
    """Refuse a file to write that is a directory, or in none, before the input is read, which may take minutes.

    Raises:
        InputError: naming the file.
    """
    if file is None:
        return
    if file.is_dir():
        raise InputError(f"{file}: a directory; expected a file to write. Name a file in it")
    if not file.absolute().parent.is_dir():
        raise InputError(f"{file}: there is no directory {file.parent}; create it, or name another file")
