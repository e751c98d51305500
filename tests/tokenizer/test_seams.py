"""Texts between seams are encoded as each would be alone: said of every known expression, and asked of real ones."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.pieces import edges_of
from niels_gpt.tokenizer.seams import SEAM, Seams, seams_of
from tests.assets import FOLDERS, encoder_at, needs_assets
from tests.memory import shared
from tests.tokenizer import tiny

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
CASED = [rf"{WORD}{UPPER}*{LOWER}+", rf"{WORD}{UPPER}+{LOWER}*"]
EXPRESSIONS: dict[str, list[str]] = {
    "qwen": ["|".join((CONTRACTIONS, rf"{WORD}\p{{L}}+", r"\p{N}", OTHERS, SPACES))],
    "llama": ["|".join((CONTRACTIONS, rf"{WORD}\p{{L}}+", r"\p{N}{1,3}", OTHERS, SPACES))],
    "gpt-oss": [
        "|".join((*(f"{cased}{CONTRACTIONS}?" for cased in CASED), r"\p{N}{1,3}", OTHERS[:-2] + "/]*", SPACES))
    ],
    "nemotron": ["|".join((*CASED, r"\p{N}", OTHERS[:-2] + "/]*", SPACES))],
    "deepseek": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        "|".join(
            (
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
                "[^\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                r" ?[\p{P}\p{S}]+" + "[\r\n]*",
                SPACES,
            )
        ),
    ],
    "gpt-2": [],  # its expression is the last step's own
}
SEAMS = {name: Seams(slashes=name in ("gpt-oss", "nemotron"), lines=name != "gpt-2") for name in EXPRESSIONS}
ADDED_TOKEN = "[X]"  # cut out before anything is split
FRAGMENTS = [
    ADDED_TOKEN,
    *(
        "hello",
        "World",
        "'s",
        "'LL",
        "12345",
        "x+1",
        "...",
        "!?",
        "/",
        "//",
        "“",
        "é",
        "\u0301",
        "中文",
        "かな",
        "🤖",
        "ǅ",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n",
        "\t",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\x00",
        "\x1f",
        "\u200b",
        "\u2028",
        "<think>",
        "½",
    ),
]
words = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=7).map("".join) | st.text(min_size=1, max_size=6)
texts = words.map(str.strip).filter(bool)


def parts(seams: Seams, text: str) -> bool:
    return seams.parts(text, 0, len(text))


def steps_of(regexes: list[str]) -> list[Any]:
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    return [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not regexes)]


@shared
def merging(name: str) -> Tokenizer:
    """A tokenizer that merges whatever is not split, white space above all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps_of(EXPRESSIONS[name]))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    made = [a + b + c for a in FRAGMENTS for b in (" ", "\n", " \n", "\n\n", ".\n", "", "  ") for c in FRAGMENTS]
    tokenizer.train_from_iterator(made, trainer)
    tokenizer.add_tokens([AddedToken(ADDED_TOKEN, normalized=False, special=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encode(name: str, text: str) -> list[int]:
    return list(merging(name).encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_expression_is_known(name: str) -> None:
    data = json.loads(merging(name).to_str())
    assert seams_of(data["pre_tokenizer"]["pretokenizers"], []) == SEAMS[name]


@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4))
def test_texts_between_seams_are_encoded_as_alone(name: str, given_: list[str]) -> None:
    expected = encode(name, given_[0])
    for text in given_[1:]:
        alone = encode(name, text)
        seam = encode(name, f"a{SEAM}{text}")[1 : -len(alone)]
        assert merging(name).decode(seam) == SEAM
        expected += seam + alone
    assert encode(name, SEAM.join(given_)) == expected


@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(max_examples=200, deadline=None)
@given(words, texts, words)
def test_a_text_begins_behind_a_line_and_ends_before_a_space(name: str, before: str, text: str, behind: str) -> None:
    """What stands there is the same for every text: it is read off one of them."""
    if not parts(SEAMS[name], f"{before}\n"):
        before += "a"
    first, last = len(encode(name, f"{before}\na")) - 1, len(encode(name, f"a {behind}")) - 1
    opened, closed = encode(name, f"{before}\na")[:first], encode(name, f"a {behind}")[-last:]
    assert encode(name, f"{before}\n{text} {behind}") == opened + encode(name, text) + closed


@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if name != "gpt-2"])
def test_texts_with_white_space_at_their_ends_are_not(name: str) -> None:
    """The test above can fail: a seam is none where there is white space at its sides."""
    for one, other in (("a\n", "b"), ("a", "\nb"), ("a ", "b")):
        assert encode(name, one + SEAM + other) != [*encode(name, one), *encode(name, SEAM), *encode(name, other)]


