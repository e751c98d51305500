"""Laying out and proving: numpy, the kernel and a slow reference give the same."""

from __future__ import annotations

import gc
import random
import tracemalloc
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.tokenizer import fast_path as by_numpy
from niels_gpt.tokenizer.fast_path import ASCII_ONLY, MAY_CHANGE, SAFE_IN_NFC, Attribution, BatchLayout
from niels_gpt.tokenizer.pieces import NO_IDS, NO_POSITIONS, SCAFFOLD, edges_of
from tests.tokenizer.layouts import (
    CONTROLS,
    LENGTHS,
    ScaffoldControls,
    arguments,
    attribute_slowly,
    damaged_controls,
    damaged_ids,
    layout_slowly,
    random_pieces,
    right_ids,
)

seeds = st.integers(0, 2**32 - 1)


def laid_by(kernel: ModuleType, texts: list[list[str]], facts: list[list[int]]) -> BatchLayout:
    return by_numpy._from_kernel(kernel.layout(texts, facts, ScaffoldControls()))


def proven_by(kernel: ModuleType, *given_: Any) -> Attribution:
    counts, own, proven, complete, all_proven = kernel.attribute(*given_)
    arrays = (np.frombuffer(counts, np.int64), np.frombuffer(own, np.int64), np.frombuffer(proven, np.bool_))
    return Attribution(*arrays, complete, all_proven)


def same(one: Any, other: Any) -> None:
    for name, a, b in zip(one._fields, one, other, strict=True):
        assert type(a) is type(b), name
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            assert a.tolist() == b.tolist(), name
        else:
            assert a == b, name


def true_kind(text: str) -> int:
    return ASCII_ONLY if text.isascii() else SAFE_IN_NFC if unicodedata.is_normalized("NFC", text) else MAY_CHANGE


# ---- layout


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.lists(st.tuples(st.text(max_size=9), st.sampled_from([0, 1, SCAFFOLD, -1])), max_size=5), max_size=4)
)
@example([])
@example([[], [("", SCAFFOLD)], []])
@example([[("é<e>", SCAFFOLD), ("<e>", 0), ("<f><f>", SCAFFOLD)], [("<long>", -1)]])
def test_layouts_are_equal(kernel: ModuleType, strings: list[list[tuple[str, int]]]) -> None:
    texts = [[text for text, _ in own] for own in strings]
    check_layout(kernel, texts, [[fact for _, fact in own] for own in strings])


@settings(deadline=None, max_examples=300)
@given(seeds)
def test_layouts_of_fragments_are_equal(kernel: ModuleType, seed: int) -> None:
    check_layout(kernel, *random_pieces(random.Random(seed)))


def check_layout(kernel: ModuleType, texts: list[list[str]], facts: list[list[int]]) -> None:
    found, other = laid_by(kernel, texts, facts), by_numpy.layout(texts, facts, ScaffoldControls())
    assert (other.nfc_classes >= found.nfc_classes).all()  # numpy may only be more cautious
    assert ((found.nfc_classes == ASCII_ONLY) == (other.nfc_classes == ASCII_ONLY)).all()
    same(found._replace(nfc_classes=other.nfc_classes), other)
    for name, expected in layout_slowly(texts, facts).items():
        assert list(getattr(found, name)) == expected, name
    for kind, own in zip(found.nfc_classes.tolist(), texts, strict=True):
        assert kind >= true_kind("".join(own))


