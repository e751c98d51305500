"""VALUE of NAME=VALUE: one rule for renderer options, options of exports and settings of recipes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from niels_gpt.errors import UsageError
from niels_gpt.recipes.reading import set_value
from niels_gpt.values import name_and_value, option_value

VALUES: list[tuple[str, Any]] = [
    ("null", None),
    ("true", True),
    ("False", False),
    ("8", 8),
    ("-0.5", -0.5),
    ('"null"', "null"),
    ("[1, null]", [1, None]),
    ('{"a": {"b": 1}}', {"a": {"b": 1}}),
    ("{a = {b = 1}}", {"a": {"b": 1}}),
    # Texts: words, dates, numbers that JSON has no form for, and what begins like a value.
    ("low", "low"),
    ("", ""),
    ("None", "None"),
    ("2026-01-31", "2026-01-31"),
    ("nan", "nan"),
    ("1e999", "1e999"),
    ("3 # heads", "3 # heads"),
]


@pytest.mark.parametrize(("text", "value"), VALUES, ids=lambda each: str(each)[:12])
def test_a_value_is_read_by_one_rule(text: str, value: Any) -> None:
    read = option_value(text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(("text", "value"), VALUES[:4])
def test_every_option_of_this_form_follows_it(text: str, value: Any) -> None:
    pytest.importorskip("tokenizers")
    from niels_gpt.cli.exchange import FormatFlags
    from niels_gpt.renderers.configs import DefaultRendererConfig
    from niels_gpt.renderers.registry import typed_options

    values: dict[str, Any] = {}
    set_value(values, f"renderer.options.x={text}")
    assert values == {"renderer": {"options": {"x": value}}}
    assert FormatFlags(option=[f"assistant_masks={text}"]).own_options("hf") == {"assistant_masks": value}
    assert typed_options(DefaultRendererConfig, {"x": text}) == {"x": value}


def test_options_of_families_by_their_types() -> None:
    pytest.importorskip("tokenizers")
    from niels_gpt.renderers import Llama3RendererConfig, Qwen3RendererConfig
    from niels_gpt.renderers.registry import RendererOptions, typed_options

    texts = {"tools_in_user_message": "false", "date_string": "20260131"}
    assert typed_options(Llama3RendererConfig, texts) == {"tools_in_user_message": False, "date_string": "20260131"}
    assert typed_options(Qwen3RendererConfig, {"enable_thinking": True}) == {"enable_thinking": True}
    for family, option in (("qwen3", "enable_thinking"), ("llama-3", "date_string")):
        with pytest.raises(UsageError, match=rf"renderer {family}: {option} is None"):
            RendererOptions(family, options={option: "null"}).check()
    RendererOptions("llama-3", options=texts).check()


@pytest.mark.parametrize("text", ["x", "=1", " =1"])
def test_what_is_not_name_and_value(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--set {text}: expected KEY.KEY=VALUE")):
        set_value({}, text)
    with pytest.raises(UsageError, match=re.escape(f"--option {text}: expected NAME=VALUE")):
        name_and_value("--option", text)
    assert name_and_value("--option", "a=b=c") == ("a", "b=c")
