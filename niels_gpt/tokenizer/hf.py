"""Reads a Hugging Face tokenizer: its JSON, its chat templates, its named special tokens, its stop ids.

`read_hf` returns bytes and strings. Nothing is encoded here, and no library is imported for a directory or a file.
`description.py` interprets the bytes. `added_tokens` checks the values that decide how much memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from niels_gpt.errors import NielsError, TokenizerError, shown, storage_errors
from niels_gpt.store.files import json_bytes

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
GENERATION_NAME = "generation_config.json"
MODEL_CONFIG_NAME = "config.json"
ENGINE_MARK = "niels_gpt_engine"  # the attribute of a tokenizer object that says with what it is to be encoded
FOLDER_MARK = "niels_gpt_folder"  # and the one that says in which directory its files are
# The names that transformers reads. Other keys that end in _token may be switches, such as `add_bos_token`.
_NAMED = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
MOST_CONFIG_BYTES = 64 << 20
MOST_TOKENIZER_BYTES = 256 << 20  # Gemma's has 33 MiB; as Python objects it is some ten times as large

# Limits for the values in a tokenizer.json.
MOST_IDS: Final = 1 << 22  # the largest vocabularies known have some 300 000
LONGEST_ADDED: Final = 512  # characters
MOST_GROWTH: Final = 64  # how many bytes may replace one
DEEPEST: Final = 100  # normalizers in normalizers; `tokenizers` itself takes no more than 128


@runtime_checkable
class RustTokenizer(Protocol):
    """A `tokenizers.Tokenizer`, as far as it is read here."""

    def to_str(self) -> str: ...


@runtime_checkable
class FastTokenizer(Protocol):
    """A transformers tokenizer with a `tokenizers.Tokenizer` inside, as far as it is read here."""

    @property
    def backend_tokenizer(self) -> RustTokenizer: ...
    @property
    def chat_template(self) -> Any: ...
    @property
    def special_tokens_map(self) -> Mapping[str, Any]: ...
    @property
    def name_or_path(self) -> str: ...


@dataclass(frozen=True)
class HFTokenizer:
    """The parts of a Hugging Face tokenizer, as bytes and strings (picklable).

    Attributes:
        name: where it was loaded from, for errors.
        json_bytes: the tokenizer.json.
        templates: name -> chat template; empty if there is none.
        special_tokens: the named ones (`eos_token`, `bos_token`, ...) with their spellings.
        stop_ids: eos and the stop ids of generation_config.json, ascending: where a client of an inference server
            stops.
        generate_stops: the ids at which transformers' `generate()` stops without further arguments: those of
            generation_config.json, or of config.json if there is no such file; not the tokenizer's eos. `None` if
            neither file names any.
    """

    name: str
    json_bytes: bytes
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    stop_ids: tuple[int, ...]
    generate_stops: tuple[int, ...] | None = None

    @property
    def template(self) -> str | None:
        """The default chat template, or `None`."""
        return self.templates.get("default")

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of tokenizer.json's bytes, and of the template text where there is one."""
        prints = {"tokenizer": self._json_sha256}
        if self.template is not None:
            prints["template"] = hashlib.sha256(self.template.encode()).hexdigest()
        return prints

    @cached_property
    def _json_sha256(self) -> str:
        """Computed once: each test of an encoder against the protocol `PieceEncoder` reads all of its attributes."""
        return hashlib.sha256(self.json_bytes).hexdigest()


class FromParts:
    """The attributes of an encoder that follow from its tokenizer's files."""

    parts: HFTokenizer

    @property
    def name(self) -> str:
        """The hub name or path from which it was loaded."""
        return self.parts.name

    @property
    def template(self) -> str | None:
        """The chat template, or `None`."""
        return self.parts.template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens (`eos_token`, `bos_token`, ...)."""
        return self.parts.special_tokens

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """eos, and the stop ids of generation_config.json, where its directory is known."""
        return self.parts.stop_ids

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of the tokenizer (`tokenizer`) and of its chat template's text (`template`, if it has one).

        The first is of the bytes of tokenizer.json; of a Python tokenizer, of the vocabulary with the ids of a probe.
        """
        return self.parts.fingerprints


