"""Text <-> ids.

::

    load.py              open_encoder: any tokenizer as a `PieceEncoder`, which is what renderers use
    pieces.py            the protocol `PieceEncoder`; control tokens found in scaffold
    encoder.py           a Hugging Face tokenizer as a `PieceEncoder`: ids in one pass, each with its piece
    fast_path.py         its fast way: whole strings through gigatoken, then a proof of the ids
    split_encoder.py     the general way: split at special tokens, runs of text between
    engines.py           gigatoken where its ids are proven to be right, else `tokenizers`; remembered proofs
    description.py       what a tokenizer.json means for encoding pieces
    hf.py                reads and checks a Hugging Face tokenizer: its JSON, templates, special tokens
    hub.py               tokenizers on the Hugging Face hub; whose code is run, and at which commit
    python_tokenizer.py  transformers tokenizers in Python without a tokenizer.json, as a `PieceEncoder`
    byte_tokenizer.py    objects that encode text and know the bytes of ids, such as tiktoken's
    sentencepiece.py     our own tokenizer, also as a `PieceEncoder`
    sentinels.py         its four sentinels; encoding that can never produce one from text
    training.py          trains it, or byte-level BPE as a Hugging Face tokenizer, from files, with provenance

`load_tokenizer` loads our own tokenizer (`load_sentencepiece`); `niels_gpt.renderers.base.load_tokenizer` loads one of
transformers (`hub.load_hf_tokenizer`).
"""

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.tokenizer.sentencepiece import DEFAULT_TOKENIZER_PATH as DEFAULT_TOKENIZER_PATH
    from niels_gpt.tokenizer.sentencepiece import SentencePieceTokenizer as SentencePieceTokenizer
    from niels_gpt.tokenizer.sentencepiece import load_sentencepiece as load_sentencepiece
    from niels_gpt.tokenizer.sentencepiece import load_tokenizer as load_tokenizer
    from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS as SPECIAL_TOKENS
    from niels_gpt.tokenizer.training import train_tokenizer as train_tokenizer

__all__ = [
    "DEFAULT_TOKENIZER_PATH",
    "SPECIAL_TOKENS",
    "SentencePieceTokenizer",
    "load_sentencepiece",
    "load_tokenizer",
    "train_tokenizer",
]

# Each is imported when it is first used: renderers need neither SentencePiece nor what trains a tokenizer.
__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(("DEFAULT_TOKENIZER_PATH", "SentencePieceTokenizer", "load_sentencepiece"), "sentencepiece")
    | {"load_tokenizer": "sentencepiece", "SPECIAL_TOKENS": "sentinels", "train_tokenizer": "training"},
)
