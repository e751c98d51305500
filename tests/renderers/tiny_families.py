"""For every family a tiny tokenizer with the family's own tokens, trained in the test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.registry import FAMILIES, config_of
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer import train_tokenizer

TEXTS = (
    "user\nhello assistant\n\nhello world system\nYou are tool\n the quick brown fox jumps over the lazy dog\n",
    "def f(x):\n    return x + 1\n\n\n{'a': 12345, 'b': [1, 2, 3]}\n",
    'Größe café Русский 中文字符 हिन्दी 🤖 👩‍👩‍👧 e\u0301 …\n{"name": "get_weather", "arguments": {"city": "x"}}\n',
    "\n\n# Tools\n\nYou may call one or more functions. ## Return of call_1\nok.\n>\n\n<\n",
)


@dataclass(frozen=True)
class Tokens:
    """The tokens that a family's tokenizer has beside text.

    Attributes:
        controls: `special: true`; the first is the eos token.
        added: added tokens that are no control tokens.
        form: how the tokenizer normalises text.
        call: what a tool call is opened and closed with.
        reasons: the format has a place for reasoning.
    """

    controls: tuple[str, ...]
    added: tuple[str, ...] = ()
    form: str | None = None
    call: tuple[str, str] = ("<tool_call>", "</tool_call>")
    reasons: bool = True


_GLM = Tokens(
    controls=(
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"),
        *("<|assistant|>", "<|observation|>", "<|begin_of_image|>", "/nothink"),
    ),
    added=(
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|begin_of_box|>", "<|end_of_box|>"),
    ),
)
TOKENS: dict[str, Tokens] = {
    "qwen3": Tokens(
        controls=("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|image_pad|>"),
        added=(
            "<tool_call>",
            "</tool_call>",
            "<|fim_pad|>",
            "<tool_response>",
            "</tool_response>",
            "<think>",
            "</think>",
        ),
        form="NFC",
    ),
    "glm-4.5": _GLM,
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "kimi-k2": Tokens(
        controls=(
            *("<|im_end|>", "[BOS]", "[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *("[EOT]", "<|media_pad|>", "[PAD]"),
        ),
        added=(
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
        ),
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        reasons=False,
    ),
}


def byte_level(tokens: Tokens, *, split: bool = True) -> Tokenizer:
    """Byte-level BPE with these tokens; without `split`, merges go over any seam."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    tokenizer.decoder = decoders.ByteLevel()
    if tokens.form:
        tokenizer.normalizer = getattr(normalizers, tokens.form)()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(tokens.controls),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS] * 20, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in tokens.added])
    return tokenizer


@cache
def folder_of(family: str, *, split: bool = True) -> Path:
    """A directory with the family's tiny tokenizer."""
    import json

    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{family}-"))
    if family == "ngpt":
        train_tokenizer([chats_file(), notes_dir()], folder / "spm", vocab_size=2000)
        return folder / "spm"
    tokens = TOKENS[family]
    byte_level(tokens, split=split).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": tokens.controls[0]}), encoding="utf-8")
    return folder


@cache
def renderer_of(family: str, *options: tuple[str, Any], split: bool = True) -> Family:
    """A renderer of a family; tests share it: `renderer_of("qwen3", ("enable_thinking", False))`."""
    config: Any = config_of({"name": family, **dict(options)})
    return FAMILIES[family](folder_of(family, split=split), config)


def variants(family: str) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The options to test a family with: the defaults, each switch turned, and all switches turned."""
    switches = [
        (name, not field.default)
        for name, field in FAMILIES[family].config_class.model_fields.items()
        if isinstance(field.default, bool)
    ]
    yield ()
    yield from ((switch,) for switch in switches)
    yield tuple(switches)


CASES = [(family, options) for family in FAMILIES for options in variants(family)]
CASE_IDS = [f"{family}-{'+'.join(name for name, _ in options) or 'defaults'}" for family, options in CASES]
