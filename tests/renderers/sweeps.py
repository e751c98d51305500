"""What the tests over all families share: their cases, their conversations, what a model says in them."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer

from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.renderers.types import Piece
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer
from tests.memory import shared
from tests.renderers.chats import Messages, Wanted, conversation, forged, plain_text
from tests.renderers.tiny_families import CASE_IDS, CASES, TOKENS, folder_of, renderer_of, variants

Options = tuple[tuple[str, Any], ...]
PLAIN = {"tools": False, "reasoning": False, "inline": False, "late_system": False}  # what ngpt has a place for
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content if m.content is string else '') }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' ~ c.function.name ~ (c.function.arguments | tojson) }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _case(family: str, options: Options) -> Any:
    """All switches off and all on, so each family meets each value of each option; all combinations in the long run."""
    usual = not options or options == [*variants(family)][-1]
    return pytest.param(family, options, marks=() if usual else pytest.mark.slow)


cases = pytest.mark.parametrize(("family", "options"), [_case(*case) for case in CASES], ids=CASE_IDS)
families = pytest.mark.parametrize("family", FAMILIES)


def _case_and_cut(family: str, options: Options, split: bool) -> Any:
    """By default each pair of a family, all switches off or on, and a tokenizer; every combination in the long run."""
    usual, cut = _case(family, options), (bool(options) + [*FAMILIES].index(family)) % 2 == 0
    marks = usual.marks if cut == split or len([*variants(family)]) == 1 else pytest.mark.slow
    name = f"{CASE_IDS[CASES.index((family, options))]}-{'split' if split else 'merging'}"
    return pytest.param(family, options, split, marks=marks, id=name)


cases_and_cuts = pytest.mark.parametrize(
    ("family", "options", "split"), [_case_and_cut(*case, split) for case in CASES for split in (True, False)]
)


def conversations(usual: int, all_of_them: int) -> Any:
    """`number` of conversations: some by default, and these and more in the long run."""
    return pytest.mark.parametrize("number", [usual, pytest.param(all_of_them, marks=pytest.mark.slow)])


both_cuts = pytest.mark.parametrize("split", [True, False], ids=["split", "merging"])


def wanted(family: str, **more: Any) -> Wanted:
    """What a family's conversations may hold."""
    plain = PLAIN if family == "ngpt" else {"late_system": TOKENS[family].late_system, **TOKENS[family].holds}
    return Wanted(**(plain | more))


def chats(family: str, number: int, seed: int = 1, ends_with: str = "any", **more: Any) -> list[tuple[Messages, Any]]:
    rng = random.Random(f"{family} {seed}")
    return [conversation(rng, wanted(family, **more), ends_with=ends_with) for _ in range(number)]


def text_of(renderer: Family, ids: list[int]) -> str:
    return renderer.encoder.decode(ids)


def nfc(family: str, text: str) -> str:
    """As the family's tokenizer normalises."""
    return unicodedata.normalize("NFC", text) if family in TOKENS and TOKENS[family].form == "NFC" else text


@shared
def official(family: str, split: bool) -> Tokenizer:
    return Tokenizer.from_file(str(folder_of(family, split=split) / "tokenizer.json"))


def official_ids(family: str, text: str, split: bool) -> list[int]:
    """The ids of a text as the family's own tokenizer gives them, control tokens recognised anywhere."""
    if family != "ngpt":
        ids: list[int] = official(family, split).encode(text, add_special_tokens=False).ids
        return ids
    tokenizer = SentencePieceTokenizer(folder_of("ngpt") / "spm.model")
    sentinels = dict(zip(SPECIAL_TOKENS, tokenizer.special_token_ids().values(), strict=True))
    found: list[int] = []
    for part in text.replace("<|ngpt_", "\0<|ngpt_").split("\0"):
        opener = next((spelling for spelling in sentinels if part.startswith(spelling)), "")
        found += [sentinels[opener]] if opener else []
        found += tokenizer.encode(part[len(opener) :])
    return found


def kimi_id(name: str, number: int) -> str:
    return f"functions.{name}:{number}"


def answered(family: str, number: int, seed: int, ends_with: str = "assistant") -> list[tuple[Messages, Any]]:
    """Conversations whose calls have ids that the format can hold, and that serving could have produced."""
    held = wanted(
        family,
        loose=False,
        call_id=kimi_id if family.startswith("kimi") else wanted(family).call_id,
        marks=0.2,
    )
    rng = random.Random(f"{family} {seed}")
    made = [conversation(rng, held, ends_with=ends_with) for _ in range(number)]
    if family in TOKENS and TOKENS[family].opens_block:
        made = [([*before, thinking(last)], tools) for (*before, last), tools in made]
    controls = [*renderer_of(family).encoder.control_ids]
    return [(forged(m, controls[at % len(controls)]), tools) for at, (m, tools) in enumerate(made)]


def thinking(message: dict[str, Any]) -> dict[str, Any]:
    """The message, with reasoning if it is an assistant's without any."""
    has_some = message.get("reasoning_content") or "</think>" in plain_text(message["content"])
    return message if message["role"] != "assistant" or has_some else message | {"reasoning_content": "well"}


def encoded(renderer: Family, pieces: list[Piece]) -> list[int]:
    ids, _ = renderer.encoder.encode_pieces([p.text for p in pieces], [p.scaffold for p in pieces])
    return list(map(int, ids))


def served_and_said(renderer: Family, messages: Messages, tools: Any) -> tuple[list[int], list[int]]:
    """The prompt before the last message, and the ids of what the model itself says in it."""
    pieces = renderer.emit(messages, tools=tools).pieces()
    said = encoded(renderer, [p for p in pieces if p.msg == len(messages) - 1 and p.sampled])
    prompt = renderer.render_ids(messages[:-1], tools=tools, add_generation_prompt=True)
    return prompt, said


def reasons(family: str) -> bool:
    return family in TOKENS and TOKENS[family].reasons
