"""Read a Hugging Face tokenizer: its JSON, its chat templates, its named special tokens, its stop ids.

Nothing is encoded here and no library is imported for a directory or a file: `load_hf` gives bytes and strings, and
`read_description` says what the bytes mean for encoding pieces (DESIGN §2.1). `encoder.py` does the encoding.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, storage_errors

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
GENERATION_NAME = "generation_config.json"

_SPACE_MARK = "\u2581"
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Flags with which a control token depends on, or swallows, the text around it.
_FLAGS = ("lstrip", "rstrip", "single_word")


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
    `stop_ids` are eos and what generation_config.json adds, ascending.
    """

    name: str
    json_bytes: bytes
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    stop_ids: tuple[int, ...]

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
        return _assembled(source.name_or_path or type(source).__name__, data, config, {})
    if isinstance(source, RustTokenizer):
        return _assembled(type(source).__name__, source.to_str().encode(), {}, {})
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
    return _assembled(str(path), _read(file), config, _read_object(folder / GENERATION_NAME))


def _read(path: Path) -> bytes:
    with storage_errors("reading the tokenizer", path):
        return path.read_bytes()


def _read_object(path: Path) -> dict[str, Any]:
    return _parsed(_read(path), str(path)) if path.is_file() else {}


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise TokenizerError(f"{name}: not JSON ({error}); expected an object. Download the file again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name}: found a JSON {type(value).__name__}; expected an object")
    return value


def _assembled(name: str, data: bytes, config: Mapping[str, Any], generation: Mapping[str, Any]) -> HFTokenizer:
    specials = {
        key: text for key, value in config.items() if key.endswith("_token") and (text := _text_of(value)) is not None
    }
    ids = {token["content"]: int(token["id"]) for token in _added(_parsed(data, name), name)}
    listed = generation.get("eos_token_id")
    stops = {int(token) for token in (listed if isinstance(listed, list) else [listed]) if token is not None}
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


def _added(tokenizer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    added = tokenizer.get("added_tokens") or []
    if "model" not in tokenizer or not all({"id", "content"} <= set(token) for token in added):
        raise TokenizerError(f"{name}: no 'model', or added tokens without id; expected what `tokenizers` writes")
    return list(added)


@dataclass(frozen=True)
class Description:
    """What a tokenizer.json means for encoding pieces.

    Attributes:
        vocab_size: largest id + 1.
        control_ids: spelling -> id of the added tokens with special: true.
        competitors: other added tokens whose spelling overlaps a control token's, so that they compete for characters.
        body: the JSON without control tokens, for a text at the very beginning of the string.
        rest: the same for texts further on; other bytes than `body` only where Metaspace's prepend_scheme is "first".
        whole: the JSON with control tokens, as the official tokenizer without post-processor, truncation and padding.
        uncuttable: why cutting at control tokens would change ids, or `None`.
        byte_lengths: int64 (vocab_size,), bytes of text a token stands for, or `None` where ids do not tell.
        form: the Unicode form to which the normalizer brings text, or `None`; lengths count for such text only.
    """

    vocab_size: int
    control_ids: dict[str, int]
    competitors: tuple[str, ...]
    body: bytes
    rest: bytes
    whole: bytes
    uncuttable: str | None
    byte_lengths: npt.NDArray[np.int64] | None
    form: str | None


def read_description(parts: HFTokenizer) -> Description:
    """Read what the JSON says.

    Raises:
        TokenizerError: the model drops merges at random, or is not one that `tokenizers` writes.
    """
    data = _parsed(parts.json_bytes, parts.name)
    added = _added(data, parts.name)
    if data["model"].get("dropout"):
        raise TokenizerError(
            f"{parts.name}: model.dropout is {data['model']['dropout']}, so ids are random; expected null. Remove it"
        )
    # The post-processor adds bos and trims offsets; neither belongs to the text. Truncation would lose text.
    data |= {"post_processor": None, "truncation": None, "padding": None}
    whole = _dumped(data)
    controls = [token for token in added if token.get("special")]
    others = [token for token in added if not token.get("special")]
    body = {**data, "added_tokens": others, "model": _with_words(data["model"], others)}
    vocab = _words(data["model"])
    return Description(
        vocab_size=1 + max([*vocab.values(), *(int(token["id"]) for token in added)], default=-1),
        control_ids={token["content"]: int(token["id"]) for token in controls},
        competitors=_competitors([t["content"] for t in controls], [t["content"] for t in others]),
        body=_dumped(body),
        rest=_dumped(_never_prepending(body)),
        whole=whole,
        uncuttable=_uncuttable(data, controls, others),
        byte_lengths=_byte_lengths(data, vocab, others),
        form=_form(data["normalizer"])[1],
    )


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
    inside = {tail[:stop] for tail in tails for stop in range(1, len(tail) + 1)}
    for text in others:
        ends = any(text[start:] in heads for start in range(len(text)))
        starts = any(text[:stop] in tails for stop in range(1, len(text) + 1))
        if ends or starts or text in inside or any(control in text for control in controls):
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


def _byte_lengths(
    data: dict[str, Any], vocab: Mapping[str, int], others: list[dict[str, Any]]
) -> npt.NDArray[np.int64] | None:
    """How many bytes of text each id stands for, never more than it really does.

    No entry is too large (an unknown token counts 0), so lengths that add up to the text's bytes are all exact.
    """
    kind, _ = _form(data["normalizer"])
    steps, model = _steps(data["pre_tokenizer"]), data["model"]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]
    if model.get("type") != "BPE" or affixes or any(step["type"] == "Metaspace" for step in steps):
        return None
    if kind == "plain" and byte_level and not any(step.get("add_prefix_space", True) for step in byte_level):
        measure = _byte_level_length
    elif kind == "spaces" and not byte_level and model.get("byte_fallback"):
        measure = _spaced_length
    else:
        return None
    words = {**{token["content"]: int(token["id"]) for token in others}, **vocab}
    lengths = np.zeros(1 + max([*words.values(), *(int(token["id"]) for token in data["added_tokens"])]), np.int64)
    lengths[np.fromiter(words.values(), np.int64, len(words))] = np.fromiter(map(measure, words), np.int64, len(words))
    if model.get("unk_token") in words:
        lengths[words[model["unk_token"]]] = 0
    return lengths


def _byte_alphabet() -> frozenset[str]:
    """GPT-2's 256 characters that stand for one byte each: printable Latin-1, and U+0100... for the others."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return frozenset(map(chr, [*printable, *range(256, 256 + 256 - len(printable))]))


_ALPHABET = _byte_alphabet()


def _byte_level_length(word: str) -> int:
    return len(word) if _ALPHABET.issuperset(word) else len(word.encode("utf-8", "surrogatepass"))


def _spaced_length(word: str) -> int:
    if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
        return 1
    return len(word.replace(_SPACE_MARK, " ").encode("utf-8", "surrogatepass"))
