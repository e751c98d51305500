"""The museum: a test for each of the bugs that people suffer from most.

Each file is one exhibit: `naive` the bug in a few lines, `test_naive` shows what it does and which rule of the doctor
names it, `test_ours` sends the same data through this package. Its words are in `docs/museum.toml`; `python -m
docs.museum` makes `docs/museum.md` from both.
"""

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")
