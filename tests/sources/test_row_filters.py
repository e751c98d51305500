"""The language filter, with the library that tells languages."""

from __future__ import annotations

import pickle

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
