"""A small tokenizer with a chat template, and the bundled conversations and texts: what the guides work on, offline.

python examples/practice_model.py
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from niels_gpt.errors import MissingExtra
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.tokenizer.training import train_byte_bpe

# ChatML, as Qwen writes it. The first are control tokens; the others are text to a model, each in one token.
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = """\
{% for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def write_model(folder: Path) -> None:
    """A tokenizer trained on the samples, as directories of models hold it."""
    with tempfile.TemporaryDirectory() as trained:
        # It needs the extra `hf`, and says so where that is not installed; so the import comes after it.
        train_byte_bpe([chats_file(), notes_dir()], Path(trained) / "bpe", vocab_size=2000)
        from tokenizers import AddedToken, Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(trained) / "bpe" / "tokenizer.json"))
    tokenizer.add_special_tokens(list(CONTROLS))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    stop = {"eos_token_id": tokenizer.token_to_id("<|im_end|>")}
    (folder / "generation_config.json").write_text(json.dumps(stop) + "\n", encoding="utf-8")


def main() -> None:
    """Write practice/model, practice/chats.jsonl and practice/notes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("practice"))
    out = parser.parse_args().out
    try:
        write_model(out / "model")
    except MissingExtra as error:
        raise SystemExit(f"error: {error}") from None
    shutil.copyfile(chats_file(), out / "chats.jsonl")
    shutil.copytree(notes_dir(), out / "notes", dirs_exist_ok=True)
    print(f"{out / 'model'}: a tokenizer and its chat template")
    print(f"{out / 'chats.jsonl'}: 100 conversations; {out / 'notes'}: 44 texts")


if __name__ == "__main__":
    main()
