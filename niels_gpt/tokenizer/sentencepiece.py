"""Our own tokenizer: a SentencePiece model with four sentinels.

`SentencePieceTokenizer` encodes text exactly: `decode(encode(text)) == text`, and text never becomes a sentinel. That
holds for the models that `train_tokenizer` trains. A model trained elsewhere may normalise text. It is accepted, as its
ids are right for the language model that was trained with it; `inexact_reason` says what it changes.
`SentencePieceEncoder` makes it a `PieceEncoder`, whose control tokens are the sentinels.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.errors import TokenizerError, shown, storage_errors
from niels_gpt.store.checksums import file_record
from niels_gpt.tokenizer.description import from_spaced
from niels_gpt.tokenizer.hf import is_unicode
from niels_gpt.tokenizer.pieces import Encoded, EncodesPieces, Facts, Ids, Positions, Texts, checked_ids
from niels_gpt.tokenizer.sentinels import MARK, SPECIAL_NAMES, SPECIAL_TOKENS, cut_sentinels
from niels_gpt.tokenizer.split_encoder import Run, SplitEncoder, starts_by_bytes

MODEL_NAME = "spm.model"
MOST_BYTES = 256 << 20
DEFAULT_TOKENIZER_PATH = f"tokenizer/{MODEL_NAME}"

# SentencePiece writes a space as U+2581 inside pieces, and would decode a real U+2581 as a space.
_SPACE_MARK = "\u2581"

# Texts that models change which were not trained for exactness: NFKC (full-width and joined letters, accents), case
# folding, white space, and characters without pieces.
_CHANGING = (
    *("\uff21", "\ufb01", "e\u0301", "A", "\u00c9"),
    *("a  b", " a", "a ", "a\nb", "a\tb", "\u3000", "\u4e2d", "\U0001f600"),
)

_log = logging.getLogger("niels_gpt.tokenizer")


class SentencePieceTokenizer:
    """A trained model: text to ids and back, exactly.

    `encode` treats all text as text: a sentinel's literal spelling in it has ordinary ids. The sentinels' own ids are
    those of `special_token_ids()`. Instances pickle, and may be shared by threads.

    Attributes:
        model_path: the file.
        inexact_reason: a text that the model does not give back, in words; `None` if it gives back what models often
            change. Those of `train_tokenizer` give back every text.

    Raises:
        TokenizerError: not a SentencePiece model, or one whose sentinels are missing or not single ids.
    """

    def __init__(self, model_path: str | Path) -> None:
        self.model_path = str(model_path)
        self._model = _load(Path(model_path))
        self._special_ids: dict[str, int] = {}
        for name, token in zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True):
            found = self._model.encode(token)
            # A model without the sentinel may still encode it as one id: that of unknown text.
            if len(found) != 1 or found[0] == self._model.unk_id() or self._model.id_to_piece(found[0]) != token:
                raise TokenizerError(
                    f"{self.model_path}: the sentinel {token} encodes to {found}; expected one id of its own. This "
                    "model was not trained for this project: train one with niels-gpt tokenizer train"
                )
            self._special_ids[name] = int(found[0])
        # A real U+2581 in a text is encoded as its bytes; a model without byte pieces cannot tell it from a space.
        of_bytes = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()]
        if self._model.unk_id() in of_bytes:
            of_bytes = self._model.encode(_SPACE_MARK)
        self._space_mark_ids: Ids = np.asarray(of_bytes, dtype=np.int32)
        pairs = zip(_CHANGING, map(self.decode, self.encode_batch(_CHANGING, num_threads=1)), strict=True)
        changed = next(((text, decoded) for text, decoded in pairs if text != decoded), None)
        self.inexact_reason = changed and f"{changed[0]!r} comes back as {changed[1]!r}"

    @property
    def vocab_size(self) -> int:
        """How many ids there are, sentinels and byte pieces included."""
        return int(self._model.vocab_size())

    @property
    def sha256(self) -> str:
        """sha256 of the model file, as caches record it."""
        return file_record(Path(self.model_path)).sha256

    def special_token_ids(self) -> dict[str, int]:
        """The ids of the sentinels: `{"sys", "usr", "asst", "eot"}`."""
        return dict(self._special_ids)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, never a sentinel's. `decode` returns exactly `text` for them."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str], *, num_threads: int | None = None) -> list[Ids]:
        """The ids of each text, int32; the same whatever `num_threads` (`None`: one per processor).

        Raises:
            TokenizerError: a lone surrogate in a text, or what is no text.
        """
        texts = list(texts)
        try:
            encoded = self._model.encode(texts, return_type="numpy", num_threads=num_threads or -1)
        except TypeError as error:  # the library's, for a str that has no UTF-8
            wrong = next((index for index, text in enumerate(texts) if not (type(text) is str and is_unicode(text))), 0)
            raise TokenizerError(
                f"text {wrong} is {shown(texts[wrong])}; expected text without halves of surrogate pairs. Remove them"
            ) from error
        for index, text in enumerate(texts):
            # Few texts contain a sentinel's spelling or a literal U+2581; they are encoded a second time, in parts.
            if (not text.isascii() and _SPACE_MARK in text) or MARK in text:
                parts = chain.from_iterable(re.split(f"({_SPACE_MARK})", part) for part in cut_sentinels(text))
                of_parts = [
                    self._space_mark_ids if part == _SPACE_MARK else self._model.encode(part, return_type="numpy")
                    for part in parts
                    if part
                ]
                encoded[index] = np.concatenate(of_parts, dtype=np.int32)
        return list(encoded)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, sentinels spelled out.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return str(self._model.decode(checked_ids(ids, self.vocab_size)))

    def piece(self, token: int) -> str:
        """One id for display: its text, `<0x0A>` for a byte, or a note that the vocabulary has no such id."""
        if not 0 <= int(token) < self.vocab_size:  # of a damaged file
            return f"<{int(token)}: not in the vocabulary>"
        return str(self._model.id_to_piece(int(token))).replace(_SPACE_MARK, " ")

    def __getstate__(self) -> dict[str, Any]:
        return {"model_path": self.model_path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model_path"])  # type: ignore[misc]


def load_sentencepiece(path: str | Path) -> SentencePieceTokenizer:
    """Load a model file, or the `spm.model` of a directory. A warning in the log names a model that changes text.

    Raises:
        TokenizerError: no such file, not a SentencePiece model, or sentinels missing or not single ids.
    """
    path = Path(path)
    if path.is_dir() or not path.suffix:
        path = path / MODEL_NAME
    if not path.is_file():
        raise TokenizerError(
            f"{path}: no tokenizer here; expected a SentencePiece model. "
            f"Train one: niels-gpt tokenizer train FILES... --out {path.parent}"
        )
    tokenizer = SentencePieceTokenizer(path)
    # Here and not in the constructor, which also runs in every worker process that the tokenizer is sent to.
    if tokenizer.inexact_reason is not None:
        _log.warning(
            "%s: this model does not give every text back (%s), so its ids stand for other text than the data's; "
            "expected one trained by niels-gpt tokenizer train, or with byte_fallback=True, remove_extra_whitespaces="
            "False, normalization_rule_name='identity'. Use it only for a language model that was trained with it",
            path,
            tokenizer.inexact_reason,
        )
    return tokenizer


load_tokenizer = load_sentencepiece  # the name in the documented interface


def _load(path: Path) -> Any:
    with storage_errors("reading the tokenizer", path), path.open("rb") as file:
        proto = file.read(MOST_BYTES + 1)
    if len(proto) > MOST_BYTES:
        raise TokenizerError(
            f"{path}: more than {MOST_BYTES >> 20} MiB; expected an spm.model. Is this the right file?"
        )
    import sentencepiece  # here, because opening any tokenizer imports this module

    try:
        model = sentencepiece.SentencePieceProcessor()
        model.LoadFromSerializedProto(proto)  # unlike the constructor, this refuses an empty file
        # Every piece is read once, because a damaged one shows itself only then.
        pieces = [model.id_to_piece(token) for token in range(model.vocab_size())]
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: a piece is no UTF-8 ({error}); expected an spm.model as training writes it. Restore the file"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise TokenizerError(
            f"{path}: not a SentencePiece model; expected an spm.model as training writes it"
        ) from error
    if not pieces:
        raise TokenizerError(f"{path}: the model has no pieces; expected an spm.model as training writes it")
    return model


class SentencePieceEncoder(EncodesPieces):
    """A `SentencePieceTokenizer` that encodes pieces and proves which piece every token came from.

    Sentinels are recognised in scaffold only. The text between two of them is one run, encoded as `encode_batch` does.
    A token belongs to the piece that contains its first character, which follows from the bytes that the ids stand for.
    If these are not the text's bytes (an unknown or a normalised character), only a run within one piece can be
    attributed; any other raises. Instances pickle, and may be shared by threads.
    """

    engine = "sentencepiece"

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        ids = tokenizer.special_token_ids()
        self.control_ids = {text: ids[name] for text, name in zip(SPECIAL_TOKENS, SPECIAL_NAMES, strict=True)}
        self.added_ids = self.control_ids
        self.stop_ids: tuple[int, ...] = (ids["eot"],)
        self.template: str | None = None
        self.special_tokens = {"eos_token": SPECIAL_TOKENS[SPECIAL_NAMES.index("eot")]}
        self._bytes = [from_spaced(tokenizer.piece(token)) for token in range(self.vocab_size)]
        self._split = SplitEncoder(self.name, self.control_ids, self.added_ids, self._encode_runs)

    @property
    def name(self) -> str:
        """The model file."""
        return self.tokenizer.model_path

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the model file (`tokenizer`)."""
        return {"tokenizer": self.tokenizer.sha256}

    def encode_strings(self, texts: Texts, facts: Facts) -> Encoded:
        return self._split.encode_strings(texts, facts)

    def token_bytes(self, ids: Sequence[int] | Ids) -> list[bytes]:
        """The UTF-8 bytes that each id encodes, sentinels spelled out; half characters are possible.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self._bytes_of(checked_ids(ids, self.vocab_size))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, sentinels spelled out."""
        return self.tokenizer.decode(ids)

    def _encode_runs(self, runs: list[Run]) -> list[tuple[Ids, Positions]]:
        encoded = self.tokenizer.encode_batch([run.text for run in runs])
        return [
            (ids, starts_by_bytes(self._bytes_of(ids.tolist()), run, self.name))
            for ids, run in zip(encoded, runs, strict=True)
        ]

    def _bytes_of(self, ids: list[int]) -> list[bytes]:
        return [self._bytes[token] for token in ids]

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tokenizer"])  # type: ignore[misc]
