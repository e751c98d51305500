"""Train a tokenizer from files, and record its inputs, options and versions beside it.

`train_tokenizer` trains SentencePiece with our four sentinels. `train_byte_bpe` trains byte-level BPE: a directory with
tokenizer.json, as every tool opens it, for any text is its bytes again. Its control tokens are eos and bos, which text
never becomes.
"""

from __future__ import annotations

import heapq
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import sentencepiece

from niels_gpt import ranges
from niels_gpt.errors import InputError, MessageError, TokenizerError, UsageError
from niels_gpt.extras import check_library
from niels_gpt.messages import check_text
from niels_gpt.progress import SILENT, Progress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.files.formats import format_of
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import ReadProgress, Rejected, read_text, size_of
from niels_gpt.sources.files.listing import TEXT_NAMES, list_files
from niels_gpt.sources.files.records import read_records
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.remote import AnyFile
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.hf import CONFIG_NAME, TOKENIZER_NAME
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME, SentencePieceTokenizer, load_sentencepiece
from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS
from niels_gpt.version import __version__

META_NAME = "tokenizer_meta.json"
ModelType = Literal["unigram", "bpe"]

# SentencePiece silently drops longer lines, so lines are split at this length.
LINE_CHARACTERS = 4096
# It also drops whole lines that contain this character, which it uses internally, so a line ends there.
DROPPED_CHARACTER = "\u2585"
_WITH_ENDS = re.compile(r"[^\n]+\n*|\n+")
# The result depends on how many threads share the work (sums of floats), so the number is fixed.
THREADS = 8
LINES_REPORTED = 10_000  # after so many lines the expected number is reported again


@dataclass(frozen=True)
class TrainingOptions:
    """The settings that decide a trained model, beside its inputs; `tokenizer_meta.json` records them.

    Attributes:
        vocab_size: pieces, sentinels and byte pieces included.
        model_type: "unigram" or "bpe".
        character_coverage: the share of characters that get pieces of their own; the others are spelled in bytes.
        seed: of the sample.
        max_lines: the size of the sample.
    """

    vocab_size: int = 16_000
    model_type: ModelType = "unigram"
    character_coverage: float = 1.0
    seed: int = DEFAULT_SEED
    max_lines: int = 2_000_000


