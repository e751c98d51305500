"""A directory as a dataset: what it is, its splits (`niels_gpt.store.rows`), and the text of its ids."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from niels_gpt.display.html import notebook_html
from niels_gpt.display.rows import TokenRow, TokenSpelling, spelling_of
from niels_gpt.display.terminal import PREVIEW_TOKENS, in_colour, terminal_text
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.store.documents import DocumentSplit
from niels_gpt.store.kinds import open_dataset_manifest
from niels_gpt.store.rows import Split, TokenText
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.split import IndexedSplit
from niels_gpt.store.tokenizer_hash import tokenizer_sha256

TOKENIZER_PLACES: Final = ("tokenizer", "../tokenizer", "../../tokenizer", "../../../tokenizer")


class Dataset:
    """A dataset of this package, opened by `open_dataset`. A copy in another process opens the files anew.

    Attributes:
        path: its directory.
        kind: "pretrain", "sft" or "episodes".
        manifest: its `meta.json` or `episodes.json`; empty for episodes that another program wrote without one.
    """

    def __init__(self, path: Path, *, tokenizer: Path | None = None, min_tokens: int = 0) -> None:
        self.path, self._tokenizer, self._min_tokens = path, tokenizer, min_tokens
        self._opened: dict[str, Split] = {}
        self.kind, manifest = open_dataset_manifest(path)
        self.manifest = manifest or {}
        if tokenizer is not None:
            _ = self.token_text  # refuses a tokenizer that the dataset was not built with

    def __reduce__(self) -> tuple[Any, ...]:
        """Maps are opened anew, not copied, when another process receives the dataset."""
        return partial(Dataset, tokenizer=self._tokenizer, min_tokens=self._min_tokens), (self.path,)

    def split(self, name: str) -> Split:
        """A split, which may be empty; opened on first use.

        Raises:
            UsageError: no such name. CacheError: its files are damaged.
        """
        if name not in SPLITS:
            raise UsageError(f"split is {name!r}; expected {' or '.join(SPLITS)}")
        if name not in self._opened:
            opened: Split
            if self._is_stream:
                opened = DocumentSplit(self.path, name, self.manifest)
            else:
                opened = IndexedSplit([self.path], name, min_tokens=self._min_tokens)
            opened.load_text = self._load_text
            # Only once it is opened: the next call tries again where files were damaged.
            self._opened[name] = opened
        return self._opened[name]

    @cached_property
    def splits(self) -> Mapping[str, Split]:
        """The splits that hold rows, by name."""
        # Opening maps files and reads no tokens, so both are opened to see which of them hold rows.
        opened = {name: self.split(name) for name in SPLITS}
        # A pretraining split has documents if it has tokens; counting them would read it whole.
        return {name: split for name, split in opened.items() if (split.n_tokens if self._is_stream else len(split))}

    @property
    def _is_stream(self) -> bool:
        return self.kind == "pretrain"

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The recorded special tokens by name; empty where none are recorded."""
        return {name: int(token) for name, token in (self.manifest.get("special_token_ids") or {}).items()}

    @property
    def vocab_size(self) -> int | None:
        """All ids are below it; `None` where it is not recorded."""
        size = self.manifest.get("vocab_size")
        return None if size is None else int(size)

    @property
    def tokenizer_sha256(self) -> str | None:
        """The checksum of the tokenizer that the dataset was built with; `None` where it is not recorded."""
        checksum = self.manifest.get("tokenizer_sha256")
        return None if checksum is None else str(checksum)

    @cached_property
    def token_text(self) -> TokenText | None:
        """The text of an id; `None` where no tokenizer with the recorded checksum is available.

        Raises:
            Mismatch: a tokenizer was passed that is not the dataset's.
        """
        return token_text_of(self.path, self.manifest, self._tokenizer)

    def _load_text(self) -> TokenText | None:
        # A method, not a lambda: splits are pickled for other processes, and their function for texts with them.
        return self.token_text

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def show(self, tokenizer: Any = None, *, split: str | None = None, rows: int = 2) -> None:
        """Print the first rows in colour.

        Args:
            tokenizer: as for `Row.show`.
            split: default the first that holds rows.
            rows: how many.

        Raises:
            UsageError: no such split, or the tokenizer cannot decode.
        """
        spelling = self.token_text if tokenizer is None else spelling_of(tokenizer)
        print(f"{self!r}\n{terminal_text(self._preview(split, rows), spelling)}", end="")

    def __str__(self) -> str:
        """In a terminal also the first tokens in colour, elsewhere the same as `repr`."""
        if not in_colour():
            return repr(self)
        return f"{self!r}\n{terminal_text(self._preview(), self.token_text, most=PREVIEW_TOKENS)}"

    def _repr_html_(self) -> str:
        """The counts and the first rows as coloured tokens, for notebooks."""
        return notebook_html(repr(self)[1:-1], self._preview(), self.token_text)

    def _preview(self, split: str | None = None, rows: int = 2) -> list[TokenRow]:
        """The first rows as they are shown."""
        chosen = self.split(split) if split is not None else next(iter(self.splits.values()), None)
        return [] if chosen is None else [row.shown() for row in chosen.first_rows(rows)]

    def __repr__(self) -> str:
        """One line or two: where it is and how much each split holds."""
        unit = "tokens" if self._is_stream else "rows"
        sizes = {name: split.n_tokens if self._is_stream else len(split) for name, split in self.splits.items()}
        listed = ", ".join(f"{name} {size:,} {unit}" for name, size in sizes.items()) or "no rows"
        vocabulary = "" if self.vocab_size is None else f"; vocabulary of {self.vocab_size:,}"
        return f"<{self.kind} dataset {self.path}: {listed}{vocabulary}>"


