"""Random and hostile input through the kernel under the address and undefined-behaviour sanitizers.

    python -m tests.fuzz_kernel --seconds 3600

compiles the kernel (`niels_gpt/_kernel*.c`) with both sanitizers, starts a child process that loads it,
and compares every result with numpy. A sanitizer's finding ends the child at once with its report; a difference ends
it with the seed of its input, which `--seed N --inputs 1` runs again. Leaks are looked for in
`tests/tokenizer/test_layout.py`, by the memory that stays behind.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from niels_gpt.tokenizer import fast_path as by_numpy
from niels_gpt.tokenizer.fast_path import BatchLayout
from niels_gpt.tokenizer.pieces import NO_IDS, SCAFFOLD
from tests.tokenizer.layouts import (
    ScaffoldControls,
    arguments,
    damaged_controls,
    damaged_ids,
    random_pieces,
    right_ids,
)

ROOT = Path(__file__).parent.parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
REFUSED = (TypeError, ValueError, OverflowError, BufferError, IndexError, KeyError, RuntimeError, MemoryError)


def why_not() -> str | None:
    """Why this machine cannot run the sanitizers, or `None`."""
    if not sys.platform.startswith("linux"):
        return "the sanitizers are preloaded as on Linux"
    if shutil.which("gcc") is None:
        return "there is no gcc"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed"
    return None if Path(_libasan()).is_absolute() else "libasan is not installed"


def _libasan() -> str:
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def build(folder: Path) -> Path:
    """Compile the kernel with the sanitizers."""
    built = folder / "_kernel.abi3.so"
    include = f"-I{sysconfig.get_path('include')}"
    command = ["gcc", "-shared", "-fPIC", "-std=c11", "-Wall", "-Wextra", "-Werror", *SANITIZERS, include]
    subprocess.run([*command, *map(str, sorted(ROOT.glob("niels_gpt/_kernel*.c"))), "-o", str(built)], check=True)
    return built


def run(seconds: float, seed: int, inputs: int | None = None) -> subprocess.CompletedProcess[str]:
    """Build, and fuzz in a child process."""
    with tempfile.TemporaryDirectory(prefix="niels-gpt-fuzz-") as folder:
        arguments_ = ["--kernel", str(build(Path(folder))), "--seconds", str(seconds), "--seed", str(seed)]
        if inputs is not None:
            arguments_ += ["--inputs", str(inputs)]
        environment = os.environ | {
            "LD_PRELOAD": _libasan(),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # so that the sanitizer sees the bounds of every Python object
            "PYTHONPATH": str(ROOT),
            "NIELS_GPT_KERNEL": "off",
        }
        return subprocess.run(
            [sys.executable, "-m", "tests.fuzz_kernel", *arguments_],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


# ---- the child


def load(path: str) -> ModuleType:
    """A compiled kernel at a path of its own."""
    loader = importlib.machinery.ExtensionFileLoader("niels_gpt._kernel", path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def fuzz(kernel: ModuleType, seconds: float, first: int, inputs: int | None) -> str:
    """Run inputs, each of its own seed, until the time or the number is reached; say how many there were."""
    stop, seed, accepted = time.monotonic() + seconds, first, 0
    while time.monotonic() < stop and (inputs is None or seed < first + inputs):
        rng = random.Random(seed)
        try:
            kinds = (well_formed, well_formed, hostile_lists, hostile_arrays)
            accepted += rng.choice(kinds)(kernel, rng)
        except AssertionError as error:
            raise SystemExit(f"seed {seed}: {error!r}") from error
        seed += 1
    return f"{seed - first} inputs, {accepted} of them accepted and equal to numpy's, first seed {first}"


def well_formed(kernel: ModuleType, rng: random.Random) -> bool:
    """Layouts of any texts, and ids right or wrong."""
    texts, facts = random_pieces(rng)
    laid, other = (
        by_numpy._from_kernel(kernel.layout(texts, facts, ScaffoldControls())),
        by_numpy.layout(texts, facts, ScaffoldControls()),
    )
    assert (other.nfc_classes >= laid.nfc_classes).all(), "nfc_classes"
    _equal(laid._replace(nfc_classes=other.nfc_classes), other)
    ids = right_ids(laid, rng)
    if rng.random() < 0.8:
        ids = damaged_ids(ids, rng)
    if rng.random() < 0.5:
        laid = damaged_controls(laid, rng)
    _compare(kernel, arguments(ids, laid))
    return True


class HostileFrames(dict[str, bytes]):
    """ScaffoldControls of any bytes, whose lookup may change the lists that are being read, or fail."""

    def __init__(self, rng: random.Random, texts: list[Any], facts: list[Any]) -> None:
        super().__init__()
        self.rng, self.lists = rng, (texts, facts)

    def __missing__(self, text: str) -> Any:
        rng = self.rng
        for _ in range(rng.choice((0, 0, 0, 1, 3))):
            held: Any = rng.choice(self.lists)
            if held and rng.random() < 0.7 and isinstance(inner := rng.choice(held), list):
                held = inner
            _change(held, rng)
        if rng.random() < 0.02:
            raise RuntimeError("the lookup fails")
        return rng.choice((b"", b"", rng.randbytes(8), rng.randbytes(16), rng.randbytes(rng.randint(0, 9)), "x" * 8))


def _change(held: list[Any], rng: random.Random) -> None:
    """Empty, shorten, lengthen or turn a list."""
    way = rng.randrange(4)
    if way == 0:
        held.clear()
    elif way == 1:
        del held[-1:]
    elif way == 2:
        held.append(_thing(rng))
    else:
        held.reverse()


class Odd(str):
    """A str of a subclass, made and dropped while lists are read."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def _thing(rng: random.Random) -> Any:
    text = "".join(chr(rng.choice((0, 65, 0xE9, 0x301, 0x4E2D, 0xD800, 0x10FFFF))) for _ in range(rng.randint(0, 20)))
    return rng.choice((text, Odd(text), "a" * rng.randint(0, 999), 0, 4, -1, 2**31 - 1, 2**80, 1.5, None, b"x", [], ""))