def train_tokenizer(
    inputs: Iterable[str | Path],
    out_dir: str | Path,
    *,
    vocab_size: int = 16_000,
    model_type: ModelType = "unigram",
    character_coverage: float = 1.0,
    seed: int = DEFAULT_SEED,
    max_lines: int = 2_000_000,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> SentencePieceTokenizer:
    """Train a tokenizer from files, directories or glob patterns (.txt, .md, .jsonl).

    Text files are read line by line; of JSON lines, `text` and the `content` of `messages` are used. From more than
    `max_lines` lines a seeded sample is taken. The same files and options result in the same bytes.

    Writes `spm.model` and `tokenizer_meta.json` (options, versions, inputs with sha256) into `out_dir`.

    Args:
        inputs: the files.
        out_dir: the directory that is created.
        vocab_size, model_type, character_coverage, seed, max_lines: what decides the model, see `TrainingOptions`.
        overwrite: replace an existing directory.

    Raises:
        InputError: a file is missing, empty or unreadable; the message names the place.
        TokenizerError: there is too little text for `vocab_size`, or it has too many different characters.
        OutputExists: `out_dir` exists.
    """
    options = TrainingOptions(vocab_size, model_type, character_coverage, seed, max_lines)
    ranges.PIECES.check(options.vocab_size)
    ranges.CHARACTER_COVERAGE.check(options.character_coverage)
    ranges.MAX_LINES.check(options.max_lines)
    ranges.SEED.check(options.seed)
    if options.model_type not in ("unigram", "bpe"):
        raise UsageError(f"model_type is {options.model_type!r}; expected 'unigram' or 'bpe'")

    def train(lines: list[str]) -> dict[str, bytes]:
        progress.begin(f"training {options.model_type} with {options.vocab_size:,} pieces on {len(lines):,} lines")
        return {MODEL_NAME: _train_sentencepiece(lines, options)}

    meta = {
        **vars(options),
        "special_tokens": list(SPECIAL_TOKENS),
        "versions": {"niels_gpt": __version__, "sentencepiece": sentencepiece.__version__},
    }
    _write(inputs, out_dir, train, meta, overwrite=overwrite, progress=progress)
    return load_sentencepiece(out_dir)


def _write(
    inputs: Iterable[str | Path],
    out_dir: str | Path,
    train: Callable[[list[str]], dict[str, bytes]],
    meta: dict[str, Any],
    *,
    with_ends: bool = False,
    overwrite: bool,
    progress: Progress,
) -> None:
    """Sample lines, train on them, and write the files and tokenizer_meta.json into a directory.

    Args:
        train: lines to files by name, the model first.
        meta: the fields of tokenizer_meta.json that say how it was trained; of these `max_lines` and `seed` are read.
        with_ends: lines with their ends, see `lines_of`.
    """
    files = list(list_files(inputs, TEXT_NAMES).taken)
    with StagedDirectory(Path(out_dir), manifest=META_NAME, overwrite=overwrite) as staged:
        hashes = (hashed := HashedFiles()).fingerprint(files, progress)
        sample = sample_of(files, meta["max_lines"], meta["seed"], progress, with_ends=with_ends)
        hashed.check(files)  # a file that changed after it was hashed is not the one that the metadata names
        made = train(sample.lines())
        name, *_ = made
        record, *_ = [write_atomic(staged.path / each, data) for each, data in made.items()]
        if name == MODEL_NAME:
            SentencePieceTokenizer(staged.path / name)  # raises if the model could not be loaded again
        about = {
            "lines": {"read": sample.seen, "used": len(sample)},
            "inputs": list(hashes),
            "model": {"name": name, "bytes": record.bytes, "sha256": record.sha256},
        }
        write_atomic(staged.path / META_NAME, json_bytes({"format_version": 1, **meta, **about}))
        staged.commit()


def sample_of(
    files: Sequence[AnyFile], max_lines: int, seed: int, progress: Progress, *, with_ends: bool = False
) -> Sample:
    """A seeded sample of at most `max_lines` lines; see `lines_of`."""
    progress.begin("reading text", unit="lines")
    sample, count = Sample(max_lines, seed), ReadProgress()
    count.begin(files)
    for line in lines_of(files, with_ends=with_ends, count=count):
        sample.add(line)
        progress.advance(1)
        if sample.seen % LINES_REPORTED == 0 and (fraction := count.fraction()):
            progress.reached(fraction)
    return sample


def lines_of(files: Sequence[AnyFile], *, with_ends: bool = False, count: ReadProgress | None = None) -> Iterator[str]:
    """The lines of files, long ones in parts of `LINE_CHARACTERS`.

    Args:
        with_ends: with the line ends after each, several where lines are blank; for SentencePiece, without any.
        count: counts the bytes that are read.
    """
    for file in files:
        is_rows = format_of(file) != "text"
        if count is not None and not is_rows:
            count.done += size_of(file)
        texts = _jsonl_texts(file, count) if is_rows else [read_text(file)]
        for text in texts:
            lines = _WITH_ENDS.findall(text) if with_ends else text.replace(DROPPED_CHARACTER, "\n").splitlines()
            for line in lines:
                for start in range(0, len(line), LINE_CHARACTERS):
                    yield line[start : start + LINE_CHARACTERS]


def _jsonl_texts(file: AnyFile, count: ReadProgress | None) -> Iterator[str]:
    for record in read_records(file, count):
        if isinstance(record, Rejected):
            raise InputError(record.detail)
        row = record.value if isinstance(record.value, dict) else {}
        messages = row["messages"] if isinstance(row.get("messages"), list) else []
        texts = [row.get("text"), *(m.get("content") for m in messages if isinstance(m, dict))]
        found = [text for text in texts if isinstance(text, str)]
        if not found:
            keys = ", ".join(map(repr, row)) or "none"
            raise InputError(f"{record.where}: no 'text' and no 'messages' with content; keys found: {keys}")
        for text in found:
            try:
                check_text(text)
            except MessageError as error:
                raise InputError(f"{record.where}: holds {error}") from error
            yield text


class Sample:
    """A uniform sample of a stream: each line draws a number, the `limit` smallest are retained, in their order."""

    def __init__(self, limit: int, seed: int) -> None:
        self._limit = limit
        self._random = random.Random(seed)
        self._retained: list[tuple[float, int, str]] = []  # a heap of (-draw, position, line): the largest draw on top
        self.seen = 0

    def __len__(self) -> int:
        return len(self._retained)

    def add(self, line: str) -> None:
        entry = (-self._random.random(), self.seen, line)
        self.seen += 1
        if len(self._retained) < self._limit:
            heapq.heappush(self._retained, entry)
        else:
            heapq.heappushpop(self._retained, entry)

    def lines(self) -> list[str]:
        return [line for _, _, line in sorted(self._retained, key=lambda entry: entry[1])]


def _train_sentencepiece(lines: list[str], options: TrainingOptions) -> bytes:
    if not any(line.strip() for line in lines):
        raise TokenizerError("the input contains no text; expected at least some hundred lines to train on")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            character_coverage=options.character_coverage,
            # Text comes back unchanged: bytes for characters without a piece, and no change of characters or spaces.
            # By default SentencePiece applies NFKC, puts a space before text and makes one space of several.
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,  # so that an indentation is one piece
            # Not `control_symbols`: no text reaches those, and `SentencePieceTokenizer` checks that each is one id.
            user_defined_symbols=list(SPECIAL_TOKENS),
            # Without bos, eos and pad: ends are the sentinel eot, and padding is masked by its position.
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=4 * LINE_CHARACTERS + 1,  # in bytes; UTF-8 has at most four per character
            num_threads=THREADS,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        raise _explained(str(error), options) from error
    return model.getvalue()


def _explained(message: str, options: TrainingOptions) -> TokenizerError:
    """A SentencePiece error as one of ours, with the number to use instead for its two usual ones."""
    size = options.vocab_size
    # "Vocabulary size too high (16000). Please set it to a value <= 523."
    if "too high" in message:
        most = message.rpartition("<=")[2].strip(" .\n")
        smaller = f" or at most --vocab-size {most}" if most.isdigit() and int(most) >= ranges.PIECES.least else ""
        return TokenizerError(f"the text is too small for {size:,} pieces; give more text{smaller}")
    # "Vocabulary size is smaller than required_chars. 300 vs 512. Increase vocab_size or ..."
    if "smaller than required_chars" in message:
        needed = message.partition("required_chars. ")[2].partition("vs ")[2].partition(".")[0]
        return TokenizerError(
            f"the text has so many different characters that {needed} pieces are needed before any word; "
            f"raise --vocab-size above {needed} (now {size:,}) or lower --character-coverage"
        )
    return TokenizerError(f"SentencePiece could not train: {message.strip()}")


# ---- byte-level BPE

EOS: Final = "<|end_of_text|>"
BOS: Final = "<|begin_of_text|>"

# Where merges stop: English contractions, words with the space or sign before them, single digits, signs, line ends,
# other white space. It is the pattern of Qwen2, which fast engines know; another one would be encoded slowly.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_byte_bpe(
    inputs: Iterable[str | Path],
    out_dir: str | Path,
    *,
    vocab_size: int = 16_000,
    seed: int = DEFAULT_SEED,
    max_lines: int = 2_000_000,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> TokenizerAdapter:
    """Train a byte-level BPE tokenizer from files, directories or glob patterns (.txt, .md, .jsonl).

    The same files and options result in the same bytes. Writes tokenizer.json, tokenizer_config.json (eos, bos) and
    tokenizer_meta.json (options, versions, inputs with sha256) into `out_dir`.

    Args:
        inputs: the files; text files line by line, of JSON lines `text` and the `content` of `messages`.
        out_dir: the directory that is created.
        vocab_size: ids, the two control tokens and the 256 bytes included.
        seed: of the sample.
        max_lines: from more lines a sample of this size is taken.
        overwrite: replace an existing directory.

    Raises:
        InputError: a file is missing, empty or unreadable. OutputExists: `out_dir` exists.
        TokenizerError: there is too little text for `vocab_size`. MissingExtra: `tokenizers` is not installed.
    """
    ranges.PIECES.check(vocab_size)
    ranges.MAX_LINES.check(max_lines)
    ranges.SEED.check(seed)
    check_library("tokenizers")

    def train(lines: list[str]) -> dict[str, bytes]:
        progress.begin(f"training byte-level BPE with {vocab_size:,} ids on {len(lines):,} lines")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "bos_token": BOS}
        return {TOKENIZER_NAME: _train_byte_bpe(lines, vocab_size), CONFIG_NAME: json_bytes(config)}

    meta = {
        "kind": "byte-bpe",
        "vocab_size": vocab_size,
        "seed": seed,
        "max_lines": max_lines,
        "special_tokens": [EOS, BOS],
        "versions": {"niels_gpt": __version__, "tokenizers": version("tokenizers")},
    }
    # Line ends stay: a blank line is to become one token.
    _write(inputs, out_dir, train, meta, with_ends=True, overwrite=overwrite, progress=progress)
    return TokenizerAdapter.load(Path(out_dir))


def _train_byte_bpe(lines: list[str], vocab_size: int) -> bytes:
    """The tokenizer.json."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    # ByteLevel only writes bytes as characters here; its own pattern would cut what the first one joins.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS, BOS],
        # All 256 bytes, also those that the sample lacks: no text is without ids.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise TokenizerError(
            f"the text is too small for {vocab_size:,} ids; give more text or at most --vocab-size {found}"
        )
    return str(tokenizer.to_str()).encode()
