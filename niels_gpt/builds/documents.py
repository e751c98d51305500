"""Texts to ids for pretraining caches: the encoder, the task that runs it, and what follows in order.

::

    encoder = document_encoder("Qwen/Qwen3-8B", "eos")
    encoder.encode(["ab", "c"])        ids  a b E c E        lengths  3 2

    rows --DocumentTask--> chunks --with_split--> (split, ids), ... --shuffle buffer--> TokenBudgets --> files
          (anywhere)                              (one process, in order)

Content is never control: a text that spells a control token gets the ids of ordinary text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.encoder_protocol import CacheTokenizer, check_cache_tokenizer, check_ids
from niels_gpt.builds.rows import batches, checked_documents
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.builds.tasks import Chunk
from niels_gpt.errors import TokenizerError, UsageError, shown
from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.sources.rejections import Rejections
from niels_gpt.store.tokenizer_hash import tokenizer_sha256
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.load import open_encoder
from niels_gpt.tokenizer.pieces import PieceEncoder
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME, SentencePieceEncoder, load_sentencepiece
from niels_gpt.tokenizer.sentinels import Ids, Lengths, encode_ordinary

SplitIds = tuple[str, npt.NDArray[np.integer[Any]]]  # of a document: where it goes, and its ids

_NO_WEIGHTS: Final = np.zeros(0, dtype=np.uint8)

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
        separators = (*self.before, *self.after)
        if not separators or not len(lengths):
            return ids, lengths
        # Lengths 3 2, one id before and one after each: inserted before the positions 0 3 3 5 of the five ids.
        ends = np.cumsum(lengths)
        edges = np.stack([*[ends - lengths] * len(self.before), *[ends] * len(self.after)], axis=1)
        inserted = np.tile(np.array(separators, ids.dtype), len(lengths))
        return np.insert(ids, edges.ravel(), inserted), lengths + len(separators)


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
    tokenizer = _tokenizer_of(source)
    if isinstance(tokenizer, CacheTokenizer):
        return _with_sentinels(tokenizer, separator)
    special = {name: _special_id(tokenizer, name) for name in ("eos", "bos")}
    known = {name: token for name, token in special.items() if token is not None}
    if separator is None and "eos" not in known:
        raise TokenizerError(
            f"{tokenizer.name}: it names no eos_token, so nothing would separate documents; choose --separator "
            f"(separator=): {' or '.join(_possible(known))}. Or name the token in tokenizer_config.json"
        )
    # Which separators are possible depends on the special tokens that the tokenizer names.
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
    """Our own tokenizer: end-of-turn also ends documents. Its manifests record no more than they always did."""
    special = check_cache_tokenizer(tokenizer)
    if separator not in (None, "eos", "none"):
        raise TokenizerError(
            f"a tokenizer with our four sentinels has no bos, so --separator {separator} is not possible; expected eos "
            "(its end-of-turn) or none"
        )
    after = () if separator == "none" else (special["eot"],)
    return DocumentEncoder(tokenizer, (), after, special, {"separate_documents": bool(after)})


def _tokenizer_of(source: Any) -> CacheTokenizer | PieceEncoder:
    if isinstance(source, CacheTokenizer):
        return source
    if isinstance(source, str | PathLike) and Path(source).name == MODEL_NAME:
        return load_sentencepiece(Path(source))  # its error says how to train one
    encoder = open_encoder(source)
    # One of ours is a `CacheTokenizer` inside of an encoder; its sentinels separate documents.
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


@dataclass(frozen=True)
class DocumentTask:
    """Encodes documents for a pretraining cache, see `tasks.Task`.

    Args:
        encoder: the tokenizer, and the ids that separate documents.
        num_threads: threads for encoding; the ids do not depend on it.
    """

    encoder: DocumentEncoder
    num_threads: int | None = None
    binary_mask: ClassVar[bool] = True

    def chunks(self, rows: Iterable[str | Document | Rejected], rejections: Rejections) -> Iterator[Chunk]:
        """See `Task`.

        A row is rejected after the documents before it have been yielded. A build that stops early, because its budgets
        are full, has then counted the same bad rows however far the encoder read ahead.
        """
        for batch in batches(checked_documents(rows), _size):
            batch, ids, lengths = self._encode(batch)
            at = first = 0
            # Runs of neighbouring rows of one type: documents D, rejections R.  D D R D  ->  [D D] [R] [D]
            for kind, run in groupby(batch, type):
                if kind is Rejected:
                    rejections.record(row for row in run if isinstance(row, Rejected))
                    continue
                documents = [row for row in run if isinstance(row, Document)]
                counts = lengths[first : first + len(documents)]
                end = at + int(counts.sum())
                groups = [row.group for row in documents]
                # What `with_split` needs of a document after its text is gone.
                metadata = [{"split": row.split} for row in documents] if any(row.split for row in documents) else []
                yield Chunk(ids[at:end], counts, _NO_WEIGHTS, groups, metadata)
                at, first = end, first + len(documents)

    def _encode(self, batch: list[Document | Rejected]) -> tuple[list[Document | Rejected], Ids, Lengths]:
        """The ids and lengths of a batch's documents; and the batch, with `Rejected` for those that have no ids."""
        texts = [row.text for row in batch if isinstance(row, Document)]
        try:
            return batch, *self.encoder.encode(texts, num_threads=self.num_threads)
        except TokenizerError:
            if isinstance(self.encoder.tokenizer, CacheTokenizer):
                raise  # the tokenizer is unusable, not a text
        # A text of the batch is at fault, such as one that only spells a control token; encoded one by one, it shows.
        checked: list[Document | Rejected] = []
        for row in batch:
            if isinstance(row, Document):
                try:
                    self.encoder.encode([row.text])
                except TokenizerError as error:
                    row = Rejected(row.where, "not_encodable", f"{row.where}: {error}")
            checked.append(row)
        texts = [row.text for row in checked if isinstance(row, Document)]
        return checked, *self.encoder.encode(texts, num_threads=self.num_threads)