def test_where_a_text_decides_how_a_line_before_it_is_split() -> None:
    """The test before the last can fail: a slash belongs to a sign before it, two ends of lines to one another."""
    for name, seams in SEAMS.items():
        alone, behind = encode(name, "/x"), encode(name, "...\n/x")
        assert seams.slashes == (behind != [*encode(name, "...\n"), *alone]), name
        assert seams.lines == (encode(name, "a\n\na")[:-1] == encode(name, f"a\n\n{ADDED_TOKEN}")[:-1]), name


@pytest.mark.parametrize(
    ("text", "any_", "slashes", "no_lines"),
    [
        ("", True, True, True),
        ("\n", True, True, True),
        ("\n\n", True, True, False),
        ("a\n", True, True, True),
        ("a\n\n", True, True, False),
        ("a \n", True, False, False),
        (".\n", True, False, True),
        ("é\n", True, False, True),
        ("a", False, False, False),
        ("> ", False, False, False),
    ],
)
def test_behind_what_a_text_is_encoded_as_alone(text: str, any_: bool, slashes: bool, no_lines: bool) -> None:
    assert parts(Seams(slashes=False, lines=True), text) == any_
    assert parts(Seams(slashes=True, lines=True), text) == slashes
    assert parts(Seams(slashes=False, lines=False), text) == no_lines
    assert Seams(slashes=False, lines=True).parts("<s>" + text, 3, 3 + len(text)) == any_


def test_white_space_of_expressions_is_white_space_of_strings() -> None:
    r"""`str.strip` takes away all that `\s` matches, so that nothing is left at the ends that it could match."""
    split = pre_tokenizers.Split(Regex(r"\s"), "removed")
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    spaces = [letter for letter in letters if letter.isspace()]
    others = "".join(letter for letter in letters if not letter.isspace())
    assert split.pre_tokenize_str(others) == [(others, (0, len(others)))]
    assert sum(not split.pre_tokenize_str(letter) for letter in spaces) >= 25


