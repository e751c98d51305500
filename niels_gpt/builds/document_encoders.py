"""Texts to ids for pretraining caches: any tokenizer, and the ids that separate documents.

::

    encoder = document_encoder("Qwen/Qwen3-8B", "eos")
    encoder.encode(["ab", "c"])        ids  a b E c E        lengths  3 2

Content is never control: a text that spells a control token gets the ids of ordinary text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from niels_gpt.builds.build import CacheTokenizer, check_cache_tokenizer, check_ids
from niels_gpt.errors import TokenizerError, UsageError, shown
from niels_gpt.storage.manifests import tokenizer_sha256
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME, SentencePieceEncoder, load_sentencepiece
from niels_gpt.tokenizer.sentinels import Ids, Lengths, encode_ordinary

Separator = Literal["eos", "bos", "eos+bos", "none"]
SEPARATORS: Final[tuple[str, ...]] = get_args(Separator)


@dataclass(frozen=True)
class DocumentEncoder:
    """Encodes documents, each with the ids that separate it from its neighbours. Instances pickle.

    Attributes:
        tokenizer: our own tokenizer, or any other as a `PieceEncoder`.
        before, after: ids that are put before and after the ids of each document's text.
        special_ids: name -> id of the special tokens that the manifest records.
        joining: what else the manifest records of how documents are joined.
    """

    tokenizer: CacheTokenizer | PieceEncoder
    before: tuple[int, ...]
    after: tuple[int, ...]
    special_ids: dict[str, int]
    joining: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return self.tokenizer.vocab_size

    @property
    def sha256(self) -> str:
        """The hash by which manifests identify the tokenizer."""
        return tokenizer_sha256(self.tokenizer)

    def encode(self, texts: Sequence[str], *, num_threads: int | None = None) -> tuple[Ids, Lengths]:
        """`(ids, lengths)` of all documents, one after the other, with the ids that separate them.

        Args:
            num_threads: for SentencePiece models; other tokenizers encode on one thread.

        Raises:
            TokenizerError: a text became a control token, or an id is outside the vocabulary.
        """
        if isinstance(self.tokenizer, CacheTokenizer):
            ids, lengths = encode_ordinary(self.tokenizer, texts, num_threads=num_threads)
        else:
            encoded = self.tokenizer.encode_strings([[text] for text in texts], [[0]] * len(texts))
            ids, lengths = encoded.ids, encoded.lengths
        check_ids(ids, self.vocab_size)
        return self._with_separators(ids, lengths)

    def _with_separators(self, ids: Ids, lengths: Lengths) -> tuple[Ids, Lengths]:
        """Lengths 3 2, one id before and one after: inserted before the positions 0 3 3 5 of the five ids."""
        own = (*self.before, *self.after)
        if not own or not len(lengths):
            return ids, lengths
        ends = np.cumsum(lengths)
        edges = np.stack([*[ends - lengths] * len(self.before), *[ends] * len(self.after)], axis=1)
        return np.insert(ids, edges.ravel(), np.tile(np.array(own, ids.dtype), len(lengths))), lengths + len(own)


def document_encoder(source: Any, separator: str | None = None) -> DocumentEncoder:
    """The encoder of documents for a tokenizer and a separator.

    Args:
        source: a `DocumentEncoder` (returned unchanged), what `open_encoder` accepts (a directory, a name on the hub,
            an object), or any `CacheTokenizer`.
        separator: "eos" after each document, "bos" before each, both, or "none". `None` means "eos"; that of our own
            tokenizer is its end-of-turn.

    Raises:
        UsageError: no such separator. SourceError: see `open_encoder`.
        TokenizerError: not a tokenizer, or it has no such token.
    """
    if separator is not None and separator not in SEPARATORS:
        raise UsageError(f"separator is {separator!r}; expected one of {', '.join(SEPARATORS)}")
    if isinstance(source, DocumentEncoder):
        if separator is not None:
            raise UsageError(f"a DocumentEncoder has its separator; leave out separator={separator!r}")
        return source
    tokenizer = _opened(source)
    if isinstance(tokenizer, CacheTokenizer):
        return _with_sentinels(tokenizer, separator)
    special = {name: _special_id(tokenizer, name) for name in ("eos", "bos")}
    known = {name: token for name, token in special.items() if token is not None}
    if separator is None and "eos" not in known:
        raise TokenizerError(
            f"{tokenizer.name}: it names no eos_token, so nothing would separate documents; choose --separator "
            f"(separator=): {' or '.join(_possible(known))}. Or name the token in tokenizer_config.json"
        )
    separator = separator or "eos"
    wanted = [] if separator == "none" else separator.split("+")
    if missing := [name for name in wanted if name not in known]:
        raise TokenizerError(
            f"{tokenizer.name}: it names no {missing[0]}_token, so --separator {separator} is not possible; expected "
            f"one of {', '.join(_possible(known))}. Choose one (separator=), or name the token in tokenizer_config.json"
        )
    if isinstance(tokenizer, TokenizerAdapter):
        # Text must never become a separator, also where the tokenizer does not mark it as a control token.
        tokenizer = tokenizer.with_controls([tokenizer.special_tokens[f"{name}_token"] for name in known])
    before = tuple(known[name] for name in wanted if name == "bos")
    after = tuple(known[name] for name in wanted if name == "eos")
    joining = {
        "separate_documents": bool(wanted),
        "separator": separator,
        "separator_ids": {"before": list(before), "after": list(after)},
    }
    return DocumentEncoder(tokenizer, before, after, known, joining)


def _with_sentinels(tokenizer: CacheTokenizer, separator: str | None) -> DocumentEncoder:
    """Our own tokenizer: end-of-turn ends documents, too. Its manifests record no more than they always did."""
    special = check_cache_tokenizer(tokenizer)
    if separator not in (None, "eos", "none"):
        raise TokenizerError(
            f"a tokenizer with our four sentinels has no bos, so --separator {separator} is not possible; expected eos "
            "(its end-of-turn) or none"
        )
    after = () if separator == "none" else (special["eot"],)
    return DocumentEncoder(tokenizer, (), after, special, {"separate_documents": bool(after)})


def _opened(source: Any) -> CacheTokenizer | PieceEncoder:
    if isinstance(source, CacheTokenizer):
        return source
    if isinstance(source, str | PathLike) and Path(source).name == MODEL_NAME:
        return load_sentencepiece(Path(source))  # its error says how to train one
    encoder = open_encoder(source)
    return encoder.tokenizer if isinstance(encoder, SentencePieceEncoder) else encoder


def _special_id(encoder: PieceEncoder, name: str) -> int | None:
    """The id of eos or bos; `None` if the tokenizer names none.

    Raises:
        TokenizerError: it names a text that is no added token.
    """
    spelling = encoder.special_tokens.get(f"{name}_token")
    if spelling is None:
        return None
    token = encoder.added_ids.get(spelling)
    if token is None:
        raise TokenizerError(
            f"{encoder.name}: {name}_token is {shown(spelling)}, which is no added token; expected one of its "
            "added_tokens. Correct tokenizer_config.json"
        )
    return token


def _possible(known: dict[str, int]) -> list[str]:
    return [separator for separator in SEPARATORS if separator == "none" or set(separator.split("+")) <= set(known)]
