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
    found = (recipe.seed, recipe.split.val_frac, recipe.sequence.packing, recipe.renderer.name)
    assert found == (42, 0.1, True, "auto")
    assert recipe.mixture is None
    assert not recipe.exports
    assert loaded.place("made") == tmp_path / "made"
    assert loaded.address("s3://bucket/x.jsonl") == "s3://bucket/x.jsonl"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('fromat = "alpaca"', "sources.0.fromat: unknown key; expected one of name, files, dataset, format"),
        ('format = "aplaca"', "sources.0.format: found 'aplaca'; expected one of messages, sharegpt"),
        ("filter = { min_mesages = 2 }", "sources.0.filter.min_mesages: unknown key; expected"),
        ('filter = { match = "(" }', "sources.0.filter: match is '(', which is no regular expression"),
        ("filter = { min_messages = 0 }", "sources.0.filter: min_messages is 0; expected at least 1"),
        ("[rows]\nmax_bad_rows = true", "rows.max_bad_rows.int: found True; expected a valid integer"),
        ("[split]\nval_frac = 1.5", "split.val_frac: found 1.5; expected less than or equal to 0.999999"),
        ("[sequence]\nlength = '4k'", "sequence.length: found '4k'; expected a valid integer"),
        ("[sequence]\ntoo_long = 'drop'", "found 'drop'; expected one of head, tail, drop_partial_turn, skip, error"),
        ("[renderer]\ndate = 'today'", "renderer: the date is 'today'; expected a day like 2026-01-31"),
        ("[[exports]]\nto = 'megatrn'", "exports.0.to: found 'megatrn'; expected one of hf, trl"),
        ("exports = 5", "exports: found 5; expected"),
        ("[mixture]\nweights = { chats = 1, code = 1 }", "the mixture names 'code'; expected one of chats"),
        ("[mixture]\nweights = { }", "the weights {} are all 0; expected one above 0"),
        ("[mixture]\nweights = { chats = 1 }\ntemperature = 2.0", "weights and temperature are given"),
        ("[[sources]]\nname = 'chats'\nfiles = ['x']", "two sources are 'chats', which have one directory"),
        ("[[sources]]\nname = '../x'\nfiles = ['x']", "sources.1.name: found '../x'; expected"),
        ("[[sources]]\nname = 'x'\nfiles = []", "sources.1.files: found []; expected"),
        ("[wrong]", "wrong: unknown key; expected one of out, seed, tokenizer"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, more: str, expected: str) -> None:
    top = more.startswith("exports")  # a key of the recipe itself comes before the tables
    text = f"{more}\n{MINIMAL}" if top else f"{MINIMAL}{more}\n"
    assert expected in refusal(written(tmp_path, text))


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "ot = 'x'\n" + MINIMAL.replace("path", "pth")))
    assert "recipe.toml: ot: unknown key" in text
    assert "did you mean 'out'?" in text
    assert "recipe.toml: tokenizer.pth: unknown key; expected one of path; did you mean 'path'?" in text
    assert "recipe.toml: tokenizer.path: missing; add it" in text


YAML = "out: made\ntokenizer: {path: tokenizer}\nsources:\n  - name: chats\n    files: [chats.jsonl]\n"


def test_yaml_says_the_same(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, YAML, "r.yaml")).recipe == read_recipe(written(tmp_path, MINIMAL)).recipe
    assert "r.yaml: sources.0.fromat: unknown key" in refusal(written(tmp_path, YAML + "    fromat: x\n", "r.yaml"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed: 010", {"seed": 10}),
        ("loss: {on: last_message, tool_bodies: [on, no, y]}", {"loss.tool_bodies": ("on", "no", "y")}),
        ("split: {val_frac: 1e-3}", {"split.val_frac": 0.001}),
        ("rows: {default_system: 2026-01-31}", {"rows.default_system": "2026-01-31"}),
        ("rows: {default_system: '12'}", {"rows.default_system": "12"}),
        ("rows: {allow_partial: true}", {"rows.allow_partial": True}),
        ("mixture:", {"mixture": None}),
    ],
)
def test_values_of_yaml_mean_what_they_say(tmp_path: Path, line: str, expected: dict[str, Any]) -> None:
    """As YAML 1.2 has them: in 1.1 `on` is True, `010` is 8, and a day is no text."""
    recipe: Any = read_recipe(written(tmp_path, YAML + line + "\n", "r.yaml")).recipe
    for name, value in expected.items():
        assert attrgetter(name)(recipe) == value


def test_settings_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + MINIMAL)
    settings = ["seed=7", "sequence.length=99", "sources.chats.format=alpaca", "out = a b", "sources.0.name=x"]
    recipe = read_recipe(path, settings).recipe
    assert (recipe.seed, recipe.sequence.length, recipe.out) == (7, 99, "a b")
    assert (recipe.sources[0].format, recipe.sources[0].name) == ("alpaca", "x")
    assert "recipe.toml: sequence.lenght: unknown key" in refusal(path, "sequence.lenght=9")
    assert "--set seed: expected KEY.KEY=VALUE" in refusal(path, "seed")
    assert "no 'code' among chats; use a name or a number" in refusal(path, "sources.code.format=alpaca")
    assert "'b' is below 'made', which is no table" in refusal(path, "out.b=1")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("missing.toml", None, "no such file; expected a recipe"),
        ("r.json", b"", "expected a recipe in TOML"),
        ("r.toml", b"out = '\xe9'", "not valid TOML: 'utf-8' codec can't decode byte 0xe9 in position 7"),
        ("r.toml", b"out = \n", "not valid TOML: Invalid value (at line 1, column 7)"),
        ("r.toml", b"x = " + b"[" * 5000, "not valid TOML: it is nested too deeply"),
        ("r.yaml", b"a: [", "not valid YAML"),
        ("r.yaml", YAML.encode() + b"out: x\n", "not valid YAML: the key 'out' again"),
        ("r.yaml", b"", "holds NoneType; expected keys and values"),
    ],
)
def test_files_that_no_recipe_is(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, UsageError), match=re.escape(expected)):
        read_recipe(tmp_path / name)
