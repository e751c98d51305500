"""Real tokenizers cut to their first tokens, which the repository holds, so that their tests need no assets.

`python -m tests.cut_tokenizers` makes them from the folders of `NGPT_ASSETS`: the first 3,000 tokens of a vocabulary,
the merges among them, and the added tokens, with new ids. What decides how texts are split stays as it is: normaliser,
pre-tokenizer, post-processor, decoder and the flags of added tokens. Chat templates are left out: they are other
people's work without a licence of their own. Qwen3's, gpt-oss's and Mistral NeMo's tokenizers are under Apache-2.0,
DeepSeek-V3's (and o200k, which is gpt-oss's) under MIT.
"""

from pathlib import Path

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/tokenizer.json"))
