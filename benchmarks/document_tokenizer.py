"""JSON lines to shards with Qwen3's vocabulary on one core, beside other packages on the same file.

    pip install datatrove orjson megatron-core transformers        # into an environment of its own
    python -m benchmarks.document_tokenizer --python THAT/bin/python --rounds 3

datatrove's way is its DocumentTokenizer. Megatron's tool, `preprocess_data.py`, is not in its package; its loop is
written out below with the package's IndexedDatasetBuilder: a line is read, transformers' tokenizer encodes it, an end
of document follows, and the document is added.

Each way is a process on one core that has loaded its tokenizer before its processor time counts; they take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import pretrain

OURS = """
import sys, time
from pathlib import Path
from benchmarks.pretrain import _write, document_encoder, TOKENIZER
encoder = document_encoder(TOKENIZER)
encoder.encode(["<|im_end|>", "a"])
begun = time.process_time()
_write(Path(sys.argv[1]), Path(sys.argv[2]), encoder)
print(time.process_time() - begun)
"""
THEIRS = """
import sys, time
from pathlib import Path
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
file, out, tokenizer = map(Path, sys.argv[1:4])
reader = JsonlReader(str(file.parent), glob_pattern=file.name)
options = {"eos_token": "<|im_end|>", "shuffle_documents": False}
step = DocumentTokenizer(str(out), tokenizer_name_or_path=str(tokenizer), **options)
step.tokenizer.encode("a")
begun = time.process_time()
step.run(reader.run(None, 0, 1), 0, 1)
print(time.process_time() - begun)
"""
MEGATRON = """
import numpy
import json, sys, time
from pathlib import Path
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from transformers import AutoTokenizer
file, out, tokenizer = map(Path, sys.argv[1:4])
tokenizer = AutoTokenizer.from_pretrained(tokenizer.parent)
tokenizer("a")
begun = time.process_time()
builder = IndexedDatasetBuilder(f"{out}.bin", dtype=numpy.int32)
for line in file.open(encoding="utf-8"):
    ids = tokenizer(json.loads(line)["text"]).input_ids + [tokenizer.eos_token_id]
    builder.add_document(torch.IntTensor(ids), [len(ids)])
builder.finalize(f"{out}.idx")
print(time.process_time() - begun)
"""
OTHERS = {"DocumentTokenizer": THEIRS, "Megatron's loop": MEGATRON}


def main() -> None:
    """Time each in processes of their own, one round after the other, and print the medians with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has the other packages")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # inherited by the processes
    with tempfile.TemporaryDirectory() as folder:
        for spans in pretrain.SPANS:
            documents = pretrain._documents(spans)
            source = pretrain._jsonl(Path(folder), documents)
            size = sum(len(text.encode()) for text in documents)
            taken: dict[str, list[float]] = {way: [] for way in ("ours", *OTHERS)}
            for number in range(given.rounds):
                taken["ours"].append(_taken([sys.executable, "-c", OURS, source, folder]))
                for at, (way, script) in enumerate(OTHERS.items()):
                    out = Path(folder, f"out-{spans}-{number}-{at}")
                    command = [given.python, "-c", script, source, out, pretrain.TOKENIZER / "tokenizer.json"]
                    taken[way].append(_taken(command))
            print(f"{len(documents):,} documents, {size / 1e6:.0f} MB", flush=True)
            for way, times in taken.items():
                ratio = median(their / our for their, our in zip(times, taken["ours"], strict=True))
                print(f"    {way}: {size / median(times) / 1e6:.2f} MB/s, time / ours {ratio:.1f}", flush=True)


def _taken(command: list[object]) -> float:
    quiet = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
