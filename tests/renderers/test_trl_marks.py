"""TRL trains what stands between a template's `{% generation %}` marks; where that differs from what the model emits.

docs/attribution.md names the three differences, and this test allows no other.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import normalise
from niels_gpt.renderers.template.proofs.probes import Probe, probes
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import needs_assets
from tests.renderers.every_template import SOURCES, encoder, source_of
from tests.renderers.small import CHATML, assistant, user
from tests.renderers.tiny_families import folder_of

MARK = re.compile(r"{%-?\s*generation\s*-?%}")
MARKED = [name for name in sorted(SOURCES) if MARK.search(source_of(name))]


def trained_by_trl(renderer: TemplateRenderer, probe: Probe) -> tuple[str, list[bool]] | None:
    """The text and which characters lie between marks; `None` where the template refuses what it is given."""
    try:
        text, ranges = _render_with_assistant_indices(
            _compile_jinja_template(renderer.source),
            messages=[dict(message) for message in probe.messages],
            tools=probe.tools and list(probe.tools),
            documents=None,
            add_generation_prompt=False,
            **renderer._variables,
        )
    except Exception:  # whatever a template fails with
        return None
    trained = [False] * len(text)
    for start, stop in ranges:
        trained[start:stop] = [True] * (stop - start)
    return text, trained


def differences(renderer: TemplateRenderer, probe: Probe) -> list[str]:
    """The differences on one probe that the docs do not name."""
    messages, tools = normalise(list(probe.messages)), probe.tools and list(probe.tools)
    theirs = trained_by_trl(renderer, probe)
    try:
        out = renderer.emit(messages, tools=tools)
    except (MessageError, TemplateError):
        return []
    pieces = out.pieces()
    sampled = [piece.sampled for piece in pieces for _ in piece.text]
    text = "".join(piece.text for piece in pieces)
    if theirs is None or theirs[0] != text or out.attribution != "full":
        return []
    trained, found, at = theirs[1], [], 0
    while at < len(text):
        stop = at + 1
        if trained[at] != sampled[at]:
            while stop < len(text) and (trained[stop], sampled[stop]) == (trained[at], sampled[at]):
                stop += 1
            part = text[at:stop]
            before_answer = stop < len(text) and sampled[stop]
            if part.strip() and not (trained[at] and before_answer and _is_of_prompt(renderer, part, messages, tools)):
                found.append(f"{'TRL trains' if trained[at] else 'the model emits'} {part!r}")
        at = stop
    return found


def _is_of_prompt(renderer: TemplateRenderer, part: str, messages: list[Any], tools: Any) -> bool:
    """Whether some generation prompt of the conversation holds this text, except for white space at its ends."""
    for index in range(1, len(messages)):
        try:
            if part.strip() in renderer.text(messages[:index], tools=tools, add_generation_prompt=True):
                return True
        except (MessageError, TemplateError):
            continue
    return False


@needs_assets
@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)], ids=["every second probe", "all"])
def test_trl_trains_the_same_but_for_the_named_differences(name: str, step: int) -> None:
    source = source_of(name)
    eos = "<|END_OF_TURN_TOKEN|>" if "<|END_OF_TURN_TOKEN|>" in source else "<|im_end|>"
    renderer = TemplateRenderer(
        encoder(), template=source, clock=lambda form: "2026-01-01", stops=(eos,), bos_token="<s>", eos_token=eos
    )
    compared = 0
    for probe in probes()[::step]:
        assert not differences(renderer, probe), (probe.name, differences(renderer, probe))
        compared += trained_by_trl(renderer, probe) is not None
    assert compared > 40 // step


def test_a_mark_in_the_wrong_place_is_a_difference() -> None:
    """The comparison must find a stop outside of the marks."""
    marked = CHATML.replace("m.content + ", "'' }}{% generation %}{{ m.content }}{% endgeneration %}{{ ")
    probe = Probe("", (user("Hi"), assistant("Hello.")))
    renderer = TemplateRenderer(folder_of("qwen3"), template=marked, stops=("<|im_end|>",))
    assert differences(renderer, probe) == ["TRL trains 'Hi'", "the model emits '<|im_end|>'"]
