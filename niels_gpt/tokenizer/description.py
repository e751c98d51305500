"""Reads from a tokenizer.json which ids are control tokens and which bytes each id encodes.

Nothing is encoded here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, shown
from niels_gpt.tokenizer.hf import HFTokenizer, added_tokens, file_of, malformed, parsed

_SPACE_MARK = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Flags with which a control token depends on, or swallows, the text around it.
_FLAGS = ("lstrip", "rstrip", "single_word")

# GPT-2's byte alphabet, code point -> byte. A printable Latin-1 character is written for the byte of its code point,
# and U+0100, U+0101 ... for the other bytes in ascending order. So a space (byte 32) is U+0120, which is "Ġ".
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_OF = {**{byte: byte for byte in _PRINTABLE}, **{256 + at: byte for at, byte in enumerate(_OTHERS)}}
_ALPHABET = frozenset(map(chr, _BYTE_OF))
_NO_BYTE = 256  # in tables of bytes: a character outside of the alphabet


class TokenBytes:
    """The bytes of text that each id encodes, concatenated in one `bytes`.

    Attributes:
        edges: int64 of shape (size + 1,); the bytes of id `i` are those from `edges[i]` to `edges[i + 1]`.

    Args:
        joined: the bytes of all ids. lengths: how many each has.
    """

    def __init__(self, joined: bytes, lengths: Sequence[int]) -> None:
        self._bytes = joined
        # Entries of 3 1 2 bytes: edges 0 3 4 6, so the bytes of id 1 are those from 3 to 4.
        self.edges = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def one(self, token: int) -> bytes:
        """The bytes of one id."""
        return self._bytes[self.edges[token] : self.edges[token + 1]]

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id; empty where the vocabulary has no such id."""
        joined, at = self._bytes, np.asarray(ids, np.int64)
        return [joined[a:b] for a, b in zip(self.edges[at].tolist(), self.edges[at + 1].tolist(), strict=True)]

    def joined(self, ids: npt.NDArray[np.integer[Any]]) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The bytes of ids, one after the other, and where those of each begin, and the end: (ids + 1,).

        ::

            edges 0 3 4 6     ids 2 0     lengths 2 3     ends 0 2 5     places  4 5 | 0 1 2  =  4-0 0-2  +  0 1 2 3 4
        """
        begin = self.edges[ids]
        ends = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(self.edges[ids + 1] - begin, out=ends[1:])
        places = (begin - ends[:-1]).repeat(np.diff(ends)) + np.arange(ends[-1])
        return np.frombuffer(self._bytes, np.uint8)[places].tobytes(), ends


def _read_words(words: Mapping[str, int], size: int, decode: Callable[[str], bytes]) -> TokenBytes:
    """The bytes of `size` ids from a vocabulary, whose entries `decode` reads (`from_byte_alphabet`, `from_spaced`)."""
    by_id = [""] * size
    for word, token in words.items():
        by_id[token] = word
    found = np.full(1, _NO_BYTE)
    if decode is from_byte_alphabet:
        # All entries by one lookup: a vocabulary has some 150 000 of them, and every opening of a tokenizer waits.
        # UTF-16, because every character of the alphabet is one unit of 16 bits there, so units are bytes of text.
        codes = np.frombuffer("".join(by_id).encode("utf-16-le", "surrogatepass"), np.uint16)
        table = np.full(256 + len(_BYTE_OF), _NO_BYTE, np.int16)
        table[list(_BYTE_OF)] = list(_BYTE_OF.values())
        found = table.take(codes, mode="clip")  # larger codes get the last entry, which is no byte
    if (found == _NO_BYTE).any():  # an entry has a character outside of the alphabet, or there is no alphabet
        decoded = list(map(decode, by_id))
        return TokenBytes(b"".join(decoded), list(map(len, decoded)))
    return TokenBytes(found.astype(np.uint8).tobytes(), list(map(len, by_id)))


@dataclass(frozen=True)
class Description:
    """The facts of a tokenizer that encoding in pieces needs.

    Attributes:
        vocab_size: largest id + 1.
        control_ids: spelling -> id of the added tokens with special: true, and of `more_controls`.
        added_ids: spelling -> id of all added tokens.
        whole_string_reason: why splitting a text at control tokens would change its ids, or `None` if it would not.
        byte_lengths: int64 of shape (vocab_size,), how many bytes of text each id encodes; `None` if that depends on
            the text.
        words: the bytes that each id encodes, except for added tokens.
        form: the Unicode form that the normalizer applies, or `None`; `byte_lengths` hold for text in this form only.
        prepends: the first run of a string is encoded differently from the others (`never_prepending`).
        shortens: the tokenizer.json sets truncation or padding, which encoding pieces must not apply.
        decodes: ids are decoded by joining `words` and the added tokens' spellings.
    """

    vocab_size: int
    control_ids: dict[str, int]
    added_ids: dict[str, int]
    whole_string_reason: str | None
    byte_lengths: npt.NDArray[np.int64] | None
    words: TokenBytes
    form: str | None
    prepends: bool
    shortens: bool
    decodes: bool


def read_description(
    parts: HFTokenizer, more_controls: Collection[str] = (), data: dict[str, Any] | None = None
) -> Description:
    """Describe a tokenizer.

    Args:
        parts: the tokenizer's files.
        more_controls: spellings of added tokens that are treated as control tokens although they are not special.
        data: the parsed JSON, if it has been parsed and checked already.

    Raises:
        TokenizerError: the model drops merges at random (`dropout`), or the file is not one that `tokenizers` writes.
    """
    name = file_of(parts.name)
    with malformed(name):
        if data is None:
            data = parsed(parts.json_bytes, name)
            added_tokens(data, parts.name)
        added = data.get("added_tokens") or []
        if data["model"].get("dropout"):
            raise TokenizerError(
                f"{name}: model.dropout is {shown(data['model']['dropout'])}, so ids are random; expected null. "
                "Remove it"
            )
        controls, others = list[dict[str, Any]](), list[dict[str, Any]]()
        for token in added:
            (controls if token.get("special") or token["content"] in more_controls else others).append(token)
        vocab = data["model"].get("vocab", {})
        if not isinstance(vocab, dict):  # Unigram models list entries with scores, in the order of their ids
            vocab = {str(entry[0]): index for index, entry in enumerate(vocab)}
        size = 1 + max([*vocab.values(), *(token["id"] for token in added)], default=-1)
        by_bytes = any(step["type"] == "ByteLevel" for step in _steps(data.get("pre_tokenizer")))
        words = {**{token["content"]: token["id"] for token in others}, **vocab}
        token_bytes = _read_words(words, size, from_byte_alphabet if by_bytes else from_spaced)
        # Decoders apply the byte alphabet to added tokens too, so these must not contain characters that it changes.
        as_spelt = all(from_byte_alphabet(token["content"]) == token["content"].encode() for token in added)
        return Description(
            vocab_size=size,
            control_ids={token["content"]: token["id"] for token in controls},
            added_ids={token["content"]: token["id"] for token in added},
            whole_string_reason=_whole_string_reason(data, controls, others),
            byte_lengths=_byte_lengths(data, words, token_bytes),
            words=token_bytes,
            form=_form(data.get("normalizer"))[1],
            prepends=never_prepending(data) != data,
            shortens=any(data.get(key) for key in ("truncation", "padding")),
            decodes=by_bytes and (data.get("decoder") or {}).get("type") == "ByteLevel" and as_spelt,
        )


def never_prepending(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """A parsed tokenizer.json that never puts a space before text where Metaspace's prepend_scheme is "first".

    So a run that does not begin its string is encoded.
    """
    changed = {key: copy.deepcopy(tokenizer.get(key)) for key in ("pre_tokenizer", "normalizer")}
    for step in (step for part in changed.values() for step in _steps(part)):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return {**tokenizer, **{key: part for key, part in changed.items() if key in tokenizer}}


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer in order, with nested sequences flattened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        inner: Iterable[Any] = part.get("normalizers") or part.get("pretokenizers") or []
        return [step for entry in inner for step in _steps(entry)]
    return [part]


def _whole_string_reason(
    data: dict[str, Any], controls: list[dict[str, Any]], others: list[dict[str, Any]]
) -> str | None:
    """Why splitting a text at control tokens would change ids: the token that depends on the text beside it.

    `None` if there is no such token.
    """
    for token in controls:
        flags = [flag for flag in _FLAGS if token.get(flag)]
        if token.get("normalized") and _steps(data.get("normalizer")):
            flags.append("normalized")  # it is searched in the normalized text, where it may match other spellings
        if flags:
            return f"the control token {token['content']!r} has {' and '.join(flags)} set"
    for token in others:
        if token.get("single_word"):
            return f"the added token {token['content']!r} has single_word set"
    return None


def _form(normalizer: Any) -> tuple[str | None, str | None]:
    """A normalizer as `(kind, form)`.

    "plain": nothing, or it applies the Unicode form `form`. "spaces": it replaces spaces by U+2581. `None`: unknown.
    """
    steps = _steps(normalizer)
    if not steps:
        return "plain", None
    if len(steps) == 1 and steps[0]["type"] in _FORMS:
        return "plain", str(steps[0]["type"])
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    return ("spaces", None) if steps == [replaced] else (None, None)


def _byte_lengths(
    data: dict[str, Any], words: Mapping[str, int], token_bytes: TokenBytes
) -> npt.NDArray[np.int64] | None:
    """int64 of shape (ids,), how many bytes of text each id encodes; `None` if that depends on the text.

    A length is never too large (the unknown token counts 0). So if the lengths of a text's ids sum to the text's number
    of bytes, each of them is exact.
    """
    kind, _ = _form(data.get("normalizer"))
    steps, model = _steps(data.get("pre_tokenizer")), data["model"]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    steps_of_bytes = [step for step in steps if step["type"] == "ByteLevel"]
    if model.get("type") != "BPE" or affixes or any(step["type"] == "Metaspace" for step in steps):
        return None
    by_bytes = kind == "plain" and steps_of_bytes and not any(s.get("add_prefix_space", True) for s in steps_of_bytes)
    by_spaces = kind == "spaces" and not steps_of_bytes and model.get("byte_fallback")
    if not by_bytes and not by_spaces:
        return None
    lengths: npt.NDArray[np.int64] = token_bytes.edges[1:] - token_bytes.edges[:-1]
    if model.get("unk_token") in words:
        lengths[words[model["unk_token"]]] = 0
    return lengths


def from_byte_alphabet(word: str) -> bytes:
    """The bytes of an entry in GPT-2's byte alphabet; the UTF-8 bytes of an entry with any other character."""
    if _ALPHABET.issuperset(word):
        return word.translate(_BYTE_OF).encode("latin-1")
    return word.encode("utf-8", "surrogatepass")


def from_spaced(word: str) -> bytes:
    """The bytes of an entry as SentencePiece writes it: spaces as U+2581, single bytes as `<0x0A>`."""
    if len(word) == 6 and _BYTE.fullmatch(word):
        return bytes([int(word[3:5], 16)])
    return word.replace(_SPACE_MARK, " ").encode("utf-8", "surrogatepass")
