"""`trajectory`: the turns that an inference engine sampled as one training row, with the sampled ids, not new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, shown
from niels_gpt.ranges import TOKEN_ID
from niels_gpt.rollouts.format import NO_VERSION

Array = npt.NDArray[Any]
MOST_LOGPROB: Final = 0.01  # of a probability of 1, with what rounding in an engine may add


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


@dataclass(frozen=True, eq=False)
class RolloutTokens:
    """A trajectory as arrays, in the form in which it is stored.

    Attributes:
        ids: integers, shape (n,).
        mask: bool, shape (n,): True on what the model sampled.
        logprobs: float64, shape (n,), NaN where the mask is False, and in turns that have none.
        versions: int64, shape (n,): the policy that sampled each token, -1 where the mask is False or it is not known.
        prompt_length: tokens of the first prompt.
        oldest: the smallest version that sampled a token with the mask True; where it is False everywhere, the smallest
            that was given; -1 if none is known.
    """

    ids: Array
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]
    prompt_length: int
    oldest: int


def trajectory(turns: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Several results of `renderers.client.generate`, in order, as one row.

    Each prompt must begin with the prompt and completion before it, token for token, as `bridge_to_next_turn` makes it.
    Two turns, P for prompt, s for sampled, u for new messages::

        turn 1  P P s s
        turn 2  P P s s u s
        row     P P s s u s         mask  . . # # . #

    Args:
        turns: mappings with `prompt_ids`, `completion_ids` and, if known, `completion_logprobs`; and `completion_mask`,
            False where the model did not sample a token of the completion (see `build_trajectory_step`).

    Raises:
        UsageError: there are no turns, or a prompt does not continue the turn before: its text was tokenized again, or
            the template drops reasoning from the history. Then train on each turn as a row of its own.
    """
    row = joined(turns)
    return Trajectory(row.ids.tolist(), row.mask.tolist(), np.nan_to_num(row.logprobs, nan=0.0).tolist())


def joined(turns: Sequence[Mapping[str, Any]], version: int = NO_VERSION) -> RolloutTokens:
    """The turns as arrays; see `trajectory`.

    Args:
        version: of turns without a `version`, which is a number, or one for each token of the completion.

    Raises:
        UsageError: as `trajectory`; or values are of another kind, or not one for each token (turn and field named).
    """
    if not turns:
        raise UsageError("no turns; expected at least one result of generate()")
    ids, prompt_length = np.empty(0, np.int64), 0
    parts: list[_Part] = []
    given_versions: list[Array] = []  # also of tokens that were not sampled
    for number, turn in enumerate(turns):
        where = f"turn {number}: "
        if not isinstance(turn, Mapping):
            raise UsageError(f"turn {number} is {shown(turn)}; expected a mapping with prompt_ids and completion_ids")
        prompt, completion = (_ids(turn, name, where) for name in ("prompt_ids", "completion_ids"))
        _check_continues(prompt, ids, number)
        # What the prompt adds to the turn before (tool results, the next question, headers) was not sampled.
        parts.append(_unsampled(len(prompt) - len(ids)))
        n = len(completion)
        mask = _mask(turn.get("completion_mask"), n, where)
        logprobs = _logprobs(turn.get("completion_logprobs"), mask, where)
        versions = _versions(turn.get("version", version), n, where)
        parts.append(_Part(mask, logprobs, np.where(mask, versions, NO_VERSION)))
        given_versions.append(versions)
        ids = np.concatenate([prompt, completion])
        prompt_length = prompt_length if number else len(prompt)
    sampled_by = np.concatenate([part.versions for part in parts])
    # Where several policies sampled tokens the oldest counts, because loaders ask for a largest age.
    known = [each[each != NO_VERSION] for each in (sampled_by, np.concatenate(given_versions))]
    oldest = next((int(each.min()) for each in known if len(each)), NO_VERSION)
    return RolloutTokens(
        ids,
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.logprobs for part in parts]),
        sampled_by,
        prompt_length,
        oldest,
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """The values of some tokens: what a prompt adds, or a completion; see `RolloutTokens`."""

    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]


def _unsampled(n: int) -> _Part:
    return _Part(np.zeros(n, np.bool_), np.full(n, np.nan), np.full(n, NO_VERSION))


