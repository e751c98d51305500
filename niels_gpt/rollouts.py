"""Rollouts: what a policy sampled, as rows and batches for reinforcement learning. Ids are never encoded again.

::

    turns: prompt and completion ids, log-probabilities    from an inference engine, of one conversation
      -> Trajectory: one row of tokens                     `trajectory`
      -> advantages by the rewards of a group              `group_advantages`
      -> RolloutBatch: everything aligned with the targets `rollout_batch`

docs/rl.md is for users. Checks of the values of a turn are at the end of this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, shown
from niels_gpt.format.collate import TensorFields
from niels_gpt.format.gather import shifted, targets_of
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.ranges import BLOCK_SIZE, TOKEN_ID
from niels_gpt.required_torch import torch
from niels_gpt.store.masks import IGNORE_INDEX

Array = npt.NDArray[Any]
NO_VERSION: Final = -1
FORMULAS: Final = ("grpo", "mean")
_EPSILON: Final = 1e-6  # rewards that differ only by rounding must not become advantages of 1
_MOST_LOGPROB: Final = 0.01  # of a probability of 1, with what rounding in an engine may add


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One training row: the last prompt and completion, which contain all earlier turns.

    Attributes:
        ids: int64, shape (n,).
        mask: bool, shape (n,): True on what the model sampled, in every turn.
        logprobs: float64, shape (n,): the engine's; NaN where the mask is False, and in turns that have none.
        versions: int64, shape (n,): the policy that sampled each token; -1 where the mask is False or it is not known.
    """

    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float64]
    versions: npt.NDArray[np.int64]


