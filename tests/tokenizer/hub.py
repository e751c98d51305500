"""The hub of `tests.hub` for model repositories: their routes, and commits whose sha the test chooses.

::

    with ModelHub({"me/tiny": PinnedRepository(files, sha="fd19...")}) as hub:
        subprocess.run([sys.executable, "-c", script], env=hub.environment(tmp_path, longest_sleep=0.05))
        assert "/me/tiny/resolve/fd19.../tokenizer.json" in hub.paths
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.hub import Files, Hub, Repository, _Handler


@dataclass(frozen=True)
class PinnedRepository(Repository):
    """A repository whose only commit besides main's has this sha."""

    sha: str = ""

    @cached_property
    def shas(self) -> list[str]:
        """One commit for each entry of `history`, of which the last is `sha`; then main's own."""
        own = Repository(self.files, self.history).shas
        return [*own[:-2], self.sha, own[-1]]


class ModelHub(Hub):
    """Serves model repositories; `tests.hub` does the rest, as if they were data sets."""

    def start(self) -> None:
        """Serve."""
        super().start()
        assert self._server is not None
        self._server.RequestHandlerClass = _ModelHandler

    @property
    def paths(self) -> list[str]:
        """What was asked for, in the models' own routes."""
        return [
            request.path.replace("/api/datasets/", "/api/models/").removeprefix("/datasets")
            for request in self.requests
        ]


class _ModelHandler(_Handler):
    def do_GET(self) -> None:  # noqa: N802
        """Models are at /owner/name where data sets are at /datasets/owner/name."""
        if self.path.startswith("/api/models/"):
            self.path = self.path.replace("/api/models/", "/api/datasets/", 1)
        else:
            self.path = "/datasets" + self.path
        super().do_GET()

    do_HEAD = do_POST = do_GET  # noqa: N815


def code_files(marker: Path, config: Mapping[str, object] | None = None) -> Files:
    """A tokenizer that is Python code of its own, which writes `marker` when it is imported."""
    code = f"""
from pathlib import Path
from transformers import PreTrainedTokenizer

Path({str(marker)!r}).write_text("ran")


class Own(PreTrainedTokenizer):
    vocab_files_names = {{"vocab_file": "vocab.txt"}}

    def __init__(self, vocab_file, **options):
        self.words = Path(vocab_file).read_text().split()
        super().__init__(unk_token=self.words[0], **options)

    @property
    def vocab_size(self):
        return len(self.words)

    def get_vocab(self):
        return {{word: index for index, word in enumerate(self.words)}}

    def _tokenize(self, text, **options):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 0)

    def _convert_id_to_token(self, index):
        return self.words[index]
"""
    told = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own_code.Own", None]}, **(config or {})}
    return {
        "tokenizer_config.json": json.dumps(told).encode(),
        "own_code.py": code.encode(),
        "vocab.txt": b"? a b c",
        "model.safetensors": b"weights" * 1000,
    }
