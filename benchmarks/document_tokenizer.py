"""JSON lines to shards with Qwen3's vocabulary on one core, beside datatrove's DocumentTokenizer on the same file.

    pip install datatrove orjson        # into an environment of its own
    python -m benchmarks.document_tokenizer --python THAT/bin/python --rounds 3

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


def main() -> None:
    """Time both in processes of their own, one round after the other, and print the medians with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has datatrove")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # inherited by the processes
    with tempfile.TemporaryDirectory() as folder:
        for spans in pretrain.SPANS:
            documents = pretrain._documents(spans)
            source = pretrain._jsonl(Path(folder), documents)
            size = sum(len(text.encode()) for text in documents)
            ours, theirs = [], []
            for number in range(given.rounds):
                ours.append(_taken([sys.executable, "-c", OURS, source, folder]))
                out = Path(folder, f"datatrove-{spans}-{number}")
                theirs.append(_taken([given.python, "-c", THEIRS, source, out, pretrain.TOKENIZER / "tokenizer.json"]))
            ratio = median(their / our for their, our in zip(theirs, ours, strict=True))
            rates = [f"{name} {size / median(t) / 1e6:.2f} MB/s" for name, t in (("ours", ours), ("theirs", theirs))]
            print(
                f"{len(documents):,} documents, {size / 1e6:.0f} MB: {', '.join(rates)}, ratio {ratio:.1f}", flush=True
            )


def _taken(command: list[object]) -> float:
    quiet = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
