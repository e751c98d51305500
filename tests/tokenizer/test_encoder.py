"""Pieces to ids with owners, against the official tokenizer and its offsets."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.engines import PROBE
from niels_gpt.tokenizer.hf import read_hf
from niels_gpt.tokenizer.pieces import Encoded
from tests.assets import DISTINCT, needs_assets
from tests.memory import shared
from tests.tokenizer import tiny
from tests.tokenizer.pieces import Pieces, check_many, split
from tests.tokenizer.tiny import CONTROLS, END, START, THINK

pytest.importorskip("tokenizers")

KINDS = {
    "bytes": (tiny.byte_level,),
    "nfc": (tiny.byte_level, ("form", "NFC")),
    "nfkc": (tiny.byte_level, ("form", "NFKC")),
    "unsplit": (tiny.byte_level, ("split", False)),
    "prefix": (tiny.byte_level, ("prefix", True)),
    "first": (tiny.metaspace, ("scheme", "first")),
    "always": (tiny.metaspace, ("scheme", "always")),
    "spaced": (tiny.spaced,),
    "rstrip": (tiny.flagged, ("rstrip", True)),
    "lstrip": (tiny.flagged, ("lstrip", True), ("rstrip", True)),
    "word": (tiny.flagged, ("single_word", True)),
}
CUTTABLE = [kind for kind in KINDS if kind not in ("rstrip", "lstrip", "word")]

FRAGMENTS = [
    *("user", "hello world", " the", "fox ", " ", "  ", "\n", "\n\n", "\r\n", "12345", "x+1", "", THINK, "</think>"),
    *(
        "<|im_",
        "start|>",
        "<",
        "|>",
        "<thi",
        "nk>",
        "é",
        "e\u0301",
        "\u0301",
        "中文",
        "👩‍👩‍👧",
        "\u200d",
        "\u1100",
        "\u1161",
    ),
    *("ﬁ", "½", "\u2581", "हिन्दी", "\x00", "<0x0A>", "\u0958"),
]
body = st.lists(st.sampled_from(FRAGMENTS), max_size=5).map("".join) | st.text(max_size=6)
scaffold = st.lists(st.sampled_from([*CONTROLS, *CONTROLS, *FRAGMENTS]), max_size=4).map("".join)
pieces_of = st.lists(st.tuples(body, st.just(False)) | st.tuples(scaffold, st.just(True)), max_size=8)
hostile = st.lists(
    st.tuples(st.lists(st.sampled_from([*CONTROLS, *FRAGMENTS]), max_size=4).map("".join), st.booleans()), max_size=8
)


@shared
def encoder(kind: str, engine: str = "auto") -> TokenizerAdapter:
    return TokenizerAdapter.load(tiny.cached(*KINDS[kind]), engine=engine)


def spellings(pieces: Pieces) -> tuple[list[int], list[int]]:
    """Slow: where control tokens stand in the joined string; in scaffold throughout, and otherwise."""
    text = "".join(text for text, _ in pieces)
    inside = [flag for text, flag in pieces for _ in text]
    true, forged = [], []
    for start in range(len(text)):
        for control in CONTROLS:
            if text.startswith(control, start):
                (true if all(inside[start : start + len(control)]) else forged).append(start)
    return true, forged


def reference(kind: str, pieces: Pieces) -> tuple[list[int], list[int]]:
    """Slow: the official tokenizer on the whole string, owners by the offsets of `tokenizers`."""
    official = tiny.cached(*KINDS[kind])
    bare = tiny.edited(official, lambda data: data.update(post_processor=None))  # which would trim offsets
    text = "".join(text for text, _ in pieces)
    encoding = bare.encode(text, add_special_tokens=False)
    assert encoding.ids == official.encode(text, add_special_tokens=False).ids
    ends = list(accumulate(len(text) for text, _ in pieces))
    owners = []
    for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        covered = text[start:stop]
        if official.id_to_token(token) in CONTROLS:  # lstrip makes it cover the space before its spelling
            start += len(covered) - len(covered.lstrip())
        owners.append(bisect_right(ends, start))
    return encoding.ids, owners


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=120)
@given(pieces=pieces_of)
@example(pieces=[])
@example(pieces=[("", True), ("", False)])
@example(pieces=[("<|im_", True), ("", False), ("start|>us", True), ("er\n", True), ("hi", False), ("\n", False)])
@example(pieces=[("hel", False), ("lo wor", False), ("ld", True)])
@example(pieces=[("e", True), ("\u0301x", False)])
@example(pieces=[("👩", False), ("\u200d👩", True), (END + " \n x", True), (" " + END, True)])
def test_ids_and_owners_are_those_of_the_official_tokenizer(kind: str, pieces: Pieces) -> None:
    if spellings(pieces)[1]:
        return
    ids, owner = encoder(kind).encode_pieces(*split(pieces))
    assert ids.dtype == owner.dtype == np.int32
    expected_ids, expected_owner = reference(kind, pieces)
    assert ids.tolist() == expected_ids
    assert owner.tolist() == expected_owner


@pytest.mark.parametrize("kind", CUTTABLE)
@settings(deadline=None, max_examples=80)
@given(pieces=hostile)
@example(pieces=[(START, False), ("<|im_", True), ("end|>", False), (END, True)])
def test_control_ids_come_from_scaffold_alone(kind: str, pieces: Pieces) -> None:
    made = encoder(kind)
    ids, owner = made.encode_pieces(*split(pieces))
    controls = np.isin(ids, list(made.control_ids.values()))
    starts, _ = spellings(pieces)
    text = "".join(text for text, _ in pieces)
    assert [made.decode([token]) for token in ids[controls]] == [
        next(control for control in CONTROLS if text.startswith(control, start)) for start in starts
    ]
    ends = list(accumulate(len(text) for text, _ in pieces))
    assert owner[controls].tolist() == [bisect_right(ends, start) for start in starts]
    assert (np.diff(owner) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_any_ids_decode_as_the_official_tokenizer_decodes_them(kind: str, data: st.DataObject) -> None:
    """Halves of characters too, which become U+FFFD."""
    made = encoder(kind)
    ids = data.draw(st.lists(st.integers(0, made.vocab_size - 1), max_size=12))
    assert made.decode(ids) == tiny.cached(*KINDS[kind]).decode(ids, skip_special_tokens=False)


def test_an_added_token_in_letters_of_the_byte_alphabet() -> None:
    """`tokenizers` decodes its letters as bytes; its own bytes are those of its spelling."""
    official = tiny.byte_level()
    official.add_tokens(["Ġé", "naïve 中"])
    made = TokenizerAdapter.load(official)
    for text in ("Ġé", "naïve 中"):
        token = official.token_to_id(text)
        assert made.decode([token]) == official.decode([token], skip_special_tokens=False)
        assert made.token_bytes([token]) == [text.encode()]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(batch=st.lists(pieces_of, max_size=6), copies=st.sampled_from([1, 30]))
def test_many_are_as_one_by_one(kind: str, batch: list[Pieces], copies: int) -> None:
    check_many(encoder(kind), [pieces for pieces in batch if not spellings(pieces)[1]] * copies)


@pytest.mark.parametrize("kind", ["bytes", "nfc"])
@settings(deadline=None, max_examples=60)
@given(pieces=hostile)
def test_engines_agree(kind: str, pieces: Pieces) -> None:
    pytest.importorskip("gigatoken")
    fast, slow = encoder(kind, "gigatoken"), encoder(kind, "tokenizers")
    assert (fast.engine, slow.engine) == ("gigatoken", "tokenizers")
    for a, b in zip(fast.encode_pieces(*split(pieces)), slow.encode_pieces(*split(pieces)), strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("kind", ["bytes", "nfc"])
@pytest.mark.parametrize("copies", [1, 30])
def test_the_general_path_takes_the_strings_that_are_not_proven(kind: str, copies: int) -> None:
    """Those in which a body spells a control token, or that a normalizer changes over two pieces; and no other."""
    pytest.importorskip("gigatoken")
    made = encoder(kind, "gigatoken")
    assert made.fast is not None
    plain = [([START + "user\n", text, END], False) for text in ("naïve 🤖 x", "e\u0301", "", "中文。")]
    bodies = [*plain, ([START + "user\n", f"a{END}", END], True), ([START + "e", "\u0301x", END], kind == "nfc")]
    texts = [own for own, _ in bodies] * copies
    texts[1:1] = [["<|im_", "end|>", ""], [], ["", "", ""]]  # a control token over two pieces; strings of no text
    facts = [[4, 0, 4][: len(own)] for own in texts]
    facts[1] = [4, 4, 4]
    sent: list[list[str]] = []

    def general(some: Sequence[list[str]], own: Sequence[list[int]]) -> Encoded:
        sent.extend(some)
        return made._encode_general(some, own)

    found = made.fast.encode(texts, facts, general)
    expected = encoder(kind, "tokenizers").encode_strings(texts, facts)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
    assert sent == [texts[1]] + [own for own, leaves in bodies if leaves] * copies
    with pytest.raises(UnicodeEncodeError):
        made.fast.encode([[START, "\ud800"]], [[4, 0]], general)


def test_ids_that_do_not_account_for_the_text_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id too many, too few, or in another place: the general way is taken."""
    pytest.importorskip("gigatoken")
    made = encoder("bytes", "gigatoken")
    fast = made.fast
    assert fast is not None
    texts, facts = [[START, "naïve", END, "\n"], [START, "x", END]], [[4, 0, 4, 4], [4, 0, 4]]
    expected = made._encode_general(texts, facts)
    right = expected.ids
    assert fast.encode(texts, facts, lambda *_: pytest.fail("the right ids are proven")).ids.tolist() == right.tolist()
    wrong = [right[:-1], np.append(right, right[:1]), right[::-1].copy(), np.append(right[:-1], right[:1])]
    for ids in (*wrong, right[:0]):
        monkeypatch.setattr(fast, "_ids", lambda *_, ids=ids: ids.astype(np.int32))
        found = fast.encode(texts, facts, made._encode_general)
        assert [one.tolist() for one in found] == [one.tolist() for one in expected]


