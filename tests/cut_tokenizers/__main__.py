"""Writes the folders of cut tokenizers: see the package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.assets import ASSETS

SIZE = 3000  # tokens that are kept: bytes and the first merges
HERE = Path(__file__).parent
MODELS = {  # all under Apache-2.0 or MIT
    "qwen3": "qwen3-8b",
    "deepseek-v3": "deepseek-v3",
    "gpt-oss": "gpt-oss-20b",
    "mistral-nemo": "mistral-nemo-instruct-2407",
}
_PLACEHOLDER = re.compile(r"<SPECIAL_\d+>|<\|reserved_\d+\|>|<｜place▁holder▁no▁\d+｜>")
_CONFIG = ("tokenizer_class", "bos_token", "eos_token", "pad_token", "unk_token", "add_bos_token", "add_eos_token")


def cut(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` with the first tokens of its vocabulary, and its added tokens but for placeholders.

    Ids are given anew, in the old order::

        added <s> 0, bytes 1 to 256, merges 257 to 130999, <SPECIAL_7>    ->  <s> 0, bytes 1 to 256, merges 257 to ...
    """
    added = [token for token in tokenizer["added_tokens"] if not _PLACEHOLDER.fullmatch(token["content"])]
    names = {token["content"] for token in tokenizer["added_tokens"]}
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    kept = [(text, number) for text, number in vocab if text not in names][:SIZE]
    order = sorted([*kept, *((token["content"], token["id"]) for token in added)], key=lambda item: item[1])
    ids = {text: number for number, (text, _) in enumerate(order)}
    own = {text for text, _ in kept} | (names & set(tokenizer["model"]["vocab"]) & set(ids))

    def has(merge: Any) -> bool:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        return left in own and right in own and left + right in own

    model = tokenizer["model"] | {
        "vocab": {text: ids[text] for text in ids if text in own},
        "merges": [merge for merge in tokenizer["model"]["merges"] if has(merge)],
    }
    processor = tokenizer["post_processor"]
    for token in (processor or {}).get("special_tokens", {}).values():
        token["ids"] = [ids[text] for text in token["tokens"]]
    added = [token | {"id": ids[token["content"]]} for token in added]
    return tokenizer | {"added_tokens": added, "model": model, "post_processor": processor}


def main() -> None:
    """Write a folder for each model."""
    for name, source in MODELS.items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        tokenizer = json.loads((ASSETS / source / "tokenizer.json").read_bytes())
        config = json.loads((ASSETS / source / "tokenizer_config.json").read_bytes())
        config = {key: config[key] for key in _CONFIG if key in config}
        for file, value in (("tokenizer.json", cut(tokenizer)), ("tokenizer_config.json", config)):
            (folder / file).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
