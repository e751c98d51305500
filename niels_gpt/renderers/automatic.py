"""What "auto" means for a tokenizer: the only place where that is decided."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from niels_gpt.renderers.families.all_families import FAMILIES
from niels_gpt.renderers.known_models import MODEL_RENDERER_MAP, MODEL_TYPES
from niels_gpt.renderers.template.known import TEMPLATE_FAMILIES, TEMPLATE_MODELS
from niels_gpt.store.files import read_file
from niels_gpt.tokenizer.hf import MODEL_CONFIG_NAME, TOKENIZER_NAME, parsed
from niels_gpt.tokenizer.load import is_sentencepiece

# "qwen3-8b" -> "Qwen/Qwen3-8B": a directory with a copy of a model usually has the model's name without its owner.
_HUB_NAMES = {name.partition("/")[2].casefold(): name for name in (*MODEL_RENDERER_MAP, *TEMPLATE_MODELS)}


@dataclass(frozen=True)
class AutomaticRenderer:
    """The renderer that "auto" chooses for one tokenizer.

    Attributes:
        renderer: the name of a family, or "template".
        reason: the evidence, as a phrase for one line of output.
        options: for the template of a known family, the parsers that read it.
        is_known: the model is registered, for a family or for its template; then the renderer itself refuses images.
    """

    renderer: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = False


def automatic_renderer(tokenizer: str | Path, added_tokens: Collection[str] | None = None) -> AutomaticRenderer:
    """The renderer of a tokenizer for which none was named: the only place where this is decided.

    A hub name must be an exact key of `MODEL_RENDERER_MAP`. A local directory must pass three checks, because a
    directory that was copied and changed may hold another format; one that fails any of them is rendered by its own
    chat template::

        ~/models/Qwen3-8B/                     the name of a known model, also as models--Qwen--Qwen3-8B/snapshots/*
            config.json     model_type qwen3   one of MODEL_TYPES["qwen3"]
            tokenizer.json  <|im_start|> ...   has every control token of the family

    Reads config.json and the added tokens of tokenizer.json, nothing else.

    Args:
        tokenizer: a directory, a file in it, or a hub name.
        added_tokens: spellings of the tokenizer's added tokens, where it is loaded already.

    Raises:
        TokenizerError: config.json or tokenizer.json is not JSON.
    """
    path = Path(tokenizer).expanduser()
    if not path.exists():
        family = MODEL_RENDERER_MAP.get(str(tokenizer))
        if family is not None:
            return AutomaticRenderer(family, f"the hub name {tokenizer} is registered for it", is_known=True)
        if str(tokenizer) in TEMPLATE_MODELS:
            return _known_template(str(tokenizer), f"the hub name {tokenizer}")
        return AutomaticRenderer("template", f"no family is registered for {tokenizer}")
    # From here on a local directory, for which a name proves nothing.
    folder = path.parent if path.is_file() else path
    if is_sentencepiece(path):
        return AutomaticRenderer("ngpt", f"{tokenizer} is a SentencePiece model with our sentinels")
    model = _model_of(folder)
    if model is None:
        return AutomaticRenderer(
            "template", f"the directory's name, {folder.name or folder}, is not that of a known model"
        )
    # Without the other checks: the template is read from the directory, and the name chooses only how completions are
    # read.
    if model in TEMPLATE_MODELS:
        return _known_template(model, f"the name of {model}")
    family = MODEL_RENDERER_MAP[model]
    model_type = _model_type(folder)
    if model_type not in MODEL_TYPES[family]:
        found = "no config.json says its model_type" if model_type is None else f"its model_type is {model_type!r}"
        return AutomaticRenderer("template", f"named like {model}, but {found}")
    added = _added_tokens(folder / TOKENIZER_NAME) if added_tokens is None else added_tokens
    # The tokens without which the family's renderer would refuse the tokenizer.
    controls = [*FAMILIES[family].controls, *FAMILIES[family].stops[:1]]
    missing = [text for text in controls if text not in added]
    if missing:
        return AutomaticRenderer("template", f"named like {model}, but its tokenizer has no {missing[0]}")
    evidence = f"named like {model}, model_type {model_type}, all control tokens of {family}"
    return AutomaticRenderer(family, evidence, is_known=True)


def _known_template(model: str, evidence: str) -> AutomaticRenderer:
    """A model's own template, with the parsers of its family."""
    family = TEMPLATE_FAMILIES[TEMPLATE_MODELS[model]]
    parsers = ", ".join(f"{name} {value}" for name, value in family.options.items())
    reason = f"{evidence} is registered for its chat template ({family.title}{', ' if parsers else ''}{parsers})"
    return AutomaticRenderer("template", reason, family.options, is_known=True)


def _model_of(folder: Path) -> str | None:
    """The known model whose name a directory has: its own name, or that of a snapshot in the hub's cache."""
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots":  # models--Qwen--Qwen3-8B/snapshots/<commit>
        name = resolved.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        return name if name in MODEL_RENDERER_MAP or name in TEMPLATE_MODELS else None
    return _HUB_NAMES.get(resolved.name.casefold())


def _model_type(folder: Path) -> str | None:
    file = folder / MODEL_CONFIG_NAME
    value = parsed(read_file(file), str(file)).get("model_type") if file.is_file() else None
    return value if isinstance(value, str) else None


_HEAD_BYTES = 1 << 20  # 5,000 added tokens; Llama 3 has 256


def _added_tokens(file: Path) -> set[str]:
    """The spellings of a tokenizer.json's added tokens.

    `tokenizers` writes them before the vocabulary, which is some hundred times as long, so the head is enough.
    """
    if not file.is_file():
        return set()
    with file.open("rb") as opened:
        head = opened.read(_HEAD_BYTES).decode("utf-8", "ignore")
    try:
        tokens, _ = json.JSONDecoder().raw_decode(head, head.index("[", head.index('"added_tokens"')))
    except (ValueError, RecursionError):  # not in the head, or cut there
        tokens = parsed(read_file(file), str(file)).get("added_tokens")
    if not isinstance(tokens, list):
        return set()
    return {str(token.get("content")) for token in tokens if isinstance(token, dict)}