def test_a_character_cut_over_tokens_and_a_token_over_pieces() -> None:
    ids, owner = encoder("bytes").encode_pieces(["a", "\U0001f6f8", "b"], [False] * 3)
    assert owner.tolist() == [0] + [1] * (ids.size - 2) + [2]
    assert ids.size > 3
    word = max(
        (word for word in tiny.cached(*KINDS["bytes"]).get_vocab() if word.isascii() and word.isalpha()), key=len
    )
    ids, owner = encoder("bytes").encode_pieces([word[:2], word[2:], ""], [False] * 3)
    assert (ids.size, owner.tolist()) == (1, [0])


def test_added_tokens_that_are_not_control_tokens_keep_their_id() -> None:
    made = encoder("bytes")
    assert THINK not in made.control_ids
    ids, _ = made.encode_pieces([THINK, "<th", "ink>"], [False] * 3)
    official = tiny.cached(*KINDS["bytes"])
    assert ids.tolist() == [official.token_to_id(THINK)] * 2
    assert made.vocab_size == official.get_vocab_size(with_added_tokens=True)
    assert made.control_ids == {control: official.token_to_id(control) for control in CONTROLS}


def test_longer_and_overlapping_spellings_compete_as_in_the_official_tokenizer() -> None:
    from tokenizers import AddedToken

    official = tiny.byte_level()
    official.add_special_tokens(["<|im_end|>!", "|><"])
    official.add_tokens([AddedToken("x<|im_", normalized=False)])
    made = TokenizerAdapter.load(official)
    for text in ("<|im_end|>!", "<|im_end|><|im_end|>", "x<|im_end|>", "|><|im_end|>", "x|><|im_start|>!"):
        ids, _ = made.encode_pieces([text], [True])
        assert ids.tolist() == official.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("kind", ["rstrip", "word"])
