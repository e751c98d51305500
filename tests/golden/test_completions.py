"""Completions are read as their golden files say, whole and token by token; see `tests/golden/completions.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.parsers import get_tool_parser
from tests.golden.completions import COMPLETIONS, cases_of, difference
from tests.renderers.test_parsers import PARSER_OF

# Qwen3.6 is read by the parser of Qwen3.5, which also takes booleans as Python writes them.
BY_NAME = {*PARSER_OF} - {"qwen3.6"}
files = pytest.mark.parametrize("file", sorted(COMPLETIONS.glob("*.txt")), ids=lambda file: file.stem)


@files
def test_completions_are_read_as_their_golden_file_says(file: Path) -> None:
    found = difference(file)
    if found:
        pytest.fail(f"{found}\n\nIf this is meant: python -m tests.golden update completions", pytrace=False)


@files
def test_streams_and_parsers_by_name_read_the_same(file: Path) -> None:
    for given, renderer, ids, options in cases_of(file.read_bytes().decode()):
        parsed = renderer.parse_response(ids, **options)
        parser = renderer.stream(options.get("prompt_ids"), tools=options["tools"])
        for token in ids:
            parser.feed([token])
        parser.finish()
        assert parser.result() == parsed, given
        # Qwen3.6 is read by the parser of Qwen3.5, which also takes booleans as Python writes them.
        if file.stem in BY_NAME and not parsed.reasoning_content and "<think>" not in renderer.encoder.decode(ids):
            by_name = get_tool_parser(PARSER_OF[file.stem], renderer.encoder)
            assert by_name.extract(ids, tools=options["tools"])[1] == parsed.tool_calls, given
