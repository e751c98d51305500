"""Read a Hugging Face tokenizer: its JSON, its chat templates, its named special tokens, its stop ids.

Nothing is encoded here and no library is imported for a directory or a file: `load_hf` gives bytes and strings.
`description.py` says what the bytes mean for encoding pieces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import TokenizerError, shown, storage_errors

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
GENERATION_NAME = "generation_config.json"
MODEL_CONFIG_NAME = "config.json"
ENGINE_MARK = "niels_gpt_engine"  # the attribute of a tokenizer object that says with what it is to be encoded


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


def _from_path(path: Path) -> HFTokenizer:
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
    if beside.is_file():  # transformers writes templates here and prefers them to the config's
        config["chat_template"] = _read(beside).decode("utf-8")
    generation = folder / GENERATION_NAME
    held = assembled(str(path), _read(file), config, _read_object(generation))
    return replace(held, generate_stops=_generate_stops(generation, folder / MODEL_CONFIG_NAME))


def _generate_stops(generation: Path, model: Path) -> tuple[int, ...] | None:
    """See `HFTokenizer`; config.json counts only if it names any, for it may name them for its parts."""
    if generation.is_file():
        return _eos_ids(_read_object(generation), str(generation))
    return (_eos_ids(_read_object(model), str(model)) if model.is_file() else ()) or None


def _eos_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The eos_token_id of a config, a number or a list of them, ascending; empty where it names none."""
    listed = config.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise TokenizerError(f"{name}: eos_token_id is {shown(listed)}; expected an id, or a list of ids. Correct it")
    return tuple(sorted(set(ids)))


def _read(path: Path) -> bytes:
    with storage_errors("reading the tokenizer", path):
        return path.read_bytes()


def _read_object(path: Path) -> dict[str, Any]:
    return parsed(_read(path), str(path)) if path.is_file() else {}


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """The object that these bytes of JSON hold."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise TokenizerError(f"{name}: not JSON ({error}); expected an object. Download the file again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name}: found a JSON {type(value).__name__}; expected an object")
    return value


def assembled(name: str, data: bytes, config: Mapping[str, Any], generation: Mapping[str, Any]) -> HFTokenizer:
    """The parts, from a tokenizer.json's bytes and what tokenizer_config.json and generation_config.json say."""
    specials = {
        key: text for key, value in config.items() if key.endswith("_token") and (text := _text_of(value)) is not None
    }
    ids = {token["content"]: int(token["id"]) for token in added_tokens(parsed(data, name), name)}
    stops = set(_eos_ids(generation, f"{name}: {GENERATION_NAME}"))
    if "eos_token" in specials:
        if specials["eos_token"] not in ids:
            raise TokenizerError(
                f"{name}: eos_token is {specials['eos_token']!r}, which is no added token of {TOKENIZER_NAME}; "
                f"expected one of its added_tokens. Correct {CONFIG_NAME}"
            )
        stops.add(ids[specials["eos_token"]])
    templates = _templates(config.get("chat_template"), name)
    return HFTokenizer(name, data, templates, specials, tuple(sorted(stops)))


def _text_of(value: Any) -> str | None:
    """A special token's spelling: a string, `{"content": ...}`, an AddedToken (which prints as it), or unset."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return None if value is None or isinstance(value, bool) else str(value)


def _templates(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        return {str(key): str(text) for key, text in value.items()}
    if isinstance(value, list) and all(
        isinstance(entry, Mapping) and {"name", "template"} <= set(entry) for entry in value
    ):
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    raise TokenizerError(
        f"{name}: chat_template is a {type(value).__name__}; expected text or [{{name, template}}, ...]"
    )


def added_tokens(tokenizer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The added tokens of a parsed tokenizer.json."""
    added = tokenizer.get("added_tokens") or []
    if "model" not in tokenizer or not all({"id", "content"} <= set(token) for token in added):
        raise TokenizerError(f"{name}: no 'model', or added tokens without id; expected what `tokenizers` writes")
    return list(added)