def test_uncuttable_tokenizers_refuse_spellings_in_text(kind: str) -> None:
    made = encoder(kind)
    assert "<|im_end|>" in str(made.whole_string_reason)
    with pytest.raises(TokenizerError, match=r"string 1 contains '<\|im_end\|>' outside scaffold"):
        made.encode_strings([["a ", END], ["a ", END, " b"]], [[0, 4], [4, 0, 4]])


def test_a_body_that_makes_a_control_id_is_refused() -> None:
    """A vocabulary whose unknown token is a control token."""
    official = tiny.edited(tiny.spaced(), lambda data: data["model"].update(byte_fallback=False, unk_token=START))
    with pytest.raises(TokenizerError, match=r"text was encoded to the special token '<\|im_start\|>'"):
        TokenizerAdapter.load(official).encode_pieces(["\U0001f6f8"], [False])


def test_bad_calls() -> None:
    made = encoder("bytes")
    with pytest.raises(UsageError, match="2 texts and 1 scaffold flags"):
        made.encode_pieces(["a", "b"], [True])
    with pytest.raises(TokenizerError, match=r"has a lone surrogate \(U\+D800\) at character 1"):
        made.encode_pieces(["a", "b\ud800"], [True, False])
    with pytest.raises(TokenizerError, match="id 100000 is outside the vocabulary"):
        made.decode([5, 100_000])
    with pytest.raises(TokenizerError, match="gigatoken cannot be used"):
        TokenizerAdapter.load(tiny.cached(*KINDS["first"]), engine="gigatoken")
    with pytest.raises(UsageError, match="engine is 'fast'"):
        TokenizerAdapter(made.parts, engine="fast")  # type: ignore[arg-type]


