"""What a tokenizer.json means for encoding pieces (DESIGN §2.1)."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, shown
from niels_gpt.tokenizer.hf import HFTokenizer, added_tokens, file_of, parsed

_SPACE_MARK = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Flags with which a control token depends on, or swallows, the text around it.
_FLAGS = ("lstrip", "rstrip", "single_word")


class Texts(NamedTuple):
    """A tokenizer.json as the engines load it, without post-processor, truncation and padding.

    Attributes:
        body: without control tokens, for a text at the very beginning of the string.
        rest: the same for texts further on; other bytes than `body` only where Metaspace's prepend_scheme is "first".
        whole: with control tokens, as the official tokenizer has them.
    """

    body: bytes
    rest: bytes
    whole: bytes


class Words:
    """The bytes of text that each id stands for, end to end in one piece of memory; `edges` says where each starts."""

    def __init__(self, words: Mapping[str, int], size: int, spelt: Callable[[str], bytes]) -> None:
        by_id = [""] * size
        for word, token in words.items():
            by_id[token] = word
        made = _by_byte_alphabet(by_id) if spelt is from_byte_alphabet else None
        self.spelt = spelt
        self._bytes, lengths = made or _one_by_one(by_id, spelt)
        self.edges = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id; empty where the vocabulary has no such id."""
        held, at = self._bytes, np.asarray(ids, np.int64)
        return [held[a:b] for a, b in zip(self.edges[at].tolist(), self.edges[at + 1].tolist(), strict=True)]


def _by_byte_alphabet(words: list[str]) -> tuple[bytes, list[int]] | None:
    """Words of GPT-2's byte alphabet alone, all at once; `None` where one has another character."""
    table = np.full(256 + len(_BYTE_OF), 256, np.int16)
    table[list(_BYTE_OF)] = list(_BYTE_OF.values())
    codes = np.frombuffer("".join(words).encode("utf-16-le", "surrogatepass"), np.uint16)
    found = table.take(codes, mode="clip")  # the last entry stands for no byte
    return None if (found == 256).any() else (found.astype(np.uint8).tobytes(), list(map(len, words)))


def _one_by_one(words: list[str], spelt: Callable[[str], bytes]) -> tuple[bytes, list[int]]:
    made = list(map(spelt, words))
    return b"".join(made), list(map(len, made))


@dataclass(frozen=True)
class Description:
    """What a tokenizer.json means for encoding pieces.

    Attributes:
        vocab_size: largest id + 1.
        control_ids: spelling -> id of the added tokens with special: true, and of those that count as such.
        added_ids: spelling -> id of all added tokens.
        competitors: other added tokens whose spelling overlaps a control token's, so that they compete for characters.
        uncuttable: why cutting at control tokens would change ids, or `None`.
        byte_lengths: int64 (vocab_size,), bytes of text a token stands for, or `None` where ids do not tell.
        words: the bytes that each id stands for, added tokens aside.
        form: the Unicode form to which the normalizer brings text, or `None`; lengths count for such text only.
        prepends: the first text of a string is encoded as no other is (`Texts.rest`).
        shortens: truncation or padding is set, which text must not pass through.
        decodes: the text of ids is what `words` and the added tokens' spellings say, joined.
    """

    vocab_size: int
    control_ids: dict[str, int]
    added_ids: dict[str, int]
    competitors: tuple[str, ...]
    uncuttable: str | None
    byte_lengths: npt.NDArray[np.int64] | None
    words: Words
    form: str | None
    prepends: bool
    shortens: bool
    decodes: bool


class _Read(NamedTuple):
    """A parsed tokenizer.json, and its added tokens: `controls`, and `others` that are recognised in any text."""

    data: dict[str, Any]
    added: list[dict[str, Any]]
    controls: list[dict[str, Any]]
    others: list[dict[str, Any]]
    shortens: bool


