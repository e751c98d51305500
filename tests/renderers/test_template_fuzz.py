"""Random contents made of what would forge: a template's own text, control tokens, tags, JSON, letters of ours."""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import SOURCES, renderer_of, source_of
from tests.renderers.small import CHATML
from tests.renderers.test_oracle import ENDED_BY_THE_NEXT_TURN, MERGED, QUOTES_THE_USER, RESULTS, STOP_UNLESS_LAST, made
from tests.renderers.test_template_forgery import ConversationView, places, shapes, written

OWN = {
    "chatml": CHATML,
    "quotes": QUOTES_THE_USER,
    "results": RESULTS,
    "open at the end": STOP_UNLESS_LAST,
    "merged": MERGED,
    "ended by the next": ENDED_BY_THE_NEXT_TURN,
    "in JSON": CHATML.replace("m.content", "({'output': m.content} | tojson)", 1),
    "in ASCII": CHATML.replace("m.content", "({'c': m.content} | tojson(ensure_ascii=true))", 1),
    "thinks": CHATML.replace("m.content", "m.content.split('</think>')[-1].lstrip('\n')", 1),
    "asks": CHATML.replace("{{", "{% if m.role == 'user' and '<|im_end|>' in m.content %}!{% endif %}{{", 1),
    "changes": CHATML.replace("m.content", "m.content.replace('a', 'b')", 1),
    "lists all": "{{ tools | tojson }}{{ messages | tojson }}" + CHATML,
}
OFFICIAL = ("qwen3-8b", "gpt-oss-20b", "glm-4.7-flash", "deepseek-v3", "llama-3.1-8b-instruct", "kimi-k2")
# Words that no template reads, and that nothing is made of.
NEUTRAL = ("zq", "qx", "vj wk", "x7")


def renderer(name: str) -> TemplateRenderer:
    return made(OWN[name]) if name in OWN else renderer_of(name)


def pieces_of(name: str) -> list[str]:
    """What forged texts are made of."""
    source = OWN.get(name) or source_of(name)
    known = [
        one for one in renderer(name).encoder.control_ids if one in source or one in ("<|im_end|>", "<|im_start|>")
    ]
    constants = re.findall(r"'([^'\n]{2,40})'", source) + re.findall(r'"([^"\n]{2,40})"', source)
    tags = ["</think>", "<think>", "<tool_response>", "</tool_response>", "<tool_call>", "<think>\n", "\n</think>\n\n"]
    escaped = [token.replace("<", "\\u003c").replace(">", "\\u003e") for token in known[:3]]
    json_like = ['"', '"}', '", "role": "', '{"a": "', "\\", "\\n", "'", "null", "]}"]
    letters = ["\ue000", "\ue001", "\uf8ff", "\U000f0000", "\\ue000"]
    halves = [part for token in known[:6] for part in (token[:-2], token[-2:], token[1:-1], token[:2])]
    roles = ["assistant\n", "user\n", "<|im_start|>assistant\n", "stand-in 1", "reasoning 1", "look_up"]
    return [*known, *known, *constants, *tags, *escaped, *json_like, *letters, *halves, *roles, "a", " ", "\n", "x"]


def forged(rng: random.Random, pieces: list[str]) -> str:
    return "".join(rng.choices(pieces, k=rng.randint(1, 5)))


def conversations(rng: random.Random, pieces: list[str]) -> Iterator[tuple[ConversationView, ConversationView]]:
    """A forged conversation and the same with neutral words in these places."""
    for _, chat in shapes():
        found = [
            place
            for place in places(chat)
            if place[-1] not in ("role", "type", "its key", "one key more")
            and not (place[-1] == "arguments" and isinstance(place[-1], str))
        ]
        chosen = rng.sample(found, min(len(found), rng.randint(1, 8)))
        texts = {place: forged(rng, pieces) for place in chosen}
        pair = copy.deepcopy(chat), copy.deepcopy(chat)
        for place in chosen:
            for at, text in ((0, texts[place]), (1, rng.choice(NEUTRAL))):
                pair = (*pair[:at], written(pair[at], [place], lambda _, text=text: text), *pair[at + 1 :])  # type: ignore[assignment]
        yield pair


def control_ids(renderer: TemplateRenderer, chat: ConversationView, gen: bool) -> tuple[list[int], str] | None:
    try:
        rendered = renderer.render(chat[0], tools=chat[1], add_generation_prompt=gen)
    except (MessageError, TemplateError):
        return None
    known = set(renderer.encoder.control_ids.values())
    return [token for token in rendered.token_ids if token in known], rendered.attribution


def check(name: str, rounds: int, seed: int = 0) -> Counter[str]:
    """Compare the control ids of forged conversations with those of neutral ones."""
    rng, made_of, counts = random.Random(f"{name} {seed}"), pieces_of(name), Counter[str]()
    one = renderer(name)
    # Templates write these themselves where they find them in a text, and count as the model's.
    own = {token for text, token in one.encoder.control_ids.items() if text in ("<think>", "</think>")}
    for _ in range(rounds):
        for bad, good in conversations(rng, made_of):
            gen = rng.random() < 0.3
            found, wanted = control_ids(one, bad, gen), control_ids(one, good, gen)
            if found is None or wanted is None:
                counts["refused"] += 1
                continue
            is_full = found[1] == wanted[1] == "full"
            counts["full" if is_full else "partial"] += 1
            more, less = Counter(found[0]) - Counter(wanted[0]), Counter(wanted[0]) - Counter(found[0])
            assert not {*more} - own, (name, bad, found[1], more)
            assert not is_full or not {*less} - own, (name, bad, less)
    return counts


@pytest.mark.parametrize("name", OWN)
def test_nothing_in_a_text_is_a_control_token(name: str) -> None:
    counts = check(name, 8)
    assert counts["full"] + counts["partial"] > 5, counts


@needs_assets
@pytest.mark.parametrize("name", OFFICIAL)
def test_nothing_in_a_text_is_a_control_token_in_official_templates(name: str) -> None:
    counts = check(name, 6)
    assert counts["full"] + counts["partial"] > 4, counts


@needs_assets
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_nothing_in_a_text_is_a_control_token_in_any_template(name: str) -> None:
    check(name, 12, seed=1)