def _size(row: Document | Rejected) -> int:
    return len(row.text if isinstance(row, Document) else row.detail)


def with_split(chunks: Iterable[Chunk], split: ValidationSplit) -> Iterator[SplitIds]:
    """The documents one by one: the split that the source names, else a random one, and the ids."""
    for chunk in chunks:
        ends = np.cumsum(chunk.lengths)  # lengths 3 2 4: ends 3 5 9, starts 0 3 5
        starts = (ends - chunk.lengths).tolist()
        named = [row["split"] for row in chunk.metadata] or [None] * len(starts)
        for start, end, group, name in zip(starts, ends.tolist(), chunk.groups, named, strict=True):
            name = name or ("val" if split.draw(group) else "train")
            yield name, chunk.ids[start:end].copy()  # a view would retain the whole chunk in memory


class TokenBudgets:
    """How many more tokens each split may receive.

    Args:
        budgets: tokens by split.

    Attributes:
        documents: number of documents taken so far, by split.
    """

    def __init__(self, budgets: dict[str, int]) -> None:
        self._left = dict(budgets)
        self.documents = dict.fromkeys(budgets, 0)

    @property
    def full(self) -> bool:
        """Whether the budgets of all splits are used up."""
        return not any(self._left.values())

    def take(self, split: str, ids: npt.NDArray[np.integer[Any]]) -> SplitIds:
        """Where a document goes: to its split if that has room, else to the other; and the ids that fit there.

        With 5 tokens left, documents of 3 3 3 tokens drawn for train give 3 and 2, and the third goes to val.
        """
        if not self._left[split]:
            split = "val" if split == "train" else "train"
        fitting = ids[: self._left[split]]
        self._left[split] -= len(fitting)
        self.documents[split] += 1
        return split, fitting
