"""What of a tokenizer.json is read here has the shape and the size that it should have.

`tokenizers` checks its own types when it loads a file, but sizes follow from what a file says: an id of 2^31 asks for
arrays of 16 GiB, ten replacements of one letter by ten make ten billion of it. So everything is checked beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from niels_gpt.errors import TokenizerError, shown

MOST_IDS: Final = 1 << 22  # the largest vocabularies known have some 300 000
LONGEST_ADDED: Final = 512  # characters
MOST_ADDED: Final = 1 << 20  # characters of all added tokens
MOST_GROWTH: Final = 64  # how many bytes may replace one
DEEPEST: Final = 100  # normalizers in normalizers; `tokenizers` itself takes no more than 128


class Checker:
    """Refusals that name the file and the field.

    Args:
        name: what errors call the file.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, tokenizer: Mapping[str, Any]) -> None:
        """Refuse what cannot be what `tokenizers` writes.

        Raises:
            TokenizerError: naming file, field, what was found and what was expected.
        """
        model = tokenizer.get("model")
        if not isinstance(model, dict):
            raise self.wrong("model", model, "an object, as `tokenizers` writes it")
        self._check_vocabulary(model.get("vocab", {}))
        for field in ("type", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
            if not isinstance(model.get(field), str | None):
                raise self.wrong(f"model.{field}", model[field], "text or null")
        self._check_added(tokenizer.get("added_tokens"))
        for field in ("normalizer", "pre_tokenizer", "decoder"):
            steps = list(self._steps(field, tokenizer.get(field), 0))
            self._check_growth(field, steps)

    def wrong(self, field: str, found: object, expected: str) -> TokenizerError:
        """The error of a field."""
        return TokenizerError(
            f"{self.name}: {field} is {shown(found)}; expected {expected}. Download the file again, or save it anew "
            "with save_pretrained()"
        )

    def _check_vocabulary(self, vocab: Any) -> None:
        if isinstance(vocab, list):
            for index, entry in enumerate(vocab):
                if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str | int):
                    raise self.wrong(f"model.vocab[{index}]", entry, "a text and its score")
            ids: Collection[Any] = (len(vocab) - 1,) if vocab else ()
        elif isinstance(vocab, dict):
            ids = vocab.values()
        else:
            raise self.wrong("model.vocab", vocab, "an object of ids, or a list of scores")
        if ids and not (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < MOST_IDS):
            wrong = next(token for token in ids if not _is_id(token))
            raise self.wrong("an id of model.vocab", wrong, f"a number from 0 to {MOST_IDS - 1:,}")

    def _check_added(self, added: Any) -> None:
        if added is None:
            return
        if not isinstance(added, list):
            raise self.wrong("added_tokens", added, "a list of objects")
        for index, token in enumerate(added):
            field = f"added_tokens[{index}]"
            if not isinstance(token, dict):
                raise self.wrong(field, token, "an object with id and content")
            if not _is_id(token.get("id")):
                raise self.wrong(f"{field}.id", token.get("id"), f"a number from 0 to {MOST_IDS - 1:,}")
            text = token.get("content")
            if not isinstance(text, str) or not text or len(text) > LONGEST_ADDED:
                raise self.wrong(f"{field}.content", text, f"a text of 1 to {LONGEST_ADDED} characters")
            if not is_unicode(text):
                raise self.wrong(f"{field}.content", text, "Unicode without halves of surrogate pairs")
        total = sum(len(token["content"]) for token in added)
        if total > MOST_ADDED:
            raise self.wrong("the length of all added_tokens", total, f"at most {MOST_ADDED:,} characters")

    def _steps(self, field: str, part: Any, depth: int) -> Iterator[dict[str, Any]]:
        """The steps of a normalizer, pre-tokenizer or decoder, sequences unfolded."""
        if part is None:
            return
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise self.wrong(field, part, "an object with a type, or null")
        if depth > DEEPEST:
            raise self.wrong(f"the depth of {field}", depth, f"at most {DEEPEST}")
        if part["type"] != "Sequence":
            yield part
            return
        for key in ("normalizers", "pretokenizers", "decoders"):
            inner = part.get(key) or []
            if not isinstance(inner, list):
                raise self.wrong(f"{field}.{key}", inner, "a list of objects")
            for index, entry in enumerate(inner):
                yield from self._steps(f"{field}.{key}[{index}]", {} if entry is None else entry, depth + 1)

    def _check_growth(self, field: str, steps: list[dict[str, Any]]) -> None:
        growth = 1
        for step in steps:
            pattern, content = step.get("pattern"), step.get("content", "")
            if pattern is not None:
                kinds = list(pattern.items()) if isinstance(pattern, dict) else []
                if len(kinds) != 1 or kinds[0][0] not in ("String", "Regex") or not isinstance(kinds[0][1], str):
                    raise self.wrong(f"a pattern of {field}", pattern, '{"String": ...} or {"Regex": ...}')
            for key in ("content", "prepend", "prefix", "replacement", "behavior", "prepend_scheme"):
                if not isinstance(step.get(key), str | None):
                    raise self.wrong(f"{key} of a step of {field}", step[key], "text")
            if step["type"] == "FixedLength" and step.get("length") == 0:  # `tokenizers` panics at both
                raise self.wrong(f"the length of a step of {field}", 0, "1 or more")
            if step["type"] == "Replace" and "" in (pattern or {}).values():
                raise self.wrong(f"a pattern of {field}", pattern, "one that is not empty")
            if step["type"] == "Replace":
                growth *= max(1, len((content or "").encode("utf-8", "surrogatepass")))
        if growth > MOST_GROWTH:
            raise self.wrong(f"the length of what {field} makes of one letter", growth, f"at most {MOST_GROWTH} bytes")


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST_IDS
