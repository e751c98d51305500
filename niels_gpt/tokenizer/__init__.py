"""Text <-> ids.

::

    opening.py           any tokenizer as a `PieceEncoder` (protocol.py), which is what renderers need
    hub.py               tokenizers on the Hugging Face hub; whose code is run, and at which commit
    sentinels.py         the four sentinels; encoding that can never produce one from text
    sentencepiece.py     our own tokenizer: load and use
    sentinel_encoder.py  our own tokenizer as a `PieceEncoder`
    training.py          our own tokenizer: train from files, with provenance
    hf.py                reads a Hugging Face tokenizer: its JSON, templates, special tokens
    description.py       what that JSON means for encoding pieces
    encoder.py           its ids in one pass, each with the piece that it came from
    pieces.py            pieces of many strings laid end to end, control tokens found in scaffold
    engines.py           gigatoken where it is proven to give the same ids, else `tokenizers`
    proofs.py            remembers for which tokenizers that is proven
    slow.py              transformers tokenizers in Python that have no tokenizer.json
    cutting.py           encoding without offsets: cut at special tokens, prove by bytes
"""

from niels_gpt.tokenizer.sentencepiece import DEFAULT_TOKENIZER_PATH, SentencePieceTokenizer, load_tokenizer
from niels_gpt.tokenizer.sentinels import SPECIAL_TOKENS
from niels_gpt.tokenizer.training import train_tokenizer

__all__ = [
    "DEFAULT_TOKENIZER_PATH",
    "SPECIAL_TOKENS",
    "SentencePieceTokenizer",
    "load_tokenizer",
    "train_tokenizer",
]