def test_characters_that_the_kernel_calls_safe_are_safe(kernel: ModuleType) -> None:
    """None changes under NFC, has a combining class, combines with the one before it, or is unassigned."""
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    parts = (unicodedata.decomposition(chr(point)).split() for point in points)
    seconds = {int(part[1], 16) for part in parts if len(part) == 2 and not part[0].startswith("<")}
    seconds |= {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # vowels and finals of Korean
    assert {0x0301, 0x3099, 0x09BE} <= seconds
    safe = 0
    for start in range(0, len(points), 65536):
        some = [chr(point) for point in points[start : start + 65536]]
        laid = laid_by(kernel, [[text] for text in some], [[0]] * len(some))
        for text, kind in zip(some, laid.nfc_classes.tolist(), strict=True):
            assert (kind == ASCII_ONLY) == text.isascii()
            if kind == SAFE_IN_NFC:
                safe += 1
                assert unicodedata.is_normalized("NFC", text), hex(ord(text))
                assert unicodedata.combining(text) == 0, hex(ord(text))
                assert ord(text) not in seconds, hex(ord(text))
                assert unicodedata.category(text) != "Cn", hex(ord(text))
    assert safe > 35_000  # letters of the large scripts are among them


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("text", ["é", "中", "🤖", "\u0301", "\U0010fffd"])
def test_kinds_do_not_depend_on_the_place_in_the_text(kernel: ModuleType, text: str, place: int) -> None:
    """The kernel looks at eight bytes at once where it can."""
    expected = MAY_CHANGE if text in ("\u0301", "\U0010fffd") else SAFE_IN_NFC
    for after in range(9):
        texts = [["x" * place + text + "x" * after], ["x" * (place + after)]]
        assert laid_by(kernel, texts, [[0], [0]]).nfc_classes.tolist() == [expected, ASCII_ONLY]


# ---- attribute


@settings(deadline=None, max_examples=300)
@given(seeds)
def test_right_ids_are_proven(kernel: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    texts, facts = random_pieces(rng)
    # Bodies that spell control tokens are encoded to other ids; here the ids follow the scaffold alone.
    laid = laid_by(kernel, texts, facts)
    found = proven_by(kernel, *arguments(right_ids(laid, rng), laid))
    assert found.complete
    assert found.proven.all()


@settings(deadline=None, max_examples=500)
@given(seeds)
def test_attributions_of_wrong_ids_are_equal(kernel: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    laid = laid_by(kernel, *random_pieces(rng))
    ids = right_ids(laid, rng)
    if rng.random() < 0.8:
        ids = damaged_ids(ids, rng)
    if rng.random() < 0.5:
        laid = damaged_controls(laid, rng)
    check_attribution(kernel, ids, laid)


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.integers(-2, 14), max_size=12),
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=4),
    st.dictionaries(st.integers(0, 60), st.sampled_from([1, *CONTROLS.values(), 13, -1]), max_size=4),
)
@example([10], [[3], []], {0: 10})
@example([9], [[2], [], [0, 0], [3], [4]], {})
@example([0], [], {})
@example([0], [[1]], {})
def test_attributions_of_any_ids_are_equal(
    kernel: ModuleType, ids: list[int], sizes: list[list[int]], controls: dict[int, int]
) -> None:
    edges = np.cumsum([0, *(size for own in sizes for size in own)], dtype=np.int64)
    controls = {at: controls[at] for at in sorted(controls) if at < edges[-1]}
    pieces = np.array([len(own) for own in sizes], np.int64)
    laid = BatchLayout(
        b"", edges, NO_IDS, pieces, np.array([*controls], np.int64), np.array([*controls.values()], np.int32), NO_IDS
    )
    check_attribution(kernel, np.array(ids, np.int32), laid)


def check_attribution(kernel: ModuleType, ids: Any, laid: BatchLayout) -> None:
    found, expected = proven_by(kernel, *arguments(ids, laid)), attribute_slowly(ids, laid)
    other = by_numpy.attribute(ids, LENGTHS, laid)
    assert found.complete == other.complete == expected.complete
    same(found, other)
    same(found, expected)


# ---- wrong input is an error


