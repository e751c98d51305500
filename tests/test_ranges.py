"""Numbers out of range: every numeric option of every command refuses them, and so does the function behind it."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
import typer

from niels_gpt import ranges
from niels_gpt.cache.build_all import Settings, plan
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cli.main import COMMANDS, app, function_of
from niels_gpt.doctor.run import diagnose
from niels_gpt.episodes.build import build_episodes, pack_episodes
from niels_gpt.errors import UsageError
from niels_gpt.explorer.example_view import view_example
from niels_gpt.export.run import export
from niels_gpt.imports.run import import_episodes
from niels_gpt.sources.hub_corpora import FineWebEdu
from niels_gpt.sources.oasst1 import OpenAssistant
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer.training import train_tokenizer
from tests.conftest import FakeTokenizer

HUGE = 10**30
WORDS = {"--to": "hf", "--from": "hf", "--tokenizer": "nowhere", "--out": "out"}


def commands() -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """Every command of the command line: its words, and the function behind it."""
    for name in COMMANDS:
        found = function_of(name)
        if not isinstance(found, typer.Typer):
            yield (name,), found
            continue
        for command in found.registered_commands:
            assert command.callback is not None
            yield (name, command.name or command.callback.__name__.replace("_", "-")), command.callback


def kinds_of(annotation: Any) -> set[type]:
    """The types that a value may have: of `Annotated[int | None, ...]` int and None."""
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return {kind for part in get_args(annotation) for kind in kinds_of(part)}
    return {annotation} if isinstance(annotation, type) else set()


def told(annotation: Any) -> Any:
    """What typer is told of a parameter."""
    (info,) = annotation.__metadata__
    return info


def flag_of(name: str, info: Any) -> str:
    """In `Annotated` the first declaration stands where a default would."""
    declared = [each for each in (info.default, *(info.param_decls or ())) if str(each).startswith("--")]
    return str(declared[0]) if declared else f"--{name.replace('_', '-')}"


def numbers() -> Iterator[tuple[str, str, list[str], bool]]:
    """Every numeric parameter: its command, its option, a command line that needs but this, is it a float."""
    for path, callback in commands():
        hints = get_type_hints(callback, include_extras=True)
        parameters = inspect.signature(callback).parameters
        # A number that a command needs is given by the test itself.
        empty = inspect.Parameter.empty
        needed = [
            name
            for name in parameters
            if parameters[name].default is empty and not {int, typer.Context} & kinds_of(hints[name])
        ]
        line = [*path]
        for name in needed:
            info = told(hints[name])
            flag = flag_of(name, info)
            line += ["nowhere"] if isinstance(info, typer.models.ArgumentInfo) else [flag, WORDS[flag]]
        for name, hint in hints.items():
            kinds = kinds_of(hint) & {int, float}
            if name in parameters and kinds:
                info = told(hint)
                argument = isinstance(info, typer.models.ArgumentInfo)
                flag = "NUMBER" if argument else flag_of(name, info)
                yield " ".join(path), flag, line, float in kinds


NUMBERS = list(numbers())
COMMAND = typer.main.get_command(app)


ZEROS = {  # where 0 means something
    *("--seed", "--val-frac", "--max-train-tokens", "--max-val-tokens", "--max-bad-rows"),
    *("--port", "--eos-id", "NUMBER"),
}


@pytest.mark.parametrize(("command", "flag", "line", "fraction"), NUMBERS, ids=[" ".join(n[:2]) for n in NUMBERS])
def test_every_numeric_option_of_every_command_refuses_what_is_out_of_range(
    command: str, flag: str, line: list[str], fraction: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-1, a number of 31 digits, 0 where it means nothing; of fractions nan and infinities: before anything else."""
    monkeypatch.chdir(tmp_path)
    given = [] if flag == "NUMBER" else [flag]
    zero = () if flag in ZEROS else (0,)
    for value in (-1, HUGE, *zero, *(("nan", "inf", "-inf", -0.5) if fraction else ())):
        with pytest.raises(UsageError, match=rf"^{re.escape(flag)} is .*; expected ") as refused:
            COMMAND([*line, *given, str(value)], standalone_mode=False)
        assert refused.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def sft(**options: Any) -> None:
    given: dict[str, Any] = {"val_frac": 0.1, "seed": 0} | options
    build_sft_cache([], "out", tokenizer=FakeTokenizer(), **given)


