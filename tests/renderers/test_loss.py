"""Loss weights, against a reading token by token."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import (
    LossOn,
    RenderedTokens,
    batch_weights,
    build_training_sample,
    build_training_samples,
)
from niels_gpt.renderers.kinds import MODEL_KINDS, Kind, kinds_of
from tests.renderers.small import (
    FAMILIES,
    PRESETS,
    assistant,
    conversation,
    family,
    user,
    weights_reference,
)
from tests.renderers.test_template import chatml


@pytest.mark.parametrize("name", [*FAMILIES, "glm-5 openers", "template"])
def test_weights_token_by_token(name: str) -> None:
    renderer = family("glm-5", sampled_openers=True) if name == "glm-5 openers" else family(name, on_unwritten="drop")
    rng = random.Random(name)
    trained = 0
    for preset in PRESETS:
        for bodies, tools in (((), ()), (("tool",), ()), (("user", "system"), ("get",)), ((), ("get",))):
            on = LossOn(preset, frozenset(bodies), frozenset(tools))
            chats = [conversation(rng, flags=0.4) for _ in range(4)]
            batch = renderer.render_many(chats)
            expected = [weights_reference(made, chat, on) for made, chat in zip(batch, chats, strict=True)]
            for made, chat, weights in zip(batch, chats, expected, strict=True):
                assert made.weights(on, messages=normalise(chat)).tolist() == weights
            of_all = batch_weights(batch, on)
            assert of_all.dtype == np.float32
            assert of_all.shape == batch.ids.shape
            assert of_all.tolist() == [found for weights in expected for found in weights]
            trained += int((of_all > 0).sum())
    assert trained > 100


@pytest.mark.parametrize(
    ("given", "message"), [({"weight": -1}, "message 1: weight is -1"), ({"weight": float("nan")}, "nan")]
)
def test_wrong_weights(given: dict[str, Any], message: str) -> None:
    renderer, messages = family("qwen3"), [user(), assistant(**given)]
    with pytest.raises(MessageError, match=message):
        build_training_sample(renderer, messages)
    with pytest.raises(MessageError, match=message):
        build_training_samples(renderer, messages)
    with pytest.raises(MessageError, match="conversation 1: message 1: weight"):
        batch_weights(renderer.render_many([[user()], messages]), LossOn())


def test_wrong_loss() -> None:
    with pytest.raises(UsageError, match=r"last_mesage.*did you mean 'last_message'"):
        LossOn("last_mesage")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bodies_of_roles is the text 'tool'"):
        LossOn(bodies_of_roles="tool")  # type: ignore[arg-type]
    for names in (5, None, [["tool"]]):
        with pytest.raises(UsageError, match=r"bodies_of_tools is .*; expected a set of names"):
            LossOn(bodies_of_tools=names)  # type: ignore[arg-type]
    wanted: Any = {"tool"}
    assert LossOn(bodies_of_tools=wanted) == LossOn(bodies_of_tools=frozenset(wanted))
    assert hash(LossOn(bodies_of_tools=wanted))


def test_kinds_that_no_model_emits_are_refused() -> None:
    with pytest.raises(UsageError, match=r"kinds holds CONTEXT, which no model emits; .*bodies_of_roles"):
        LossOn(kinds=frozenset({Kind.REPLY, Kind.CONTEXT}))
    for wrong in (5, ["reply"], None):
        with pytest.raises(UsageError, match=r"kinds is .*; expected a set of `Kind`"):
            LossOn(kinds=wrong)  # type: ignore[arg-type]
    assert LossOn(kinds=frozenset({3})).kinds == {Kind.REPLY}  # type: ignore[arg-type]


THINKS = [user("hello"), assistant("the end", reasoning_content="the dog")]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("kind", "without"),
    [
        (Kind.STOP, "<think>\nthe dog\n</think>\n\nthe end"),
        (Kind.REASONING, "<think>\n\n</think>\n\nthe end<|im_end|>"),
        (Kind.MARKUP, "the dogthe end<|im_end|>"),
        (Kind.REPLY, "<think>\nthe dog\n</think>\n\n<|im_end|>"),
    ],
)
def test_a_kind_is_left_out_in_one_line(preset: Any, kind: Kind, without: str) -> None:
    qwen, on = family("qwen3"), LossOn(preset, kinds=MODEL_KINDS - {kind})
    rendered, batch = qwen.render(THINKS), qwen.render_many([THINKS])
    weights = rendered.weights(on)
    assert batch_weights(batch, on).tolist() == weights.tolist()
    of_answer = (weights > 0) & (np.array(rendered.sampled_mask))
    assert qwen.encoder.decode(np.array(rendered.token_ids)[of_answer].tolist()) == without
    others = ~np.array(rendered.sampled_mask)
    assert weights[others].tolist() == [preset == "all_tokens"] * int(others.sum())


def test_without_stops_every_way_of_making_samples_trains_none() -> None:
    on, stops = LossOn(kinds=MODEL_KINDS - {Kind.STOP, Kind.OPENER}), ("<|user|>", "<|observation|>", "<|endoftext|>")
    for options in ({}, {"sampled_openers": True}, {"sampled_openers": True, "final_stop": True}):
        glm = family("glm-5", **options)
        ids = {glm.encoder.added_ids[stop] for stop in stops}
        for ensure in (False, True):
            for sample, mask in build_training_samples(glm, [*THINKS, *THINKS], on=on, ensure_final_stop=ensure):
                assert any(mask)
                assert not ids & {token for token, trained in zip(sample, mask, strict=True) if trained}


def foreign(rendered: Any) -> RenderedTokens:
    """The same rendering from a renderer of another package: the contract's lists alone."""
    names = ("token_ids", "message_indices", "sampled_mask", "is_content", "message_roles")
    return RenderedTokens(**{name: list(getattr(rendered, name)) for name in names})


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "glm-5", "deepseek-v3.1"])
def test_kinds_of_a_rendering_without_kinds_are_derived_from_its_lists(name: str) -> None:
    options = {"sampled_openers": True, "final_stop": True} if name == "glm-5" else {}
    renderer, rng, stopped = family(name, **options), random.Random(4), 0
    stops = renderer.get_stop_token_ids()
    for _ in range(20):
        chat = conversation(rng, flags=0.3)
        rendered = renderer.render(chat)
        given, derived = np.array(rendered.kinds), kinds_of(foreign(rendered), stops)
        assert ((given & 3) == (derived & 3)).all(), "sampled and content are the lists'"
        served = np.isin(rendered.token_ids, stops)
        assert ((derived == Kind.STOP) == ((given == Kind.STOP) & served)).all()
        assert ((derived == Kind.OPENER) == (given == Kind.OPENER)).all()
        stopped += int((derived == Kind.STOP).sum())
        for on in (LossOn(), LossOn("all_tokens"), LossOn("last_message", frozenset({"user"}))):
            weights = foreign(rendered).weights(on, messages=normalise(chat))
            assert weights.tolist() == rendered.weights(on, messages=normalise(chat)).tolist()
    assert stopped > 10
    with pytest.raises(UsageError, match=r"does not say of what kind its tokens are"):
        foreign(rendered).weights(LossOn(kinds=MODEL_KINDS - {Kind.STOP}), messages=normalise(chat))


def test_weights_of_partial_attribution_are_refused() -> None:
    """The same rule as for labels and training samples: masks from it may train what the template wrote."""
    body = "{{ m.role + '\\n' + m.content | urlencode }}"
    source = "{% for m in messages %}<|im_start|>" + body + "{{ '<|im_end|>\\n' }}{% endfor %}"
    renderer, messages = chatml(source), normalise([user("a b"), assistant("c d")])
    rendered, batch = renderer.render(messages), renderer.render_many([messages, messages])
    assert rendered.attribution != "full"
    with pytest.raises(MessageError, match="attribution is 'partial"):
        rendered.weights(LossOn(), messages=messages)
    with pytest.raises(MessageError, match="conversation 0: attribution is 'partial"):
        batch_weights(batch, LossOn())
    weights = rendered.weights(LossOn(), messages=messages, allow_partial=True)
    assert [*weights, *weights] == batch_weights(batch, LossOn(), allow_partial=True).tolist()
