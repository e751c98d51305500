"""A rendering by template does not depend on what was rendered before, where, in which process or thread."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.proofs.probes import probes
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.golden.by_template import OWN_TEMPLATES
from tests.renderers.chats import Wanted, conversation
from tests.renderers.every_template import SOURCES, encoder, source_of
from tests.renderers.small import CHATML, made

Case = tuple[Any, Any, bool]  # messages, tools, whether a generation prompt is asked for
QUIET = (  # the prompt depends on what the system text says
    "{% set quiet = '/no_think' in messages[0].content %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and quiet %}{{ '<think>\n\n</think>\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if quiet %}{{ '<think>\n\n</think>\n' }}{% endif %}{% endif %}"
)
OWN = {**OWN_TEMPLATES, "chatml": CHATML, "quiet": QUIET}
OFFICIAL = ("qwen3-8b", "gpt-oss-20b", "glm-4.7-flash")


def fresh(name: str) -> TemplateRenderer:
    if name in OWN:
        return made(OWN[name])
    return TemplateRenderer(
        encoder(), template=source_of(name), clock=lambda form: "2026-01-01", bos_token="<s>", eos_token="<|im_end|>"
    )


def cases(mixed: int = 24) -> list[Case]:
    """All probes, and random conversations."""
    rng = random.Random(5)
    found: list[Case] = [
        (list(probe.messages), probe.tools and list(probe.tools), gen) for probe in probes() for gen in (False, True)
    ]
    for _ in range(mixed):
        wanted = Wanted(tools=rng.random() < 0.5, reasoning=rng.random() < 0.5)
        found.append((*conversation(rng, wanted), rng.random() < 0.3))
    return found


def facts(renderer: TemplateRenderer, case: Case) -> tuple[Any, ...]:
    """The pieces with their kinds, the attribution, the route, and what is not written."""
    messages, tools, gen = case
    try:
        out = renderer.emit(messages, tools=tools, add_generation_prompt=gen)
    except (MessageError, TemplateError) as error:
        return (str(error),)
    return (out.attribution, out.notes, *map(tuple, out.pieces()))


def check_orders(name: str, orders: int, length: int) -> None:
    all_cases, rng, known = cases(), random.Random(name), dict[int, tuple[Any, ...]]()
    for _ in range(orders):
        renderer = fresh(name)
        for at in rng.sample(range(len(all_cases)), length):
            found = facts(renderer, all_cases[at])
            assert known.setdefault(at, found) == found, (name, all_cases[at])
    for at in rng.sample(sorted(known), 8):  # and alone
        assert facts(fresh(name), all_cases[at]) == known[at]


@pytest.mark.parametrize("name", OWN)
def test_the_same_facts_in_any_order(name: str) -> None:
    check_orders(name, 8, 20)


@needs_assets
@pytest.mark.parametrize("name", OFFICIAL)
def test_the_same_facts_in_any_order_by_official_templates(name: str) -> None:
    check_orders(name, 6, 8)


@needs_assets
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_same_facts_in_any_order_by_every_template(name: str) -> None:
    check_orders(name, 20, 60)


def test_the_same_facts_from_four_threads() -> None:
    some = random.Random(6).sample(cases(), 40)
    expected = [facts(made(OWN["no stop at the end"]), case) for case in some]
    renderer = made(OWN["no stop at the end"])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda case: facts(renderer, case), some)) == expected
        shuffled = [random.Random(seed).sample(range(len(some)), len(some)) for seed in range(4)]
        done = pool.map(lambda order: [facts(renderer, some[at]) for at in order], shuffled)
        for order, found in zip(shuffled, done, strict=True):
            assert found == [expected[at] for at in order]


def digest() -> str:
    """Of all facts of some templates, for a process of its own."""
    found = hashlib.sha256()
    for name in ("chatml", "no header after a result", "no stop at the end"):
        renderer = fresh(name)
        for case in cases()[::3]:
            found.update(repr(facts(renderer, case)).encode())
    return found.hexdigest()


def test_the_same_facts_in_every_process() -> None:
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", "from tests.renderers.test_template_orders import digest; print(digest())"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.split()[-1] == digest()