def _read(parts: HFTokenizer, more_controls: Collection[str], data: dict[str, Any] | None) -> _Read:
    if data is None:
        data = parsed(parts.json_bytes, file_of(parts.name))
    added = added_tokens(data, parts.name)
    if data["model"].get("dropout"):
        raise TokenizerError(
            f"{file_of(parts.name)}: model.dropout is {shown(data['model']['dropout'])}, so ids are random; expected "
            "null. Remove it"
        )
    shortens = any(data.get(key) for key in ("truncation", "padding"))
    # The post-processor adds bos and trims offsets; neither belongs to the text. Truncation would lose text.
    blank = {"post_processor": None, "truncation": None, "padding": None}
    controls = [token for token in added if token.get("special") or token["content"] in more_controls]
    others = [token for token in added if not token.get("special") and token["content"] not in more_controls]
    whole = {"normalizer": None, "pre_tokenizer": None, **data, "added_tokens": added, **blank}
    return _Read(whole, added, controls, others, shortens)


def read_description(
    parts: HFTokenizer, more_controls: Collection[str] = (), data: dict[str, Any] | None = None
) -> Description:
    """Read what the JSON says.

    Args:
        more_controls: added tokens that count as control tokens although they are not marked so.
        data: the JSON, where it has been parsed already.

    Raises:
        TokenizerError: the model drops merges at random, or is not one that `tokenizers` writes.
    """
    read = _read(parts, more_controls, data)
    made, controls, others = read.data, read.controls, read.others
    vocab = _words(made["model"])
    size = 1 + max([*vocab.values(), *(int(token["id"]) for token in read.added)], default=-1)
    by_bytes = any(step["type"] == "ByteLevel" for step in _steps(made["pre_tokenizer"]))
    words = {**{token["content"]: int(token["id"]) for token in others}, **vocab}
    held = Words(words, size, from_byte_alphabet if by_bytes else from_spaced)
    as_spelt = all(from_byte_alphabet(token["content"]) == token["content"].encode() for token in read.added)
    return Description(
        vocab_size=size,
        control_ids={token["content"]: int(token["id"]) for token in controls},
        added_ids={token["content"]: int(token["id"]) for token in read.added},
        competitors=_competitors([t["content"] for t in controls], [t["content"] for t in others]),
        uncuttable=_uncuttable(made, controls, others),
        byte_lengths=_byte_lengths(made, words, held),
        words=held,
        form=_form(made["normalizer"])[1],
        prepends=_never_prepending(made) != made,
        shortens=read.shortens,
        decodes=by_bytes and (made.get("decoder") or {}).get("type") == "ByteLevel" and as_spelt,
    )