def _check_continues(prompt: Array, ids: Array, number: int) -> None:
    """Check that a turn's prompt begins with the ids of all turns before it."""
    # Ids are compared, not text: a prompt that was tokenized again has the same text, and may have other ids.
    shared = min(len(prompt), len(ids))
    same = prompt[:shared] == ids[:shared]
    if len(prompt) < len(ids) or not same.all():
        at = shared if same.all() else int(np.argmin(same))
        raise UsageError(
            f"turn {number}: its prompt differs from the turns before it at token {at:,}; make it with "
            "bridge_to_next_turn(), or train on each turn as a row of its own"
        )


# ---- the values of a turn, checked


def _array(values: Any, name: str, where: str, *, may_be_number: bool = False) -> Array:
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a ragged list; a tensor on a GPU, or that needs a gradient
        raise UsageError(f"{where}{name} cannot be read as an array: {error}") from error
    if found.ndim != 1 and not (may_be_number and found.ndim == 0):
        raise UsageError(f"{where}{name} has the shape {found.shape}; expected (tokens,)")
    return found


def _ids(turn: Mapping[str, Any], name: str, where: str) -> Array:
    if name not in turn:
        raise UsageError(f"{where}no {name}; found {', '.join(map(str, turn)) or 'nothing'}")
    found = _array(turn[name], name, where)
    if found.size == 0:  # numpy makes an array of floats of an empty list
        return np.empty(0, np.int64)
    values = turn[name]
    # Not converted: of floats and truth values some would be ids, and nothing would show that others were meant.
    if found.dtype.kind not in "iu" or _holds_bools(values):
        kind = found.dtype if found.dtype.kind not in "iu" else "integers and truth values"
        raise UsageError(f"{where}{name} are {kind}; expected integers")
    if found.min() < TOKEN_ID.least or found.max() > TOKEN_ID.most:
        raise UsageError(f"{where}{name} are from {found.min()} to {found.max()}; expected 0 to 2**32 - 1")
    return found.astype(np.int64)


def _holds_bools(values: Any) -> bool:
    """Whether a list holds truth values, which numpy would take for 0 and 1; an array of integers has none."""
    return isinstance(values, list | tuple) and bool in set(map(type, values))


def _mask(values: Any, n: int, where: str) -> Array:
    if values is None:
        return np.ones(n, np.bool_)
    found = _array(values, "completion_mask", where)
    _check_length(found, n, "completion_mask", where)
    if not ((found == 0) | (found == 1)).all():
        raise UsageError(
            f"{where}completion_mask holds {shown(found[(found != 0) & (found != 1)][0])}; expected 0 or 1"
        )
    return found.astype(np.bool_)


def _logprobs(values: Any, mask: Array, where: str) -> Array:
    found = np.empty(0) if values is None else _array(values, "completion_logprobs", where)
    if values is None or len(found) == 0 < len(mask):  # servers answer with an empty list where they computed none
        return np.full(len(mask), np.nan)
    _check_length(found, len(mask), "completion_logprobs", where)
    if found.size and found.dtype.kind != "f":
        raise UsageError(f"{where}completion_logprobs are {found.dtype}; expected floating point numbers")
    with np.errstate(over="ignore"):  # what does not fit into float32, as which it is stored, becomes infinite
        bad = mask & ~np.isfinite(found.astype(np.float32))
    above = mask & (found > MOST_LOGPROB)
    # Infinite values are above, too, but they are no probabilities.
    if above.any() and not bad.any():
        at = int(np.argmax(above))
        raise UsageError(
            f"{where}completion_logprobs: {found[at]} at token {at:,}; expected the logarithm of a probability, which "
            "is at most 0. Are these probabilities?"
        )
    if bad.any():
        at = int(np.argmax(bad))
        raise UsageError(
            f"{where}completion_logprobs: {found[at]} at token {at:,}, which was sampled; expected a finite number. "
            "Ask the engine for the logprobs of sampled tokens, or mark the token in completion_mask"
        )
    return np.where(mask, found, np.nan)


def _versions(values: Any, n: int, where: str) -> Array:
    if values is None:
        values = NO_VERSION
    found = _array(values, "version", where, may_be_number=True)
    fits = found.dtype.kind in "iu" and not _holds_bools(values)
    if not fits or (found.size and not -1 <= found.min() <= found.max() < 2**31):
        raise UsageError(f"{where}version is {shown(values)}; expected a whole number from 0, or one for each token")
    if found.ndim:
        _check_length(found, n, "version", where)
    return np.broadcast_to(found.astype(np.int64), (n,))


def _check_length(found: Array, n: int, name: str, where: str) -> None:
    if len(found) != n:
        raise UsageError(f"{where}{name}: {len(found):,} values for {n:,} tokens; expected one each")
