"""For every family a tiny tokenizer with the family's own tokens, trained in the test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer import train_tokenizer
from tests.folders import shared_folder
from tests.memory import shared

TEXTS = (
    "user\nhello assistant\n\nhello world system\nYou are tool\n the quick brown fox jumps over the lazy dog\n",
    "def f(x):\n    return x + 1\n\n\n{'a': 12345, 'b': [1, 2, 3]}\n",
    'Größe café Русский 中文字符 हिन्दी 🤖 👩‍👩‍👧 e\u0301 …\n{"name": "get_weather", "arguments": {"city": "x"}}\n',
    "\n\n# Tools\n\nYou may call one or more functions. ## Return of call_1\nok.\n>\n\n<\n",
)


@dataclass(frozen=True)
class Tokens:
    """The added tokens of a family's tokenizer, and what tests must expect of its format.

    Attributes:
        controls: `special: true`; the first is the eos token.
        added: added tokens that are no control tokens.
        form: how the tokenizer normalises text.
        call: what a tool call is opened and closed with.
        headed: the span of a call begins with a header, before what it is opened with.
        reasons: the format has a place for reasoning.
        keeps: its template keeps reasoning in history.
        late_system: it has a place for system messages after the first.
        holds: what of `Wanted` its conversations may hold, where that is not everything.
        moves: a text is written before the last user's turn only, so it moves when a user is added.
        opens_block: the generation prompt opens a think block, and a turn without reasoning is written without one.
        only_last: reasoning is written in the last message alone, so a tool's result takes it out of what was served.
        empties: the think block of an answer is empty as soon as it is written: only calls keep their reasoning.
        content_as_reasoning: a text in a message with a call is written where reasoning is.
        day: the option for the date, as 2026-01-01, for templates that always write one.
    """

    controls: tuple[str, ...]
    added: tuple[str, ...] = ()
    form: str | None = None
    call: tuple[str, str] = ("<tool_call>", "</tool_call>")
    headed: bool = False
    reasons: bool = True
    keeps: bool = False
    late_system: bool = True
    holds: Mapping[str, Any] = field(default_factory=dict)
    opens_block: bool = False
    only_last: bool = False
    empties: bool = False
    content_as_reasoning: bool = False
    day: str = ""
    moves: bool = False


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
_KIMI = Tokens(
    controls=(
        *("<|im_end|>", "[BOS]", "[EOS]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        *("[EOT]", "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", "[PAD]"),
    ),
    added=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
    ),
    call=("<|tool_call_begin|>", "<|tool_call_end|>"),
)
_DEEPSEEK = Tokens(
    controls=("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<|EOT|>"),
    added=(
        *("<｜User｜>", "<｜Assistant｜>", "<｜fim▁hole｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"),
    ),
    call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    late_system=False,
)
_R1 = replace(_DEEPSEEK, added=(*_DEEPSEEK.added, "<think>", "</think>"), opens_block=True, only_last=True)
_R1_TEXTS = replace(
    _R1,
    added=("<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>"),
    controls=("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    holds={"tools": False},
)
_V4 = Tokens(
    controls=("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>"),
    added=("<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<｜latest_reminder｜>", "<think>", "</think>", "｜DSML｜"),
    call=('<｜DSML｜invoke name="', "</｜DSML｜invoke>"),
    holds={"inline": False, "parts": False},  # think tags in a content stay there; parts are a blank line apart
    late_system=False,
)
_KIMI_THINKING = replace(_KIMI, holds={"inline": False}, empties=True)  # think tags in contents stay
_TURNS = {"loose": False, "user_first": True, "late_system": False}  # users and assistants take turns
_TEXTS = {"tools": False, "reasoning": False}  # no place for anything but texts


_TEKKEN = Tokens(
    controls=(
        *("</s>", "<s>", "<unk>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[CALL_ID]"),
        *("[ARGS]", "[THINK]", "[/THINK]", "[IMG]", "[PREFIX]"),
    ),
    call=("", ""),
    reasons=False,
    holds=_TURNS | {"call_id": lambda name, number: f"{name[:3]}{number:06d}"},
    moves=True,
    late_system=False,
)
_LLAMA = Tokens(
    controls=(
        *("<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        *("<|eom_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>"),
    ),
    call=("", ""),
    reasons=False,
    holds={"beside": False, "one_call": True, "user_first": True},
)
_QWEN35 = Tokens(
    controls=("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    added=(
        *("<tool_call>", "</tool_call>", "<|fim_pad|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    ),
    form="NFC",
    late_system=False,
)
_NEMOTRON = Tokens(
    controls=("<|im_end|>", "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<|im_start|>"),
    added=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
TOKENS: dict[str, Tokens] = {
    "qwen2.5": Tokens(
        controls=("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|image_pad|>"),
        added=("<tool_call>", "</tool_call>", "<|fim_pad|>"),
        form="NFC",
        reasons=False,
    ),
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
    "qwen3-vl": Tokens(
        controls=(
            *("<|im_end|>", "<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
            "<|video_pad|>",
        ),
        added=("<tool_call>", "</tool_call>", "<|fim_pad|>", "<tool_response>", "</tool_response>"),
        form="NFC",
        reasons=False,
        late_system=False,
    ),
    "qwen3.5": _QWEN35,
    "qwen3.6": _QWEN35,
    "qwen3.8": replace(_QWEN35, keeps=True, holds={"inline": False}),
    "deepseek-v3": replace(_DEEPSEEK, reasons=False),
    "deepseek-r1": _R1,
    "deepseek-r1-0528": replace(_R1, opens_block=False),
    "deepseek-r1-distill": _R1_TEXTS,
    "deepseek-v3.1": replace(_R1, opens_block=False),
    "deepseek-v4": _V4,
    "deepseek-v4-preview": _V4,
    "deepseek-v4.1": replace(_V4, call=('<｜DSML｜ invoke name="', "</｜DSML｜ invoke>"), late_system=True),
    "glm-4.5": _GLM,
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "glm-5.2": _GLM,
    "glm-5.3": replace(_GLM, keeps=True),
    "kimi-k2": replace(_KIMI, reasons=False),
    "kimi-k2-thinking": _KIMI_THINKING,
    "kimi-k2.5": _KIMI_THINKING,
    "llama-3": _LLAMA,
    "llama-3.0": replace(_LLAMA, holds=_TEXTS),
    "gemma": Tokens(
        controls=("<end_of_turn>", "<eos>", "<bos>", "<start_of_turn>", "<pad>", "<start_of_image>"),
        added=("<unused0>", "[multimodal]"),
        reasons=False,
        holds=_TEXTS | _TURNS | {"parts": False},  # white space goes from the ends of each
    ),
    "mistral": Tokens(
        controls=(
            *("</s>", "<s>", "<unk>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        call=("", ""),
        reasons=False,
        holds=_TURNS | {"beside": False, "call_id": lambda name, number: f"{name[:3]}{number:06d}"},
        moves=True,
    ),
    "mistral-v7": _TEKKEN,
    "mistral-v11": _TEKKEN,
    "mistral-v13": replace(
        _TEKKEN,
        reasons=True,
        keeps=True,
        moves=False,
        holds=_TURNS | {"inline": False},
    ),
    "raw": Tokens(controls=("<|endoftext|>",), reasons=False, holds=_TEXTS | {"spaces": False}),
    "laguna-xs.2": Tokens(
        controls=("〈|EOS|〉", "〈|UNK|〉", "〈|PAD|〉", "〈|CODE_START|〉"),
        added=("<think>", "</think>", "<tool_call>", "</tool_call>", "<assistant>", "</assistant>"),
        form="NFC",
        keeps=True,
    ),
    "gpt-oss": Tokens(
        controls=(
            *("<|return|>", "<|startoftext|>", "<|endoftext|>", "<|constrain|>", "<|channel|>", "<|start|>"),
            *("<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"),
        ),
        call=(" to=", "<|call|>"),
        headed=True,
        late_system=False,
        # Think tags in a content stay there; a text beside a call of an earlier turn is not written again.
        holds={"inline": False, "one_call": True, "both": False, "beside": False},
        content_as_reasoning=True,
        day="conversation_start_date",
    ),
    "inkling": Tokens(
        controls=(
            *("<|content_model_end_sampling|>", "<|endoftext|>", "<|message_user|>", "<|message_model|>"),
            *("<|message_system|>", "<|message_tool|>", "<|content_text|>", "<|content_thinking|>"),
            *("<|end_message|>", "<|content_xml|>", "<|content_invoke_tool_json|>", "<|content_image|>"),
        ),
        call=("", "<|end_message|>"),
        keeps=True,
        holds={"inline": False, "parts": False},  # think tags in a content stay there, each part is a message
    ),
    "minimax-m2": Tokens(
        controls=("[e~[", "]~!b[", "]~b]", "]!d~[", "<fim_prefix>", "<filename>", "]<]image[>["),
        added=("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
        call=('<invoke name="', "</invoke>"),
        late_system=False,
        opens_block=True,
    ),
    "nemotron-3": _NEMOTRON,
    "nemotron-3-ultra": _NEMOTRON,
    "chatml": Tokens(
        controls=("<|im_end|>", "<|im_start|>"), reasons=False, holds={"tools": False, "reasoning": False}
    ),
}


def byte_level(tokens: Tokens, *, split: bool = True, texts: Sequence[str] = TEXTS) -> Tokenizer:
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
    tokenizer.train_from_iterator([*texts] * 20, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in tokens.added])
    return tokenizer


@cache
def folder_of(family: str, *, split: bool = True, texts: Sequence[str] = TEXTS) -> Path:
    """A directory with the family's tiny tokenizer, trained on the texts (a tuple)."""
    folder = shared_folder(f"tiny-{family}-")
    if family == "ngpt":
        train_tokenizer([chats_file(), notes_dir()], folder / "spm", vocab_size=2000)
        return folder / "spm"
    tokens = TOKENS[family]
    byte_level(tokens, split=split, texts=texts).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": tokens.controls[0]}), encoding="utf-8")
    return folder


@partial(shared, most=8)
def renderer_of(family: str, *options: tuple[str, Any], split: bool = True) -> Family:
    """A renderer of a family; tests share it: `renderer_of("qwen3", ("enable_thinking", False))`.

    Those of one family share its encoder: gigatoken takes some 40 MB for each tokenizer, be it
    tiny, so the last eight stay.
    """
    kind = FAMILIES[family]
    source: Any = renderer_of(family, split=split).encoder if options else folder_of(family, split=split)
    return kind(source, **dict(options))


def variants(family: str) -> Iterator[tuple[tuple[str, Any], ...]]:
    """All options that a family can have: the defaults first, all switches turned last."""
    switches = [
        (name, field.default is False)  # what is left open (`None`) is on in models without a template
        for name, field in FAMILIES[family].config_class.model_fields.items()
        if field.annotation in (bool, bool | None)
    ]
    for size in range(len(switches) + 1):
        yield from itertools.combinations(switches, size)


CASES = [(family, options) for family in FAMILIES for options in variants(family)]
CASE_IDS = [f"{family}-{'+'.join(name for name, _ in options) or 'defaults'}" for family, options in CASES]