class TokenizerFiles(NamedTuple):
    """A tokenizer's directory as bytes; `None` where there is no such file.

    Attributes:
        name: what was asked for: the directory, or its tokenizer.json. folder: the directory.
        tokenizer, config, template, generation, model: tokenizer.json, tokenizer_config.json, chat_template.jinja,
            generation_config.json and the model's config.json.
    """

    name: str
    folder: str
    tokenizer: bytes
    config: bytes | None
    template: bytes | None
    generation: bytes | None
    model: bytes | None


def read_files(source: str | Path) -> TokenizerFiles:
    """Read a tokenizer directory or a tokenizer.json, and what stands beside it.

    Raises:
        TokenizerError: there is no tokenizer.json, or a file is none or too large. StorageError: it cannot be read.
    """
    path = Path(source)
    file = path / TOKENIZER_NAME if path.is_dir() else path
    if not file.is_file():
        found = ", ".join(sorted(entry.name for entry in path.iterdir())[:12]) if path.is_dir() else "nothing"
        raise TokenizerError(
            f"{path}: found {found or 'an empty directory'}; expected {TOKENIZER_NAME}. "
            "Give a tokenizer directory as save_pretrained() of a fast tokenizer writes it"
        )
    folder, names = file.parent, (CONFIG_NAME, TEMPLATE_NAME, GENERATION_NAME, MODEL_CONFIG_NAME)
    beside = [_optional(folder / name) for name in names]
    return TokenizerFiles(str(path), str(folder), _read(file, MOST_TOKENIZER_BYTES), *beside)


def read_hf(source: str | Path | TokenizerFiles | RustTokenizer | FastTokenizer) -> tuple[HFTokenizer, dict[str, Any]]:
    """Read a tokenizer directory, a tokenizer.json, a `tokenizers.Tokenizer` or a transformers fast tokenizer.

    For objects the bytes are those of the object's `to_str`, so their sha256 may differ from the file's.

    Returns:
        The tokenizer, and the parsed JSON; of a large vocabulary it takes a hundred megabytes, so release it soon.

    Raises:
        TokenizerError: a file is missing or malformed, or the object is a Python tokenizer.
    """
    if isinstance(source, FastTokenizer):
        data = source.backend_tokenizer.to_str().encode()
        config = {**source.special_tokens_map, "chat_template": source.chat_template}
        return hf_tokenizer_of(source.name_or_path or type(source).__name__, data, config, *stop_files(source))
    if isinstance(source, RustTokenizer):
        return hf_tokenizer_of(type(source).__name__, source.to_str().encode(), {})
    if not isinstance(source, str | Path | TokenizerFiles):
        raise TokenizerError(
            f"found a {type(source).__name__}; expected a directory, a {TOKENIZER_NAME}, a tokenizers.Tokenizer or a "
            "transformers tokenizer with a backend_tokenizer (a slow tokenizer has none: save a fast one)"
        )
    files = source if isinstance(source, TokenizerFiles) else read_files(source)
    found = {} if files.config is None else parsed(files.config, str(Path(files.folder, CONFIG_NAME)))
    if files.template is not None:  # transformers writes templates here and prefers them to the config's
        found["chat_template"] = _text(files.template, Path(files.folder, TEMPLATE_NAME))
    return hf_tokenizer_of(files.name, files.tokenizer, found, files.generation, files.model)


def stop_files(source: FastTokenizer | Any) -> tuple[bytes | None, bytes | None]:
    """generation_config.json and config.json of a tokenizer object, whose directory `load_hf_tokenizer` notes.

    Of a local one transformers knows the directory.
    """
    folder = getattr(source, FOLDER_MARK, "") or source.name_or_path
    if not folder or not Path(folder).is_dir():
        return None, None
    return _optional(Path(folder, GENERATION_NAME)), _optional(Path(folder, MODEL_CONFIG_NAME))