@dataclass(frozen=True)
class RolloutBatch(TensorFields):
    """B rows of T inputs, in which K trajectories lie; all shapes are (B, T).

    Column t of all but `input_ids` belongs to the target of column t, which is the token of column t + 1: the output
    of the model at `input_ids[:, t]` is compared with it.

    Attributes:
        input_ids: int64.
        labels: int64, the next tokens, already shifted; -100 where nothing is trained: on prompts, padding, and the
            first token of every trajectory.
        logprobs: float32, with which the token was sampled; 0 where nothing is trained, NaN where it is not known.
        advantages: float32, of the token's trajectory; 0 where nothing is trained.
        versions: int64, of the policy that sampled the token; -1 where nothing is trained or it is not known.
        rollout: int64, the number of the token's trajectory, 0 to K - 1; -1 on padding.
        segment_ids: int32, of the inputs: 1, 2, ... along each row, 0 on padding.
        position_ids: int64, of the inputs: from 0 in every trajectory and in the padding.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    versions: torch.Tensor
    rollout: torch.Tensor
    segment_ids: torch.Tensor
    position_ids: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """bool, shape (B, T): True on targets that are trained."""
        return self.labels != IGNORE_INDEX


def trajectory(turns: Sequence[Mapping[str, Any]]) -> Trajectory:
    """Several results of `renderers.client.generate`, in order, as one row.

    Each prompt must begin with the prompt and completion before it, token for token, as `bridge_to_next_turn` makes it.
    Two turns, P for prompt, s for sampled, u for new messages::

        turn 1  P P s s
        turn 2  P P s s u s
        row     P P s s u s         mask  . . # # . #

    Args:
        turns: mappings with `prompt_ids`, `completion_ids` and, if known, `completion_logprobs`; `completion_mask`,
            False where the model did not sample a token of the completion (see `build_trajectory_step`); and
            `version`, a number of the policy or one for each token of the completion.

    Raises:
        UsageError: there are no turns; a prompt does not continue the turn before, since its text was tokenized again
            or the template drops reasoning from the history (then train on each turn as a row of its own); or values
            are of another kind, or not one for each token (turn, field and token named).
    """
    if not turns:
        raise UsageError("no turns; expected at least one result of generate()")
    ids = np.empty(0, np.int64)
    parts: list[tuple[Array, Array, Array]] = []  # mask, log-probabilities and versions of some tokens
    for number, turn in enumerate(turns):
        where = f"turn {number}: "
        if not isinstance(turn, Mapping):
            raise UsageError(f"turn {number} is {shown(turn)}; expected a mapping with prompt_ids and completion_ids")
        prompt, completion = (_ids(turn, name, where) for name in ("prompt_ids", "completion_ids"))
        _check_continues(prompt, ids, number)
        # What the prompt adds to the turn before (tool results, the next question, headers) was not sampled.
        added, n = len(prompt) - len(ids), len(completion)
        parts.append((np.zeros(added, np.bool_), np.full(added, np.nan), np.full(added, NO_VERSION)))
        mask = _mask(turn.get("completion_mask"), n, where)
        versions = _versions(turn.get("version"), n, where)
        logprobs = _logprobs(turn.get("completion_logprobs"), mask, where)
        parts.append((mask, logprobs, np.where(mask, versions, NO_VERSION)))
        ids = np.concatenate([prompt, completion])
    return Trajectory(ids, *map(np.concatenate, zip(*parts, strict=True)))


def group_advantages(rewards: npt.ArrayLike, groups: npt.ArrayLike, formula: str = "grpo") -> npt.NDArray[np.float64]:
    """How much better each rollout is than the others of its group, float64, shape (n,).

    ::

        "grpo"    (r - mean) / (std + 1e-6)    Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2
        "mean"    r - mean                     Liu et al. 2025, Dr. GRPO, arXiv 2503.20783

        rewards   1  0  0  1   3     of the groups  0 0 0 0 1
        "mean"    .5 -.5 -.5 .5  0   "grpo"  .87 -.87 -.87 .87 0

    The first paper does not say which standard deviation; here it is that of a sample (divided by n - 1), as
    `torch.std` computes it, and 1e-6 is ours. In a group of equal rewards, or of one rollout, both are exactly 0.

    Args:
        rewards: of each rollout, shape (n,).
        groups: the group of each, whole numbers from 0 on in any order; shape (n,).
        formula: one of `FORMULAS`.

    Raises:
        UsageError: another formula, a reward that is not finite, or not one group for each reward.
    """
    if formula not in FORMULAS:
        raise UsageError(f"formula is {formula!r}; expected one of {', '.join(FORMULAS)}")
    values, numbers = np.asarray(rewards, np.float64), np.asarray(groups, np.int64)
    if values.ndim != 1 or values.shape != numbers.shape:
        raise UsageError(f"rewards of shape {values.shape} and groups of shape {numbers.shape}; expected (n,) of both")
    if not np.isfinite(values).all():
        at = int(np.argmin(np.isfinite(values)))
        raise UsageError(f"reward {at} is {values[at]}; expected a finite number")
    if not values.size:
        return values.copy()
    sizes = np.maximum(np.bincount(numbers), 1)  # a number that no rollout has must not divide by 0
    centred = values - (np.bincount(numbers, values) / sizes)[numbers]
    if formula == "grpo":
        variance = np.bincount(numbers, centred**2) / np.maximum(sizes - 1, 1)
        centred = centred / (np.sqrt(variance)[numbers] + _EPSILON)
    # The mean of 0.1 0.1 0.1 is not 0.1, so equal rewards are found by comparing them.
    most, least = np.full(len(sizes), -np.inf), np.full(len(sizes), np.inf)
    np.maximum.at(most, numbers, values)
    np.minimum.at(least, numbers, values)
    return np.where((most <= least)[numbers], 0.0, centred)


def rollout_batch(
    rows: Sequence[Trajectory],
    advantages: Sequence[float] | Array,
    *,
    sequence_length: int,
    pad_token_id: int,
    packing: bool = False,
) -> RolloutBatch:
    """Trajectories as one batch of fixed width, everything aligned with the targets.

    ::

        tokens      P  P  a  b  E        logprobs    nan  nan  -1  -2  -3
        input_ids   P  P  a  b
        labels      .  a  b  E           logprobs         0    -1  -2  -3      . is -100

    Args:
        rows: K trajectories.
        advantages: of each, shape (K,).
        sequence_length: T, the inputs of a row; a trajectory may have T + 1 tokens, of which the last is a target only.
        pad_token_id: fills rows; it is masked by its place, so any id will do.
        packing: several trajectories in a row, by best-fit decreasing; attention must then not cross segments.

    Raises:
        UsageError: a trajectory is empty or too long, or not one finite advantage for each.
    """
    width = BLOCK_SIZE.whole(sequence_length) + 1
    lengths = np.array([len(row.ids) for row in rows], np.int64)
    wanted = np.asarray(advantages, np.float64)
    if wanted.shape != lengths.shape or not np.isfinite(wanted).all():
        raise UsageError(f"advantages are {shown(advantages)}; expected a finite number for each of {len(rows)} rows")
    if len(misfits := np.flatnonzero((lengths < 1) | (lengths > width))):
        at = int(misfits[0])
        raise UsageError(
            f"row {at} has {lengths[at]:,} tokens; expected 1 to {width:,}: raise sequence_length, or leave it out"
        )
    own_rows = PackPlan(np.arange(len(rows)), np.arange(len(rows) + 1), width, int(lengths.sum()))
    plan = pack(lengths, width) if packing else own_rows
    shape = plan.rows, width
    tokens, rollout = np.full(shape, pad_token_id, np.int64), np.full(shape, -1, np.int64)
    logprobs, versions = np.zeros(shape), np.full(shape, NO_VERSION, np.int64)
    trained, segments = np.zeros(shape, np.bool_), np.zeros(shape, np.int32)
    positions = np.zeros(shape, np.int64)
    for row in range(plan.rows):
        at = 0
        for segment, number in enumerate(plan.items[plan.offsets[row] : plan.offsets[row + 1]].tolist(), 1):
            one = rows[number]
            place = row, slice(at, at + len(one.ids))
            tokens[place], trained[place], rollout[place], segments[place] = one.ids, one.mask, number, segment
            logprobs[place], versions[place], positions[place] = one.logprobs, one.versions, np.arange(len(one.ids))
            trained[row, at] = False  # the token before it is of another trajectory
            at += len(one.ids)
        positions[row, at:] = np.arange(width - at)
    inputs, labels = shifted(tokens)
    is_trained, numbers = targets_of(trained), targets_of(rollout)
    arrays = {
        "input_ids": inputs,
        "labels": np.where(is_trained, labels, IGNORE_INDEX),
        "logprobs": np.where(is_trained, targets_of(logprobs), 0.0).astype(np.float32),
        # -1, the number of padding, reads the appended last value.
        "advantages": np.where(is_trained, np.append(wanted, 0.0)[numbers], 0.0).astype(np.float32),
        "versions": np.where(is_trained, targets_of(versions), NO_VERSION),
        "rollout": np.ascontiguousarray(numbers),
        "segment_ids": np.ascontiguousarray(segments[:, :-1]),
        "position_ids": np.ascontiguousarray(positions[:, :-1]),
    }
    return RolloutBatch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


# ---- the values of a turn, checked


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
    above = mask & (found > _MOST_LOGPROB)
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
