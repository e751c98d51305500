"""The museum: a test for each of the bugs that people suffer from most.

Each file is one exhibit. `EXHIBIT` is its label, `naive` the bug in a few lines, `test_naive` shows what it does and
which rule of the doctor names it, `test_ours` sends the same data through this package. `hall.py` lists them,
`docs/museum.md` is made from them: python -m docs.museum
"""

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("pyarrow")