def _eos_ids(config: bytes, name: str) -> tuple[int, ...]:
    """The eos_token_id of a config, a number or a list of numbers, ascending; empty if there is none."""
    listed = parsed(config, name).get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(type(token) is int and 0 <= token < MOST_IDS for token in ids):
        raise TokenizerError(f"{name}: eos_token_id is {shown(listed)}; expected an id, or a list of ids. Correct it")
    return tuple(sorted(set(ids)))


def _optional(path: Path) -> bytes | None:
    """The bytes of a file, or `None` if there is none.

    Raises:
        TokenizerError: it is a directory or a broken link. StorageError: it cannot be examined.
    """
    with storage_errors("reading the tokenizer", path):
        if path.is_file():
            return _read(path)
        if not os.path.lexists(path):
            return None
    found = "a link to nothing" if not path.exists() else "a directory" if path.is_dir() else "no regular file"
    raise TokenizerError(f"{path}: found {found}; expected a file. Remove it, or download the tokenizer again")


def _read(path: Path, most: int = MOST_CONFIG_BYTES) -> bytes:
    with storage_errors("reading the tokenizer", path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TokenizerError(
            f"{path}: more than {most >> 20} MiB; expected a file of a tokenizer, which is never so large. "
            "Is this the right file?"
        )
    return data


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TokenizerError(
            f"{path}: line {line} is no UTF-8 (byte 0x{data[error.start]:02x} at byte {error.start}); expected a "
            "template as text. Save it as UTF-8"
        ) from error


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """The object in these bytes of JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TokenizerError(f"{name}: not JSON ({why}); expected an object. Download the file again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name}: found a JSON {type(value).__name__}; expected an object")
    return value


def hf_tokenizer_of(
    name: str, data: bytes, config: Mapping[str, Any], generation: bytes | None = None, model: bytes | None = None
) -> tuple[HFTokenizer, dict[str, Any]]:
    """`(parts, parsed JSON)` of a tokenizer.

    Args:
        data: the bytes of tokenizer.json.
        config: the object in tokenizer_config.json.
        generation, model: generation_config.json and the model's config.json, which name stop ids.

    Raises:
        TokenizerError: a field is malformed, or eos_token is not an added token.
    """
    specials = {
        key: text
        for key, value in config.items()
        if key.endswith("_token") and (text := _text_of(key, value, name)) is not None
    }
    json_data = parsed(data, file_of(name))
    ids = {token["content"]: token["id"] for token in added_tokens(json_data, name)}
    stops = set[int]()
    generate_stops: tuple[int, ...] | None = None
    if generation is not None:
        generate_stops = _eos_ids(generation, f"{name}: {GENERATION_NAME}")
        stops = set(generate_stops)
    elif model is not None:  # one without stop ids counts as unknown: multimodal models name them in a part of it
        generate_stops = _eos_ids(model, f"{name}: {MODEL_CONFIG_NAME}") or None
    if "eos_token" in specials:
        # Without an id of its own nothing could stop at it.
        if specials["eos_token"] not in ids:
            raise TokenizerError(
                f"{name}: eos_token is {shown(specials['eos_token'])}, which is no added token of {TOKENIZER_NAME}; "
                f"expected one of its added_tokens. Correct {CONFIG_NAME}"
            )
        stops.add(ids[specials["eos_token"]])
    templates = _templates(config.get("chat_template"), name)
    return HFTokenizer(name, data, templates, specials, tuple(sorted(stops)), generate_stops), json_data


def saved_files(parts: HFTokenizer) -> dict[str, bytes]:
    """File name -> content of a directory that is read as the same tokenizer, tokenizer.json first."""
    config: dict[str, Any] = dict(parts.special_tokens)
    if parts.templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in parts.templates.items()]
    files = {TOKENIZER_NAME: parts.json_bytes, CONFIG_NAME: json_bytes(config)}
    if parts.stop_ids:
        # The ids of generate() where they are known: eos is read from the config again, and added to them.
        files[GENERATION_NAME] = json_bytes({"eos_token_id": list(parts.generate_stops or parts.stop_ids)})
    return files


def file_of(name: str) -> str:
    """The name by which errors call the tokenizer.json of a tokenizer."""
    return name if name.endswith(".json") else f"{name}: {TOKENIZER_NAME}"


def _text_of(key: str, value: Any, name: str) -> str | None:
    """A special token's spelling, from a string, `{"content": ...}` or an AddedToken; `None` if it is unset.

    Keys other than the seven usual names, such as `add_bos_token`, may have values that are not tokens.
    """
    text = value.get("content") if isinstance(value, Mapping) else getattr(value, "content", value)
    if text is None or isinstance(text, bool) or (key not in _NAMED and not isinstance(text, str)):
        return None
    if not isinstance(text, str) or not is_unicode(text):
        raise TokenizerError(f"{name}: {key} is {shown(value)}; expected the token's text. Correct {CONFIG_NAME}")
    return text


def _templates(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    found: list[tuple[Any, Any]] = [("", None)]  # anything else is refused
    if isinstance(value, str):
        found = [("default", value)]
    elif isinstance(value, Mapping):
        found = list(value.items())
    elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        found = [(entry.get("name"), entry.get("template")) for entry in value]
    for key, text in found:
        if not isinstance(key, str) or not isinstance(text, str) or not is_unicode(text):
            raise TokenizerError(
                f"{name}: chat_template is {shown(value)}; expected text or [{{name, template}}, ...], all of them "
                f"texts. Correct {CONFIG_NAME}"
            )
    return dict(found)


# ---- checks of a tokenizer.json


@contextmanager
def malformed(name: str) -> Iterator[None]:
    """Convert what reading JSON of another shape raises inside the block to a `TokenizerError`.

    Args:
        name: what errors call the file.
    """
    try:
        yield
    except NielsError:  # some are ValueErrors
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TokenizerError(
            f"{name}: its fields are not those that `tokenizers` writes ({type(error).__name__}: {shown(str(error))}). "
            "Download the file again, or save it anew with save_pretrained()"
        ) from error


def added_tokens(tokenizer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The added tokens of a parsed tokenizer.json, after the values that decide how much memory is taken were checked.

    `tokenizers` checks its own types when it loads a file, but sizes follow from the file's values: an id of 2^31 asks
    for arrays of 16 GiB, and ten replacements of one letter by ten make ten billion of it.

    Raises:
        TokenizerError: a field is malformed.
    """
    file = file_of(name)
    with malformed(file):
        vocab, added = tokenizer["model"].get("vocab", {}), list(tokenizer.get("added_tokens") or [])
        ids = [*(range(len(vocab)) if isinstance(vocab, list) else vocab.values()), *(token["id"] for token in added)]
        # `type`, because `True` is an int as well. Whole sets, because a loop over 150 000 ids takes noticeable time.
        if ids and not (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < MOST_IDS):
            wrong = next(token for token in ids if type(token) is not int or not 0 <= token < MOST_IDS)
            raise TokenizerError(f"{file}: an id is {shown(wrong)}; expected a number from 0 to {MOST_IDS - 1:,}")
        for token in added:
            text = token["content"]
            # An empty spelling would be found at every place of a text.
            if not isinstance(text, str) or not 0 < len(text) <= LONGEST_ADDED or not is_unicode(text):
                raise TokenizerError(
                    f"{file}: the content of an added token is {shown(text)}; expected a text of 1 to {LONGEST_ADDED} "
                    "characters of Unicode"
                )
        for field in ("normalizer", "pre_tokenizer", "decoder"):
            if (growth := _growth(tokenizer.get(field), 0)) > MOST_GROWTH:
                raise TokenizerError(
                    f"{file}: {field} makes {growth:,} bytes of one letter; expected at most {MOST_GROWTH}"
                )
    return added


def _growth(part: Any, depth: int) -> int:
    """How many bytes a normalizer, pre-tokenizer or decoder may write for one: those of its steps, multiplied."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} steps within steps")
    if part is None:
        return 1
    if part["type"] == "Replace":
        return max(1, len(part["content"].encode("utf-8", "surrogatepass")))
    inner = (part.get(key) or [] for key in ("normalizers", "pretokenizers", "decoders"))
    return prod(_growth(step, depth + 1) for step in chain.from_iterable(inner))


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it contains no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