def open_dataset(path: str | Path, *, tokenizer: str | Path | None = None, min_tokens: int = 0) -> Dataset:
    """Open a cache or an episodes dataset. Reads its manifest; splits are opened when they are used.

    Args:
        path: the directory with `meta.json`, or with `train/` and `val/` of episodes.
        tokenizer: its tokenizer, to see text; by default one in a `tokenizer` directory near the dataset.
        min_tokens: episodes with fewer tokens are left out, and rows numbered without them.

    Raises:
        CacheError: nothing of ours there, not finished, foreign, newer or damaged. Mismatch: another tokenizer.
    """
    return Dataset(Path(path), tokenizer=None if tokenizer is None else Path(tokenizer), min_tokens=min_tokens)


def token_text_of(path: Path, manifest: Mapping[str, Any], tokenizer: Path | None) -> TokenText | None:
    """The text of an id, by a tokenizer or, without one, by a tokenizer near the dataset whose checksum fits.

    Tokenizers are imported here: a dataset is opened without them.

    Raises:
        Mismatch: not the tokenizer that the dataset was built with.
    """
    wanted = manifest.get("tokenizer_sha256")
    if not wanted:
        return None
    # The demo and `build-all` write the tokenizer one to three directories above their caches.
    nearby = [path / folder for folder in TOKENIZER_PLACES]
    if tokenizer is None:
        # Hashed before it is loaded, which takes a second.
        found = (folder for folder in nearby if (folder / "tokenizer.json").is_file())
        hugging_face = next((folder for folder in found if tokenizer_sha256(folder) == wanted), None)
    else:
        hugging_face = tokenizer if (tokenizer / "tokenizer.json").is_file() else None
    if hugging_face is not None:
        from niels_gpt.tokenizer.encoder import TokenizerAdapter

        encoder = TokenizerAdapter.load(hugging_face)
        _check_checksum(hugging_face, path, encoder.fingerprints["tokenizer"], wanted)
        return TokenSpelling(encoder.token_bytes)
    from niels_gpt.tokenizer import load_tokenizer

    models = [folder / "spm.model" for folder in nearby]
    for model in [tokenizer] if tokenizer is not None else [model for model in models if model.is_file()]:
        loaded = load_tokenizer(model)
        checksum = tokenizer_sha256(loaded)
        if tokenizer is not None:
            _check_checksum(tokenizer, path, checksum, wanted)
        if checksum == wanted:
            # Sentinels have no text of their own, so their names are shown.
            names = {token: f"<{name}>" for name, token in (manifest.get("special_token_ids") or {}).items()}
            return lambda token: names.get(token) or loaded.piece(token)
    return None


def _check_checksum(tokenizer: Path, dataset: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise Mismatch(f"{tokenizer}: not the tokenizer that {dataset} was built with; pass that one")
