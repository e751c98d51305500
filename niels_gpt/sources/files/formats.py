"""`format_of`: how a file of rows or text is stored, by its name and its first bytes together.

==========  ======================  ===========================================
format      names                   the first bytes, decompressed
==========  ======================  ===========================================
lines       .jsonl .ndjson .json    a line of JSON, most often an object
array       .json                   a JSON array
parquet     .parquet                PAR1
arrow       .arrow                  ARROW1, or the beginning of Arrow's streams
text        .txt .md .markdown      UTF-8 that is not one object a line
==========  ======================  ===========================================

Each may end in `.gz` or `.zst`, but for parquet and Arrow. Capital letters in names mean the same. A name that says
nothing leaves it to the bytes, which can show all formats but text: a table of numbers is UTF-8 as well. Where name and
bytes contradict each other the file is refused, so that no file is read as what it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from niels_gpt.errors import InputError, shown
from niels_gpt.sources.files.inputs import existing_file, open_bytes, reading
from niels_gpt.store.remote import AnyFile

Format = Literal["lines", "array", "parquet", "arrow", "text"]
LOOKED_AT: Final = 1 << 16  # bytes of a file, decompressed

# The end of a name -> the formats that it allows.
NAMES: Final[Mapping[str, tuple[Format, ...]]] = {
    ".jsonl": ("lines",),
    ".ndjson": ("lines",),
    ".json": ("array", "lines"),
    ".parquet": ("parquet",),
    ".arrow": ("arrow",),
    ".txt": ("text",),
    ".md": ("text",),
    ".markdown": ("text",),
}
COMPRESSIONS: Final = (".gz", ".zst")
EXPECTED: Final = "rows (.jsonl, .ndjson, .json, .parquet, .arrow) or text (.txt, .md)"

_BINARY: Final[Mapping[bytes, Format]] = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_PACKED: Final = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
# First bytes -> what such a file is, and what to do with it.
_REFUSED: Final = {
    b"BZh": "a bzip2 file; decompress it, or compress it with gzip or zstd",
    b"\xfd7zXZ\x00": "an xz file; decompress it, or compress it with gzip or zstd",
    b"PK\x03\x04": "a zip archive (or .npz, .xlsx); unpack it",
    b"\x93NUMPY": "an array of numpy; niels-gpt import --from tokens reads token ids",
    b"version https://git-lfs": "a pointer of Git LFS, and the data itself is not here; run: git lfs pull",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8, for example with: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8, for example with: iconv -f UTF-16 -t UTF-8",
}
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Name:
    """What the name of a file says.

    Attributes:
        ending: `.jsonl` of `A.JSONL.gz`, in small letters; "" where it is none of `NAMES`.
        compression: `.gz`, `.zst` or "".
    """

    ending: str
    compression: str

    @classmethod
    def of(cls, name: str) -> Name:
        """The name of a file, without its directory."""
        name = name.lower()
        compression = next((end for end in COMPRESSIONS if name.endswith(end)), "")
        stem = name.removesuffix(compression)
        return cls(next((end for end in NAMES if stem.endswith(end)), ""), compression)

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats that it allows; empty where it says nothing."""
        return NAMES.get(self.ending, ())


def format_of(path: AnyFile) -> Format:
    """The format of a file. Reads its first bytes.

    Raises:
        InputError: name and content contradict each other, or nothing fits; missing, a directory, empty or damaged.
    """
    named = Name.of(path.name)
    with reading(path), existing_file(path).open("rb") as file:
        raw = file.read(64)
    packed = next((end for magic, end in _PACKED.items() if raw.startswith(magic)), "")
    if packed and packed != named.compression:
        raise _is_other(path, f"a {packed[1:]} file; name it {packed}, or decompress it")
    if named.compression and not packed:
        raise InputError(
            f"{path}: not a whole {named.compression} file: its first bytes are {shown(raw[:4])}; restore it, or leave "
            f"out {named.compression}"
        )
    with open_bytes(path) as plain:
        head = plain.read(LOOKED_AT)
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise _is_other(path, what)
    binary = next((form for magic, form in _BINARY.items() if head.startswith(magic)), None)
    if binary is None and (expected := {".parquet": "parquet", ".arrow": "Arrow"}.get(named.ending)):
        raise InputError(f"{path}: not a whole {expected} file: its first bytes are {shown(head[:12])}; restore it")
    if binary is not None and packed:
        raise InputError(f"{path}: {binary} inside {packed}, which cannot be read in parts; decompress it")
    found = (binary,) if binary is not None else _formats_of_text(head.removeprefix(_BYTE_ORDER_MARK).lstrip())
    # A name that says nothing leaves it to the bytes, as far as they are clear.
    allowed = named.formats or tuple(form for form in found[:1] if form != "text")
    chosen = next((form for form in found if form in allowed), None)
    if chosen is None:
        says = f"the name says {named.ending}" if named.ending else f"the name says nothing of {EXPECTED}"
        raise InputError(f"{path}: {says}, and the file {_HOLDS[found[0]]}")
    return chosen


def _formats_of_text(head: bytes) -> tuple[Format, ...]:
    """The formats that the first bytes of a text allow, the likeliest first.

    ::

        {"text": "a"}             lines
        [{"text": "a"},           array
        "a", 1, {"text": "a       lines whose first row is none, or text
        [1], [a link](x)          array or text
        A text                    text, or lines whose first row is damaged
        {                         text, where a key is in the next line: such an object is no row
    """
    first, _, rest = head.partition(b"\n")
    is_whole = bool(rest) or len(head) < LOOKED_AT - 4  # else the first line is longer than what was read
    if head[:1] == b"{":
        row = _parsed(first) if is_whole else {}
        if isinstance(row, dict):
            return ("lines",)  # no text: its JSON would be trained
        is_over_lines = first.strip() == b"{" and rest.lstrip()[:1] == b'"'
        return ("text",) if is_over_lines else ("lines", "text")
    if head[:1] == b"[":
        return (
            ("array",) if head[1:].lstrip()[:1] == b"{" and not _is_message_list(first) else ("array", "lines", "text")
        )
    return ("text", "lines")


def _is_message_list(line: bytes) -> bool:
    """Whether a line is a list of messages by itself: a row of a wrong shape, and no array of rows."""
    row = _parsed(line)
    return isinstance(row, list) and bool(row) and isinstance(row[0], dict) and "role" in row[0]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_other(path: AnyFile, what: str) -> InputError:
    return InputError(f"{path}: expected {EXPECTED}, and by its first bytes this is {what}")


_HOLDS: Final[Mapping[Format, str]] = {
    "lines": "holds one JSON object a line; name it .jsonl",
    "array": "holds a JSON array; name it .json",
    "parquet": "is a parquet file; name it .parquet",
    "arrow": "is an Arrow file; name it .arrow",
    "text": "holds text that is no row a line; name it .txt if the whole file is one text",
}