def hostile_lists(kernel: ModuleType, rng: random.Random) -> bool:
    """Lists of anything, and lookups that change them; only the sanitizers judge."""
    shape = [rng.choice((0, 1, 2, 100)) for _ in range(rng.randint(0, 4))]
    texts: list[Any] = [["é" * rng.randint(0, 9) for _ in range(size)] for size in shape]
    facts: list[Any] = [[rng.choice((0, SCAFFOLD)) for _ in range(size)] for size in shape]
    for _ in range(rng.choice((0, 1, 1, 3))):
        held: Any = rng.choice((texts, facts))
        if held and isinstance(inner := rng.choice(held), list) and rng.random() < 0.8:
            held = inner
        held.insert(rng.randint(0, len(held)), _thing(rng))
    controls_of: Any = rng.choice((HostileFrames(rng, texts, facts),) * 4 + ({}, None, []))
    try:
        made = kernel.layout(texts, facts, controls_of)
    except REFUSED:
        return False
    laid = by_numpy._from_kernel(made)
    assert laid.edges[-1] == len(laid.data), "the last edge is the end"
    assert laid.pieces.sum() == laid.facts.size == laid.edges.size - 1, "one fact a piece"
    return True


def hostile_arrays(kernel: ModuleType, rng: random.Random) -> bool:
    """Arrays of any values, types, shapes and places; what is accepted must be equal to numpy's."""
    sizes = [rng.randint(0, 6) for _ in range(6)]
    given: list[Any]
    if rng.random() < 0.5:
        laid = by_numpy.layout(*random_pieces(rng), ScaffoldControls())
        given = arguments(right_ids(laid, rng), laid)
    else:
        given = [_numbers(rng, size, width) for size, width in zip(sizes, (4, 4, 8, 8, 8, 4), strict=True)]
    for _ in range(rng.choice((0, 1, 2))):
        which = rng.randrange(6)
        array = given[which]
        if isinstance(array, np.ndarray) and array.ndim == 1:
            given[which] = rng.choice((_values, _values, _form))(rng, array)
    try:
        kernel.attribute(*given)
    except REFUSED:
        return False
    _compare(kernel, given)
    return True


def _numbers(rng: random.Random, size: int, width: int) -> Any:
    most = 2 ** (8 * width - 1)
    values = [rng.choice((0, 0, 1, 2, 5, 40, -1, most - 1, -most, rng.randrange(most))) for _ in range(size)]
    return np.array(sorted(values) if rng.random() < 0.5 else values, f"i{width}")


def _values(rng: random.Random, array: Any) -> Any:
    """Some numbers others, or some more, or fewer."""
    changed = array.copy()
    if changed.size and rng.random() < 0.7:
        changed.flat[rng.randrange(changed.size)] = _numbers(rng, 1, changed.itemsize)[0]
        return changed
    return changed[: rng.randint(0, changed.size)] if rng.random() < 0.5 else np.append(changed, changed[:1])


def _form(rng: random.Random, array: Any) -> Any:
    """The same numbers in another type, order, shape or place."""
    forms: tuple[Callable[[], Any], ...] = (
        lambda: array.astype(np.float32),
        lambda: array.astype(np.int64 if array.itemsize == 4 else np.int32),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: np.repeat(array, 2)[::2],
        lambda: np.append(array, array)[::-1],
        lambda: array[None],
        lambda: array.tolist(),
        lambda: array.tobytes(),
        lambda: memoryview(array),
        lambda: memoryview(bytearray(b"x" + array.tobytes()))[1:].cast(array.dtype.char),
        lambda: np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1),
    )
    return rng.choice(forms)()


def _compare(kernel: ModuleType, given: list[Any]) -> None:
    counts, own, proven, complete, all_proven = kernel.attribute(*given)
    arrays = zip(given, (4, 4, 8, 8, 8, 4), strict=True)
    signed = [np.frombuffer(bytes(memoryview(one)), f"i{width}") for one, width in arrays]
    ids, lengths, edges, pieces, control_at, control_ids = signed
    if not lengths.size or (lengths == -(2**31)).any() or edges[-1] > 2**40:
        return  # numpy's does not take them
    other = by_numpy.attribute(ids, lengths, BatchLayout(b"", edges, NO_IDS, pieces, control_at, control_ids, NO_IDS))
    assert complete is other.complete, "complete"
    assert all_proven is other.all, "all proven"
    assert np.frombuffer(counts, np.int64).tolist() == other.counts.tolist(), "counts"
    assert np.frombuffer(own, np.int64).tolist() == other.lengths.tolist(), "lengths"
    assert np.frombuffer(proven, np.bool_).tolist() == other.proven.tolist(), "proven"


def _equal(one: BatchLayout, other: BatchLayout) -> None:
    for name, a, b in zip(one._fields, one, other, strict=True):
        assert bytes(a) == bytes(b), name


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first input; default: another each time")
    parser.add_argument("--inputs", type=int, default=None, help="stop after so many")
    parser.add_argument("--kernel", help="a kernel that is built already: what the child process is given")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**40) if given.seed is None else given.seed
    if given.kernel:
        print(fuzz(load(given.kernel), given.seconds, seed, given.inputs))
        return
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"the sanitizers cannot run here: {reason}")
    done = run(given.seconds, seed, given.inputs)
    print(done.stdout, done.stderr, sep="", end="")
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
