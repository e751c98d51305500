"""What encodes runs of text that hold no control tokens: gigatoken where it is proven, `tokenizers` elsewhere."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import Any, Literal

import numpy as np

from niels_gpt.errors import TokenizerError, shown
from niels_gpt.extras import check_library
from niels_gpt.forks import is_forked, new_lock
from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.hf import file_of
from niels_gpt.tokenizer.pieces import NO_IDS, NO_POSITIONS, Ids, Positions, edges_of

EngineName = Literal["auto", "gigatoken", "tokenizers"]

# What an engine must encode as `tokenizers` does before it is used, as a whole and line by line.
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
# gigatoken's batches cost some 200 microseconds before the first text; so many texts are worth it.
_BATCH = 64
MOST_SEEN = 512 * 1024 * 1024  # bytes, half a second's work in some ten seconds
BETWEEN = b"\xff"  # never in UTF-8


class Body:
    """A tokenizer without control tokens: runs of text to ids and where each token starts.

    What encodes is loaded when it is first needed, once, and while no other thread forks.

    Args:
        data: gives the bytes of its JSON.
        engine: what encodes; gigatoken is proven to give the same ids (`prove`, now or earlier).
    """

    def __init__(self, name: str, about: Description, data: Callable[[], bytes], engine: EngineName) -> None:
        self._name, self._data, self.engine = name, data, engine
        self._lengths, self._form = about.byte_lengths, about.form
        self._gigatoken: Gigatoken | None = None
        self._loaded: Any = None
        self._one_at_a_time = new_lock()  # gigatoken refuses a second thread: "Already borrowed"

    def prove(self, added: Mapping[str, int]) -> str:
        """Load it, and choose gigatoken if it gives the same ids and `engine` allows it; the reason for the choice.

        Args:
            added: its added tokens.
        """
        asked, data = self.engine, self._data()
        self._loaded = load_tokenizers(data, self._name)
        _check_added_ids(self._loaded, added, self._name)
        if asked == "tokenizers":
            return "asked for"
        self._gigatoken, reason = proven_gigatoken(data, self._loaded, added, self._name)
        if asked == "gigatoken" and self._gigatoken is None:
            raise TokenizerError(f"{self._name}: gigatoken cannot be used: {reason}. Use engine='auto'")
        self.engine = "gigatoken" if self._gigatoken is not None else "tokenizers"
        return reason

    @property
    def _tokenizer(self) -> Any:
        with self._one_at_a_time:
            if self._loaded is None:
                self._loaded = load_tokenizers(self._data(), self._name)
            return self._loaded

    def encode(self, runs: list[bytes]) -> tuple[Ids, Positions, Positions]:
        """`(ids, starts, counts)`: all tokens, the byte within its run at which each starts, the tokens of each run."""
        if self._lengths is None:
            return self._joined([self._by_offsets(run) for run in runs])
        ids, counts = self._flat(runs)
        # Runs of 5 and 4 bytes, token lengths 2 3 | 1 3: ends 0 2 5 6 9, of which the runs' edges are 0 5 9. Lengths of
        # runs 5 4 are as they should be; starts are ends without the last, less the run's edge: 0 2 | 0 1.
        ends, token_edges = edges_of(self._lengths[ids]), edges_of(counts)
        edges = ends[token_edges]
        starts = ends[:-1] - edges[:-1].repeat(counts)
        proven = edges[1:] - edges[:-1] == np.fromiter(map(len, runs), np.int64, len(runs))
        if self._form:
            proven &= np.fromiter(map(_is_normal, runs, repeat(self._form)), np.bool_, len(runs))
        if proven.all():
            return ids, starts, counts
        bounds = zip(proven.tolist(), runs, token_edges[:-1].tolist(), token_edges[1:].tolist(), strict=True)
        return self._joined([(ids[a:b], starts[a:b]) if ok else self._by_offsets(run) for ok, run, a, b in bounds])

    def _flat(self, runs: list[bytes]) -> tuple[Ids, Positions]:
        encoded: list[Any]
        if self.engine == "gigatoken":
            with self._one_at_a_time:
                if self._gigatoken is None:
                    self._gigatoken = Gigatoken(self._data())
                backend = self._gigatoken.after(sum(map(len, runs)))
                if len(runs) >= _BATCH:
                    return self._one_call(runs, backend)
                encoded = list(map(backend.encode, runs))
            counts = np.fromiter(map(len, encoded), np.int64, len(runs))
            return np.concatenate([NO_IDS, *encoded], dtype=np.int32, casting="unsafe"), counts
        encoded = [
            e.ids for e in encodings_of(self._tokenizer, [run.decode() for run in runs], self._name, offsets=False)
        ]
        counts = np.fromiter(map(len, encoded), np.int64, len(runs))
        return np.fromiter(chain.from_iterable(encoded), np.int32, int(counts.sum())), counts

    def _one_call(self, runs: list[bytes], backend: Any) -> tuple[Ids, Positions]:
        """All runs in one call, as one buffer where possible: runs one by one take three times as long."""
        import gigatoken

        source: Any = runs
        if isinstance(backend, gigatoken.gigatoken_rs.BPETokenizer):  # the other wants UTF-8 between texts
            source = gigatoken.BytesSource([BETWEEN.join(runs)], separator=BETWEEN)
        layout = gigatoken.Tokenizer(backend).encode_batch(source).layout
        offsets: Positions = np.asarray(layout.offsets.data, np.int64)
        if offsets.size != len(runs) + 1:
            raise TokenizerError(
                f"{self._name}: gigatoken gave {offsets.size - 1} texts for {len(runs)}; expected one each. "
                "Use engine='tokenizers'"
            )
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return ids.astype(np.int32), offsets[1:] - offsets[:-1]

    def _by_offsets(self, run: bytes) -> tuple[Ids, Positions]:
        text = run.decode()
        return from_offsets(encodings_of(self._tokenizer, [text], self._name, offsets=True)[0], text, self._name)

    @staticmethod
    def _joined(parts: list[tuple[Ids, Positions]]) -> tuple[Ids, Positions, Positions]:
        counts = np.fromiter((len(ids) for ids, _ in parts), np.int64, len(parts))
        ids = np.concatenate([NO_IDS, *(ids for ids, _ in parts)])
        return ids, np.concatenate([NO_POSITIONS, *(starts for _, starts in parts)]), counts


def encodings_of(tokenizer: Any, texts: list[str], name: str, *, offsets: bool) -> list[Any]:
    """What `tokenizers` makes of each text.

    In a forked process one after the other: its threads are not there, and where TOKENIZERS_PARALLELISM is set it waits
    for them.
    """
    with rust_errors(name, f"encode {shown(texts[0] if texts else '')}", "use another tokenizer.json"):
        if is_forked():
            return [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
        made: list[Any] = encode(texts, add_special_tokens=False)
        return made


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code, which is no `Exception`."""
    return type(error).__name__ == "PanicException" and type(error).__module__ == "pyo3_runtime"


