"""`PythonEncoder`: Python tokenizers of transformers without a tokenizer.json, such as Kimi's (based on tiktoken).

Tokenizer objects of other libraries are wrapped as one of these (`byte_tokenizer.py`).

Such tokenizers return no offsets, so the piece of a token is found by the bytes that each id encodes
(`split_encoder.py`). They also turn the spelling of a control token in any text into its id, unless an option of
`encode` says otherwise, and the name of that option differs from class to class. When a tokenizer is loaded, a probe
text shows which option keeps text from becoming special tokens, that the bytes of its ids are the text's, and whether
splitting at special tokens changes ids. A tokenizer of which one of these is not so is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer.description import from_byte_alphabet
from niels_gpt.tokenizer.engines import PROBE
from niels_gpt.tokenizer.hf import FromParts, HFTokenizer, hf_tokenizer_of, stop_files
from niels_gpt.tokenizer.pieces import Encoded, EncodesPieces, Facts, Ids, Positions, Texts, checked_ids
from niels_gpt.tokenizer.split_encoder import Run, SplitEncoder, starts_by_bytes

# Options of `encode` that make it take control spellings as text: of tiktoken-like classes, then of transformers'. The
# first that works is used; the second exists in some tiktoken-like classes too and is ignored there.
_PLAIN: tuple[dict[str, Any], ...] = (
    {"allow_special_tokens": False},
    {"add_special_tokens": False, "split_special_tokens": True},
)
_OFFICIAL = {"add_special_tokens": False}
# Flags with which a token includes the white space around it, or depends on it.
_FLAGS = ("lstrip", "rstrip", "single_word")
_LINES = PROBE.splitlines(keepends=True)


class AddedToken(Protocol):
    """The fields of an added token of transformers that are read here."""

    @property
    def content(self) -> str: ...
    @property
    def special(self) -> bool: ...
    @property
    def lstrip(self) -> bool: ...
    @property
    def rstrip(self) -> bool: ...
    @property
    def single_word(self) -> bool: ...


@runtime_checkable
class PythonTokenizer(Protocol):
    """The methods of a transformers tokenizer in Python that are used here."""

    @property
    def name_or_path(self) -> str: ...
    @property
    def chat_template(self) -> Any: ...
    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...
    def get_vocab(self) -> Mapping[Any, int]: ...
    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, token_ids: list[int], **options: Any) -> str: ...
    def convert_ids_to_tokens(self, ids: list[int]) -> list[Any]: ...


class PythonEncoder(FromParts, EncodesPieces):
    """Encodes pieces with a Python tokenizer and proves which piece every token came from.

    Instances can be pickled if the tokenizer can.

    Attributes:
        parts: template, named special tokens, stop ids, and the vocabulary as canonical JSON.
        engine: "python".
        vocab_size: largest id + 1.
        control_ids: spelling -> id of the control tokens.
        added_ids: spelling -> id of all added tokens.

    Raises:
        TokenizerError: the tokenizer cannot be prevented from turning text into special tokens, the bytes of its ids
            are not those of the text, or splitting at special tokens changes its ids.
    """

    engine = "python"

    def __init__(self, tokenizer: PythonTokenizer) -> None:
        self._tokenizer = tokenizer
        name = tokenizer.name_or_path or type(tokenizer).__name__
        added = dict(sorted(tokenizer.added_tokens_decoder.items()))
        for token in added.values():
            flags = zip(_FLAGS, (token.lstrip, token.rstrip, token.single_word), strict=True)
            if set_flags := [flag for flag, is_set in flags if is_set]:
                raise TokenizerError(
                    f"{name}: the added token {token.content!r} has {' and '.join(set_flags)} set, so the text beside "
                    "it changes its ids; expected none of these without a tokenizer.json. Clear the flag in "
                    "tokenizer_config.json"
                )
        self.added_ids: Mapping[str, int] = {token.content: index for index, token in added.items()}
        self.control_ids: Mapping[str, int] = {token.content: index for index, token in added.items() if token.special}
        others = {text: index for text, index in self.added_ids.items() if text not in self.control_ids}
        self._plain = _proven_plain(tokenizer, self.added_ids, name)
        vocab = tokenizer.get_vocab()  # once only: some tokenizers compute it id by id
        self.parts = _parts(tokenizer, vocab, added, self._plain, name)
        self.vocab_size = 1 + max([*vocab.values(), *added])
        self._byte_cache = {index: text.encode() for text, index in self.added_ids.items()}
        self._split = SplitEncoder(name, self.control_ids, self.added_ids, self._encode_runs, cut_at=others)
        self._prove_bytes()
        self._prove_splitting()

    def encode_strings(self, texts: Texts, facts: Facts) -> Encoded:
        """Ids and attribution of many strings; see `PieceEncoder`."""
        return self._split.encode_strings(texts, facts)

    def token_bytes(self, ids: Sequence[int] | Ids) -> list[bytes]:
        """The UTF-8 bytes that each id encodes, of a control token its spelling; they may be a part of a character.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self._bytes_of(checked_ids(ids, self.vocab_size))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, control tokens spelled out.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return b"".join(self.token_bytes(ids)).decode("utf-8", "replace")

    def _encode_runs(self, runs: list[Run]) -> list[tuple[Ids, Positions]]:
        found = []
        for run in runs:
            ids = np.array(self._tokenizer.encode(run.text, **self._plain), np.int32)
            found.append((ids, starts_by_bytes(self._bytes_of(ids.tolist()), run, self.name)))
        return found

    def _bytes_of(self, ids: list[int]) -> list[bytes]:
        # Asked once for each id: some classes compute the bytes of an id in Python.
        new = [token for token in dict.fromkeys(ids) if token not in self._byte_cache]
        words = self._tokenizer.convert_ids_to_tokens(new) if new else []
        for token, word in zip(new, words, strict=True):
            self._byte_cache[token] = word if isinstance(word, bytes) else from_byte_alphabet(word or "")
        return [self._byte_cache[token] for token in ids]

    def _prove_bytes(self) -> None:
        """Refuse a tokenizer whose words are neither bytes nor written in GPT-2's byte alphabet, or that changes text.

        Raises:
            TokenizerError: with the first line of the probe text that does not come back.
        """
        for line in _LINES:
            found = b"".join(self._bytes_of(self._tokenizer.encode(line, **self._plain)))
            if found != line.encode():
                raise TokenizerError(
                    f"{self.name}: {line[:40]!r} comes back as {found.decode('utf-8', 'replace')[:40]!r}; expected the "
                    "bytes of its ids to be the text, without which the piece of a token is unknown. Use a tokenizer "
                    "with a tokenizer.json"
                )

    def _prove_splitting(self) -> None:
        """Refuse a tokenizer that gives a whole string other ids than its parts between special tokens.

        Raises:
            TokenizerError: with the first ids that differ.
        """
        spellings = list(self.added_ids) or [""]
        # Lines and spellings in turns, the shorter list again from its start: each spelling has text on both sides.
        count = max(len(_LINES), len(spellings))
        mixed = "".join(_LINES[i % len(_LINES)] + spellings[i % len(spellings)] for i in range(count))
        for text in (mixed, *_LINES, *spellings):
            expected = self._tokenizer.encode(text, **_OFFICIAL)
            found = self.encode_pieces([text], [True])[0].tolist()
            if found != expected:
                at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
                raise TokenizerError(
                    f"{self.name}: split at special tokens, {text[:40]!r} has other ids than as a whole (from token "
                    f"{at} on {found[at : at + 4]} instead of {expected[at : at + 4]}); expected the same. "
                    "Use a tokenizer with a tokenizer.json"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {"tokenizer": self._tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tokenizer"])  # type: ignore[misc]


def _proven_plain(tokenizer: PythonTokenizer, added: Mapping[str, int], name: str) -> dict[str, Any]:
    """The first options of `_PLAIN` with which `encode` keeps every added token's spelling as ordinary text.

    Raises:
        TokenizerError: with none of them; the message says what each did.
    """
    special, tried = set(added.values()), []
    # Joined, alone, inside a word and between spaces, since classes differ in where they look for special tokens.
    texts = ["".join(added), PROBE, *added, *(f"x{text}y" for text in added), *(f" {text} " for text in added)]
    for options in _PLAIN:
        try:
            forged = next((text for text in texts if not special.isdisjoint(tokenizer.encode(text, **options))), None)
        except (TypeError, ValueError) as error:  # an option that it does not know
            tried.append(f"with {options} it fails ({error})")
            continue
        if forged is None:
            return options
        tried.append(f"with {options} it still makes a special token of {forged[:40]!r}")
    raise TokenizerError(
        f"{name}: encode() makes special tokens of plain text, whatever the options: {'; '.join(tried)}. Expected "
        "one that honours one of these options; use a tokenizer with a tokenizer.json"
    )


def _parts(
    tokenizer: PythonTokenizer,
    vocab: Mapping[Any, int],
    added: Mapping[int, AddedToken],
    plain: Mapping[str, Any],
    name: str,
) -> HFTokenizer:
    """The tokenizer's files, in the form of a fast tokenizer's.

    The JSON, whose sha256 is the fingerprint, holds what determines the ids, as far as the object's methods show it:
    vocabulary and added tokens, and the ids of the probe text in place of merges and patterns, which they do not show.
    """
    words = {int(token): word.decode("latin-1") if isinstance(word, bytes) else word for word, token in vocab.items()}
    dump = {
        "model": {"type": type(tokenizer).__name__, "vocab": sorted(words.items())},
        "added_tokens": [
            {"id": index, "content": token.content, "special": token.special} for index, token in added.items()
        ],
        "probe": tokenizer.encode(PROBE, **plain),
    }
    data = json.dumps(dump, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
    config = {**tokenizer.special_tokens_map, "chat_template": tokenizer.chat_template}
    return hf_tokenizer_of(name, data, config, *stop_files(tokenizer))[0]
