"""What a recipe may say, and the sentences about what it may not: file, key, what was expected."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import InputError, UsageError
from niels_gpt.recipes.reading import read_recipe

MINIMAL = """\
out = "made"

[tokenizer]
path = "tokenizer"

[[sources]]
name = "chats"
files = ["chats.jsonl"]
"""


def written(folder: Path, text: str, name: str = "recipe.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *settings: str, kind: type[Exception] = UsageError) -> str:
    with pytest.raises(kind) as error:
        read_recipe(path, settings)
    return str(error.value).replace(f"{path}", path.name)


def test_a_small_recipe_has_all_defaults(tmp_path: Path) -> None:
    loaded = read_recipe(written(tmp_path, MINIMAL))
    recipe = loaded.recipe
    assert (recipe.seed, recipe.split.val_frac, recipe.sequence.packing, recipe.renderer.name) == (
        42,
        0.1,
        True,
        "auto",
    )
    assert recipe.mixture is None
    assert not recipe.exports
    assert loaded.place("made") == tmp_path / "made"
    assert loaded.address("s3://bucket/x.jsonl") == "s3://bucket/x.jsonl"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            'fromat = "alpaca"',
            "recipe.toml: sources.0.fromat: unknown key; expected one of name, files, dataset, format",
        ),
        ('format = "aplaca"', "recipe.toml: sources.0.format: found 'aplaca'; expected one of messages, sharegpt"),
        (
            "filter = { min_mesages = 2 }",
            "recipe.toml: sources.0.filter.min_mesages: unknown key; expected",
        ),
        ('filter = { match = "(" }', "recipe.toml: sources.0.filter: match is '(', which is no regular expression"),
        ("filter = { min_messages = 0 }", "sources.0.filter: min_messages is 0; expected at least 1"),
        ("filter = { min_messages = 4, max_messages = 2 }", "so no row would be left; exchange them"),
        ("[rows]\nmax_bad_rows = true", "recipe.toml: rows.max_bad_rows.int: found True; expected a whole number"),
        ("[split]\nval_frac = 1.5", "recipe.toml: split.val_frac: found 1.5; expected at most 0.999999"),
        ("[sequence]\nlength = '4k'", "recipe.toml: sequence.length: found '4k'; expected a whole number"),
        ("[sequence]\ntoo_long = 'drop'", "found 'drop'; expected one of head, tail, drop_partial_turn, skip, error"),
        ("[renderer]\ndate = 'today'", "recipe.toml: renderer: the date is 'today'; expected a day like 2026-01-31"),
        ("[[exports]]\nto = 'megatrn'", "recipe.toml: exports.0.to: found 'megatrn'; expected one of hf, trl"),
        ("[mixture]\nweights = { chats = 1, code = 1 }", "the mixture names 'code'; expected one of chats"),
        ("[mixture]\nweights = { }", "the weights {} are all 0; expected one above 0"),
        ("[mixture]\ntemperature = 0.0", "mixture: temperature is 0.0; expected a number above 0"),
        ("[mixture]\nweights = { chats = 1 }\ntemperature = 2.0", "weights and temperature are given"),
        (
            "[mixture]\nby = 'token'",
            "by is 'token'; expected one of tokens, trained_tokens, rows; did you",
        ),
        ("[[sources]]\nname = 'chats'\nfiles = ['x']", "two sources are 'chats', which have one directory"),
        ("[[sources]]\nname = '../x'\nfiles = ['x']", "recipe.toml: sources.1.name: found '../x'; expected a name"),
        ("[[sources]]\nname = 'x'\nfiles = []", "recipe.toml: sources.1.files: found []; expected"),
        (
            "[[sources]]\nname = 'x'",
            "recipe.toml: sources.1: found neither files nor a dataset; expected one of them",
        ),
        ("[wrong]", "recipe.toml: wrong: unknown key; expected one of out, seed, tokenizer"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, more: str, expected: str) -> None:
    assert expected in refusal(written(tmp_path, MINIMAL + more + "\n"))


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "ot = 'x'\n" + MINIMAL.replace("path", "pth")))
    assert "recipe.toml: ot: unknown key" in text
    assert "did you mean 'out'?" in text
    assert "recipe.toml: tokenizer.pth: unknown key; expected one of path; did you mean 'path'?" in text
    assert "recipe.toml: tokenizer.path: missing; add it" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("out = \n", "not valid TOML: Invalid value (at line 1, column 7)"),
        ("out = 1\nout = 2\n", "not valid TOML: Cannot overwrite a value (at line 2"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(written(tmp_path, text), kind=InputError)


def test_yaml_says_the_same(tmp_path: Path) -> None:
    text = "out: made\ntokenizer: {path: tokenizer}\nsources:\n  - name: chats\n    files: [chats.jsonl]\n"
    assert read_recipe(written(tmp_path, text, "r.yaml")).recipe == read_recipe(written(tmp_path, MINIMAL)).recipe
    assert "r.yaml: sources.0.fromat: unknown key" in refusal(written(tmp_path, text + "    fromat: x\n", "r.yaml"))
    # PyYAML itself would use the last of them.
    assert "r.yaml: not valid YAML: the key 'out' again" in refusal(
        written(tmp_path, text + "out: x\n", "r.yaml"), kind=InputError
    )
    assert "not valid YAML" in refusal(written(tmp_path, "a: [", "r.yaml"), kind=InputError)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed: 010", {"seed": 10}),
        ("seed: 0x10", {"seed": 16}),
        ("loss: {on: last_message}", {"loss.on": "last_message"}),
        ("loss: {'on': last_message, tool_bodies: [on, no, y]}", {"loss.tool_bodies": ("on", "no", "y")}),
        ("split: {val_frac: 1e-3}", {"split.val_frac": 0.001}),
        ("rows: {default_system: no}", {"rows.default_system": "no"}),
        ("rows: {default_system: 2026-01-31}", {"rows.default_system": "2026-01-31"}),
        ("rows: {default_system: '12'}", {"rows.default_system": "12"}),
        ("renderer: {date: 2026-01-31}", {"renderer.date": "2026-01-31"}),
        ("rows: {allow_partial: true}", {"rows.allow_partial": True}),
        ("mixture:", {"mixture": None}),
    ],
)
def test_values_of_yaml_mean_what_they_say(tmp_path: Path, line: str, expected: dict[str, Any]) -> None:
    """As YAML 1.2 has them: in 1.1 `on` is True, `010` is 8, and a day is no text."""
    text = "out: made\ntokenizer: {path: tokenizer}\nsources:\n  - name: chats\n    files: [chats.jsonl]\n"
    recipe: Any = read_recipe(written(tmp_path, text + line + "\n", "r.yaml")).recipe
    for name, value in expected.items():
        assert attrgetter(name)(recipe) == value


def test_settings_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL)
    found = read_recipe(
        path, ["seed=7", "sequence.length=99", "sources.chats.format=alpaca", "out = a b", "sources.0.name=x"]
    )
    recipe = found.recipe
    assert (recipe.seed, recipe.sequence.length, recipe.out) == (7, 99, "a b")
    assert (recipe.sources[0].format, recipe.sources[0].name) == ("alpaca", "x")
    assert "recipe.toml: sequence.lenght: unknown key" in refusal(path, "sequence.lenght=9")
    assert "--set seed: expected KEY.KEY=VALUE" in refusal(path, "seed")
    assert "no 'code' among chats; use a name or a number" in refusal(path, "sources.code.format=alpaca")
    assert "'b' is below 'made', which is no table" in refusal(path, "out.b=1")


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "no such file; expected a recipe" in refusal(tmp_path / "recipe.toml", kind=InputError)
    assert "expected a recipe in TOML" in refusal(written(tmp_path, "", "recipe.json"))
    (tmp_path / "latin.toml").write_bytes(b"out = '\xe9'")
    assert "byte 7 is not UTF-8" in refusal(tmp_path / "latin.toml", kind=InputError)


LAUGHS = "\n".join(["a0: &a0 [x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("r.toml", "x = " + "[" * 5000 + "]" * 5000, "not valid TOML: it is nested too deeply"),
        ("r.toml", "seed = " + "9" * 10_000, "not valid TOML: Exceeds the limit"),
        ("r.yaml", "a: " + "[" * 1000 + "]" * 1000, "not valid YAML: it is nested too deeply"),
        ("r.yaml", "seed: " + "9" * 10_000, "not valid YAML: Exceeds the limit"),
        ("r.yaml", "a: &a [*a]", "an alias (*name); write the value out"),
        ("r.yaml", "a: &a {b: *a}", "an alias (*name); write the value out"),
        ("r.yaml", LAUGHS, "an alias (*name); write the value out"),
        ("r.yaml", "? [a, b]\n: c", "not valid YAML: while constructing a mapping"),
        ("r.yaml", "", "holds NoneType; expected keys and values"),
    ],
)
def test_files_that_no_recipe_is(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(expected)):
        read_recipe(tmp_path / name)


def test_a_byte_order_mark_and_settings_that_no_recipe_has(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("\ufeff" + MINIMAL)
    assert read_recipe(tmp_path / "r.toml").recipe.out == "made"
    for value in ("[" * 5000, "9" * 10_000):
        with pytest.raises(UsageError, match="seed: found"):
            read_recipe(tmp_path / "r.toml", [f"seed={value}"])
