"""How a rendering shows itself: labels, repr, colours in a terminal, HTML in a notebook."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import LossOn
from niels_gpt.renderers.kinds import SAMPLED, Kind
from niels_gpt.renderers.types import IGNORED
from tests.renderers.small import PRESETS, assistant, conversation, family, user

CHAT = [user("a <b>\x1b[31m"), assistant("one\ntwo"), user("more"), assistant("three", train=False)]


@pytest.mark.parametrize("name", ["qwen3", "glm-5", "template"])
@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), preset=st.sampled_from(PRESETS))
def test_labels_are_the_ids_where_the_loss_weight_is_positive(name: str, seed: int, preset: str) -> None:
    import random

    messages = normalise(conversation(random.Random(seed), flags=0.3))
    messages = [m for m in messages if m["role"] != "tool" and "tool_calls" not in m] or [user()]
    messages = [
        {**m, "weight": float(m["weight"] > 0)} if "weight" in m else m for m in messages
    ]  # labels know 0 and 1
    rendered = family(name).render(messages)
    expected = [
        token if weight > 0 else IGNORED
        for token, weight in zip(rendered.token_ids, rendered.weights(LossOn(preset), messages=messages), strict=True)
    ]
    assert rendered.labels(preset) == rendered.labels(LossOn(preset)) == expected


def test_a_terminal_gets_colours_and_no_control_codes_of_the_data(capfd: pytest.CaptureFixture[str]) -> None:
    rendered = family("qwen3").render(CHAT)
    rendered.show()
    text = capfd.readouterr().out
    assert "\x1b[1;30;42mone" in text
    assert "\x1b[31m" not in text
    assert "\\u001b[31m" in text


def test_a_notebook_gets_every_token_with_its_id_and_facts() -> None:
    rendered = family("qwen3").render(CHAT)
    page = rendered._repr_html_()
    spans = re.findall(r'<span class="ng-(\w+)" title="(\d+): id (\d+), ([^"]*)">([^<]*)</span>', page)
    assert [int(span[2]) for span in spans] == rendered.token_ids
    trained = [kind == "trained" for kind, *_ in spans]
    assert trained == [label != IGNORED for label in rendered.labels()]
    text = "".join(html.unescape(span[4]) for span in spans).replace("⏎\n", "\n")
    assert "a <b>\\u001b[31m" in text
    assert "<b>" not in page
    told = {span[3] for span in spans if span[0] == "trained"}
    owned = zip(rendered.kinds, rendered.message_indices, strict=True)
    kinds = {Kind(kind).name.lower() for kind, owner in owned if owner == 1 and kind & SAMPLED}
    assert told == {f"message 1 (assistant), {kind}, loss weight 1" for kind in kinds}
    assert {"reply", "stop"} <= kinds


def test_labels_cannot_express_a_fractional_weight() -> None:
    rendered = family("qwen3").render([user("a"), assistant("b", weight=0.5)])
    assert set(rendered.weights().tolist()) == {0.0, 0.5}
    with pytest.raises(UsageError, match=r"weight 0\.5; labels can express only 0 and 1"):
        rendered.labels()