def read_texts(parts: HFTokenizer, more_controls: Collection[str] = (), data: dict[str, Any] | None = None) -> Texts:
    """The JSON as the engines load it; the arguments are those of `read_description`."""
    read = _read(parts, more_controls, data)
    body = {**read.data, "added_tokens": read.others, "model": _with_words(read.data["model"], read.others)}
    rest, dumped = _never_prepending(body), _dumped(body)
    # `rest` is often the same, and there are megabytes to write
    return Texts(dumped, dumped if rest == body else _dumped(rest), _dumped(read.data))


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _words(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab", {})
    return vocab if isinstance(vocab, dict) else {str(entry[0]): index for index, entry in enumerate(vocab)}


def _with_words(model: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """The model with the remaining added tokens in its vocabulary.

    `tokenizers` gives added tokens that are not in the vocabulary the next free ids, whatever their "id" says: without
    the control tokens before them, Qwen3's `<think>` would get a control token's id. Merges never reach these words.
    """
    if not isinstance(model.get("vocab"), dict):
        return model
    return {**model, "vocab": {**model["vocab"], **{token["content"]: int(token["id"]) for token in others}}}


def _competitors(controls: list[str], others: list[str]) -> tuple[str, ...]:
    heads = {text[:stop] for text in controls for stop in range(1, len(text) + 1)}
    tails = {text[start:] for text in controls for start in range(len(text))}
    joined = "\0".join(controls)
    for text in others:
        ends = any(text[start:] in heads for start in range(len(text)))
        starts = any(text[:stop] in tails for stop in range(1, len(text) + 1))
        if ends or starts or text in joined or any(control in text for control in controls):
            return tuple(others)  # one overlap brings them all in, for they compete with each other too
    return ()


def _never_prepending(value: Any) -> Any:
    """A copy in which Metaspace's prepend_scheme "first" is "never"."""
    data = {key: copy.deepcopy(value[key]) for key in ("pre_tokenizer", "normalizer")}
    for step in (step for part in data.values() for step in _steps(part)):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return {**value, **data}


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences unfolded."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        inner: Iterable[Any] = part.get("normalizers") or part.get("pretokenizers") or []
        return [step for entry in inner for step in _steps(entry)]
    return [part]


def _uncuttable(data: dict[str, Any], controls: list[dict[str, Any]], others: list[dict[str, Any]]) -> str | None:
    for token in controls:
        flags = [flag for flag in _FLAGS if token.get(flag)]
        if token.get("normalized") and _steps(data["normalizer"]):
            flags.append("normalized")  # such a token is searched in the normalized text
        if flags:
            return f"the control token {token['content']!r} has {' and '.join(flags)} set"
    for token in others:
        if token.get("single_word"):
            return f"the added token {token['content']!r} has single_word set"
    return None


def _form(normalizer: Any) -> tuple[str | None, str | None]:
    """`(kind, form)`: kind is "plain" (text stays, or comes into the Unicode form), "spaces" or `None` (unknown)."""
    steps = _steps(normalizer)
    if not steps:
        return "plain", None
    if len(steps) == 1 and steps[0]["type"] in _FORMS:
        return "plain", str(steps[0]["type"])
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    return ("spaces", None) if steps == [replaced] else (None, None)


def _byte_lengths(data: dict[str, Any], words: Mapping[str, int], held: Words) -> npt.NDArray[np.int64] | None:
    """How many bytes of text each id stands for, never more than it really does.

    No entry is too large (an unknown token counts 0), so lengths that add up to the text's bytes are all exact.
    """
    kind, _ = _form(data["normalizer"])
    steps, model = _steps(data["pre_tokenizer"]), data["model"]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    steps_of_bytes = [step for step in steps if step["type"] == "ByteLevel"]
    if model.get("type") != "BPE" or affixes or any(step["type"] == "Metaspace" for step in steps):
        return None
    by_bytes = kind == "plain" and steps_of_bytes and not any(s.get("add_prefix_space", True) for s in steps_of_bytes)
    by_spaces = kind == "spaces" and not steps_of_bytes and model.get("byte_fallback")
    if not by_bytes and not by_spaces:
        return None
    lengths: npt.NDArray[np.int64] = held.edges[1:] - held.edges[:-1]
    if model.get("unk_token") in words:
        lengths[words[model["unk_token"]]] = 0
    return lengths


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's characters that stand for one byte each: printable Latin-1 for itself, U+0100... for the others."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    return {**{byte: byte for byte in printable}, **{256 + at: byte for at, byte in enumerate(others)}}


_BYTE_OF = _byte_alphabet()
_ALPHABET = frozenset(map(chr, _BYTE_OF))


def from_byte_alphabet(word: str) -> bytes:
    """The bytes of a word in GPT-2's byte alphabet; words with any other character are spelled as they are."""
    if _ALPHABET.issuperset(word):
        return word.translate(_BYTE_OF).encode("latin-1")
    return word.encode("utf-8", "surrogatepass")


def from_spaced(word: str) -> bytes:
    """The bytes of a word as SentencePiece writes it: spaces as U+2581, single bytes as `<0x0A>`."""
    if len(word) == 6 and _BYTE.fullmatch(word):
        return bytes([int(word[3:5], 16)])
    return word.replace(_SPACE_MARK, " ").encode("utf-8", "surrogatepass")
