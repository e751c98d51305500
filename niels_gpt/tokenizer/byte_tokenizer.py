"""`ByteTokenizer`: tokenizer objects of other libraries that give the bytes of ids, shown as a `PythonTokenizer`.

tiktoken's `Encoding`, mistral-common's `Tekkenizer`, and any object with `encode` and `decode_bytes`. They differ in
what they call their control tokens; `PythonEncoder` does the rest, and proves on a probe text that no text becomes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import TokenizerError

# Where an object does not say how many ids it has, ids are tried until so many in a row are none: reserved ids leave
# holes of some hundred.
_LONGEST_HOLE = 65_536
# Methods by which tiktoken's `Encoding` and mistral-common's `Tekkenizer` are known.
_TIKTOKEN, _TEKKEN = "encode_single_token", "id_to_byte_piece"


@runtime_checkable
class BytesOfIds(Protocol):
    """Any object with these methods; if it has control tokens, their ids by spelling are `special_tokens`."""

    def encode(self, text: str) -> list[int]: ...
    def decode_bytes(self, ids: list[int]) -> bytes: ...


@dataclass(frozen=True)
class _Functions:
    """The functions and tokens of a tokenizer object, whatever its library calls them.

    Attributes:
        encode: text to ids, never to a control token.
        bytes_of: the bytes of one id; raises for an id that does not exist.
        specials: spelling -> id of the control tokens.
        size: largest id + 1, `None` if the object does not say.
        named: `bos_token` and `eos_token`, where they are known.
    """

    name: str
    encode: Callable[[str], list[int]]
    bytes_of: Callable[[int], bytes]
    specials: Mapping[str, int]
    size: int | None = None
    named: Mapping[str, str] = field(default_factory=dict)


def is_byte_tokenizer(source: object) -> bool:
    """Whether the object has one of the shapes that are read here."""
    return isinstance(source, BytesOfIds) or hasattr(source, _TEKKEN)


def _functions_of(source: Any) -> _Functions:
    """The functions and tokens of an object.

    Raises:
        TokenizerError: `special_tokens` is no mapping.
    """
    name = f"{type(source).__module__}.{type(source).__qualname__}"

    def bytes_of(token: int) -> bytes:
        return bytes(source.decode_bytes([token]))

    if hasattr(source, _TIKTOKEN):
        specials = {text: source.encode_single_token(text) for text in source.special_tokens_set}
        # tiktoken names no eos. This spelling is the one that its encodings end documents with.
        eos = {"eos_token": "<|endoftext|>"} if "<|endoftext|>" in specials else {}
        return _Functions(source.name, source.encode_ordinary, bytes_of, specials, source.n_vocab, eos)
    if hasattr(source, _TEKKEN):
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        specials = {source.id_to_piece(token): token for token in range(source.n_words) if source.is_special(token)}
        return _Functions(
            name,
            lambda text: source.encode(text, False, False),
            # KEEP: under its other policies a control token has no bytes, or raises.
            lambda token: source.id_to_byte_piece(token, SpecialTokenPolicy.KEEP),
            specials,
            source.n_words,
            {"bos_token": source.id_to_piece(source.bos_id), "eos_token": source.id_to_piece(source.eos_id)},
        )
    specials = source.special_tokens if hasattr(source, "special_tokens") else {}
    if not isinstance(specials, Mapping):
        raise TokenizerError(
            f"{name}: special_tokens is a {type(specials).__name__}; expected a mapping of each control token's "
            "spelling to its id"
        )
    return _Functions(name, source.encode, bytes_of, dict(specials))


@dataclass(frozen=True)
class Special:
    """A control token as `PythonTokenizer` has added tokens: special, and independent of the text beside it."""

    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class ByteTokenizer:
    """A tokenizer object, as the `PythonTokenizer` that `PythonEncoder` reads; pickles if the object does.

    Attributes:
        name_or_path: the object's own name, or that of its class.
        chat_template: `None`: such objects have none.
        special_tokens_map: `bos_token` and `eos_token`, where the object names them.
        added_tokens_decoder: id -> control token.
    """

    chat_template: Any = None

    def __init__(self, source: Any) -> None:
        self._source = source
        self._functions = functions = _functions_of(source)
        self.name_or_path = functions.name
        self.special_tokens_map: Mapping[str, Any] = functions.named
        self.added_tokens_decoder = {token: Special(text) for text, token in functions.specials.items()}
        # The longest first, because `re` takes the first branch that fits.
        words = sorted(functions.specials, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, words))) if words else None

    def get_vocab(self) -> dict[bytes, int]:
        """Bytes -> id of all ids, control tokens included. Of several ids with the same bytes, the last."""
        # Without a size, ids are tried until `_LONGEST_HOLE` of them after the last one with bytes have none.
        size, found = self._functions.size, {}
        token, last = 0, max(self.added_tokens_decoder, default=-1)
        while token < size if size is not None else token <= last + _LONGEST_HOLE:
            word = self._word(token)
            if word is not None:
                found[word] = last = token
            token += 1
        return found

    def encode(self, text: str, **options: Any) -> list[int]:
        """Ids; with `allow_special_tokens=False` all of it is text, else control tokens are recognised."""
        if not options.get("allow_special_tokens", True) or self._search is None:
            return list(self._functions.encode(text))
        ids, at = [], 0
        for match in self._search.finditer(text):
            ids += [*self._functions.encode(text[at : match.start()]), self._functions.specials[match[0]]]
            at = match.end()
        return ids + list(self._functions.encode(text[at:]))

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """The text of ids."""
        return b"".join(self.convert_ids_to_tokens(token_ids)).decode("utf-8", "replace")

    def convert_ids_to_tokens(self, ids: list[int]) -> list[bytes]:
        """The bytes of each id; empty for an id that does not exist."""
        return [self._word(token) or b"" for token in ids]

    def _word(self, token: int) -> bytes | None:
        try:
            return self._functions.bytes_of(token) or None
        except Exception:  # ValueError, KeyError, OverflowError ...: each library has its own for an id without bytes
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        return ByteTokenizer, (self._source,)
