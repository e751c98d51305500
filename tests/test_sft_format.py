"""The chat format with four sentinels: serialise, mask, pack, collate."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import MessageError, TokenizerError, UsageError
from niels_gpt.format.sft import (
    DEFAULT_SYSTEM_TEXT,
    IGNORE_INDEX,
    collate_sft_batch,
    pack_sft_ids_and_mask,
    serialize_chat_to_ids,
    serialize_chats,
    sft_loss_mask_for_ids,
)
from niels_gpt.messages import normalise
from niels_gpt.tokenizer import SPECIAL_TOKENS, SentencePieceTokenizer
from tests.conftest import ASST, EOT, IDS, SYS, USR, FakeTokenizer
from tests.references import mask_reference, pack_reference, turns_of

PACK = {**IDS, "pad_id": EOT}


def chat(*turns: tuple[str, str]) -> dict[str, list[dict[str, str]]]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def serialise(tokenizer: object, *turns: tuple[str, str]) -> list[int]:
    return serialize_chat_to_ids(chat(*turns), tokenizer=tokenizer, default_system_text="be kind")


def mask_of(ids: list[int]) -> list[bool]:
    return sft_loss_mask_for_ids(ids, **IDS)


def kept(ids: list[int], S: int) -> list[int]:
    """The ids that packing keeps, padding taken off by position."""
    packed, mask = pack_sft_ids_and_mask(ids, mask_of(ids), S=S, **PACK)
    assert len(packed) == len(mask) == S
    return packed[: min(S, len(ids))]


turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("ab ", max_size=12)), min_size=1, max_size=7)
chats = st.tuples(st.booleans(), turns).map(lambda t: ([("system", "s y s")] if t[0] else []) + t[1])
rows = st.lists(st.sampled_from([SYS, USR, ASST, EOT, 10, 11, 12]), max_size=40)


# --- serialisation ---------------------------------------------------------------------------------------------


def test_a_chat_without_system_begins_with_the_default_and_every_turn_ends_with_eot(fake: FakeTokenizer) -> None:
    ids = serialise(fake, ("user", "hi there"), ("assistant", "hello"))
    assert ids == [SYS, 10, 11, EOT, USR, 12, 13, EOT, ASST, 14, EOT]
    assert fake.decode(ids[1:3]) == "be kind"


def test_a_given_system_message_replaces_the_default(fake: FakeTokenizer) -> None:
    assert serialise(fake, ("system", "x"), ("user", "y"))[:3] == [SYS, 10, EOT]


def test_the_default_system_text_is_the_document_s() -> None:
    assert DEFAULT_SYSTEM_TEXT == "you are a helpful assistant."


@pytest.mark.parametrize(
    "order",
    [["assistant", "user"], ["user", "user", "assistant"], ["assistant", "assistant"], ["user", "assistant", "user"]],
)
def test_any_order_of_user_and_assistant_is_kept(fake: FakeTokenizer, order: list[str]) -> None:
    ids = serialise(fake, *((role, "w") for role in order))
    assert [turn[0] for turn in turns_of(ids, (SYS, USR, ASST))] == [
        SYS,
        *({"user": USR, "assistant": ASST}[r] for r in order),
    ]


def test_empty_content_leaves_the_two_sentinels(fake: FakeTokenizer) -> None:
    assert serialise(fake, ("user", ""), ("assistant", ""))[4:] == [USR, EOT, ASST, EOT]


@pytest.mark.parametrize("spelling", SPECIAL_TOKENS)
def test_content_never_becomes_a_sentinel(  # although the fake tokenizer would make it one
    fake: FakeTokenizer, tokenizer: SentencePieceTokenizer, spelling: str
) -> None:
    for some in (fake, tokenizer):
        special = some.special_token_ids()
        ids = serialise(some, ("user", f"a {spelling} b{spelling}"), ("assistant", spelling))
        found = [token for token in ids if token in special.values()]
        assert found == [special[name] for name in ("sys", "eot", "usr", "eot", "asst", "eot")]
    assert spelling in tokenizer.decode(ids)


def test_a_tokenizer_that_yields_sentinels_from_text_is_refused() -> None:
    class Stubborn(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return [EOT]

    with pytest.raises(TokenizerError, match="text 0 encodes to the sentinel id 4"):
        serialise(Stubborn(), ("user", "x"))


@pytest.mark.parametrize(
    ("messages", "reason", "says"),
    [
        ([("user", "a"), ("tool", "b")], "unknown_role", "message 1: role is 'tool'"),
        ([("User", "a")], "unknown_role", "message 0: role is 'User'"),
        ([("user", "a"), ("system", "b")], "late_system", "message 1: a system message after others"),
        ([("user", 5)], "wrong_type", "message 0: content is 5 (int)"),
        ([("user", [{"type": "text", "text": "x"}])], "unsupported_content", "message 0: content is a list of parts"),
        ([], "no_messages", "messages is empty"),
    ],
)
def test_what_cannot_be_serialised_names_message_and_field(
    fake: FakeTokenizer, messages: list[tuple[str, str]], reason: str, says: str
) -> None:
    with pytest.raises(MessageError) as caught:
        serialise(fake, *messages)
    assert caught.value.reason == reason
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "extra", [{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, {"train": False}, {"weight": 0.5}]
)
def test_what_the_format_cannot_express_is_refused_not_dropped(fake: FakeTokenizer, extra: dict[str, object]) -> None:
    message = {"role": "assistant", "content": "a", **extra}
    with pytest.raises(MessageError, match="message 0") as caught:
        serialize_chat_to_ids({"messages": [message]}, tokenizer=fake, default_system_text="")
    assert caught.value.reason == "unsupported_field"


@given(st.lists(chats, min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_many_chats_at_once_equal_one_by_one(many: list[list[tuple[str, str]]]) -> None:
    fake = FakeTokenizer()
    messages = [normalise(chat(*one)["messages"]) for one in many]
    ids, lengths = serialize_chats(messages, tokenizer=fake, default_system_text="be kind")
    one_by_one = [serialise(fake, *one) for one in many]
    assert lengths.tolist() == [len(one) for one in one_by_one]
    assert ids.tolist() == [token for one in one_by_one for token in one]


# --- mask ------------------------------------------------------------------------------------------------------


def test_only_assistant_text_and_its_eot_are_trained(fake: FakeTokenizer) -> None:
    ids = serialise(fake, ("user", "u1 u2"), ("assistant", "a1 a2"))
    assert ids[-4:] == [ASST, ids[-3], ids[-2], EOT]
    assert mask_of(ids) == [False] * (len(ids) - 3) + [True, True, True]


@given(rows)
@settings(deadline=None, max_examples=300)
def test_the_mask_equals_the_scanning_rule(ids: list[int]) -> None:
    assert mask_of(ids) == mask_reference(ids, *IDS.values())


def test_user_text_is_not_trained_even_if_an_end_of_turn_is_missing() -> None:
    assert mask_of([ASST, 10, USR, 11, EOT]) == [False, True, False, False, False]


# --- packing ---------------------------------------------------------------------------------------------------


def three_turns(fake: FakeTokenizer) -> tuple[list[int], list[list[int]]]:
    words = [
        ("user", "q1 q1b"),
        ("assistant", "a1"),
        ("user", "q2"),
        ("assistant", "a2 a2b"),
        ("user", "q3"),
        ("assistant", "a3"),
    ]
    ids = serialise(fake, *words)
    return ids, turns_of(ids, (SYS, USR, ASST))


def test_oldest_pairs_leave_first_and_together(fake: FakeTokenizer) -> None:
    ids, (system, *pairs) = three_turns(fake)
    assert kept(ids, len(ids)) == ids
    for S in range(len(ids) - 1, 0, -1):
        after = [[*system, *chain(*pairs[drop:])] for drop in (2, 4)]
        fitting = [row for row in after if len(row) <= S]
        packed, mask = pack_sft_ids_and_mask(ids, mask_of(ids), S=S, **PACK)
        if fitting:
            assert packed == fitting[0] + [EOT] * (S - len(fitting[0]))
            assert mask == mask_of(fitting[0]) + [False] * (S - len(fitting[0]))
        else:
            assert packed == after[-1][-S:]
            assert (packed[-1], mask[-1]) == (EOT, True)


def test_a_huge_answer_is_cut_from_the_left_and_stays_trained() -> None:
    ids = [SYS, 10, EOT, USR, 11, EOT, ASST, *range(20, 40), EOT]
    packed, mask = pack_sft_ids_and_mask(ids, mask_of(ids), S=6, **PACK)
    assert packed == [35, 36, 37, 38, 39, EOT]
    assert mask == [True] * 6


def test_the_last_answer_s_eot_stays_although_a_longer_question_follows() -> None:
    ids = [SYS, 10, EOT, USR, 11, EOT, ASST, 12, EOT, USR, *range(20, 40), EOT]
    packed, mask = pack_sft_ids_and_mask(ids, mask_of(ids), S=5, **PACK)
    assert packed == [11, EOT, ASST, 12, EOT]
    assert mask == [False, False, False, True, True]


def test_short_rows_are_padded_and_padding_is_not_trained() -> None:
    ids = [SYS, EOT, USR, EOT, ASST, 10, EOT]
    packed, mask = pack_sft_ids_and_mask(ids, mask_of(ids), S=10, **PACK)
    assert packed == [*ids, EOT, EOT, EOT]
    assert mask == [False] * 5 + [True, True] + [False] * 3


def test_the_mask_travels_and_is_not_derived_again() -> None:
    ids = [SYS, EOT, ASST, 10, 11, 12, EOT]
    chosen = [False, False, False, False, True, False, False]  # not what any rule would give
    assert pack_sft_ids_and_mask(ids, chosen, S=4, **PACK)[1] == [False, True, False, False]
    # An answer without its end-of-turn, then padding: derived again, the padding would be trained.
    assert pack_sft_ids_and_mask([ASST, 10], [False, True], S=4, **PACK) == (
        [ASST, 10, EOT, EOT],
        [False, True, False, False],
    )


@given(chats, st.integers(1, 60))
@settings(deadline=None, max_examples=400)
def test_packing_equals_the_reference_and_keeps_its_promises(turns: list[tuple[str, str]], S: int) -> None:
    ids = serialise(FakeTokenizer(), *turns)
    mask = mask_of(ids)
    packed, packed_mask = pack_sft_ids_and_mask(ids, mask, S=S, **PACK)
    assert (packed, packed_mask) == pack_reference(ids, mask, S, *IDS.values(), EOT)
    assert len(packed) == len(packed_mask) == S
    if any(mask):
        assert any(t and token == EOT for token, t in zip(packed, packed_mask, strict=True)), "no trained end-of-turn"
    if len(ids) <= S:
        assert sum(packed_mask) == sum(mask), "trained tokens are conserved when nothing is cut"


@given(rows, st.integers(1, 50))
@settings(deadline=None, max_examples=300)
def test_packing_damaged_rows_keeps_order_and_never_parts_an_id_from_its_mask(ids: list[int], S: int) -> None:
    mask = [i % 3 == 0 for i in range(len(ids))]
    packed, packed_mask = pack_sft_ids_and_mask(ids, mask, S=S, **PACK)
    assert len(packed) == len(packed_mask) == S
    source = iter(zip(ids, mask, strict=True))
    real = [*zip(packed, packed_mask, strict=True)]
    while real and real[-1] == (EOT, False):  # perhaps padding
        real.pop()
    assert all(pair in source for pair in real), "what is kept comes from the row, in the row's order"


@pytest.mark.parametrize(("S", "mask", "says"), [(0, [True], "S is 0"), (3, [], "1 ids but 0 mask entries")])
def test_packing_refuses_nonsense(S: int, mask: list[bool], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pack_sft_ids_and_mask([ASST], mask, S=S, **PACK)


# --- collation -------------------------------------------------------------------------------------------------


def test_targets_are_shifted_by_one_and_masked() -> None:
    packed = [([ASST, 10, 11, EOT], [False, True, True, True]), ([ASST, 12, EOT, EOT], [False, True, True, False])]
    x, y, loss_mask = collate_sft_batch(packed, T=3, device="cpu")
    assert x.tolist() == [[ASST, 10, 11], [ASST, 12, EOT]]
    assert y.tolist() == [[10, 11, EOT], [12, EOT, IGNORE_INDEX]]
    assert loss_mask.tolist() == [[True, True, True], [True, True, False]]
    assert (x.dtype, y.dtype, loss_mask.dtype) == (torch.int64, torch.int64, torch.bool)
    assert all(tensor.is_contiguous() for tensor in (x, y, loss_mask))


@given(st.integers(1, 5), st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=50)
def test_collation_equals_a_loop(B: int, T: int, data: st.DataObject) -> None:
    row = st.tuples(
        st.lists(st.integers(0, 99), min_size=T + 1, max_size=T + 1),
        st.lists(st.booleans(), min_size=T + 1, max_size=T + 1),
    )
    packed = data.draw(st.lists(row, min_size=B, max_size=B))
    x, y, loss_mask = collate_sft_batch(packed, T=T, device="cpu", ignore_index=-7)
    for b, (ids, mask) in enumerate(packed):
        for t, ((token, _), (target, trained)) in enumerate(pairwise(zip(ids, mask, strict=True))):
            assert (x[b, t], y[b, t], loss_mask[b, t]) == (token, target if trained else -7, trained)


@pytest.mark.parametrize(
    ("packed", "T", "says"),
    [([], 3, "B is 0"), ([([1], [True])], 3, "row 0 has 1 ids"), ([([1], [True])], 0, "T is 0")],
)
def test_collation_refuses_wrong_shapes(packed: list[tuple[list[int], list[bool]]], T: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        collate_sft_batch(packed, T=T, device="cpu")


@given(chats)
@settings(deadline=None, max_examples=100)
def test_trained_tokens_are_conserved_from_conversation_to_batch(turns: list[tuple[str, str]]) -> None:
    fake = FakeTokenizer()
    ids = serialise(fake, *turns)
    expected = sum(len(fake.encode(text)) + 1 for role, text in turns if role == "assistant")
    packed = pack_sft_ids_and_mask(ids, mask_of(ids), S=len(ids) + 3, **PACK)
    _, y, loss_mask = collate_sft_batch([packed], T=len(ids) + 2, device="cpu")
    assert int(loss_mask.sum()) == int((y != IGNORE_INDEX).sum()) == expected
