"""Text <-> ids.

::

    load.py              open_encoder: any tokenizer as a `PieceEncoder`, which is what renderers use
    pieces.py            the protocol `PieceEncoder`; pieces concatenated in bytes, control tokens found in scaffold
    encoder.py           a Hugging Face tokenizer as a `PieceEncoder`: ids in one pass, each with its piece
    fast_path.py         its fast path: whole strings through gigatoken, then a proof of the ids
    engines.py           gigatoken where its ids are proven to be right, else `tokenizers`; remembered proofs
    description.py       what a tokenizer.json means for encoding pieces
    hf.py                reads and checks a Hugging Face tokenizer: its JSON, templates, special tokens
    hub.py               tokenizers on the Hugging Face hub; whose code is run, and at which commit
    python_tokenizer.py  transformers tokenizers in Python without a tokenizer.json, as a `PieceEncoder`
    byte_tokenizer.py    objects that encode text and know the bytes of ids, such as tiktoken's
    split_encoder.py     encoding without offsets: split at special tokens, prove by bytes
    sentencepiece.py     our own tokenizer, also as a `PieceEncoder`
    sentinels.py         its four sentinels; encoding that can never produce one from text
    training.py          trains it, or byte-level BPE as a Hugging Face tokenizer, from files, with provenance

`load_tokenizer` loads our own tokenizer (`load_sentencepiece`); `niels_gpt.renderers.base.load_tokenizer` loads one of
transformers (`hub.load_hf_tokenizer`).
"""

from niels_gpt.tokenizer.sentencepiece import DEFAULT_TOKENIZER_PATH, SentencePieceTokenizer, load_sentencepiece
from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS
from niels_gpt.tokenizer.training import train_tokenizer

load_tokenizer = load_sentencepiece  # the name in the documented interface

__all__ = [
    "DEFAULT_TOKENIZER_PATH",
    "SPECIAL_TOKENS",
    "SentencePieceTokenizer",
    "load_sentencepiece",
    "load_tokenizer",
    "train_tokenizer",
]
