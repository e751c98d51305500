"""`TokenizerAdapter`: a Hugging Face tokenizer that encodes adjacent pieces and finds the piece of every token.

Control tokens (`special: true`) are recognised in scaffold only and inserted by id. The text between two control tokens
is a run: it is encoded once, across piece edges, by a tokenizer without control tokens, so that text never becomes
one::

    pieces   "<e>" scaffold, "sys\\n" scaffold, "Hi <e>!" content
    runs     <e> by id | "sys\\nHi <e>!" as text: its tokens may extend over the edge between the pieces

All positions are bytes of the concatenated UTF-8 texts of a batch. A token belongs to the piece that contains its first
byte, which follows from how many bytes each id encodes (byte-level BPE), else from the offsets of `tokenizers`.

This is the general path. For nearly all tokenizers `fast_path.py` gives the same ids faster, and uses the general path
only for strings that it cannot prove.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.errors import TokenizerError, UsageError, shown
from niels_gpt.tokenizer.description import EngineJson, engine_json, read_description
from niels_gpt.tokenizer.engines import (
    PROVEN,
    EngineName,
    EngineProof,
    Gigatoken,
    RunEncoder,
    encodings_of,
    from_offsets,
    load_rust_tokenizer,
    proven_gigatoken,
    rust_errors,
)
from niels_gpt.tokenizer.fast_path import FastPath
from niels_gpt.tokenizer.hf import FastTokenizer, FromParts, HFTokenizer, RustTokenizer, read_hf
from niels_gpt.tokenizer.pieces import (
    NO_IDS,
    NO_POSITIONS,
    SCAFFOLD,
    ConcatenatedPieces,
    ControlFinder,
    Encoded,
    Ids,
    Positions,
    checked_ids,
    concatenate_pieces,
    edges_of,
    flatten_batches,
    lengths_of,
)

_OFFSETS_NEEDED = "the number of bytes of this tokenizer's ids depends on the text, and only tokenizers has offsets"


class TokenizerAdapter(FromParts):
    """A Hugging Face tokenizer that encodes pieces and proves which piece every token came from.

    Instances pickle: they are loaded again from the same bytes.

    Attributes:
        parts: what was loaded (templates, named special tokens, stop ids, bytes).
        engine: the library that encodes, "gigatoken" or "tokenizers".
        engine_reason: why this engine is used.
        vocab_size: largest id + 1, added tokens included.
        control_ids: spelling -> id of the control tokens.
        added_ids: spelling -> id of all added tokens.
        whole_string_reason: why strings cannot be split at control tokens and are encoded whole, with offsets; or
            `None` (see `encode_pieces`).
        fast: the fast path, or `None`.

    Args:
        engine: "auto" chooses gigatoken if its ids are proven to be right; the others are used or refused.
        controls: added tokens that count as control tokens although the tokenizer does not mark them so.
        data: the parsed `parts.json_bytes`, if they have been parsed already.

    Raises:
        MissingExtra: `tokenizers` is not installed, or gigatoken is requested and not installed.
        TokenizerError: the tokenizer cannot be loaded, or the requested engine has other ids than `tokenizers`.
    """

    def __init__(
        self,
        parts: HFTokenizer,
        *,
        engine: EngineName = "auto",
        controls: Collection[str] = (),
        data: dict[str, Any] | None = None,
    ) -> None:
        if engine not in ("auto", "gigatoken", "tokenizers"):
            raise UsageError(f"engine is {engine!r}; expected 'auto', 'gigatoken' or 'tokenizers'")
        self.parts = parts
        self._requested_engine = engine
        controls = self._controls = frozenset(controls)
        about = self._about = read_description(parts, self._controls, data)
        self.vocab_size = about.vocab_size
        self.control_ids: Mapping[str, int] = about.control_ids
        self.added_ids: Mapping[str, int] = about.added_ids
        self.whole_string_reason = about.whole_string_reason
        self._finder = ControlFinder(about)
        self._is_control = np.zeros(about.vocab_size, np.bool_)
        self._is_control[list(about.control_ids.values())] = True
        if about.whole_string_reason or about.byte_lengths is None:
            if engine == "gigatoken":
                raise TokenizerError(
                    f"{parts.name}: gigatoken cannot be used: {_OFFSETS_NEEDED}; expected byte-level BPE whose control "
                    "tokens have no flags. Use engine='auto'"
                )
            engine = "tokenizers"
        self._whole_tokenizer: Any = None
        self.fast: FastPath | None = None
        self._added_bytes = {token: text.encode() for text, token in about.added_ids.items()}
        self._is_added = np.zeros(about.vocab_size, np.bool_)
        self._is_added[list(self._added_bytes)] = True
        # Runs at the start of a string and further on. The two differ only where the tokenizer puts a space before the
        # first text. With a stored proof, both are loaded when a string first needs the general path.
        self.engine, self.engine_reason = "gigatoken", PROVEN
        self._first = self._rest = RunEncoder(parts.name, about, lambda: engine_json(parts, controls).body, "gigatoken")
        # The fast path joins strings, and such a tokenizer treats the first run of each string in another way.
        general_only = engine == "tokenizers" or about.prepends
        proof = None if general_only else EngineProof(parts.json_bytes, self._controls)
        if proof is not None and proof.is_stored():
            # The file as it is, unless it shortens texts: writing megabytes of JSON again takes time.
            json_bytes = engine_json(parts, controls, data).official if about.shortens else parts.json_bytes
            self.fast = FastPath(self._finder, about, Gigatoken(json_bytes))
        else:
            self._prove(engine, engine_json(parts, self._controls, data), proof)

    def _prove(self, engine: EngineName, json: EngineJson, proof: EngineProof | None) -> None:
        """Load both engines, choose one, and store the proof if the fast path can be used."""
        about, name = self._about, self.parts.name
        plain = {text: token for text, token in about.added_ids.items() if text not in about.control_ids}
        first = rest = RunEncoder(name, about, lambda: json.body, engine)
        self.engine_reason = first.prove(plain)
        if about.prepends:
            rest = RunEncoder(name, about, lambda: json.rest, engine)
            self.engine_reason = rest.prove(plain)
        self.engine = rest.engine
        if engine != self._requested_engine:
            self.engine_reason = _OFFSETS_NEEDED
        if proof is not None and self.engine == "gigatoken":
            official = load_rust_tokenizer(json.official, name)
            json_bytes = json.official if about.shortens else self.parts.json_bytes
            gigatoken, _ = proven_gigatoken(json_bytes, official, about.added_ids, name)
            if gigatoken is not None:
                self.fast = FastPath(self._finder, about, gigatoken)
                proof.store()
                return  # `first` and `rest` take memory and are seldom needed now; they are loaded again if they are
        self._first, self._rest = first, rest

    @classmethod
    def load(
        cls, source: str | Path | RustTokenizer | FastTokenizer, *, engine: EngineName = "auto"
    ) -> TokenizerAdapter:
        """An encoder for a directory, a tokenizer.json, a `tokenizers.Tokenizer` or a transformers fast tokenizer."""
        parts, data = read_hf(source)
        return cls(parts, engine=engine, data=data)

    def with_controls(self, controls: Collection[str]) -> TokenizerAdapter:
        """The same tokenizer, for which these added tokens are control tokens too: text never becomes them."""
        more = self._controls | {text for text in controls if text in self.added_ids and text not in self.control_ids}
        if more == self._controls:
            return self
        return TokenizerAdapter(self.parts, engine=self._requested_engine, controls=more)

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """Encode adjacent pieces of one string.

        Args:
            texts: the pieces; joined they are the string.
            scaffold: for each piece whether control tokens are recognised in it. A spelling may extend over several
                scaffold pieces; one that reaches into any other piece stays text.

        Returns:
            `(ids, owner)`, both int32 of shape (tokens,): the owner is the index of the piece that contains the
            token's first character. Empty pieces own no tokens.

        Raises:
            UsageError: the lengths differ.
            TokenizerError: a lone surrogate in a text; text became a control token; or an attribution cannot be
                proven. A tokenizer with a `whole_string_reason` also refuses control spellings outside
                scaffold.
        """
        ids, owner, _ = self.encode_many([(texts, scaffold)])
        return ids, owner

    def encode_many(self, batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> tuple[Ids, Ids, Positions]:
        """`encode_pieces` for many strings in one call.

        Returns:
            `(ids, owner, lengths)`: ids and owners of all strings one after the other, int32; owners count from 0 in
            each string; `lengths` is int64 of shape (len(batches),), the tokens of each string.
        """
        texts, _, sizes = flatten_batches(batches)
        facts = [[SCAFFOLD if flag else 0 for flag in flags] for _, flags in batches]
        encoded = self.encode_strings([list(string_texts) for string_texts, _ in batches], facts)
        # Strings of 2 and 1 pieces that own 1 2 | 1 tokens: piece indices 0 1 | 0, so owners 0 1 1 | 0.
        index = np.arange(len(texts)) - edges_of(sizes)[:-1].repeat(sizes)
        return encoded.ids, index.astype(np.int32).repeat(encoded.counts), encoded.lengths

    def encode_strings(self, texts: list[list[str]], facts: list[list[int]]) -> Encoded:
        """Encode many strings, each a list of adjacent pieces.

        Args:
            texts: for each string its pieces.
            facts: for each piece a number with the bit `SCAFFOLD` if control tokens are recognised in it. The other
                bits are the caller's and are returned in `Encoded.facts`.

        Raises:
            UsageError, TokenizerError: as `encode_pieces`.
        """
        if self.fast is None or not texts:
            return self._encode_general(texts, facts)
        try:
            return self.fast.encode(texts, facts, self._encode_general)
        except UnicodeEncodeError:  # a lone surrogate: the general path raises an error that names the text
            return self._encode_general(texts, facts)

    def _encode_general(self, texts: list[list[str]], facts: list[list[int]]) -> Encoded:
        """The general path: split at control tokens, which are inserted by id; or whole strings with offsets."""
        flat, sizes = list(chain.from_iterable(texts)), lengths_of(texts)
        bits = np.fromiter(chain.from_iterable(facts), np.int32, len(flat))
        pieces = concatenate_pieces(flat, (bits & SCAFFOLD != 0).tolist(), sizes)
        if self.whole_string_reason:
            ids, starts = self._encode_whole(pieces)
        else:
            ids, starts = self._encode_split(pieces)
        # Tokens are in order, so a piece owns the tokens that start between its edges. Two strings of two pieces with
        # edges 0 3 5 | 5 5 9, tokens that start at 0 2 3 5 7: 0 2 3 3 5 tokens start before the edges, so the pieces
        # own 2 1 0 2 tokens (the third piece is empty).
        before = starts.searchsorted(pieces.edges)
        edges = before[pieces.first]
        return Encoded(ids, before[1:] - before[:-1], edges[1:] - edges[:-1], bits, sizes)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, control tokens spelled out.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        plain = checked_ids(ids, self.vocab_size)
        if self._about.decodes:
            # Bytes first: the parts of one character may be in several tokens.
            return b"".join(self._bytes_of(plain)).decode("utf-8", "replace")
        with rust_errors(self.parts.name, f"decode {shown(plain)}", "use another tokenizer.json"):
            return str(self._whole().decode(plain, skip_special_tokens=False))

    def token_bytes(self, ids: Sequence[int] | Ids) -> list[bytes]:
        """The UTF-8 bytes that each id encodes, control tokens spelled out; half characters are possible.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self._bytes_of(checked_ids(ids, self.vocab_size))

    def _bytes_of(self, ids: list[int]) -> list[bytes]:
        words = self._about.words.of(ids)
        for at in np.flatnonzero(self._is_added[ids]).tolist() if ids else ():
            words[at] = self._added_bytes[ids[at]]
        return words

    def _encode_split(self, pieces: ConcatenatedPieces) -> tuple[Ids, Positions]:
        """`(ids, starts)`: all tokens and the byte at which each starts; control tokens are inserted by id."""
        begin, end, control = self._finder.find(pieces)
        # The runs are the text between control tokens. Strings 0..9 and 9..12, control tokens 0..2 and 7..9: runs start
        # at 0 2 9 9 and end at 0 7 9 12 (both sorted), so those that are not empty are 2..7 and 9..12.
        run_begin = np.concatenate((pieces.string_edges[:-1], end))
        run_end = np.concatenate((begin, pieces.string_edges[1:]))
        run_begin.sort()
        run_end.sort()
        full = run_begin < run_end
        run_begin, run_end = run_begin[full], run_end[full]
        runs = [pieces.joined[a:b] for a, b in zip(run_begin.tolist(), run_end.tolist(), strict=True)]
        if self._first is self._rest:
            ids, starts, counts = self._first.encode(runs)
        else:
            # Only a run at the start of its string gets the space that the tokenizer puts before text.
            leading = np.isin(run_begin, pieces.string_edges[:-1]).tolist()
            encoders = [self._first if first else self._rest for first in leading]
            parts = [encoder.encode([run]) for encoder, run in zip(encoders, runs, strict=True)]
            nothing = (NO_IDS, NO_POSITIONS, NO_POSITIONS)  # np.concatenate needs one array at least
            ids, starts, counts = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
        forged = np.flatnonzero(self._is_control[ids])
        if forged.size:
            token = int(ids[forged[0]])
            spelling = next(text for text, value in self.control_ids.items() if value == token)
            raise TokenizerError(
                f"{self.parts.name}: text was encoded to the control token {spelling!r} (id {token}); expected "
                "ordinary ids. Either the text has characters that the vocabulary lacks (remove them), or the model's "
                "merges spell this token (use another tokenizer)"
            )
        starts += run_begin.repeat(counts)
        if not begin.size:
            return ids, starts
        # Control token k comes after the text tokens that start before it, and after k other control tokens: text at
        # 2 4 9, control tokens at 0 7: places 0 + 0 and 2 + 1.
        place = starts.searchsorted(begin) + np.arange(begin.size)
        is_text = np.ones(ids.size + begin.size, np.bool_)
        is_text[place] = False
        all_ids, all_starts = np.empty(is_text.size, np.int32), np.empty(is_text.size, np.int64)
        all_ids[place], all_starts[place] = control, begin
        all_ids[is_text], all_starts[is_text] = ids, starts
        return all_ids, all_starts

    def _encode_whole(self, pieces: ConcatenatedPieces) -> tuple[Ids, Positions]:
        """Encode every string with its control tokens, and check that none of them came from text.

        For control tokens that depend on the text beside them (`lstrip`, `normalized`), so that splitting there would
        change ids.
        """
        bounds = zip(pieces.string_edges[:-1].tolist(), pieces.string_edges[1:].tolist(), strict=True)
        strings = [pieces.joined[a:b].decode() for a, b in bounds]
        encoded = encodings_of(self._whole(), strings, self.parts.name, offsets=True)
        parts = [from_offsets(e, s, self.parts.name) for e, s in zip(encoded, strings, strict=True)]
        for index, (encoding, text) in enumerate(zip(encoded, strings, strict=True)):
            ids, starts = parts[index]
            base = int(pieces.string_edges[index])
            starts += base
            for k in np.flatnonzero(self._is_control[ids]).tolist():
                covered = text[slice(*encoding.offsets[k])]
                # With lstrip or rstrip the offsets include the white space beside the token: move to its spelling.
                starts[k] += len(covered.encode()) - len(covered.lstrip().encode())
                stop = int(starts[k]) + len(covered.strip().encode())
                if not pieces.is_scaffold(int(starts[k]), stop):
                    raise TokenizerError(
                        f"{self.parts.name}: string {index} contains {covered.strip()!r} outside scaffold; as "
                        f"{self.whole_string_reason}, it can only be encoded whole, which would make this a control "
                        "token. Remove the spelling from the text, or clear the flag in tokenizer.json"
                    )
        return (
            np.concatenate([part[0] for part in parts] or [NO_IDS]),
            np.concatenate([part[1] for part in parts] or [NO_POSITIONS]),
        )

    def _whole(self) -> Any:
        if self._whole_tokenizer is None:
            self._whole_tokenizer = load_rust_tokenizer(engine_json(self.parts).official, self.parts.name)
        return self._whole_tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "engine": self._requested_engine, "controls": self._controls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"], engine=state["engine"], controls=state["controls"])  # type: ignore[misc]