LAYOUTS: dict[str, tuple[Any, Any, Any, type[Exception]]] = {
    "tuples": ((), [], {}, TypeError),
    "a tuple in the list": ([()], [[]], {}, TypeError),
    "a text for a list": (["ab"], [[0, 0]], {}, TypeError),
    "bytes": ([[b"a"]], [[0]], {}, TypeError),
    "None": ([[None]], [[0]], {}, TypeError),
    "a fact that is no int": ([["a"]], [[1.0]], {}, TypeError),
    "a large fact": ([["a"]], [[2**31]], {}, OverflowError),
    "a huge fact": ([["a"]], [[-(2**70)]], {}, OverflowError),
    "too few facts": ([["a", "b"]], [[0]], {}, ValueError),
    "too many facts": ([["a"]], [[0, 0]], {}, ValueError),
    "too few lists of facts": ([["a"], []], [[0]], {}, ValueError),
    "too many lists of facts": ([["a"]], [[0], []], {}, ValueError),
    "half of a surrogate pair": ([["a", "\ud800"]], [[0, 0]], {}, UnicodeEncodeError),
    "half of a surrogate pair in scaffold": ([["\udfff"]], [[4]], ScaffoldControls(), UnicodeEncodeError),
    "no frame": ([["a", "b"]], [[0, 4]], {}, KeyError),
    "no mapping": ([["a"]], [[4]], None, TypeError),
    "a frame that is no bytes": ([["a"]], [[4]], {"a": "x" * 8}, TypeError),
    "a frame of other bytes": ([["a"]], [[4]], {"a": b"x" * 7}, TypeError),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_wrong_input_to_layout_is_an_error(kernel: ModuleType, name: str) -> None:
    texts, facts, controls_of, error = LAYOUTS[name]
    with pytest.raises(error):
        kernel.layout(texts, facts, controls_of)


def right_arguments(kernel: ModuleType) -> list[Any]:
    laid = laid_by(kernel, [["<e>", "ab"], ["<e>"]], [[4, 0], [4]])
    return arguments(np.array([10, 1, 1, 10], np.int32), laid)


NAMES = ("ids", "lengths", "edges", "pieces", "control_at", "control_ids")
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "a list": lambda array: array.tolist(),
    "None": lambda array: None,
    "bytes of another size": lambda array: array.tobytes() + b"x",
    "a bytearray": lambda array: bytearray(array.tobytes()),
    "floats": lambda array: array.astype(f"f{array.itemsize}"),
    "bits of floats": lambda array: array.view(f"f{array.itemsize}"),
    "the other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "the other width": lambda array: array.astype(np.int64 if array.itemsize == 4 else np.int32),
    "objects": lambda array: array.astype(object),
    "two axes": lambda array: array[None],
    "no axis": lambda array: array[:1].reshape(()),
    "every second": lambda array: np.repeat(array, 2)[::2],
    "backwards": lambda array: np.append(array, array)[::-1],
    "not aligned": lambda array: memoryview(bytearray(b"x" + array.tobytes()))[1:].cast(array.dtype.char),
    "not aligned in numpy": lambda array: np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1),
    "a buffer that is given back": lambda array: released(array),
}


def released(array: Any) -> memoryview:
    view = memoryview(array)
    view.release()
    return view


@pytest.mark.parametrize("which", range(6), ids=NAMES)
@pytest.mark.parametrize("name", ARRAYS)
def test_wrong_arrays_are_errors(kernel: ModuleType, name: str, which: int) -> None:
    given_ = right_arguments(kernel)
    given_[which] = ARRAYS[name](given_[which])
    with pytest.raises((TypeError, ValueError, BufferError)):
        kernel.attribute(*given_)


@pytest.mark.parametrize("unsafe_class", [ASCII_ONLY, SAFE_IN_NFC, MAY_CHANGE, MAY_CHANGE + 1])
@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_encode_is_layout_and_attribute(kernel: ModuleType, unsafe_class: int, seed: int) -> None:
    """Ids as `right_ids` makes them, or damaged ones, in the place of a tokenizer's."""
    rng = random.Random(seed)
    texts, facts = random_pieces(rng)
    laid = laid_by(kernel, texts, facts)
    ids = right_ids(laid, rng) if rng.random() < 0.5 else damaged_ids(right_ids(laid, rng), rng)
    asked: list[bytes] = []

    def backend(data: bytes) -> Any:
        asked.append(data)
        return ids.astype(np.uint32)

    lengths = arguments(ids, laid)[1]
    made, got, found = kernel.encode(texts, facts, ScaffoldControls(), lengths, backend, unsafe_class)
    same(by_numpy._from_kernel(made), laid)
    borders = laid.edges[edges_of(laid.pieces)]
    led = all(a in laid.control_at for a, b in pairwise(borders.tolist()) if a < b)
    tried = max(laid.nfc_classes.tolist(), default=ASCII_ONLY) < unsafe_class and (led or len(texts) == 1)
    assert asked == ([laid.data] if tried else [])
    if tried:
        assert got.tolist() == ids.astype(np.uint32).tolist()
        same(by_numpy._attribution(found), proven_by(kernel, *arguments(ids, laid)))
    else:
        assert (got, found) == (None, None)


