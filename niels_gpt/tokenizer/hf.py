"""Read a Hugging Face tokenizer: its JSON, its chat templates, its named special tokens, its stop ids.

Nothing is encoded here and no library is imported for a directory or a file: `load_hf` gives bytes and strings.
`description.py` says what the bytes mean for encoding pieces.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import TokenizerError, shown, storage_errors
from niels_gpt.tokenizer.checking import MOST_IDS, Checker, is_unicode

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
GENERATION_NAME = "generation_config.json"
MODEL_CONFIG_NAME = "config.json"
ENGINE_MARK = "niels_gpt_engine"  # the attribute of a tokenizer object that says with what it is to be encoded
_NAMED = frozenset(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
MOST_CONFIG_BYTES = 64 << 20
MOST_TOKENIZER_BYTES = 256 << 20  # Gemma's has 33 MiB; as Python objects it is some ten times as large


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

    `templates` is empty where there is none; `special_tokens` holds the named ones (`eos_token`, `bos_token`, ...);
    `stop_ids` are eos and what generation_config.json adds, ascending: where a client of an inference server stops.
    `generate_stops` are those at which transformers' `generate()` stops by itself: what generation_config.json names,
    or config.json where there is no such file; the tokenizer's eos does not count. `None` where neither file tells.
    """

    name: str
    json_bytes: bytes
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    stop_ids: tuple[int, ...]
    generate_stops: tuple[int, ...] | None = None

    @property
    def template(self) -> str | None:
        """The chat template that is used where none is named, or `None`."""
        return self.templates.get("default")

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of tokenizer.json's bytes, and of the template text where there is one."""
        prints = {"tokenizer": hashlib.sha256(self.json_bytes).hexdigest()}
        if self.template is not None:
            prints["template"] = hashlib.sha256(self.template.encode()).hexdigest()
        return prints


def load_hf(source: str | Path | RustTokenizer | FastTokenizer) -> HFTokenizer:
    """Read a tokenizer directory, a tokenizer.json, a `tokenizers.Tokenizer` or a transformers fast tokenizer.

    For objects the bytes are what the object itself writes (`to_str`), so their sha256 may differ from the file's.

    Raises:
        TokenizerError: a file is missing or is not what it should be, or the object is a slow tokenizer.
    """
    return read_hf(source)[0]


def read_hf(source: str | Path | RustTokenizer | FastTokenizer) -> tuple[HFTokenizer, dict[str, Any]]:
    """`load_hf`, and the parsed JSON: for a large vocabulary a hundred megabytes, to be let go of soon."""
    if isinstance(source, FastTokenizer):
        data = source.backend_tokenizer.to_str().encode()
        config = {**source.special_tokens_map, "chat_template": source.chat_template}
        return assembled(source.name_or_path or type(source).__name__, data, config, {})
    if isinstance(source, RustTokenizer):
        return assembled(type(source).__name__, source.to_str().encode(), {}, {})
    if not isinstance(source, str | Path):
        raise TokenizerError(
            f"found a {type(source).__name__}; expected a directory, a {TOKENIZER_NAME}, a tokenizers.Tokenizer or a "
            "transformers tokenizer with a backend_tokenizer (a slow tokenizer has none: save a fast one)"
        )
    return _from_path(Path(source))


def _from_path(path: Path) -> tuple[HFTokenizer, dict[str, Any]]:
    file = path / TOKENIZER_NAME if path.is_dir() else path
    if not file.is_file():
        found = ", ".join(sorted(entry.name for entry in path.iterdir())[:12]) if path.is_dir() else "nothing"
        raise TokenizerError(
            f"{path}: found {found or 'an empty directory'}; expected {TOKENIZER_NAME}. "
            "Give a tokenizer directory as save_pretrained() of a fast tokenizer writes it"
        )
    folder = file.parent
    config = _read_object(folder / CONFIG_NAME)
    beside = folder / TEMPLATE_NAME
    if is_there(beside):  # transformers writes templates here and prefers them to the config's
        config["chat_template"] = _read_text(beside)
    generation = folder / GENERATION_NAME
    held, data = assembled(str(path), _read(file, MOST_TOKENIZER_BYTES), config, _read_object(generation))
    return replace(held, generate_stops=_generate_stops(generation, folder / MODEL_CONFIG_NAME)), data


