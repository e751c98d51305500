"""The engines that encode: gigatoken where its ids are proven, and `tokenizers`.

gigatoken is about 55 times as fast as `tokenizers`. It is used if its ids equal those of `tokenizers` on a probe text,
as a whole, line by line and word by word (`proven_gigatoken`). That takes seconds, so a success is stored in the user's
cache directory (`EngineProof`).

What this guarantees: an engine other than `tokenizers` is never used without a proof for these bytes, in these
versions. What it does not: equal ids on every text; the probe covers scripts, spaces, digits, code and added tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_gpt.errors import NielsError, TokenizerError, shown
from niels_gpt.extras import check_library
from niels_gpt.forks import is_forked
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.tokenizer.hf import file_of
from niels_gpt.tokenizer.pieces import Ids, Positions

EngineName = Literal["auto", "gigatoken", "tokenizers"]

# The text on which gigatoken must have the ids of `tokenizers`.
PROBE = (
    "The quick brown fox's 3 jumps; they'LL see it's 12345678 + 0.5e-3 = x_1?\n\n\nuser\nassistant\n"
    "<think>\n\n</think>\n\ndef f(x: int) -> str:\n    if x != 0:\n\t\treturn f'{x}'  # ok...\n        \n\r\n \t m\t\n"
    '{"a": [1, -2.5, null], "b": "\\u00e9\\n"}</tool_call>\n<|im_end|> [INST] <s> https://example.org/?q=a%20b&c=d\n'
    "Größe, naïve café, Ελληνικά, Русский текст, العربية ١٢٣, עברית, हिन्दी में, ไทย, 中文字符，日本語のテキスト、한국어\n"
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f916\U0001f3fd ½ ² Ⅷ ﬁ … “quotes” — "
    "e\u0301 A\u030a \u1100\u1161 \u00a0\u2003\u200b\u3000\ufeff end\u2028x \x00\x1b[0m\n   leading, trailing   \n"
    " \n  \n   \n\n    \nCamelCaseWORDS HTTPServer's 'S 'll a1b2 ١٢٣٤ 1,000,000.00 $5 €7 !!!???---===\n"
)
PROVEN = "its ids equal those of tokenizers on the probe text"
# Bytes after which gigatoken is loaded anew, since its cache of words only grows: every ten seconds of encoding, for
# half a second.
MOST_SEEN = 512 * 1024 * 1024


# ---- gigatoken


class Gigatoken:
    """gigatoken's tokenizer, loaded when it is first needed, and again after `MOST_SEEN` bytes.

    It caches every word that it has encoded, at some 80 bytes each, and never frees them.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._seen = data, 0
        self._backend: Any = None

    def after(self, size: int) -> Any:
        """The tokenizer, before it encodes `size` more bytes. The caller holds `GIGATOKEN`."""
        self._seen += size
        if self._backend is None or self._seen > MOST_SEEN:
            import gigatoken

            self._seen, self._backend = size, gigatoken.Tokenizer.from_json(self._data).backend
        return self._backend


def proven_gigatoken(data: bytes, reference: Any, added: Iterable[str], name: str) -> tuple[Gigatoken | None, str]:
    """gigatoken's tokenizer if it has the reference's ids on the probe text, else `None`; and the reason.

    Args:
        reference: the `tokenizers.Tokenizer` of the same bytes.
        added: the spellings of its added tokens.
        name: what errors call the tokenizer.
    """
    try:
        gigatoken = Gigatoken(data)
        backend = gigatoken.after(0)
        # Also parts of the probe, because a word at the start of a text has no space before it and other ids. Of added
        # tokens the first 300, because some tokenizers have thousands.
        texts = [PROBE, " ".join(islice(added, 300)), *PROBE.splitlines(keepends=True), *PROBE.split(" ")]
        found = [backend.encode(text.encode()).tolist() for text in texts]
    except ImportError:
        return None, "gigatoken is not installed"
    # Everything, because a panic of Rust code derives from `BaseException` only; an interrupt is raised again.
    except BaseException as error:
        if not (isinstance(error, ValueError | RuntimeError | KeyError | TypeError | OverflowError) or is_panic(error)):
            raise
        return None, f"gigatoken cannot load or run it ({shown(str(error), 200)})"
    expected = [encoding.ids for encoding in encodings_of(reference, texts, name)]
    wrong = next((text for text, a, b in zip(texts, found, expected, strict=True) if a != b), None)
    if wrong is not None:
        return None, f"gigatoken's ids differ from those of tokenizers on {wrong[:40]!r}"
    return gigatoken, PROVEN


# ---- tokenizers