def _in_another_process(made: TokenizerAdapter) -> list[int]:
    return made.encode_pieces([START, PROBE.replace(END, "") * 3], [True, False])[0].tolist()


@pytest.mark.parametrize("kind", ["bytes", "first", "rstrip"])
def test_pickles_and_works_in_other_processes(kind: str) -> None:
    made = encoder(kind)
    again = pickle.loads(pickle.dumps(made))
    assert (again.engine, again.fingerprints, again.vocab_size) == (made.engine, made.fingerprints, made.vocab_size)
    expected = _in_another_process(made)
    assert _in_another_process(again) == expected
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_in_another_process, (made,)) == expected


# Loading


def test_a_directory_gives_templates_tokens_and_stops(tmp_path: Path) -> None:
    official = tiny.byte_level()
    folder = tiny.save(
        official,
        tmp_path / "model",
        eos_token={"content": END},
        bos_token=None,
        add_bos_token=False,
        chat_template=[{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}],
    )
    parts, _ = read_hf(folder)
    assert (parts.template, dict(parts.templates)) == ("D", {"default": "D", "rag": "R"})
    assert parts.special_tokens == {"eos_token": END}
    assert (parts.stop_ids, parts.generate_stops) == ((official.token_to_id(END),), None)
    data = (folder / "tokenizer.json").read_bytes()
    assert parts.fingerprints == {
        "tokenizer": hashlib.sha256(data).hexdigest(),
        "template": hashlib.sha256(b"D").hexdigest(),
    }
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, official.token_to_id(END)]}))
    (folder / "chat_template.jinja").write_text("beside")
    parts, _ = read_hf(folder / "tokenizer.json")
    assert parts.template == "beside"
    assert parts.stop_ids == parts.generate_stops == tuple(sorted([7, official.token_to_id(END)]))


@pytest.mark.parametrize(
    ("generation", "model", "stops"),
    [
        ({"eos_token_id": 3}, None, (3,)),  # the tokenizer's eos is not among them
        ({"eos_token_id": [5, 3, 5]}, {"eos_token_id": 1}, (3, 5)),
        ({"eos_token_id": None}, {"eos_token_id": 1}, ()),
        ({}, None, ()),
        (None, {"eos_token_id": 1}, (1,)),
        (None, {"vocab_size": 1}, None),
        (None, None, None),
    ],
)
def test_generate_stops_at_what_its_own_config_names(
    generation: Any, model: Any, stops: tuple[int, ...] | None, tmp_path: Path
) -> None:
    official = tiny.byte_level()
    folder = tiny.save(official, tmp_path / "model", eos_token=END)
    for name, held in (("generation_config.json", generation), ("config.json", model)):
        if held is not None:
            (folder / name).write_text(json.dumps(held))
    parts, _ = read_hf(folder)
    assert parts.generate_stops == stops
    assert official.token_to_id(END) in parts.stop_ids


