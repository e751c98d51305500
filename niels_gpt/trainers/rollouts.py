"""`trajectory`: the turns that an inference server sampled as one training row, with the sampled ids, not new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import UsageError


@dataclass(frozen=True)
class Trajectory:
    """One training row: the last prompt and completion, which contain all earlier turns.

    Attributes:
        ids: all tokens.
        mask: True on what the model sampled, in every turn.
        logprobs: the server's where the mask is True, 0.0 elsewhere.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]


def trajectory(turns: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Several results of `renderers.client.generate`, in order, as one row.

    Each prompt must begin with the prompt and completion before it, token for token, as `bridge_to_next_turn` makes it.
    Two turns, P for prompt, s for sampled, u for new messages::

        turn 1  P P s s
        turn 2  P P s s u s
        row     P P s s u s         mask  . . # # . #

    Args:
        turns: mappings with `prompt_ids`, `completion_ids` and, if known, `completion_logprobs`.

    Raises:
        UsageError: there are no turns, or a prompt does not continue the turn before: its text was tokenized again, or
            the template drops reasoning from the history. Then train on each turn as a row of its own.
    """
    if not turns:
        raise UsageError("no turns; expected at least one result of generate()")
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for number, turn in enumerate(turns):
        prompt, completion = list(turn["prompt_ids"]), list(turn["completion_ids"])
        if prompt[: len(ids)] != ids:
            same = zip(prompt, ids, strict=False)
            at = next((place for place, (one, other) in enumerate(same) if one != other), min(len(prompt), len(ids)))
            raise UsageError(
                f"turn {number}: its prompt differs from the turns before it at token {at:,}; make it with "
                "bridge_to_next_turn(), or train on each turn as a row of its own"
            )
        turn_logprobs = list(turn.get("completion_logprobs") or [0.0] * len(completion))
        if len(turn_logprobs) != len(completion):
            raise UsageError(
                f"turn {number}: {len(turn_logprobs):,} logprobs for {len(completion):,} tokens; expected one each"
            )
        # What the prompt adds to the turn before (tool results, the next question, headers) was not sampled.
        new = len(prompt) - len(ids)
        ids = prompt + completion
        mask += [False] * new + [True] * len(completion)
        logprobs += [0.0] * new + turn_logprobs
    return Trajectory(ids, mask, logprobs)
