"""The sentinel format: chats as ids with four sentinels, their loss masks, rows of fixed length, tensors.

::

    {"messages": [...]}  --serialize_chat_to_ids-->  [sys] ... [eot] [usr] ... [eot] [asst] ... [eot]
                         --sft_loss_mask_for_ids-->  True on assistant text and its [eot]
                         --pack_sft_ids_and_mask-->  exactly S = T + 1 of both
                         --collate_sft_batch------>  x, y, loss_mask of shape (B, T)

Texts are plain: tool calls, reasoning and lists of parts cannot be expressed, and are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import ChatExample, Message, normalise
from niels_gpt.ranges import BATCH_SIZE, LENGTH
from niels_gpt.store.masks import IGNORE_INDEX, assistant_mask
from niels_gpt.tokenizer.sentinels import ChatTokenizer, Ids, Lengths, encode_ordinary, sentinel_ids

if TYPE_CHECKING:
    import torch

DEFAULT_SYSTEM_TEXT: Final = "you are a helpful assistant."

_SENTINEL_OF_ROLE: Final = {"system": "sys", "user": "usr", "assistant": "asst"}
_INEXPRESSIBLE: Final = ("tool_calls", "tool_call_id", "reasoning_content")


def check_chat(messages: Sequence[Message], *, allow_message_weights: bool = False) -> None:
    """Check that this format can express messages that `messages.normalise` returned.

    Args:
        allow_message_weights: `train` and `weight` are allowed, because the caller stores a mask that expresses them.

    Raises:
        MessageError: naming message index and field. Reasons: `unknown_role`, `late_system` (a system message that is
            not the first), `unsupported_content` (a list of parts), `unsupported_field` (tool calls, reasoning, or a
            `train`/`weight` that this format cannot express).
    """
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in _SENTINEL_OF_ROLE:
            raise MessageError("unknown_role", f"message {index}: role is {role!r}; expected system, user or assistant")
        if role == "system" and index > 0:
            raise MessageError(
                "late_system",
                f"message {index}: a system message after others; expected at most one, as the first. Move or merge it",
            )
        if not isinstance(message["content"], str):
            raise MessageError("unsupported_content", f"message {index}: content is a list of parts; expected a string")
        for key in _INEXPRESSIBLE:
            if message.get(key):  # an empty list of calls, or no reasoning, says nothing that would be lost
                raise MessageError(
                    "unsupported_field",
                    f"message {index}: {key} cannot be expressed in this format of plain text turns; remove it",
                )
        if not allow_message_weights and (message.get("train") is False or message.get("weight", 1.0) != 1.0):
            raise MessageError(
                "unsupported_field",
                f"message {index}: this format trains every assistant turn and cannot store train/weight; remove it",
            )


def serialize_chat_to_ids(ex: ChatExample, *, tokenizer: ChatTokenizer, default_system_text: str) -> list[int]:
    """The ids of a whole chat: for each message its role's sentinel, its text, the end-of-turn sentinel.

    A system turn comes first; `default_system_text` is used if the chat has none. Sentinels are inserted by id, and
    text that spells one out is encoded as ordinary text.

    Args:
        ex: `{"messages": [{"role", "content"}, ...]}`; any order of user and assistant, repeats included.
        tokenizer: anything with `encode(str) -> list[int]` and `special_token_ids()`.

    Raises:
        MessageError: naming message index and field; see `messages.normalise` and `check_chat`.
        TokenizerError: the tokenizer yields a sentinel's id from text.
    """
    if not isinstance(ex, dict) or "messages" not in ex:
        raise MessageError("missing_field", "the chat has no 'messages'; expected {'messages': [...]}")
    messages = normalise(ex["messages"])
    check_chat(messages)
    ids, _ = serialize_chats([messages], tokenizer=tokenizer, default_system_text=default_system_text)
    return _as_list(ids)


def serialize_chats(
    chats: Sequence[Sequence[Message]],
    *,
    tokenizer: ChatTokenizer,
    default_system_text: str = DEFAULT_SYSTEM_TEXT,
    num_threads: int | None = None,
) -> tuple[Ids, Lengths]:
    """Many chats at once, each exactly as `serialize_chat_to_ids` returns it.

    All texts are encoded in one batch, then texts and sentinels are scattered into place::

        text lengths   2 3
        turn starts    0 4        each turn has two sentinels more than its text
        out            S x x E U y y y E

    Args:
        chats: messages that `normalise` returned and `check_chat` accepted.

    Returns:
        `(ids, lengths)`: all ids one after the other, int32; tokens per chat, int64 of shape (len(chats),).
    """
    by_name = sentinel_ids(tokenizer)
    turns = [
        list(messages)
        if messages[0]["role"] == "system"
        else [Message(role="system", content=default_system_text), *messages]
        for messages in chats
    ]
    roles = [by_name[_SENTINEL_OF_ROLE[message["role"]]] for message in chain.from_iterable(turns)]
    texts = [str(message["content"]) for message in chain.from_iterable(turns)]
    text_ids, text_lengths = encode_ordinary(tokenizer, texts, num_threads=num_threads)
    # Texts of 2 and 3 ids are turns of 4 and 5, which end at 4 and 9. What is neither a turn's first nor its last place
    # takes the texts' ids in their order.
    turn_lengths = text_lengths + 2
    turn_ends = np.cumsum(turn_lengths)
    ids = np.empty(int(turn_lengths.sum()), dtype=np.int32)
    is_text = np.ones(len(ids), dtype=np.bool_)
    is_text[turn_ends - turn_lengths] = False
    is_text[turn_ends - 1] = False
    ids[turn_ends - turn_lengths] = roles
    ids[turn_ends - 1] = by_name["eot"]
    ids[is_text] = text_ids
    # Chats of 2 and 1 turns with turn ends 4 9 12: the last turns are 1 and 2, so the chats end at 9 and 12.
    turns_per_chat = np.fromiter(map(len, turns), dtype=np.int64, count=len(turns))
    chat_ends = turn_ends[np.cumsum(turns_per_chat) - 1]
    return ids, np.diff(chat_ends, prepend=0)


def sft_loss_mask_for_ids(ids: list[int], *, sys_id: int, usr_id: int, asst_id: int, eot_id: int) -> list[bool]:
    """One bool per id, True = trained: assistant text and the end-of-turn that closes it, nothing else."""
    mask = assistant_mask(np.asarray(ids, dtype=np.int64), sys_id=sys_id, usr_id=usr_id, asst_id=asst_id, eot_id=eot_id)
    return _as_list(mask)


def pack_sft_ids_and_mask(
    ids: list[int],
    mask: list[bool],
    *,
    S: int,
    sys_id: int,
    usr_id: int,
    asst_id: int,
    eot_id: int,
    pad_id: int,
) -> tuple[list[int], list[bool]]:
    """Make ids and mask exactly `S` = T + 1 long.

    Too long: the oldest turns are dropped first, see `drop_oldest_turns`. Too short: `pad_id` on the right,
    mask False.

    Raises:
        UsageError: `S` below 1, or ids and mask of different lengths.
    """
    S = LENGTH.whole(S, "S")
    if len(ids) != len(mask):
        raise UsageError(f"{len(ids)} ids but {len(mask)} mask entries; expected one bool per id")
    # The mask is cut with the ids, never derived again from them: so a cut assistant turn stays trained, and padding
    # with the end-of-turn id is not trained.
    slices = drop_oldest_turns(
        np.asarray(ids, dtype=np.int64), S, sys_id=sys_id, usr_id=usr_id, asst_id=asst_id, eot_id=eot_id
    )
    packed_ids = [token for part in slices for token in ids[part]]
    packed_mask = [trained for part in slices for trained in mask[part]]
    padding = S - len(packed_ids)
    return packed_ids + [pad_id] * padding, packed_mask + [False] * padding


def drop_oldest_turns(
    ids: npt.NDArray[Any], room: int, *, sys_id: int, usr_id: int, asst_id: int, eot_id: int
) -> list[slice]:
    """Drop the oldest turns after the system turn until the row fits; cut inside a turn only if that is not enough.

    A question and its answer are dropped together, and the last answer stays. If even the last question and answer are
    too long, the last `room` tokens stay, except that the last answer's end-of-turn always stays: if a longer user turn
    follows it, the window ends at that end-of-turn.

    ::

        turns        sys  usr asst  usr asst          room for 4 turns
        cut before         |         |                never between a question and its answer
        stay         sys            usr asst

    Args:
        ids: integers, shape (n,).
        room: how many tokens may stay, at least 1.

    Returns:
        Slices of `ids`, in order, together at most `room` long.
    """
    n = len(ids)
    if n <= room:
        return [slice(0, n)]
    starts = np.flatnonzero((ids == sys_id) | (ids == usr_id) | (ids == asst_id))
    roles = ids[starts]
    answers = np.flatnonzero(roles == asst_id)
    if answers.size == 0:  # nothing would be trained, whatever stays
        return [slice(n - room, n)]
    first = 1 if starts[0] == 0 and roles[0] == sys_id else 0  # the first turn that may be dropped
    system_end = int(starts[first]) if first else 0
    # The remaining turns may begin with any turn but an answer to the turn before it.
    may_start = np.ones(len(starts), dtype=np.bool_)
    may_start[1:] = (roles[1:] != asst_id) | (roles[:-1] == asst_id)
    # Of answer, question, answer, answer those are # # . #. An answer that follows the system turn may also begin: what
    # it answers is not there.
    may_start[first] = True
    last = int(answers[-1])
    last_start = last if may_start[last] else last - 1
    cuts = starts[first : last_start + 1][may_start[first : last_start + 1]]
    # n = 100, the system turn ends at 10, cuts 10 40 70: 100, 70 or 40 tokens stay. The first that fits is taken.
    fitting = np.flatnonzero(system_end + (n - cuts) <= room)
    cut = int(cuts[fitting[0]] if fitting.size else cuts[-1])
    remaining = np.concatenate([ids[:system_end], ids[cut:]])
    gap = cut - system_end
    # If the last question and answer are too long, the last `room` tokens stay; or where the answer's end-of-turn is
    # before these, those up to it. Of 10 tokens with room for 4 and an end-of-turn at 4: 1 to 5.
    size, answer_start = len(remaining), int(starts[last]) - gap
    ends = np.flatnonzero(remaining[answer_start:] == eot_id)
    last_eot = answer_start + int(ends[0]) if ends.size else size - 1
    stop = size if last_eot >= size - room else last_eot + 1
    start = max(0, stop - room)
    # Back to places in `ids`: what is before the system turn's end is where it was, the rest is `gap` further.
    return [slice(start, min(stop, system_end)), slice(max(start, system_end) + gap, stop + gap)]


def collate_sft_batch(
    packed: list[tuple[list[int], list[bool]]], *, T: int, device: str, ignore_index: int = IGNORE_INDEX
) -> tuple[torch.LongTensor, torch.LongTensor, torch.BoolTensor]:
    """`(x, y, loss_mask)`, each of shape (B, T) on `device`, from rows of `S` = T + 1 ids and masks.

    `x` and `y` are int64, `y` holds `ignore_index` wherever `loss_mask` (bool, aligned to `y`) is False.

    Raises:
        UsageError: no rows, `T` below 1, no such device, or a row that is not T + 1 long (its index is named).
    """
    import torch

    from niels_gpt.format import collate  # imported here, so that serialising chats does not import torch

    BATCH_SIZE.whole(len(packed))
    T = LENGTH.whole(T)
    collate.checked_device(device)  # before any work, which a misspelt device would waste
    for index, (ids, mask) in enumerate(packed):
        if len(ids) != T + 1 or len(mask) != T + 1:
            raise UsageError(f"row {index} has {len(ids)} ids and {len(mask)} mask entries; expected T + 1 = {T + 1}")
    rows = _filled((ids for ids, _ in packed), (len(packed), T + 1), np.int64)
    masks = _filled((mask for _, mask in packed), (len(packed), T + 1), np.bool_)
    x, y = collate.inputs_and_targets(rows, device)
    loss_mask = collate.to_device(torch.from_numpy(masks[:, 1:]).contiguous(), device)
    return x, collate.masked_targets(y, loss_mask, ignore_index), loss_mask  # type: ignore[return-value]


def _as_list(array: npt.NDArray[Any]) -> list[Any]:
    """A list of plain Python values, which the public functions return."""
    values: list[Any] = array.tolist()
    return values


def _filled(rows: Any, shape: tuple[int, int], dtype: Any) -> npt.NDArray[Any]:
    """The values of all rows in one new array, without an array for each row."""
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=shape[0] * shape[1]).reshape(shape)