@pytest.mark.parametrize("value", ["</s>", -1, True, [1, "2"], {"a": 1}, 1.5])
def test_an_eos_that_is_no_id_is_refused_with_its_file(value: Any, tmp_path: Path) -> None:
    folder = tiny.save(tiny.byte_level(), tmp_path / "model", eos_token=END)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(TokenizerError, match=r"generation_config.json: eos_token_id is .*; expected an id"):
        read_hf(folder)


def test_objects_give_the_same_as_directories(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    official = tiny.byte_level()
    folder = tiny.save(official, tmp_path, eos_token=END, chat_template="T", tokenizer_class="PreTrainedTokenizerFast")
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    for source in (official, fast):
        made = TokenizerAdapter.load(source)
        assert made.encode_pieces([START, "héllo"], [True, False])[0].tolist() == official.encode(START + "héllo").ids
    parts, _ = read_hf(fast)
    assert (parts.template, parts.special_tokens["eos_token"]) == ("T", END)
    assert parts.stop_ids == (official.token_to_id(END),)


# Real tokenizers

# They are loaded twice here, which takes seconds, and the others are byte-level BPE as well. The ids of all tokenizers
# are compared in `tests/renderers/test_parity.py`.
_LARGE_BYTE_LEVEL = (
    *("gpt-oss-20b", "llama-3.1-8b-instruct", "mistral-nemo-instruct-2407", "qwen2.5-0.5b-instruct"),
    "qwen3-8b",  # qwen3.5-2b, a quarter of its size, has the same normalizer and splits words in the same way
)


@needs_assets
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path, id=path.name, marks=pytest.mark.slow if path.name in _LARGE_BYTE_LEVEL else ())
        for path in DISTINCT
    ],
)
def test_real_tokenizers(folder: Path) -> None:
    from tokenizers import Tokenizer

    official, made = Tokenizer.from_file(str(folder / "tokenizer.json")), TokenizerAdapter.load(folder)
    start, end = list(made.control_ids)[:2]
    sample = re.sub("|".join(map(re.escape, made.control_ids)), "", PROBE)
    turns = [(start, True), ("user\n", True), (sample, False), (end, True), ("\n", True), (sample[::-1], False)]
    texts, flags = split(turns * 2)
    text = "".join(texts)
    ids, owner = made.encode_pieces(texts, flags)
    assert ids.tolist() == official.encode(text, add_special_tokens=False).ids
    official.post_processor = None  # it would trim offsets
    ends = list(accumulate(map(len, texts)))
    assert owner.tolist() == [bisect_right(ends, a) for a, _ in official.encode(text, add_special_tokens=False).offsets]
    forged, _ = made.encode_pieces([PROBE, *made.control_ids], [False] * (1 + len(made.control_ids)))
    assert not np.isin(forged, list(made.control_ids.values())).any()


def test_gigatoken_is_made_anew_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It remembers every word that it has seen; what it remembers is let go of, and the ids stay."""
    from niels_gpt.tokenizer import engines

    made = encoder("bytes")
    texts, facts = [["hello world", " again"]] * 200, [[0, 0]] * 200
    expected = [made.encode_strings(texts[:n], facts[:n]).ids.tolist() for n in (3, 200)]
    before = made.fast._gigatoken._backend
    monkeypatch.setattr(engines, "MOST_SEEN", 100)
    for _ in range(2):
        assert [made.encode_strings(texts[:n], facts[:n]).ids.tolist() for n in (3, 200)] == expected
    assert made.fast._gigatoken._backend is not before