def pretrain(**options: Any) -> None:
    given: dict[str, Any] = {"max_train_tokens": 9, "max_val_tokens": 1, "shard_bytes": 8, "seed": 0}
    build_pretrain_cache([], "out", tokenizer=FakeTokenizer(), **{**given, "shuffle_buffer": None, **options})


def built(**options: Any) -> None:
    build_episodes([], "out", encoder=FakeTokenizer(), **({"val_frac": 0.1, "seed": 0} | options))


def planned(**options: Any) -> None:
    plan(Settings(**options))


def examined(**options: Any) -> None:
    diagnose([], **options)


FUNCTIONS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (sft, ("val_frac", "seed", "max_bad_rows", "max_message_bytes", "num_threads")),
    (pretrain, ("max_train_tokens", "max_val_tokens", "val_frac", "shard_bytes", "shuffle_buffer", "seed")),
    (pretrain, ("max_bad_rows", "num_threads")),
    (built, ("val_frac", "seed", "shard_bytes", "max_bad_rows")),
    (planned, ("seed", "max_train_tokens", "max_val_tokens", "shuffle_buffer", "shard_bytes", "val_frac")),
    (planned, ("max_messages", "max_bad_rows", "threads")),
    (examined, ("sample", "seed", "max_length", "workers", "evidence")),
    (lambda **given: pack_episodes("nowhere", "out", **({"block_size": 8} | given)), ("block_size", "shard_bytes")),
    (lambda **given: list(verify_dataset(Path("nowhere"), **given)), ("vocab_size",)),
    (lambda **given: export("nowhere", "hf", "out", **given), ("limit", "max_length", "shuffle", "shard_tokens")),
    (lambda **given: import_episodes("nowhere", "hf", "out", **given), ("eos_id", "vocab_size", "shard_bytes")),
    (lambda **given: train_tokenizer([], "out", **given), ("vocab_size", "character_coverage", "max_lines", "seed")),
    (FineWebEdu, ("seed", "shuffle_buffer")),
    (OpenAssistant, ("max_messages",)),
    (lambda **given: view_example(Path("nowhere"), 0, **given), ("T",)),
]
FRACTIONS = ("val_frac", "character_coverage")
ARGUMENTS = [(function, name) for function, names in FUNCTIONS for name in names]


@pytest.mark.parametrize(("function", "name"), ARGUMENTS, ids=[name for _, name in ARGUMENTS])
def test_the_functions_behind_the_options_refuse_the_same(
    function: Callable[..., Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = (float("nan"), float("inf"), "1", True) if name in FRACTIONS else (1.5, "1", True)
    if name == "max_bad_rows":  # a text may say it too: "1", "5%", "all"
        wrong = (1.5, "-1", "none", "101%", "-1%", "1e3", "٣", True)
    for value in (-1, HUGE, *wrong):
        with pytest.raises(UsageError, match=r"is .*; expected (at least|at most|0 or more|a (whole )?number)"):
            function(**{name: value})
    assert not list(tmp_path.iterdir())


def test_what_is_in_range_passes_and_long_values_are_not_shown() -> None:
    for value in (None, 0, (1 << 63) - 1):
        ranges.SEED.check(value)
    ranges.VAL_FRAC.check(0)
    with pytest.raises(UsageError) as refused:
        ranges.SEED.check(10**5000)
    assert len(str(refused.value)) < 200
