"""Training samples, against what serving would have seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import UsageError
from niels_gpt.renderers.base import (
    RenderedTokens,
    build_training_sample,
    build_training_samples,
    build_trajectory_step,
)
from niels_gpt.renderers.protocol import as_produced
from tests.renderers.small import (
    FAMILIES,
    Messages,
    Sample,
    assistant,
    call,
    conversation,
    family,
    told,
    user,
    weight,
)
from tests.renderers.tiny_families import TOKENS

GLMS = [name for name in FAMILIES if name.startswith("glm")]


# ---- one sample


@pytest.mark.parametrize("name", [*FAMILIES, "template"])
def test_build_training_sample(name: str) -> None:
    renderer, rng = family(name, on_unwritten="drop"), random.Random(3)
    for _ in range(30):
        messages = conversation(rng, flags=0.3)
        masked = {id(message) for message in messages if rng.random() < 0.7}
        roles = {role for role in ("tool", "user") if rng.random() < 0.5}
        ids, mask = build_training_sample(
            renderer, messages, role_to_mask=lambda message, kept=masked: id(message) in kept, content_sft_roles=roles
        )
        rendered = renderer.render(messages)
        assert ids == rendered.token_ids
        assert mask == [
            owner >= 0
            and weight(messages[owner]) > 0
            and ((sampled and id(messages[owner]) in masked) or (body and messages[owner]["role"] in roles))
            for owner, sampled, body in zip(
                rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True
            )
        ]


@pytest.mark.parametrize("name", [*FAMILIES, "template"])
def test_ensure_final_stop(name: str) -> None:
    renderer = family(name, on_unwritten="drop")
    stop = renderer.get_stop_token_ids()[0]
    for messages in (
        [user(), assistant()],
        [user(), assistant("")],
        [user(), assistant(), user(), assistant(tool_calls=[call()])],
    ):
        plain = build_training_sample(renderer, messages)
        ids, mask = build_training_sample(renderer, messages, ensure_final_stop=True)
        closing = [stop] if name in GLMS else []
        assert (ids, mask) == (plain[0] + closing, plain[1] + [True] * len(closing))
        last_trained = max(at for at, trained in enumerate(mask) if trained)
        assert ids[last_trained] in renderer.get_stop_token_ids()
    for messages in ([user()], [user(), assistant(train=False)], [user(), assistant(weight=0)]):
        assert build_training_sample(renderer, messages, ensure_final_stop=True) == build_training_sample(
            renderer, messages
        )
    messages = [user(), assistant()]
    untrained = build_training_sample(renderer, messages, role_to_mask=lambda message: False, ensure_final_stop=True)
    assert untrained == (renderer.render_ids(messages), [False] * len(untrained[0]))


# ---- several samples


def trained_turns(renderer: Any, messages: Messages, sample: Sample, *, bodies: bool = False) -> dict[int, int]:
    """Of each turn that a sample trains the end of its last trained token; checks that the sample is a rendering."""
    ids, mask = sample
    for n, rendering in itertools.product(range(len(messages), 0, -1), (renderer, as_produced(renderer))):
        rendered = rendering.render(messages[:n])
        if ids[: len(rendered.token_ids)] == rendered.token_ids and len(ids) - len(rendered.token_ids) <= 1:
            break
    else:
        raise AssertionError(f"{told(renderer, sample)} is no rendering of the first messages")
    turns: dict[int, int] = {}
    for at, (owner, trained) in enumerate(zip(rendered.message_indices, mask, strict=False)):
        if trained and (bodies or messages[owner]["role"] == "assistant"):
            turns[owner] = at + 1
    for turn in turns:
        own = [at for at, owner in enumerate(rendered.message_indices) if owner == turn]
        facts = rendered.is_content if bodies else rendered.sampled_mask
        assert [mask[at] for at in own] == [facts[at] for at in own], "a turn is trained as a whole"
    return turns


def served(renderer: Any, messages: Messages, turn: int) -> list[int]:
    """The ids that the model saw and sampled in a turn."""
    prompt = renderer.render_ids(messages[:turn], add_generation_prompt=True)
    made = as_produced(renderer).render(messages[: turn + 1])
    facts = zip(made.token_ids, made.message_indices, made.sampled_mask, strict=True)
    return prompt + [token for token, owner, sampled in facts if owner == turn and sampled]


# Without reasoning a turn of theirs does not begin as its generation prompt does.
ALWAYS = ("glm", "laguna", "minimax", "nemotron", "qwen3.", "deepseek-r1", "deepseek-v3.1", "deepseek-v4")


@pytest.mark.parametrize("name", [*FAMILIES, "glm-5 openers", "template"])
def test_every_turn_is_trained_once_as_it_was_produced(name: str) -> None:
    openers = name == "glm-5 openers"
    options = {"enable_thinking": True} if name == "laguna-xs.2" else {}  # off by default
    if name == "deepseek-v3.1":
        options = {"thinking": True}  # off by default
    renderer = family("glm-5", sampled_openers=True) if openers else family(name, on_unwritten="drop", **options)
    rng, several = random.Random(5), 0
    for _ in range(25):
        messages = conversation(rng, thinks=1.0 if name.startswith(ALWAYS) else 0.6, flags=0.2)
        samples = build_training_samples(renderer, messages)
        found: list[int] = []
        for sample in samples:
            turns = trained_turns(renderer, messages, sample)
            for turn, end in turns.items():
                assert sample[0][:end] == served(renderer, messages, turn)
            if openers and turns and max(turns) + 1 < len(messages):
                last = max(turns)
                assert sample[0][turns[last]] in renderer.get_stop_token_ids()
                assert sample[1][turns[last]]
            found += turns
        expected = [i for i, message in enumerate(messages) if message["role"] == "assistant" and weight(message) > 0]
        assert sorted(found) == expected
        assert len(samples) == 1 or all(any(mask) for _, mask in samples)
        several += len(samples) > 1
    forgets = openers or (name in TOKENS and TOKENS[name].reasons and not TOKENS[name].keeps)
    assert several > 5 if forgets else several == 0


# ---- trajectories


@pytest.mark.parametrize("name", [*FAMILIES, "template"])
def test_trajectory_steps(name: str) -> None:
    renderer, rng, prefixes = family(name, on_unwritten="drop"), random.Random(9), 0
    for _ in range(25):
        messages = conversation(rng)
        at = rng.choice([i for i, message in enumerate(messages) if message["role"] == "assistant"])
        step = build_trajectory_step(renderer, messages[:at], messages[at:])
        assert set(step) == {
            *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs", "routed_experts")
        }
        whole = renderer.render(messages)
        prompt = renderer.render_ids(messages[:at], add_generation_prompt=True)
        assert step["prompt_ids"] + step["completion_ids"] == whole.token_ids
        split = len(step["prompt_ids"])
        assert prompt[:split] == step["prompt_ids"]
        assert prompt[split : split + 1] != whole.token_ids[split : split + 1]
        if whole.token_ids[: len(prompt)] == prompt:
            prefixes += 1
            assert step["prompt_ids"] == prompt
        assert step["prompt_mask"] == [False] * split
        mask = [
            sampled and owner >= at for sampled, owner in zip(whole.sampled_mask, whole.message_indices, strict=True)
        ]
        assert step["completion_mask"] == mask[split:]
        assert step["completion_logprobs"] == [0.0] * len(step["completion_ids"])
        assert step["routed_experts"] is None
    assert prefixes > 3


class Bare:
    """A renderer of someone else's that attributes nothing."""

    def __init__(self, renderer: Any) -> None:
        self.renderer = renderer

    def render(self, messages: Sequence[Any], **options: Any) -> RenderedTokens:
        made = self.renderer.render(messages, **options)
        return RenderedTokens(made.token_ids, message_roles=made.message_roles)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.renderer, name)


def test_renderers_without_attribution_are_refused() -> None:
    bare: Any = Bare(family("qwen3"))
    for build in (build_training_sample, build_training_samples):
        with pytest.raises(UsageError, match="0 message_indices"):
            build(bare, [user(), assistant()])
    with pytest.raises(UsageError, match="0 message_indices"):
        build_trajectory_step(bare, [user()], [assistant()])
