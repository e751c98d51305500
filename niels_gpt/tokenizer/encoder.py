"""`TokenizerAdapter`: a Hugging Face tokenizer that encodes adjacent pieces and finds the piece of every token.

Control tokens (`special: true`) are recognised in scaffold only, so that text never becomes one. There are three ways
to the same ids::

    fast      whole strings through gigatoken, then a proof (`fast_path.py`): byte-level BPE, nearly all tokenizers
    general   split at control tokens, the runs between through `tokenizers` with offsets (`split_encoder.py`):
              every other tokenizer, and the few strings that the fast way cannot prove
    whole     whole strings through `tokenizers` with offsets: where control tokens depend on the text beside them

Python tokenizers, which have no offsets, have the fourth: split, with starts by bytes (`python_tokenizer.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from niels_gpt.errors import TokenizerError, UsageError, shown
from niels_gpt.tokenizer.description import never_prepending, read_description
from niels_gpt.tokenizer.engines import (
    PROVEN,
    EngineName,
    EngineProof,
    Gigatoken,
    encodings_of,
    from_offsets,
    load_rust_tokenizer,
    proven_gigatoken,
    rust_errors,
    take_controls_as_text,
)
from niels_gpt.tokenizer.fast_path import FastPath
from niels_gpt.tokenizer.hf import (
    FastTokenizer,
    FromParts,
    HFTokenizer,
    RustTokenizer,
    TokenizerFiles,
    file_of,
    parsed,
    read_hf,
)
from niels_gpt.tokenizer.pieces import Encoded, EncodesPieces, Facts, Ids, Positions, Texts, checked_ids
from niels_gpt.tokenizer.split_encoder import Run, SplitEncoder, attributed, concatenate

_OFFSETS_NEEDED = "the number of bytes of this tokenizer's ids depends on the text, and only tokenizers has offsets"


class TokenizerAdapter(FromParts, EncodesPieces):
    """A Hugging Face tokenizer that encodes pieces and proves which piece every token came from.

    Instances pickle: they are loaded again from the same bytes.

    Attributes:
        parts: what was loaded (templates, named special tokens, stop ids, bytes).
        engine: the library that encodes, "gigatoken" or "tokenizers".
        engine_reason: why this engine is used.
        vocab_size: largest id + 1, added tokens included.
        control_ids: spelling -> id of the control tokens.
        added_ids: spelling -> id of all added tokens.
        whole_string_reason: why strings cannot be split at control tokens and are encoded whole, or `None`. Control
            spellings outside scaffold are then refused.
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
        self._requested_engine, self._controls = engine, frozenset(controls)
        # Opened once, and not kept for that: those with more control tokens hold this one, by which they are found.
        self._with_controls: WeakValueDictionary[frozenset[str], TokenizerAdapter] = WeakValueDictionary()
        self._origin: TokenizerAdapter | None = None
        about = self._about = read_description(parts, self._controls, data)
        self.vocab_size = about.vocab_size
        self.control_ids: Mapping[str, int] = about.control_ids
        self.added_ids: Mapping[str, int] = about.added_ids
        self.whole_string_reason = about.whole_string_reason
        self._added_bytes = {token: text.encode() for text, token in about.added_ids.items()}
        self._split = SplitEncoder(parts.name, about.control_ids, about.added_ids, self._encode_runs)
        self.fast: FastPath | None = None
        self.engine, self.engine_reason = "tokenizers", "requested"
        if engine != "tokenizers":
            gigatoken, self.engine_reason = self._find_gigatoken()
            if gigatoken is not None:
                self.fast, self.engine = FastPath(about, gigatoken), "gigatoken"
            elif engine == "gigatoken":
                raise TokenizerError(
                    f"{parts.name}: gigatoken cannot be used: {self.engine_reason}; expected byte-level BPE whose "
                    "control tokens have no flags. Use engine='auto'"
                )
        if self.fast is None:
            _ = self._rust  # what cannot be loaded fails here

    def _find_gigatoken(self) -> tuple[Gigatoken | None, str]:
        """gigatoken, where the fast path may use it and its ids are proven, now or before; and the reason."""
        about, parts = self._about, self.parts
        # The fast path joins strings, and some tokenizers treat the first run of each string in another way.
        if about.whole_string_reason or about.byte_lengths is None or about.prepends:
            return None, _OFFSETS_NEEDED
        proof, data = EngineProof(parts.fingerprints["tokenizer"], self._controls), parts.json_bytes
        if about.shortens:
            whole = {**parsed(data, file_of(parts.name)), "truncation": None, "padding": None}
            data = json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if proof.is_stored():
            return Gigatoken(data), PROVEN
        gigatoken, reason = proven_gigatoken(data, load_rust_tokenizer(data, parts.name), about.added_ids, parts.name)
        if gigatoken is not None:
            proof.store()
        return gigatoken, reason

    @classmethod
    def load(
        cls, source: str | Path | TokenizerFiles | RustTokenizer | FastTokenizer, *, engine: EngineName = "auto"
    ) -> TokenizerAdapter:
        """An encoder for a directory, a tokenizer.json, a `tokenizers.Tokenizer` or a transformers fast tokenizer."""
        parts, data = read_hf(source)
        return cls(parts, engine=engine, data=data)

    def with_controls(self, controls: Collection[str]) -> TokenizerAdapter:
        """The same tokenizer, for which these added tokens are also control tokens: text never becomes them."""
        more = self._controls | {text for text in controls if text in self.added_ids and text not in self.control_ids}
        if more == self._controls:
            return self
        found = self._with_controls.get(more)
        if found is None:
            found = TokenizerAdapter(self.parts, engine=self._requested_engine, controls=more)
            found._origin, self._with_controls[more] = self, found
        return found

    def encode_strings(self, texts: Texts, facts: Facts) -> Encoded:
        """Encode many strings, each a list of adjacent pieces.

        Args:
            texts: for each string its pieces.
            facts: for each piece a number with the bit `SCAFFOLD` if control tokens are recognised in it. The other
                bits are the caller's and are returned in `Encoded.facts`.

        Raises:
            TokenizerError: as `encode_pieces`.
        """
        if self.fast is None or not texts:
            return self._encode_general(texts, facts)
        try:
            return self.fast.encode(texts, facts, self._encode_general)
        except UnicodeEncodeError:  # a lone surrogate: the general way raises an error that names the text
            return self._encode_general(texts, facts)

    def _encode_general(self, texts: Texts, facts: Facts) -> Encoded:
        return (self._encode_whole if self.whole_string_reason else self._split.encode_strings)(texts, facts)

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
            return str(self._rust.decode(plain, skip_special_tokens=False))

    def token_bytes(self, ids: Sequence[int] | Ids) -> list[bytes]:
        """The UTF-8 bytes that each id encodes, control tokens spelled out; half characters are possible.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self._bytes_of(checked_ids(ids, self.vocab_size))

    def _bytes_of(self, ids: list[int]) -> list[bytes]:
        added = self._added_bytes
        return [added.get(token, word) for token, word in zip(ids, self._about.words.of(ids), strict=True)]

    @cached_property
    def _rust(self) -> Any:
        """The `tokenizers.Tokenizer` of the general and the whole way, loaded when it is first needed."""
        return self._loaded(self.parts.json_bytes)

    @cached_property
    def _rust_further_on(self) -> Any:
        """That for runs which do not begin their string."""
        if not self._about.prepends:
            return self._rust
        data = never_prepending(parsed(self.parts.json_bytes, file_of(self.parts.name)))
        return self._loaded(json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    def _loaded(self, data: bytes) -> Any:
        tokenizer = load_rust_tokenizer(data, self.parts.name)
        if not self.whole_string_reason:
            take_controls_as_text(tokenizer, self.control_ids)
        return tokenizer

    def _encode_runs(self, runs: list[Run]) -> list[tuple[Ids, Positions]]:
        """The general way: control tokens are text here."""
        name = self.parts.name
        if not self._about.prepends:
            encoded = encodings_of(self._rust, [run.text for run in runs], name)
        else:
            of = [self._rust if run.leads else self._rust_further_on for run in runs]
            encoded = [encodings_of(rust, [run.text], name)[0] for rust, run in zip(of, runs, strict=True)]
        return [from_offsets(encoding, run.text, name) for encoding, run in zip(encoded, runs, strict=True)]

    def _encode_whole(self, texts: Texts, facts: Facts) -> Encoded:
        """Encode every string with its control tokens, and check that none of them came from text.

        For control tokens that depend on the text beside them (`lstrip`, `normalized`), so that splitting there would
        change ids.
        """
        pieces, name = concatenate(texts, facts), self.parts.name
        strings = ["".join(string) for string in texts]
        controls = np.array(list(self.control_ids.values()), np.int32)
        all_ids, all_starts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for index, encoding in enumerate(encodings_of(self._rust, strings, name)):
            ids, starts = from_offsets(encoding, strings[index], name)
            starts += pieces.borders[index]
            for k in np.flatnonzero(np.isin(ids, controls)).tolist():
                covered = strings[index][slice(*encoding.offsets[k])]
                # With lstrip or rstrip the offsets include the white space beside the token: move to its spelling.
                starts[k] += len(covered.encode()) - len(covered.lstrip().encode())
                stop = int(starts[k]) + len(covered.strip().encode())
                if not pieces.is_scaffold(int(starts[k]), stop):
                    raise TokenizerError(
                        f"{name}: string {index} contains {covered.strip()!r} outside scaffold; as "
                        f"{self.whole_string_reason}, it can only be encoded whole, which would make this a control "
                        "token. Remove the spelling from the text, or clear the flag in tokenizer.json"
                    )
            all_ids.append(ids)
            all_starts.append(starts)
        return attributed(np.concatenate(all_ids), np.concatenate(all_starts), pieces, facts)

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "engine": self._requested_engine, "controls": self._controls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"], engine=state["engine"], controls=state["controls"])  # type: ignore[misc]
