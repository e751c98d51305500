"""gpt-oss beside OpenAI's own library for its format: ids, the end of training, reading (docs/deviations.md)."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("openai_harmony")
import openai_harmony as harmony

from niels_gpt.renderers.families.gpt_oss import GptOssRenderer
from niels_gpt.renderers.registry import config_of
from tests.assets import encoder_at
from tests.renderers.chats import Messages, conversation, forged
from tests.renderers.harmony import FOLDER, as_harmony, judge
from tests.renderers.small import user
from tests.renderers.sweeps import wanted

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no {FOLDER}, whose vocabulary it needs (set NGPT_ASSETS)")
FUNCTIONS: list[dict[str, Any]] = [  # with what both declare alike
    {
        "name": "get_weather",
        "description": "Tells it. é",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where <b>"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "integer"},
                "hours": {"type": "array", "items": {"type": "number"}},
                "either": {"type": ["string", "null"]},
                "any": {},
            },
            "required": ["city"],
        },
    },
    {"name": "nothing", "description": "Does nothing."},
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return judge(tmp_path_factory.mktemp("harmony"))


def ours(**options: Any) -> GptOssRenderer:
    return GptOssRenderer(encoder_at(FOLDER), config_of({"name": "gpt-oss", "on_unwritten": "drop", **options}))  # type: ignore[arg-type]


def chats(number: int, seed: int) -> list[tuple[Messages, Any]]:
    """Random conversations; instructions come with tools, for without them the two write another end."""
    rng, made = random.Random(seed), []
    for at in range(number):
        messages, tools = conversation(rng, wanted("gpt-oss", nones=False, parts=False, marks=0.3))
        tools = TOOLS if tools else None
        if not tools and messages[0]["role"] == "system":
            messages = messages[1:] or [user()]
        made.append((forged(messages, ("<|end|>", "<|call|>", "<|start|>assistant")[at % 3]), tools))
    return made


# ---- rendering


def whole() -> Any:
    return harmony.RenderConversationConfig(auto_drop_analysis=False)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_conversations_of_which_nothing_is_dropped(theirs: Any, seed: int) -> None:
    renderer = ours(preserve_all_thinking=True, conversation_start_date="2026-01-31", reasoning_effort="high")
    told = {"conversation_start_date": "2026-01-31", "reasoning_effort": harmony.ReasoningEffort.HIGH}
    for messages, tools in chats(25 if seed == 1 else 3000, seed):
        given = as_harmony(messages, tools, **told)
        trained = theirs.render_conversation_for_training(given, whole())
        assert renderer.render_ids(messages, tools=tools) == trained
        served = theirs.render_conversation_for_completion(given, harmony.Role.ASSISTANT, whole())
        assert renderer.render_ids(messages, tools=tools, add_generation_prompt=True) == served


# ---- reading
