"""Train a byte-level BPE tokenizer from files: a directory with tokenizer.json, as every tool opens it.

It has no unknown characters and changes none: any text is its bytes again. Control tokens are eos and bos, which text
never becomes here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from niels_gpt import ranges
from niels_gpt.errors import TokenizerError
from niels_gpt.extras import check_library
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.inputs import JSONL_SUFFIXES, TEXT_SUFFIXES
from niels_gpt.sources.locations import files_of
from niels_gpt.storage.files import json_bytes, write_atomic
from niels_gpt.storage.staging import StagedDirectory
from niels_gpt.tokenizer.encoder import TokenizerAdapter
from niels_gpt.tokenizer.hf import CONFIG_NAME, TOKENIZER_NAME
from niels_gpt.tokenizer.training import META_NAME, sample_of, what_was_made
from niels_gpt.version import __version__

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
    seed: int = 42,
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
    files = files_of(inputs, TEXT_SUFFIXES + JSONL_SUFFIXES)
    with StagedDirectory(Path(out_dir), manifest=META_NAME, overwrite=overwrite) as staged:
        # Line ends stay: a blank line is to become one token.
        sample = sample_of(files, max_lines, seed, progress, with_ends=True)
        progress.begin(f"training byte-level BPE with {vocab_size:,} ids on {len(sample):,} lines")
        record = write_atomic(staged.path / TOKENIZER_NAME, _train(sample.lines(), vocab_size))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "bos_token": BOS}
        write_atomic(staged.path / CONFIG_NAME, json_bytes(config))
        meta = {
            "format_version": 1,
            "kind": "byte-bpe",
            "vocab_size": vocab_size,
            "seed": seed,
            "max_lines": max_lines,
            "special_tokens": [EOS, BOS],
            "versions": {"niels_gpt": __version__, "tokenizers": _version()},
            **what_was_made(sample, files, TOKENIZER_NAME, record),
        }
        write_atomic(staged.path / META_NAME, json_bytes(meta))
        staged.commit()
    return TokenizerAdapter.load(Path(out_dir))


def _version() -> str:
    import tokenizers

    return str(tokenizers.__version__)


def _train(lines: list[str], vocab_size: int) -> bytes:
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
