"""Checks of paths on a command line, before any library or tokenizer is loaded: a wrong path fails at once.

What is only a name (on the hub, in a store) and patterns are left to the readers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import InputError

CHAT_SUFFIXES: Final = (".jsonl", ".json", ".parquet", ".gz", ".zst")
_FILES: Final = (*CHAT_SUFFIXES, ".arrow", ".model", ".jinja", "/")  # how a name on the hub does not end


def in_home(value: Any) -> Any:
    """A path, text or list of them with the home directory in place of a `~` in front; any other value unchanged.

    A shell leaves the ~ of `--out=~/cache` to the program, which would write into a directory of that name.
    """
    if isinstance(value, list):
        return [in_home(each) for each in value]
    if not str(value).startswith("~"):  # the slashes of a URL stay as they are
        return value
    try:
        return type(value)(Path(value).expanduser())
    except RuntimeError:  # "~name" of an unknown user
        return value


def existing(expected: str = "", hub: tuple[int, ...] = ()) -> Callable[[Any], Any]:
    """A check of one or several paths, which returns them; a missing one is refused.

    Args:
        expected: what is there, for the message.
        hub: how many slashes a name on the hub has that this may be as well: (1,) for OWNER/NAME.
    """

    def checked(value: Any) -> Any:
        for text in map(str, value if isinstance(value, list) else [] if value is None else [value]):
            is_path = text.count("/") not in hub or text.startswith((".", "/", "~")) or text.endswith(_FILES)
            there = Path(in_home(text))
            # Megatron names its two files without their suffixes.
            if is_path and not (
                "://" in text or set("*?[") & {*text} or there.exists() or Path(f"{there}.idx").exists()
            ):
                remedy = f"expected {expected}. Check the path" if expected else "check the path"
                raise InputError(f"{text}: no such file or directory; {remedy} (it is relative to {Path.cwd()})")
        return in_home(value)

    return checked


EXISTING: Final = existing()
EXISTING_OR_HUB: Final = existing("data, or a name on the hub (OWNER/NAME)", (1,))
EXISTING_TOKENIZER: Final = existing(
    "a tokenizer: a directory with tokenizer.json or spm.model, or a name on the Hugging Face hub", (0, 1)
)
EXISTING_TEMPLATE: Final = existing("a Jinja chat template")


def must_be_writable(file: Path | None) -> None:
    """Refuse a file to write that is a directory, or in none, before the input is read, which may take minutes.

    Raises:
        InputError: naming the file.
    """
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        found = "a directory" if file.is_dir() else f"there is no directory {file.parent}"
        raise InputError(f"{file}: {found}; expected a file to write")
