"""Text that any machine with Python has: documentation, code, and other scripts where translations are installed.

Docstrings and code come from the standard library and the installed packages. Manual pages, the files in
/usr/share/doc and gettext catalogues are read too where they exist; a machine without them has less prose, and perhaps
no other scripts.
"""

from __future__ import annotations

import gzip
import random
import re
import struct
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

SHARE = Path("/usr/share")
MOST = {"prose": 30_000_000, "foreign": 3_000_000, "code": 6_000_000}  # characters that a pool is filled up to
MOST_OF_A_FILE = 300_000  # bytes: no file becomes a large part of a pool
MOST_OF_A_NAME = 100  # manual pages whose names begin alike, of which some programs have thousands

# Languages that are translated to and that many people write. All of them would be mostly languages of few speakers.
LANGUAGES = re.compile(
    "ar|bn|cs|da|de|el|es|fa|fi|fr|he|hi|hu|id|it|ja|ko|nl|nb|pl|pt|pt_BR|ro|ru|sv|th|tr|uk|vi|zh_CN|zh_TW"
)

Found = Iterator[tuple[str, str]]  # a pool's name and a span of text

_BREAKS = {"PP", "P", "LP", "TP", "IP", "SH", "SS", "Sh", "Ss", "Pp", "It", "sp", "br"}
_WORDS = {"B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SM", "Nm", "Fl", "Ar", "Cm", "Pa", "Xr"}
_GLYPHS = {"\\-": "-", "\\e": "\\", "\\ ": " ", "\\~": " ", "\\(em": "—", "\\(en": "–", "\\(bu": "•", "\\(aq": "'"}
_GLYPH = re.compile("|".join(map(re.escape, _GLYPHS)))
_ESCAPE = re.compile(r"\\([fmF*]?(\[[^]]*\]|\(..)|[fmF*].|s[-+]?\d+|[&|^/,:%]|\".*)")
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_DOCUMENT = re.compile(r"(readme|news|faq|howto|changelog|todo).*|.*\.(txt|md|rst)(\.gz)?", re.IGNORECASE)


def pools(rng: random.Random) -> dict[str, list[str]]:
    """Spans of "prose", "foreign" (not ASCII alone) and "code", no two the same, in an order that `rng` decides."""
    found: dict[str, dict[str, None]] = {name: {} for name in MOST}
    sizes = Counter[str]()
    files = [(read, path) for read, paths in _files() for path in paths]
    rng.shuffle(files)
    for read, path in files:
        for kind, span in read(path):
            if sizes[kind] < MOST[kind] and _is_clean(span) and span not in found[kind]:
                found[kind][span] = None
                sizes[kind] += len(span)
        if all(sizes[kind] >= MOST[kind] for kind in ("prose", "code")):
            break
    made = {name: list(spans) for name, spans in found.items()}
    for spans in made.values():
        rng.shuffle(spans)
    return made


def _files() -> Iterator[tuple[Callable[[Path], Found], list[Path]]]:
    """What reads a kind of file, and the files of that kind, sorted."""
    paths = sysconfig.get_paths()
    folders = {Path(paths["stdlib"]), Path(paths["purelib"]), Path(paths["platlib"])}
    sources = sorted({path for folder in folders for path in folder.rglob("*.py")})
    yield _source, [path for path in sources if not {"test", "tests", "lib2to3"} & set(path.parts)]
    seen = Counter[str]()
    pages = []
    for path in sorted(SHARE.glob("man/man[1-8]/*")):
        name = re.split(r"[-_.]", path.name)[0]
        seen[name] += 1
        if seen[name] <= MOST_OF_A_NAME:
            pages.append(path)
    yield _page, pages
    translated = sorted(SHARE.glob("man/*/man[1-8]/*"))
    yield _translated_page, [path for path in translated if LANGUAGES.fullmatch(path.parts[-3])]
    yield _document, [path for path in sorted((SHARE / "doc").rglob("*")) if _DOCUMENT.fullmatch(path.name)]
    places = (SHARE / "locale", *sorted(folders))
    catalogues = chain.from_iterable(sorted(place.rglob("LC_MESSAGES/*.mo")) for place in places)
    yield _catalogue, [path for path in catalogues if LANGUAGES.fullmatch(path.parts[-3])]


def _source(path: Path) -> Found:
    """The docstrings of a Python file as prose, and what it defines without them as code."""
    text = _read(path).decode("utf-8", "ignore")
    for docstring in _DOCSTRING.findall(text):
        yield from (("prose", span) for span in _paragraphs(docstring))
    for block in re.split(r"\n{3,}", _DOCSTRING.sub("...", text)):
        if 120 < len(block) < 3500:
            yield "code", block.strip("\n")


def _page(path: Path) -> Found:
    return (("prose", span) for span in _paragraphs(_without_roff(_read(path).decode("utf-8", "ignore"))))


def _translated_page(path: Path) -> Found:
    return (("foreign", span) for _, span in _page(path) if not span.isascii())


def _document(path: Path) -> Found:
    return (("prose", span) for span in _paragraphs(_read(path).decode("utf-8", "ignore")))


def _catalogue(path: Path) -> Found:
    """The translations of a gettext catalogue, some of them together as a span."""
    data = _read(path, whole=True)
    if data[:4] != b"\xde\x12\x04\x95":  # little endian, as nearly all are
        return
    texts, _, table = struct.unpack_from("<3I", data, 8)
    pending = ""
    for number in range(1, texts):  # the first is the catalogue's header
        size, start = struct.unpack_from("<2I", data, table + 8 * number)
        text = data[start : start + size].decode("utf-8", "ignore").split("\0")[0]
        if not text.isascii():
            pending += f"{text.strip()} "
        if len(pending) > 300:
            yield "foreign", pending.strip()
            pending = ""


def _read(path: Path, *, whole: bool = False) -> bytes:
    """A file's bytes, unpacked; none where it cannot be read."""
    size = None if whole else MOST_OF_A_FILE
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


def _without_roff(page: str) -> str:
    """A manual page's text: macros that hold words leave them, others go, and so do fonts and sizes."""
    lines: list[str] = []
    for line in page.splitlines():
        if line.startswith((".", "'")):
            macro, _, words = line[1:].strip().partition(" ")
            if macro in _BREAKS:
                lines.append("")
            if macro not in _WORDS:
                continue
            line = words.replace('"', "")
        lines.append(_ESCAPE.sub("", _GLYPH.sub(lambda hit: _GLYPHS[hit[0]], line)))
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of sentences: not tables, lists of numbers or drawings."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        words = re.sub(r"[ \t]*\n[ \t]*", " ", paragraph).strip()
        if 60 <= len(words) <= 4000 and sum(map(str.isalpha, words)) + words.count(" ") > 0.75 * len(words):
            yield words


def _is_clean(span: str) -> bool:
    return span.replace("\n", "").replace("\t", "").isprintable()
