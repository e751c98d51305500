"""Filters of rows: counts, lengths, expressions, and languages, with the library that tells them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from niels_gpt.errors import UsageError
from niels_gpt.messages import Conversation
from niels_gpt.sources.curation.filters import RowFilters


def test_languages() -> None:
    pytest.importorskip("py3langid")
    texts = {
        "The water boils after a few minutes, and then the tea needs four more.": None,
        "Das Wasser kocht nach ein paar Minuten, dann braucht der Tee noch vier.": None,
        "L'eau bout au bout de quelques minutes, puis le thé en demande quatre.": "other_language",
        "お湯は数分で沸き、そのあとお茶にはさらに四分かかります。": "other_language",
        "Bonjour": None,  # too short to tell
        "2 + 2 = 4 " * 20: None,  # no letters
    }
    filters = RowFilters(languages=("en", "de"))
    found = filters.reasons([Conversation([{"role": "user", "content": text}], where="x") for text in texts])
    assert [None if why is None else why[0] for why in found] == list(texts.values())
    described = filters.describe()["filters"]
    assert described["languages"] == ["de", "en"]
    assert described["py3langid"]
    assert pickle.loads(pickle.dumps(filters)) == filters


@pytest.mark.parametrize(("languages", "said"), [(("eng",), "did you mean 'en'"), ((), "languages is empty")])
def test_languages_that_are_none(languages: tuple[str, ...], said: str) -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(UsageError, match=said):
        RowFilters(languages=languages)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_messages": 3}, "too_few_messages"),
        ({"max_messages": 1}, "too_many_messages"),
        ({"min_characters": 100}, "too_few_characters"),
        ({"max_characters": 5}, "too_many_characters"),
        ({"min_answer_characters": 20}, "short_answer"),
        ({"match": "(?i)berlin"}, "not_matched"),
        ({"match": "(?i)PARIS", "role": "user"}, "not_matched"),
        ({"exclude": "Paris"}, "excluded"),
        ({"exclude": "hmm"}, "excluded"),  # also in reasoning
        ({"exclude": "capital", "role": "assistant"}, None),
        ({"match": "Paris", "min_messages": 2, "max_characters": 100}, None),
        ({}, None),
    ],
)
def test_filters(options: dict[str, Any], expected: str | None) -> None:
    chat = Conversation(
        [
            {"role": "user", "content": [{"type": "text", "text": "the capital?"}]},
            {"role": "assistant", "content": "Paris.", "reasoning_content": "hmm"},
        ]
    )
    (reason,) = RowFilters(**options).reasons([chat])
    assert (reason and reason[0]) == expected


def test_a_call_without_content_is_no_short_answer() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    chat = Conversation([{"role": "assistant", "content": "", "tool_calls": [call]}])  # type: ignore[list-item, typeddict-item]
    assert RowFilters(min_answer_characters=2).reasons([chat]) == [None]
