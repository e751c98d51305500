"""Which headers of rows the format does not write.

A header is an opener and what stands between it and the text. What the probes show is the measure (`facts_of_headers`),
and `wrong_headers` compares rows with it. In Qwen3's format, N for a newline::

    probes   <|im_start|> assistant N In the north          <|im_start|> assistant N <think> N ...
    wrong    <|im_start|> assistant The ...                 short: the newline is missing
             <|im_start|> writer N The ...                  unknown: no probe has this id after <|im_start|>
             <|im_start|> assistant N N <think> ...         long: a newline more before the block of reasoning
             <|im_start|> assistant N N The ...             spaced: the same before text, which may begin with a newline

A model of gpt-oss writes a part of its headers itself, which is sampled text for all other rules::

    probe    <|start|> assistant <|channel|> final <|message|> In the north
    wrong    <|start|> assistant <|message|> In ...         unknown: no probe has this id after the opener
             <|start|> assistant <|channel|> talk ...       unknown: no probe has this id after <|channel|>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from niels_gpt.doctor.layouts.layout import HeaderFacts, Layout
from niels_gpt.doctor.layouts.turns import openings_of
from niels_gpt.doctor.rows import ASSISTANT, TOOL
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows

_WHITE_TOKENS = 4  # the most tokens of white space that are read after an opener; formats write one or two
_NEVER_LONG = 1 << 30  # bytes


class WrongHeaders(NamedTuple):
    """Where turns begin with headers that the format does not write; positions of their first tokens, in order.

    Attributes:
        short: less white space follows than the format writes.
        unknown: the header is another one.
        long: more white space follows, before a block of reasoning.
        spaced: more white space follows, which may also be the first of the message.
    """

    short: Int64s
    unknown: Int64s
    long: Int64s
    spaced: Int64s


def wrong_headers(layout: Layout, rows: TokenRows, padding: Bools) -> WrongHeaders:
    """The headers in these rows that the format does not write."""
    facts, spaces = layout.headers, _spaces_after_openers(layout, rows)
    fewest = np.array(facts.fewest_white or [0] * len(layout.openers), dtype=np.int64)[spaces.opener]
    # A header that no probe has is not judged: no white space is too much for it.
    followers = _followers(layout, rows, spaces.end)
    found = zip(spaces.opener.tolist(), followers.tolist(), strict=True)
    most = np.array([facts.most_white.get(header, _NEVER_LONG) for header in found], dtype=np.int64)
    # Nothing is missing where the row, or its text before padding, ends inside the header.
    complete = spaces.end < rows.starts[1:][rows.row_of[spaces.start]]
    complete &= ~padding[np.minimum(spaces.end, len(rows.ids) - 1)]
    long = complete & (spaces.size > most)
    # Followers are -1 or ids, so without a token for <think> no header is followed by -2.
    thinks = followers == (layout.think or (-2,))[0]
    unknown = _unknown_headers(layout, rows, padding)
    short = complete & (spaces.size < fewest)
    return WrongHeaders(spaces.start[short], unknown, spaces.start[long & thinks], spaces.start[long & ~thinks])


def facts_of_headers(layout: Layout, rows: TokenRows) -> HeaderFacts:
    """What follows the openers in the rows of the probes.

    Contents of the probes begin with no white space, so all of it is the format's. Results of tools are not judged.
    """
    spaces = _spaces_after_openers(layout, rows)
    fewest_white = tuple(
        int(spaces.size[spaces.opener == opener].min()) if role != TOOL and (spaces.opener == opener).any() else 0
        for opener, (role, _) in enumerate(layout.openers)
    )
    most_white: dict[tuple[int, int], int] = {}
    followers = _followers(layout, rows, spaces.end).tolist()
    for opener, follower, size in zip(spaces.opener.tolist(), followers, spaces.size.tolist(), strict=True):
        if layout.openers[opener][0] == ASSISTANT:
            most_white[opener, follower] = max(size, most_white.get((opener, follower), 0))
    # Only control tokens that begin a longer header: what follows a header of one token is text.
    openers = [ids for role, ids in layout.openers if role == ASSISTANT and len(ids) > 1]
    first_ids = {ids[0] for ids in openers if ids[0] in layout.controls}
    pairs = _pairs(rows, _followed(rows, first_ids))
    # Where models write openers (gpt-oss), they go on writing the header after it.
    after_opener: set[tuple[int, int]] = set()
    if layout.repeats_opener:
        found = openings_of(layout, rows)
        found = found.select(layout.roles[found.opener] == ASSISTANT)
        after_opener = set(zip(found.opener.tolist(), rows.ids[found.end].tolist(), strict=True))
    for token in {token for _, token in after_opener if token in layout.controls}:  # <|channel|>
        pairs |= _pairs(rows, _followed(rows, {token}))
    return HeaderFacts(fewest_white, most_white, frozenset(pairs), frozenset(after_opener))


@dataclass(frozen=True)
class _Spaces:
    """The white space after every opener; int64 arrays of shape (openers found,).

    ::

        <|im_start|> user N Hi      start 0, end 3, size 1
    """

    start: Int64s  # where the opener begins
    opener: Int64s  # its index in `Layout.openers`
    end: Int64s  # one past the white space
    size: Int64s  # bytes of the white space


def _spaces_after_openers(layout: Layout, rows: TokenRows) -> _Spaces:
    found = openings_of(layout, rows)
    end, size = found.end, np.zeros(len(found.start), dtype=np.int64)
    row_end = rows.starts[1:][rows.row_of[found.start]]
    # Each step reads one more token after all openers at once, as long as it is white space of the same row.
    reading = np.ones(len(end), dtype=np.bool_)
    for _ in range(_WHITE_TOKENS):
        white = np.where(reading & (end < row_end), layout.white_at(rows.ids, end), 0)
        reading = white > 0
        size, end = size + white, end + reading
    return _Spaces(found.start, found.opener, end, size)


def _followers(layout: Layout, rows: TokenRows, at: Int64s) -> Int64s:
    """The ids at some positions where they are control tokens or think tags, else -1."""
    found = rows.ids[np.minimum(at, len(rows.ids) - 1)]
    return np.where(np.isin(found, [*layout.controls, *(layout.think or ())]), found, -1)


def _unknown_headers(layout: Layout, rows: TokenRows, padding: Bools) -> Int64s:
    """Positions of control tokens and openers that no probe has with the id after them, where they begin headers."""
    pairs, found = layout.headers.pairs, openings_of(layout, rows)
    is_followed = _is_followed(rows)
    is_followed[:-1] &= ~padding[1:]  # a control token before padding begins no header
    at = np.flatnonzero(is_followed & np.isin(rows.ids, list({first for first, _ in pairs})))
    # An opener as a whole is a known header, even if its first two ids occur in no probe.
    at = np.setdiff1d(at, found.start)
    here = zip(rows.ids[at].tolist(), rows.ids[at + 1].tolist(), strict=True)
    unknown = at[np.array([pair not in pairs for pair in here], dtype=np.bool_)]
    if not layout.headers.after_opener:
        return unknown
    found = found.select((layout.roles[found.opener] == ASSISTANT) & is_followed[found.end - 1])
    headers = zip(found.opener.tolist(), rows.ids[found.end].tolist(), strict=True)
    others = np.array([header not in layout.headers.after_opener for header in headers], dtype=np.bool_)
    return np.union1d(unknown, found.start[others])


def _is_followed(rows: TokenRows) -> Bools:
    """True on tokens that another token of the same text follows."""
    return np.append(~rows.first_of_document[1:], False)


def _followed(rows: TokenRows, tokens: set[int]) -> Int64s:
    """Positions of these tokens that another token of the same text follows."""
    return np.flatnonzero(_is_followed(rows) & np.isin(rows.ids, list(tokens)))


def _pairs(rows: TokenRows, at: Int64s) -> set[tuple[int, int]]:
    """The ids at some positions, each with the next one."""
    return set(zip(rows.ids[at].tolist(), rows.ids[at + 1].tolist(), strict=True))
