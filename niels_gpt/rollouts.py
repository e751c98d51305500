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
from niels_gpt.format.packing import PackPlan, layout_of, pack
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
        prompt, completion = (_ids(turn, name, where) for name in ("prompt_ids", "completion_ids"))
        _check_continues(prompt, ids, number)
        # What the prompt adds to the turn before (tool results, the next question, headers) was not sampled.
        added = len(prompt) - len(ids)
        parts.append((np.zeros(added, np.bool_), np.full(added, np.nan), np.full(added, NO_VERSION)))
        parts.append(_sampled(turn, len(completion), where))
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
    return _batch(rows, wanted, lengths, plan, pad_token_id)


def _batch(
    rows: Sequence[Trajectory], advantages: Array, lengths: Array, plan: PackPlan, pad_token_id: int
) -> RolloutBatch:
    # The trajectories in the order of the rows, one after the other, fill the places that are not padding.
    width, order = plan.capacity, plan.items.tolist()
    used = np.add.reduceat(lengths[plan.items], plan.offsets[:-1])
    places = np.flatnonzero(np.arange(width) < used[:, None])
    begins = places[np.cumsum(lengths[order]) - lengths[order]]

    def filled(values: Sequence[Array], padding: float, dtype: npt.DTypeLike) -> Array:
        found = np.full(plan.rows * width, padding, dtype)
        found[places] = np.concatenate(values)
        return found.reshape(plan.rows, width)

    ordered = [rows[number] for number in order]
    inputs, labels = shifted(filled([row.ids for row in ordered], pad_token_id, np.int64))
    trained = filled([row.mask for row in ordered], 0, np.bool_)
    trained.reshape(-1)[begins] = False  # the token before is of another trajectory
    is_trained = targets_of(trained)
    numbers = targets_of(filled([np.repeat(order, lengths[order])], -1, np.int64))
    logprobs = targets_of(filled([row.logprobs for row in ordered], 0, np.float64))
    versions = targets_of(filled([row.versions for row in ordered], NO_VERSION, np.int64))
    layout = layout_of(begins, used, T=width - 1)
    arrays = {
        "input_ids": inputs,
        "labels": np.where(is_trained, labels, IGNORE_INDEX),
        "logprobs": np.where(is_trained, logprobs, 0.0).astype(np.float32),
        # -1, the number of padding, reads the appended last value.
        "advantages": np.where(is_trained, np.append(advantages, 0.0)[numbers], 0.0).astype(np.float32),
        "versions": np.where(is_trained, versions, NO_VERSION),
        "rollout": np.ascontiguousarray(numbers),
        "segment_ids": layout.segment_ids,
        "position_ids": layout.position_ids,
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


def _array(turn: Mapping[str, Any], name: str, kinds: str, where: str, n: int | None = None) -> Array:
    """A field of a turn as an array of one of these kinds of numbers, as numpy names them, `n` of them."""
    if name not in turn:
        raise UsageError(f"{where}no {name}; found {', '.join(map(str, turn)) or 'nothing'}")
    found = np.asarray(turn[name])
    # Not converted: of floats and truth values some would be ids, and nothing would show that others were meant.
    if found.ndim != 1 or (n is not None and len(found) != n) or (found.size and found.dtype.kind not in kinds):
        expected = "integers" if "i" in kinds else "floating point numbers"
        raise UsageError(
            f"{where}{name} are {found.dtype} of shape {found.shape}; expected {expected} of shape "
            f"({'tokens' if n is None else n},)"
        )
    return found


def _ids(turn: Mapping[str, Any], name: str, where: str) -> Array:
    found = _array(turn, name, "iu", where)
    if found.size and (found.min() < TOKEN_ID.least or found.max() > TOKEN_ID.most):
        raise UsageError(f"{where}{name} are from {found.min()} to {found.max()}; expected 0 to 2**32 - 1")
    return found.astype(np.int64)


def _sampled(turn: Mapping[str, Any], n: int, where: str) -> tuple[Array, Array, Array]:
    """Mask, log-probabilities and versions of the `n` tokens of a completion."""
    given: dict[str, Any] = {"completion_mask": np.ones(n, np.bool_), "version": NO_VERSION}
    given |= {name: value for name, value in turn.items() if value is not None}
    logprobs = np.full(n, np.nan)
    if len(given.get("completion_logprobs", ())):  # servers answer with an empty list where they computed none
        logprobs = _array(given, "completion_logprobs", "f", where, n)
    if np.ndim(given["version"]) == 0:
        given["version"] = np.full(n, given["version"])
    mask, versions = (_array(given, name, "biu", where, n) for name in ("completion_mask", "version"))
    if not ((mask == 0) | (mask == 1)).all():
        raise UsageError(f"{where}completion_mask holds {shown(mask[(mask != 0) & (mask != 1)][0])}; expected 0 or 1")
    if versions.size and not -1 <= versions.min() <= versions.max() < 2**31:
        raise UsageError(f"{where}version is {shown(turn['version'])}; expected a whole number from 0")
    mask = mask.astype(np.bool_)
    if not np.isnan(logprobs).all():
        _check_logprobs(logprobs, mask, where)
    return mask, np.where(mask, logprobs, np.nan), np.where(mask, versions, NO_VERSION)


def _check_logprobs(logprobs: Array, mask: Array, where: str) -> None:
    with np.errstate(over="ignore"):  # what does not fit into float32, as which it is stored, becomes infinite
        bad = mask & ~np.isfinite(logprobs.astype(np.float32))
    if bad.any():
        at = int(np.argmax(bad))
        raise UsageError(
            f"{where}completion_logprobs: {logprobs[at]} at token {at:,}, which was sampled; expected a finite number. "
            "Ask the engine for the logprobs of sampled tokens, or mark the token in completion_mask"
        )
    if (above := mask & (logprobs > _MOST_LOGPROB)).any():
        at = int(np.argmax(above))
        raise UsageError(
            f"{where}completion_logprobs: {logprobs[at]} at token {at:,}; expected the logarithm of a probability, "
            "which is at most 0. Are these probabilities?"
        )