def encodings_of(tokenizer: Any, texts: list[str], name: str) -> list[Any]:
    """The encoding of each text by `tokenizers`, with offsets.

    A forked process encodes one text after the other: its copy of the library has no threads, and waits for them
    forever if TOKENIZERS_PARALLELISM is set.
    """
    with rust_errors(name, f"encode {shown(texts[0] if texts else '')}", "use another tokenizer.json"):
        if is_forked():
            return [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        encodings: list[Any] = tokenizer.encode_batch(texts, add_special_tokens=False)
        return encodings


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code, which derives from `BaseException` only."""
    return type(error).__name__ == "PanicException" and type(error).__module__ == "pyo3_runtime"


@contextmanager
def rust_errors(name: str, doing: str, remedy: str) -> Iterator[None]:
    """Convert what `tokenizers` raises inside the block, and its panics, to a `TokenizerError`.

    Args:
        name: the tokenizer. doing: "load it", "encode ...". remedy: what the user can do.
    """
    try:
        yield
    # Everything, because the library raises plain `Exception`, and panics derive from `BaseException` only.
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):  # an interrupt
            raise
        reason = str(error).strip() or type(error).__name__
        raise TokenizerError(f"{file_of(name)}: tokenizers cannot {doing} ({shown(reason, 200)}); {remedy}") from error


def from_offsets(encoding: Any, text: str, name: str) -> tuple[Ids, Positions]:
    """Ids and the byte at which each token starts, from an encoding's offsets in characters of `text`.

    "né!" with tokens that start at characters 0 1 2: characters of 1 2 1 bytes start at 0 1 3, as do the tokens.

    Raises:
        TokenizerError: the offsets do not belong to the text.
    """
    ids = np.array(encoding.ids, np.int32)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    starts, stops = offsets[:, 0], offsets[:, 1]
    # Some normalizers make the offsets meaningless: they descend, leave the text, or are all 0.
    sound = len(offsets) == ids.size and bool((starts <= stops).all() and (np.diff(starts) >= 0).all())
    if not sound or (ids.size and not 0 < stops.max() <= len(text)):
        raise TokenizerError(
            f"{name}: the offsets of {text[:40]!r} are {encoding.offsets[:6]}...; expected ascending positions in the "
            "text, without which the piece of a token is unknown. Use a tokenizer.json with another normalizer"
        )
    sizes = np.fromiter(map(len, map(str.encode, text)), np.int64, len(text))
    return ids, np.concatenate(([0], np.cumsum(sizes)))[starts]


def load_rust_tokenizer(data: bytes, name: str) -> Any:
    """The bytes of a tokenizer.json as a `tokenizers.Tokenizer` that encodes all of a text and nothing else.

    Args:
        name: what errors call it.

    Raises:
        MissingExtra: `tokenizers` is not installed. TokenizerError: it cannot load these bytes.
    """
    check_library("tokenizers")
    from tokenizers import Tokenizer

    with rust_errors(name, "load it", "expected a tokenizer.json as save_pretrained() writes it"):
        tokenizer = Tokenizer.from_str(data.decode())
    # The post-processor adds bos and changes offsets; neither is part of the text. Truncation would lose text.
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def take_controls_as_text(tokenizer: Any, controls: Iterable[str]) -> None:
    """Let a `tokenizers.Tokenizer` encode the spellings of control tokens as any other text.

    Args:
        controls: all of them. Those that are not special become so, since the library has this for special tokens.
    """
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    tokenizer.encode_special_tokens = True


# ---- stored proofs

VARIABLE = "NIELS_GPT_CACHE"
_LIBRARIES = ("gigatoken", "tokenizers")
_CODE = ("description.py", "engines.py", "encoder.py")  # what is proven, and how


class EngineProof:
    """A stored proof that gigatoken has the ids of `tokenizers` for one tokenizer.

    It is a small file in the cache directory, whose name is a hash of everything that the proof depends on and whose
    content is the same in readable form. It contains no ids and nothing that encoding reads: it can only change whether
    the proof runs again. A file that is missing, damaged or about anything else counts as no proof.

    Args:
        sha256: of the bytes of the tokenizer.json.
        controls: added tokens that count as control tokens although the tokenizer does not mark them so.
    """

    def __init__(self, sha256: str, controls: Collection[str]) -> None:
        self._path: Path | None = None
        folder, facts = cache_directory(), _environment()
        if folder is not None and facts is not None:
            self._facts = {"tokenizer_sha256": sha256, "controls": sorted(controls), **facts}
            self._path = folder / "proofs" / f"{hashlib.sha256(json_bytes(self._facts)).hexdigest()}.json"

    def is_stored(self) -> bool:
        """Whether the proof succeeded before, with these bytes and versions."""
        try:
            return self._path is not None and json.loads(self._path.read_bytes()) == self._facts
        except (OSError, ValueError, RecursionError):  # absent, no JSON, or nested too deeply: no proof
            return False

    def store(self) -> None:
        """Store a success. If the file cannot be written, the proof runs again next time."""
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path, json_bytes(self._facts))
            except (OSError, NielsError):
                return


def cache_directory() -> Path | None:
    """The directory for results that can be computed again; `None` if there is none.

    `NIELS_GPT_CACHE` names another directory than the system's usual one; "off" stores nothing.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return None if named == "off" else Path(named)
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "niels_gpt" / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "niels_gpt"
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "niels_gpt"  # relative paths are to be ignored
    except RuntimeError:  # no home directory
        return None


@cache
def _environment() -> dict[str, object] | None:
    """Everything a proof depends on besides the tokenizer: versions, machine, code. `None` if it is not known."""
    try:
        code = b"".join(Path(__file__).with_name(name).read_bytes() for name in _CODE)
        versions = {name: version(name) for name in _LIBRARIES}
    except (OSError, PackageNotFoundError):  # the source files are missing, or a library is not installed
        return None
    machine = os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")
    return {**versions, "machine": f"{sys.platform} {machine}", "code_sha256": hashlib.sha256(code).hexdigest()}