def _generate_stops(generation: Path, model: Path) -> tuple[int, ...] | None:
    """See `HFTokenizer`; config.json counts only if it names any, for it may name them for its parts."""
    if is_there(generation):
        return _eos_ids(_read_object(generation), str(generation))
    return _eos_ids(_read_object(model), str(model)) or None


def _eos_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The eos_token_id of a config, a number or a list of them, ascending; empty where it names none."""
    listed = config.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(type(token) is int and 0 <= token < MOST_IDS for token in ids):
        raise TokenizerError(f"{name}: eos_token_id is {shown(listed)}; expected an id, or a list of ids. Correct it")
    return tuple(sorted(set(ids)))


def is_there(path: Path) -> bool:
    """Whether a file that need not be there is there.

    Raises:
        TokenizerError: something else is there, a directory or a link to nothing. StorageError: it cannot be looked at.
    """
    with storage_errors("reading the tokenizer", path):
        if path.is_file():
            return True
        if not os.path.lexists(path):
            return False
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


def _read_text(path: Path) -> str:
    data = _read(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TokenizerError(
            f"{path}: line {line} is no UTF-8 (byte 0x{data[error.start]:02x} at byte {error.start}); expected a "
            "template as text. Save it as UTF-8"
        ) from error


def _read_object(path: Path) -> dict[str, Any]:
    return parsed(_read(path), str(path)) if is_there(path) else {}


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """The object that these bytes of JSON hold."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TokenizerError(f"{name}: not JSON ({why}); expected an object. Download the file again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name}: found a JSON {type(value).__name__}; expected an object")
    return value


def assembled(
    name: str, data: bytes, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[HFTokenizer, dict[str, Any]]:
    """The parts, from a tokenizer.json's bytes and what tokenizer_config.json and generation_config.json say.

    And what the bytes hold, parsed.
    """
    specials = {
        key: text
        for key, value in config.items()
        if key.endswith("_token") and (text := _text_of(key, value, name)) is not None
    }
    held = parsed(data, file_of(name))
    ids = {token["content"]: token["id"] for token in added_tokens(held, name)}
    stops = set(_eos_ids(generation, f"{name}: {GENERATION_NAME}"))
    if "eos_token" in specials:
        if specials["eos_token"] not in ids:
            raise TokenizerError(
                f"{name}: eos_token is {shown(specials['eos_token'])}, which is no added token of {TOKENIZER_NAME}; "
                f"expected one of its added_tokens. Correct {CONFIG_NAME}"
            )
        stops.add(ids[specials["eos_token"]])
    templates = _templates(config.get("chat_template"), name)
    return HFTokenizer(name, data, templates, specials, tuple(sorted(stops))), held


def file_of(name: str) -> str:
    """What errors call the tokenizer.json of a tokenizer."""
    return name if name.endswith(".json") else f"{name}: {TOKENIZER_NAME}"


def _text_of(key: str, value: Any, name: str) -> str | None:
    """A special token's spelling: a string, `{"content": ...}`, an AddedToken (which prints as it), or unset.

    Of other keys than the seven usual names, `add_bos_token` for one, what is no text is no token.
    """
    held = value.get("content") if isinstance(value, Mapping) else getattr(value, "content", value)
    if held is None or isinstance(held, bool) or (key not in _NAMED and not isinstance(held, str)):
        return None
    if not isinstance(held, str) or not is_unicode(held):
        raise TokenizerError(f"{name}: {key} is {shown(value)}; expected the token's text. Correct {CONFIG_NAME}")
    return held


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


def added_tokens(tokenizer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The added tokens of a parsed tokenizer.json, of which all that is read has been checked.

    Raises:
        TokenizerError: naming the field that is not as it should be.
    """
    Checker(file_of(name)).check(tokenizer)
    return list(tokenizer.get("added_tokens") or [])
