"""Adjacent pieces of text to ids, each token with the piece that it belongs to (DESIGN §2.1).

Control tokens (`special: true`) are cut out of scaffold and inserted by id. What lies between them is one run, encoded
once by a tokenizer that does not know control tokens, so that text never becomes one. Everything is counted in UTF-8
bytes of all texts of a batch laid end to end; a token's place follows from how many bytes each id stands for, or,
where ids do not tell, from the offsets that `tokenizers` gives.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MissingExtra, TokenizerError, UsageError
from niels_gpt.tokenizer.hf import Description, FastTokenizer, HFTokenizer, RustTokenizer, load_hf, read_description

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
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
_CACHED_BYTES = 1024  # longer scaffold (tool schemas) is seldom seen twice
_CACHED_TEXTS = 65_536
# gigatoken's batches cost some 200 microseconds before the first text; so many texts are worth it.
_BATCH = 64
_BETWEEN = b"\xff"  # never in UTF-8
_OFFSETS_NEEDED = "this tokenizer's ids do not tell how much text they stand for, and only tokenizers has offsets"
_NO_POSITIONS: Positions = np.zeros(0, np.int64)
_NO_IDS: Ids = np.zeros(0, np.int32)


class Encoder:
    """A Hugging Face tokenizer that encodes pieces and proves which piece every token came from.

    Attributes:
        parts: what was loaded (templates, named special tokens, stop ids, bytes).
        engine: "gigatoken" or "tokenizers", which encodes; `engine_reason` says why.
        vocab_size: largest id + 1, added tokens included.
        control_ids: spelling -> id of the control tokens.
        uncuttable: why strings are encoded whole, with offsets, or `None` (see `encode_pieces`).

    Instances pickle: they are loaded again from the same bytes.

    Raises:
        MissingExtra: `tokenizers` is not installed, or gigatoken is asked for and is not.
        TokenizerError: the tokenizer cannot be loaded, or the engine asked for gives other ids than `tokenizers`.
    """

    def __init__(self, parts: HFTokenizer, *, engine: EngineName = "auto") -> None:
        if engine not in ("auto", "gigatoken", "tokenizers"):
            raise UsageError(f"engine is {engine!r}; expected 'auto', 'gigatoken' or 'tokenizers'")
        self.parts = parts
        self._asked = engine
        about = self._about = read_description(parts)
        self.vocab_size = about.vocab_size
        self.control_ids: Mapping[str, int] = dict(about.control_ids)
        self.uncuttable = about.uncuttable
        self._finder = _ControlFinder(about)
        self._is_control = np.zeros(about.vocab_size, np.bool_)
        self._is_control[list(about.control_ids.values())] = True
        if about.uncuttable or about.byte_lengths is None:
            if engine == "gigatoken":
                raise TokenizerError(
                    f"{parts.name}: gigatoken cannot be used: {_OFFSETS_NEEDED}; expected byte-level BPE whose control "
                    "tokens have no flags. Use engine='auto'"
                )
            engine = "tokenizers"
        self._first = _Body(parts.name, about.body, about, engine)
        self._rest = self._first if about.rest == about.body else _Body(parts.name, about.rest, about, engine)
        self.engine, self.engine_reason = self._rest.engine, self._rest.reason
        if engine != self._asked:
            self.engine_reason = _OFFSETS_NEEDED
        self._whole_tokenizer: Any = None

    @classmethod
    def load(cls, source: str | Path | RustTokenizer | FastTokenizer, *, engine: EngineName = "auto") -> Encoder:
        """An encoder for a directory, a tokenizer.json, a `tokenizers.Tokenizer` or a transformers fast tokenizer."""
        return cls(load_hf(source), engine=engine)

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the tokenizer's bytes (`tokenizer`) and of its chat template's text (`template`, if it has one)."""
        return self.parts.fingerprints

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """Encode adjacent pieces of one string.

        Args:
            texts: the pieces; joined they are the string.
            scaffold: for each piece whether control tokens are recognised in it. A spelling may go over several
                scaffold pieces; one that touches any other piece stays text.

        Returns:
            `(ids, owner)`, both int32 of shape (tokens,): the owner is the index of the piece that holds the token's
            first character. Empty pieces own nothing.

        Raises:
            UsageError: the lengths differ.
            TokenizerError: a lone surrogate in a text; text became a control token; or an attribution cannot be
                proven. Tokenizers that are `uncuttable` also refuse control spellings outside scaffold.
        """
        ids, owner, _ = self.encode_many([(texts, scaffold)])
        return ids, owner

    def encode_many(self, batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> tuple[Ids, Ids, Positions]:
        """`encode_pieces` for many strings in one go.

        Returns:
            `(ids, owner, lengths)`: ids and owners of all strings one after the other, int32; owners count from 0 in
            each string; `lengths` is int64 of shape (len(batches),), the tokens of each string.
        """
        pieces = _laid_out(batches)
        if self.uncuttable:
            ids, starts = self._encode_whole(pieces)
        else:
            ids, starts = self._encode_cut(pieces)
        # Tokens stand in order, so a piece's tokens are those that start between its edges. Two strings of two pieces,
        # edges 0 3 5 | 5 5 9, tokens starting at 0 2 3 5 7: before the edges stand 0 2 3 3 5, so the pieces have
        # 2 1 0 2 tokens and the owners are 0 0 1 1 1 (the third piece is empty).
        before = starts.searchsorted(pieces.edges)
        owner = pieces.index_within.repeat(before[1:] - before[:-1])
        edges = before[pieces.first]
        return ids, owner, edges[1:] - edges[:-1]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, control tokens spelled out.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        plain = [int(token) for token in ids]
        outside = [token for token in plain if not 0 <= token < self.vocab_size]
        if outside:
            raise TokenizerError(f"id {outside[0]} is outside the vocabulary of {self.vocab_size} ids")
        return str(self._whole().decode(plain, skip_special_tokens=False))

    def _encode_cut(self, pieces: _Pieces) -> tuple[Ids, Positions]:
        """`(ids, starts)`: all tokens and the byte at which each starts, controls cut out and put in by id."""
        begin, end, control = self._finder.find(pieces)
        # Runs are what lies between. Strings 0..9 and 9..12, controls 0..2 and 7..9: runs start at 0 2 9 9 and end at
        # 0 7 9 12 (both sorted), so the runs that are not empty are 2..7 and 9..12.
        run_begin = np.concatenate((pieces.string_edges[:-1], end))
        run_end = np.concatenate((begin, pieces.string_edges[1:]))
        run_begin.sort()
        run_end.sort()
        full = run_begin < run_end
        run_begin, run_end = run_begin[full], run_end[full]
        runs = [pieces.joined[a:b] for a, b in zip(run_begin.tolist(), run_end.tolist(), strict=True)]
        ids, starts, counts = self._encode_runs(runs, run_begin, pieces)
        self._refuse_controls(ids)
        starts += run_begin.repeat(counts)
        if not begin.size:
            return ids, starts
        # Control k goes behind the body tokens that start before it: body at 2 4 9, controls at 0 7: places 0+0, 2+1.
        place = starts.searchsorted(begin) + np.arange(begin.size)
        is_body = np.ones(ids.size + begin.size, np.bool_)
        is_body[place] = False
        all_ids, all_starts = np.empty(is_body.size, np.int32), np.empty(is_body.size, np.int64)
        all_ids[place], all_starts[place] = control, begin
        all_ids[is_body], all_starts[is_body] = ids, starts
        return all_ids, all_starts

    def _encode_runs(self, runs: list[bytes], begin: Positions, pieces: _Pieces) -> tuple[Ids, Positions, Positions]:
        if self._first is self._rest:
            return self._first.encode(runs)
        # A run at the start of its string is encoded by the tokenizer that puts a space before it, others not.
        leading = np.isin(begin, pieces.string_edges[:-1])
        parts = [
            (self._first if first else self._rest).encode([run])
            for run, first in zip(runs, leading.tolist(), strict=True)
        ]
        if not parts:
            return _NO_IDS, _NO_POSITIONS, _NO_POSITIONS
        ids, starts, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return ids, starts, counts

    def _refuse_controls(self, ids: Ids) -> None:
        forged = self._is_control[ids]
        if forged.any():
            token = int(ids[np.flatnonzero(forged)[0]])
            spelling = next(text for text, value in self.control_ids.items() if value == token)
            raise TokenizerError(
                f"{self.parts.name}: text was encoded to the control token {spelling!r} (id {token}); expected "
                "ordinary ids. Either the text has characters that the vocabulary lacks (remove them), or the model's "
                "merges spell this token (use another tokenizer)"
            )

    def _encode_whole(self, pieces: _Pieces) -> tuple[Ids, Positions]:
        """Encode every string with its control tokens, and make sure that none of them came from text."""
        bounds = zip(pieces.string_edges[:-1].tolist(), pieces.string_edges[1:].tolist(), strict=True)
        strings = [pieces.joined[a:b].decode() for a, b in bounds]
        encoded = self._whole().encode_batch(strings, add_special_tokens=False)
        parts = [_from_offsets(e, s, self.parts.name) for e, s in zip(encoded, strings, strict=True)]
        for index, (encoding, text) in enumerate(zip(encoded, strings, strict=True)):
            ids, starts = parts[index]
            base = int(pieces.string_edges[index])
            starts += base
            for k in np.flatnonzero(self._is_control[ids]).tolist():
                covered = text[slice(*encoding.offsets[k])]
                # lstrip and rstrip make a control token cover the whitespace beside it; it belongs to its spelling.
                starts[k] += len(covered.encode()) - len(covered.lstrip().encode())
                stop = int(starts[k]) + len(covered.strip().encode())
                if not pieces.is_scaffold(int(starts[k]), stop):
                    raise TokenizerError(
                        f"{self.parts.name}: string {index} holds {covered.strip()!r} outside scaffold; as "
                        f"{self.uncuttable}, it can only be encoded whole, which would make this a control token. "
                        "Remove the spelling from the text, or clear the flag in tokenizer.json"
                    )
        return (
            np.concatenate([part[0] for part in parts] or [_NO_IDS]),
            np.concatenate([part[1] for part in parts] or [_NO_POSITIONS]),
        )

    def _whole(self) -> Any:
        if self._whole_tokenizer is None:
            self._whole_tokenizer = _load_tokenizers(self._about.whole, self.parts.name)
        return self._whole_tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "engine": self._asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"], engine=state["engine"])  # type: ignore[misc]


@dataclass(frozen=True)
class _Pieces:
    """The pieces of all strings laid end to end, in bytes.

    edges (pieces + 1,): where each piece starts, and the end. first (strings + 1,): the index of each string's first
    piece. string_edges (strings + 1,): where each string starts. index_within (pieces,): the piece's index in its
    string. scaffold_begin, scaffold_end: the maximal stretches of scaffold within one string.
    """

    joined: bytes
    edges: Positions
    first: Positions
    string_edges: Positions
    index_within: Ids
    scaffold_begin: Positions
    scaffold_end: Positions

    def is_scaffold(self, start: int, stop: int) -> bool:
        k = int(np.searchsorted(self.scaffold_begin, start, side="right")) - 1
        return k >= 0 and stop <= int(self.scaffold_end[k])


def _laid_out(batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> _Pieces:
    texts = list(chain.from_iterable(texts for texts, _ in batches))
    flags = np.fromiter(chain.from_iterable(scaffold for _, scaffold in batches), np.bool_)
    counts = np.fromiter((len(texts) for texts, _ in batches), np.int64, len(batches))
    given = np.fromiter((len(scaffold) for _, scaffold in batches), np.int64, len(batches))
    if (counts != given).any():
        row = int(np.flatnonzero(counts != given)[0])
        raise UsageError(f"string {row}: {counts[row]} texts and {given[row]} scaffold flags; expected one flag a text")
    encoded = _utf8(texts)
    edges = _edges(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    first = _edges(counts)
    string = np.arange(len(batches)).repeat(counts)
    within = (np.arange(len(texts)) - first[string]).astype(np.int32)
    # Stretches: neighbours (empty pieces aside) with the same string and flag. Flags 1 1 0 1 | 1 of five one-byte
    # pieces: keys 1 1 0 1 | 3, so stretches start at 0 2 3 4 and those of scaffold (odd keys) are 0..2, 3..4, 4..5.
    full = (edges[1:] > edges[:-1]).nonzero()[0]
    key = 2 * string[full] + flags[full]
    new = np.ones(key.size, np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    odd = key[new] % 2 == 1
    bounds = np.append(edges[full[new]], edges[-1])
    begin, end = bounds[:-1], bounds[1:]
    return _Pieces(b"".join(encoded), edges, first, edges[first], within, begin[odd], end[odd])


def _edges(lengths: Positions) -> Positions:
    """Where things of these lengths start when laid end to end, and where the last ends: 2 3 -> 0 2 5."""
    edges = np.zeros(lengths.size + 1, np.int64)
    lengths.cumsum(out=edges[1:])
    return edges


def _utf8(texts: list[str]) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError as error:
        index = next(i for i, text in enumerate(texts) if text is error.object or text == error.object)
        raise TokenizerError(
            f"text {index} of the batch has a lone surrogate (U+{ord(error.object[error.start]):04X}) at character "
            f"{error.start}; expected valid Unicode. Decode the source with errors='replace'"
        ) from error


class _ControlFinder:
    """Finds control tokens in scaffold: leftmost, then longest, as `tokenizers` does."""

    def __init__(self, about: Description) -> None:
        self._ids = {text.encode(): token for text, token in about.control_ids.items()}
        words = sorted({*self._ids, *(text.encode() for text in about.competitors)}, key=len, reverse=True)
        self._search = re.compile(b"|".join(map(re.escape, words))).finditer if words else None
        self._seen: dict[bytes, list[tuple[int, int, int]]] = {}

    def find(self, pieces: _Pieces) -> tuple[Positions, Positions, Ids]:
        """`(begin, end, ids)`: bytes and ids of all control tokens, ascending."""
        found: list[tuple[int, int, int]] = []
        for start, stop in zip(pieces.scaffold_begin.tolist(), pieces.scaffold_end.tolist(), strict=True):
            text = pieces.joined[start:stop]
            hits = self._seen.get(text)
            if hits is None:
                hits = self._hits(text)
            found.extend([(start + a, start + b, token) for a, b, token in hits])
        table = np.array(found, np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.int32)

    def _hits(self, text: bytes) -> list[tuple[int, int, int]]:
        matches = self._search(text) if self._search else ()
        hits = [(*match.span(), self._ids[match[0]]) for match in matches if match[0] in self._ids]
        if len(text) <= _CACHED_BYTES and len(self._seen) < _CACHED_TEXTS:
            self._seen[text] = hits
        return hits


class _Body:
    """A tokenizer without control tokens: runs of text to ids and where each token starts."""

    def __init__(self, name: str, data: bytes, about: Description, asked: EngineName) -> None:
        self._name = name
        self._lengths, self._form = about.byte_lengths, about.form
        self._tokenizer = _load_tokenizers(data, name)
        self._gigatoken: Any = None
        self.reason = "asked for"
        _check_added_ids(self._tokenizer, data, name)
        if asked != "tokenizers":
            self._gigatoken, self.reason = _proven_gigatoken(data, self._tokenizer)
            if asked == "gigatoken" and self._gigatoken is None:
                raise TokenizerError(f"{name}: gigatoken cannot be used: {self.reason}. Use engine='auto'")
        self.engine = "gigatoken" if self._gigatoken is not None else "tokenizers"

    def encode(self, runs: list[bytes]) -> tuple[Ids, Positions, Positions]:
        """`(ids, starts, counts)`: all tokens, the byte within its run at which each starts, the tokens of each run."""
        if self._lengths is None:
            return self._joined([self._by_offsets(run) for run in runs])
        ids, counts = self._flat(runs)
        # Runs of 5 and 4 bytes, token lengths 2 3 | 1 3: ends 0 2 5 6 9, of which the runs' edges are 0 5 9. Lengths of
        # runs 5 4 are as they should be; starts are ends without the last, less the run's edge: 0 2 | 0 1.
        ends, token_edges = _edges(self._lengths[ids]), _edges(counts)
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
        if self._gigatoken is not None and len(runs) >= _BATCH:
            return self._one_call(runs)
        if self._gigatoken is not None:
            encoded = list(map(self._gigatoken.encode, runs))
            counts = np.fromiter(map(len, encoded), np.int64, len(runs))
            return np.concatenate([_NO_IDS, *encoded], dtype=np.int32, casting="unsafe"), counts
        encoded = [
            e.ids for e in self._tokenizer.encode_batch_fast([run.decode() for run in runs], add_special_tokens=False)
        ]
        counts = np.fromiter(map(len, encoded), np.int64, len(runs))
        return np.fromiter(chain.from_iterable(encoded), np.int32, int(counts.sum())), counts

    def _one_call(self, runs: list[bytes]) -> tuple[Ids, Positions]:
        """All runs in one call, as one buffer where possible: runs one by one take three times as long."""
        import gigatoken

        source: Any = runs
        if isinstance(self._gigatoken, gigatoken.gigatoken_rs.BPETokenizer):  # the other wants UTF-8 between texts
            source = gigatoken.BytesSource([_BETWEEN.join(runs)], separator=_BETWEEN)
        layout = gigatoken.Tokenizer(self._gigatoken).encode_batch(source).layout
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
        return _from_offsets(self._tokenizer.encode(text, add_special_tokens=False), text, self._name)

    @staticmethod
    def _joined(parts: list[tuple[Ids, Positions]]) -> tuple[Ids, Positions, Positions]:
        counts = np.fromiter((len(ids) for ids, _ in parts), np.int64, len(parts))
        ids = np.concatenate([_NO_IDS, *(ids for ids, _ in parts)])
        return ids, np.concatenate([_NO_POSITIONS, *(starts for _, starts in parts)]), counts


def _is_normal(run: bytes, form: Any) -> bool:
    return run.isascii() or unicodedata.is_normalized(form, run.decode())


def _from_offsets(encoding: Any, text: str, name: str) -> tuple[Ids, Positions]:
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


def _load_tokenizers(data: bytes, name: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("tokenizers") from error
    try:
        return Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{name}: tokenizers cannot load it ({error}); expected a tokenizer.json") from error


def _check_added_ids(tokenizer: Any, data: bytes, name: str) -> None:
    """`tokenizers` numbers added tokens as it likes where the vocabulary does not hold them."""
    import json

    for token in json.loads(data)["added_tokens"]:
        found = tokenizer.token_to_id(token["content"])
        if found != token["id"]:
            raise TokenizerError(
                f"{name}: without its control tokens, tokenizers gives {token['content']!r} the id {found}; expected "
                f"{token['id']}. Put the tokens that are not special before the special ones"
            )


def _proven_gigatoken(data: bytes, reference: Any) -> tuple[Any, str]:
    """gigatoken's tokenizer if it gives the reference's ids on the probe, else `None`, and the reason."""
    import json

    try:
        import gigatoken
    except ImportError:
        return None, "gigatoken is not installed"
    try:
        fast = gigatoken.Tokenizer.from_json(data).backend
        added = " ".join(token["content"] for token in json.loads(data)["added_tokens"][:300])
        texts = [PROBE, added, *PROBE.splitlines(keepends=True), *PROBE.split(" ")]
        given = [fast.encode(text.encode()).tolist() for text in texts]
    except (ValueError, RuntimeError, NotImplementedError, KeyError, TypeError) as error:
        return None, f"gigatoken cannot load or run it ({error})"
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    wrong = next((text for text, a, b in zip(texts, given, expected, strict=True) if a != b), None)
    if wrong is not None:
        return None, f"gigatoken's ids differ from those of tokenizers on {wrong[:40]!r}"
    return fast, "its ids equal those of tokenizers on the probe text"
