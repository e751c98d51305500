"""Every chat template of the assets, over one tiny tokenizer that has all control tokens that they write."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from tests.assets import ASSETS, FOLDERS
from tests.folders import shared_folder
from tests.memory import shared
from tests.renderers.tiny_families import Tokens, byte_level

SOURCES = {f"{path.parent.name}/{path.stem}": path for path in sorted(ASSETS.glob("templates*/*.jinja"))}
SOURCES |= {folder.name: folder for folder in FOLDERS}  # a model's own, which come with its tokenizer
VARIABLES = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
_SPELLINGS = re.compile(
    r"<\|[^|<>{}'\"\s]{1,40}\|>|<｜[^｜<>{}'\"]{1,40}｜>|\[/?[A-Z_]{2,30}\]|</?[a-z]+_of_[a-z_]+>|\[\|?[a-z]+\|?\]"
)
# Those that templates write of a role and a few characters, and some that are not written out in them.
_MORE = (
    *("<|im_end|>", "<|im_start|>", "<s>", "</s>", "<bos>", "<eos>", "<|endoftext|>", "[e~[", "]~b]", "[BOS]"),
    *(f"<|{word}|>" for word in ("system", "user", "assistant", "tool", "end", "eot_id", "im_sep", "return")),
    *(f"<|{word}_TOKEN|>" for word in ("START_OF_TURN", "END_OF_TURN", "USER", "CHATBOT", "SYSTEM")),
)


@cache
def source_of(name: str) -> str:
    path = SOURCES[name]
    if path.is_file():
        return path.read_text(encoding="utf-8")
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return str(json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"])


@cache
def controls() -> tuple[str, ...]:
    """The spellings that some template writes; `<|im_end|>` is the first."""
    found = {spelling for name in SOURCES for spelling in _SPELLINGS.findall(source_of(name))}
    return ("<|im_end|>", *sorted({*found, *_MORE} - {"<|im_end|>"}))


@shared
def encoder() -> Any:
    folder = shared_folder("tiny-every-")
    byte_level(Tokens(controls=controls(), added=("<think>", "</think>"))).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8")
    return open_encoder(folder)


@shared
def renderer_of(name: str) -> TemplateRenderer:
    return TemplateRenderer(encoder(), template=source_of(name), clock=lambda form: "2026-01-01", **VARIABLES)