def step(regex: str = SPACES, **other: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} | other


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
ADDED = {"content": "<think>", "lstrip": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize(
    ("steps", "added", "known"),
    [
        ([step(), BYTES], [], True),
        ([step(), BYTES], [ADDED], True),
        ([step(behavior="Removed", invert=True), BYTES], [], True),
        ([BYTES | {"use_regex": True}], [], True),
        ([BYTES], [], False),
        ([], [], False),
        ([step()], [], False),
        ([step(r"\p{N}"), BYTES], [], False),
        ([step(rf"{SPACES}|[^x]+"), BYTES], [], False),
        ([step(rf"\n\w|{SPACES}"), BYTES], [], False),
        ([step(rf"{SPACES}||\p{{N}}"), BYTES], [], False),
        ([step(rf"{SPACES}|)"), BYTES], [], False),
        ([step(behavior="MergedWithPrevious"), BYTES], [], False),
        ([step(behavior="Removed"), BYTES], [], False),
        ([step(pattern={"String": " "}), BYTES], [], False),
        ([{"type": "Digits", "individual_digits": True}, BYTES | {"use_regex": True}], [], False),
        ([step(), BYTES], [ADDED | {"lstrip": True}], False),
        ([step(), BYTES], [ADDED | {"content": "a b"}], False),
        ([step(), BYTES], [ADDED | {"content": "\n\n"}], False),
    ],
    ids=repr,
)
def test_what_is_known(steps: list[Any], added: list[Any], known: bool) -> None:
    assert (seams_of(steps, added) is not None) == known


def test_whether_ends_of_lines_are_taken_together_depends_on_the_order() -> None:
    for regex, lines in ((SPACES, True), (r"\s+(?!\S)|\s*[\r\n]+|\s+", False), (r"\s+(?!\S)|\s+", False)):
        assert seams_of([step(regex), BYTES], []) == Seams(slashes=False, lines=lines)
    assert seams_of([step(r"\p{N}"), BYTES | {"use_regex": True}], []) == Seams(slashes=False, lines=False)
    for first, lines in ((r"\s+(?!\S)", False), (r"\p{N}", True)):  # of two steps, the first splits first
        assert seams_of([step(first), step(SPACES), BYTES], []) == Seams(slashes=False, lines=lines)


@shared
def quick(form: str | None = None) -> Encoder:
    pytest.importorskip("gigatoken")
    made = Encoder.load(tiny.byte_level(form=form), engine="gigatoken")
    assert made.flat is not None
    assert made.flat.seams
    return made


def apart(made: Encoder, given_: list[str]) -> tuple[list[int], list[int]] | None:
    """The ids of texts and the tokens of each, as `encode_apart` gives them; `None` where it does not."""
    assert made.flat is not None
    sizes = np.array(
        [size for text in given_ for size in (len(SEAM), len(text.encode("utf-8", "surrogatepass")))], np.int64
    )
    seams = np.arange(0, sizes.size, 2)
    text, sides = "".join(SEAM + text for text in given_), np.concatenate((seams, seams + 1))
    found = made.flat.encode_apart(text, edges_of(sizes), sides)
    listed = made.flat.encode_apart(text, edges_of(sizes).tolist(), None)
    assert (found is None) == (listed is None)
    if found is None or listed is None:
        return None
    assert [array.tolist() for array in found] == [array.tolist() for array in listed]
    ids, cuts = found
    counts = np.diff(cuts)
    return ids[np.tile([False, True], len(given_)).repeat(counts)].tolist(), counts[1::2].tolist()


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5))
def test_encoded_apart_as_the_general_way_encodes_each(given_: list[str]) -> None:
    made = quick()
    alone = [made.encode_pieces([text], [False])[0].tolist() for text in given_]
    assert apart(made, given_) == (list(chain.from_iterable(alone)), list(map(len, alone)))


def test_what_is_not_proven_is_not_encoded_apart() -> None:
    assert apart(quick(), ["a", "b"]) is not None
    assert apart(quick(), ["a\ud800"]) is None
    assert apart(quick(), ["a ", "b"]) is None, "a token is of the text and of the seam behind it"
    assert apart(quick("NFC"), ["é"]) is not None
    assert apart(quick("NFC"), ["e\u0301"]) is None, "the normalizer changes it"


def test_a_text_that_becomes_a_control_token_is_not_encoded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    made = quick()
    assert made.flat is not None
    control = made.control_ids[tiny.END]
    monkeypatch.setattr(made.flat._body, "encode_one", lambda data: np.array([*b" \n", control], np.int32))
    assert apart(made, [tiny.END]) is None


def test_a_text_that_spells_a_control_token_is_a_text() -> None:
    ids, counts = apart(quick(), ["a", tiny.END, "b"]) or ([], [])
    assert counts[0] == counts[2] == 1
    assert ids[1:-1] == quick().encode_pieces([tiny.END], [False])[0].tolist()


@needs_assets
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_real_tokenizers_have_seams(folder: Path) -> None:
    """All that are byte-level; the others are no less right, but slower."""
    made = encoder_at(folder)
    seams = made.flat and made.flat.seams
    assert (seams is None) == folder.name.startswith("gemma")
    if seams is None:
        return
    given_ = [text.strip() for text in FRAGMENTS if text.strip()] + ["Hi there.", "x = [1, 2]\n\ny", "它是 1,234!"]
    alone = [made.encode_pieces([text], [False])[0].tolist() for text in given_]
    assert apart(made, given_) == (list(chain.from_iterable(alone)), list(map(len, alone)))