@contextmanager
def rust_errors(name: str, doing: str, remedy: str) -> Iterator[None]:
    """Turn what `tokenizers` raises inside the block, and its panics, into a `TokenizerError`."""
    try:
        yield
    except BaseException as error:  # the library raises bare Exception; a panic is not even that
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        said = str(error).strip() or type(error).__name__
        raise TokenizerError(f"{file_of(name)}: tokenizers cannot {doing} ({shown(said, 200)}); {remedy}") from error


def _is_normal(run: bytes, form: Any) -> bool:
    return run.isascii() or unicodedata.is_normalized(form, run.decode())


def from_offsets(encoding: Any, text: str, name: str) -> tuple[Ids, Positions]:
    """Ids and the byte at which each token starts, from offsets in characters of `text`."""
    ids = np.array(encoding.ids, np.int32)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    starts, stops = offsets[:, 0], offsets[:, 1]
    # Offsets that go back, leave the text, or stay at nothing while there are tokens are not about this text.
    sound = len(offsets) == ids.size and bool((starts <= stops).all() and (np.diff(starts) >= 0).all())
    if not sound or (ids.size and not 0 < stops.max() <= len(text)):
        raise TokenizerError(
            f"{name}: the offsets of {text[:40]!r} are {encoding.offsets[:6]}...; expected ascending positions in the "
            "text, without which no token can be given to a piece. Use a tokenizer.json with another normalizer"
        )
    sizes = np.fromiter(map(len, map(str.encode, text)), np.int64, len(text))
    return ids, np.concatenate(([0], np.cumsum(sizes)))[starts]


def load_tokenizers(data: bytes, name: str) -> Any:
    """The bytes of a tokenizer.json as a `tokenizers.Tokenizer`; `name` is what errors call it.

    Raises:
        MissingExtra: `tokenizers` is not installed. TokenizerError: it cannot load them.
    """
    check_library("tokenizers")
    from tokenizers import Tokenizer

    with rust_errors(name, "load it", "expected a tokenizer.json as save_pretrained() writes it"):
        return Tokenizer.from_str(data.decode())


def _check_added_ids(tokenizer: Any, added: Mapping[str, int], name: str) -> None:
    """`tokenizers` numbers added tokens as it likes where the vocabulary does not hold them."""
    for text, token in added.items():
        found = tokenizer.token_to_id(text)
        if found != token:
            raise TokenizerError(
                f"{name}: without its control tokens, tokenizers gives {text!r} the id {found}; expected "
                f"{token}. Put the tokens that are not special before the special ones"
            )


class Gigatoken:
    """gigatoken's tokenizer, made when it is first needed, and anew now and then.

    It remembers every word that it has seen, some 80 bytes each.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._seen = data, 0
        self._backend: Any = None

    def after(self, size: int) -> Any:
        """The tokenizer, which is about to see `size` more bytes. Not for two threads at once."""
        self._seen += size
        if self._backend is None or self._seen > MOST_SEEN:
            self._seen, self._backend = size, _backend_of(self._data)
        return self._backend


def _backend_of(data: bytes) -> Any:
    import gigatoken

    return gigatoken.Tokenizer.from_json(data).backend


def proven_gigatoken(data: bytes, reference: Any, added: Iterable[str], name: str) -> tuple[Gigatoken | None, str]:
    """gigatoken's tokenizer if it gives the reference's ids on the probe, else `None`, and the reason.

    Args:
        added: the spellings of its added tokens.
        name: what errors call the tokenizer.
    """
    try:
        made = Gigatoken(data)
        fast = made.after(0)
        texts = [PROBE, " ".join(islice(added, 300)), *PROBE.splitlines(keepends=True), *PROBE.split(" ")]
        given = [fast.encode(text.encode()).tolist() for text in texts]
    except ImportError:
        return None, "gigatoken is not installed"
    except BaseException as error:  # a panic is no Exception
        if not (isinstance(error, ValueError | RuntimeError | KeyError | TypeError | OverflowError) or is_panic(error)):
            raise
        return None, f"gigatoken cannot load or run it ({shown(str(error), 200)})"
    expected = [encoding.ids for encoding in encodings_of(reference, texts, name, offsets=True)]
    wrong = next((text for text, a, b in zip(texts, given, expected, strict=True) if a != b), None)
    if wrong is not None:
        return None, f"gigatoken's ids differ from those of tokenizers on {wrong[:40]!r}"
    return made, PROVEN