def test_errors_of_the_backend_come_out(kernel: ModuleType) -> None:
    def fails(data: bytes) -> Any:
        raise RuntimeError("no")

    for backend, error in ((fails, RuntimeError), (lambda data: [1], TypeError), (None, TypeError)):
        with pytest.raises(error):
            kernel.encode([["a"]], [[0]], {}, np.zeros(3, np.int32), backend, 3)


FAULTS: dict[str, tuple[int, list[int], str]] = {
    "no edge": (2, [], "edges must begin with 0"),
    "edges from 1": (2, [1, 3, 5, 8], "edges must begin with 0"),
    "descending edges": (2, [0, 5, 3, 8], "edges must not descend"),
    "a negative edge": (2, [0, 3, 5, -(2**63)], "edges must not descend"),
    "the largest edge": (2, [0, 3, 5, 2**63 - 1], "edges are too large"),
    "an edge too few": (2, [0, 3, 8], "more than there are edges for"),
    "an edge too many": (2, [0, 3, 5, 8, 8], "one edge more than pieces"),
    "negative pieces": (3, [4, -1], "pieces must not be negative"),
    "huge pieces": (3, [2**63 - 1, 2**63 - 1], "more than there are edges for"),
    "too few pieces": (3, [1, 1], "one edge more than pieces"),
    "no pieces": (3, [], "one edge more than pieces"),
    "control tokens that descend": (4, [5, 0], "control_at must ascend"),
    "control tokens at one byte": (4, [5, 5], "control_at must ascend"),
    "a control token before the data": (4, [-1, 5], "control_at must ascend"),
    "a control token far before the data": (4, [-(2**63), 5], "control_at must ascend"),
    "a control token after the data": (4, [0, 8], "lie before the last edge"),
    "a control token far after the data": (4, [0, 2**63 - 1], "lie before the last edge"),
    "a control token without id": (4, [0], "as many control_ids as control_at"),
    "an id without control token": (5, [10], "as many control_ids as control_at"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_arrays_that_do_not_fit_are_errors(kernel: ModuleType, name: str) -> None:
    which, values, message = FAULTS[name]
    given_ = right_arguments(kernel)
    given_[which] = np.array(values, given_[which].dtype)
    with pytest.raises(ValueError, match=message):
        kernel.attribute(*given_)


def test_large_edges_do_not_overflow(kernel: ModuleType) -> None:
    edges, pieces = np.array([0, 2**62 - 1], np.int64), np.array([1], np.int64)
    lengths = np.array([2**31 - 1, -(2**31)], np.int32)
    found = proven_by(kernel, np.array([0, 1], np.int32), lengths, edges, pieces, NO_POSITIONS, NO_IDS)
    assert (found.counts.tolist(), found.complete) == ([2], False)


def test_nothing_is_kept(kernel: ModuleType) -> None:
    """Results and errors alike give all memory back, and every reference."""
    right = right_arguments(kernel)
    texts, facts, controls_of = [["<e>", "né" * 100] * 90], [[4, 0] * 90], ScaffoldControls()
    calls: list[Callable[[], object]] = [
        lambda: kernel.layout(texts, facts, controls_of),
        lambda: kernel.layout([*texts, ["\ud800"]], [*facts, [0]], controls_of),
        lambda: kernel.attribute(*right),
        lambda: kernel.attribute(*right[:2], right[2][:-1], *right[3:]),
        *(lambda case=case: kernel.layout(*case[:3]) for case in LAYOUTS.values()),
        *(
            lambda which=which, make=make: kernel.attribute(*right[:which], make(right[which]), *right[which + 1 :])
            for make in ARRAYS.values()
            for which in range(6)
        ),
    ]

    def all_of_them() -> None:
        for call in calls:
            try:
                call()
            except Exception:  # tests above check which error it is; here only the memory counts
                continue

    def traced_after(rounds: int) -> int:
        for _ in range(rounds):
            all_of_them()
        gc.collect()  # errors are in cycles with their frames
        # Not what the thread of tests/memory.py allocates meanwhile: what a kernel allocates counts for its caller.
        files = [__file__, str(Path(by_numpy.__file__).parent / "*")]
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, file) for file in files])
        return sum(trace.size for trace in snapshot.traces)

    tracemalloc.start()
    try:
        # The first rounds are only for numpy, which retains some freed blocks for later arrays.
        before = traced_after(30)
        after = traced_after(30)
    finally:
        tracemalloc.stop()
    assert after - before < 30 * 30  # less than any one object a round
