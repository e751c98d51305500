"""Turns that a server sampled, as one row to train on: the very ids that were sampled, never rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import UsageError


@dataclass(frozen=True)
class Trajectory:
    """One row: the last prompt and completion, with all that was sampled on the way.

    Attributes:
        ids: all tokens.
        mask: True on what the model sampled, in every turn.
        logprobs: as the server gave them where the mask is True, 0.0 elsewhere.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]


def trajectory(turns: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Several results of `renderers.client.generate`, in order, as one row.

    Each prompt must begin with the prompt and completion before it, token for token, as `bridge_to_next_turn` makes it.
    Three turns, P a prompt, s sampled, u new messages::

        turn 1  P P s s
        turn 2  P P s s u s
        row     P P s s u s         mask  . . # # . #

    Args:
        turns: mappings with `prompt_ids`, `completion_ids` and, if known, `completion_logprobs`.

    Raises:
        UsageError: no turn, or a prompt that does not go on from the turn before: the text was tokenized again, or the
            template drops reasoning from history. Then each turn is a row of its own.
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
                f"turn {number}: its prompt leaves the turns before it at token {at:,}; make it with "
                "bridge_to_next_turn(), or train on each turn as a row of its own"
            )
        known = list(turn.get("completion_logprobs") or [0.0] * len(completion))
        if len(known) != len(completion):
            raise UsageError(
                f"turn {number}: {len(known):,} logprobs for {len(completion):,} tokens; expected one each"
            )
        new = len(prompt) - len(ids)
        ids = prompt + completion
        mask += [False] * new + [True] * len(completion)
        logprobs += [0.0] * new + known
    return Trajectory(ids, mask, logprobs)
