"""Slow, obvious versions of what the package does fast. Tests compare the two."""

from __future__ import annotations


def mask_reference(ids: list[int], sys_id: int, usr_id: int, asst_id: int, eot_id: int) -> list[bool]:
    """The scanning rule of the sentinels' format, one token at a time."""
    mask, inside = [], False
    for token in ids:
        if token == asst_id:
            mask.append(False)
            inside = True
        elif token in (sys_id, usr_id):
            mask.append(False)
            inside = False
        else:
            mask.append(inside)
            if token == eot_id:
                inside = False
    return mask


def turns_of(ids: list[int], roles: tuple[int, ...]) -> list[list[int]]:
    """The ids cut before every role sentinel."""
    turns: list[list[int]] = []
    for token in ids:
        if token in roles or not turns:
            turns.append([])
        turns[-1].append(token)
    return turns


def pack_reference(
    ids: list[int], mask: list[bool], S: int, sys_id: int, usr_id: int, asst_id: int, eot_id: int, pad_id: int
) -> tuple[list[int], list[bool]]:
    """The format's truncation and padding, for rows that begin with a role sentinel."""
    turns = turns_of(ids, (sys_id, usr_id, asst_id))
    tagged = list(zip(ids, mask, strict=True))
    rows, at = [], 0
    for turn in turns:
        rows.append(tagged[at : at + len(turn)])
        at += len(turn)

    def role(row: list[tuple[int, bool]]) -> int:
        return row[0][0]

    system = [rows.pop(0)] if rows and role(rows[0]) == sys_id else []
    answers = [i for i, row in enumerate(rows) if role(row) == asst_id]
    n_later = len(rows) - 1 - answers[-1] if answers else 0
    while sum(map(len, system + rows)) > S and answers:
        drop = 1
        while drop < len(rows) and role(rows[drop]) == asst_id and role(rows[drop - 1]) != asst_id:
            drop += 1  # an answer leaves with its question
        last = len(rows) - 1 - n_later
        if drop > last:
            break
        rows = rows[drop:]
    flat = [pair for row in system + rows for pair in row]
    if len(flat) > S:
        before = len(flat) - sum(len(row) for row in rows[len(rows) - 1 - n_later :]) if answers else 0
        ends = [i for i, (token, _) in enumerate(flat) if i >= before and token == eot_id] if answers else []
        stop = len(flat) if not ends or ends[0] >= len(flat) - S else ends[0] + 1
        flat = flat[max(0, stop - S) : stop]
    flat += [(pad_id, False)] * (S - len(flat))
    return [token for token, _ in flat], [trained for _, trained in flat]
