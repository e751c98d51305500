"""llama.cpp's own server, built once from the source distribution of `llama-cpp-python`, with a tiny random model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ports import free_port

VERSION = "0.3.36"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "niels_gpt_tests"
_OPTIONS = ("LLAMA_CURL", "LLAMA_OPENSSL", "GGML_NATIVE", "BUILD_SHARED_LIBS", "LLAMA_BUILD_TESTS")
_WIDTH = 32


def llama_server() -> Path:
    """The program: $LLAMA_SERVER, that of an earlier run, or built now, which takes five minutes on two cores."""
    if named := os.environ.get("LLAMA_SERVER"):
        return Path(named)
    program = CACHE / f"llama-server-{VERSION}"
    if not program.exists():
        _build(program)
    return program


def _build(program: Path) -> None:
    with urllib.request.urlopen("https://pypi.org/simple/llama-cpp-python/") as page:
        found = re.search(rf'href="([^"#]+llama_cpp_python-{re.escape(VERSION)}\.tar\.gz)', page.read().decode())
    assert found is not None, VERSION
    CACHE.mkdir(parents=True, exist_ok=True)
    archive, _ = urllib.request.urlretrieve(found[1])
    with tarfile.open(archive) as held:
        held.extractall(CACHE, filter="data")
    source, build = CACHE / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp", CACHE / "build"
    off = [f"-D{option}=OFF" for option in _OPTIONS]
    subprocess.run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *off], check=True)
    subprocess.run(["cmake", "--build", build, "--target", "llama-server", "-j2"], check=True)
    (build / "bin" / "llama-server").rename(program)


def write_model(tokenizer: Path, out: Path, template: str) -> None:
    """A model of architecture qwen3 with random weights, and the tokenizer and the template that are named."""
    gguf = pytest.importorskip("gguf")
    held = json.loads((tokenizer / "tokenizer.json").read_bytes())
    config = json.loads((tokenizer / "tokenizer_config.json").read_bytes())
    texts = {number: text for text, number in held["model"]["vocab"].items()}
    added = {token["id"]: token for token in held["added_tokens"]}
    texts |= {number: token["content"] for number, token in added.items()}
    size = max(texts) + 1
    of_added = {False: gguf.TokenType.USER_DEFINED, True: gguf.TokenType.CONTROL}
    kinds = [of_added[added[n]["special"]] if n in added else gguf.TokenType.NORMAL for n in range(size)]
    writer = gguf.GGUFWriter(str(out), "qwen3")
    writer.add_context_length(4096)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_key_length(_WIDTH // 2)
    writer.add_value_length(_WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in held["model"]["merges"]])
    writer.add_eos_token_id(next(number for number, text in texts.items() if text == config["eos_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    for name, shape in _shapes(size).items():
        noise = np.random.default_rng(42).standard_normal(shape) * 0.05
        writer.add_tensor(name, np.asarray(np.ones(shape) if "norm" in name else noise, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(size: int) -> dict[str, tuple[int, ...]]:
    norms = {"attn_norm": _WIDTH, "ffn_norm": _WIDTH, "attn_q_norm": _WIDTH // 2, "attn_k_norm": _WIDTH // 2}
    squares = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return (
        {"token_embd.weight": (size, _WIDTH), "output_norm.weight": (_WIDTH,)}
        | {f"blk.0.{name}.weight": (width,) for name, width in norms.items()}
        | {f"blk.0.{name}.weight": (_WIDTH, _WIDTH) for name in squares}
    )


@contextmanager
def running(command: list[Any], path: str = "/v1/models", **options: Any) -> Iterator[str]:
    """The URL of a server that `command` starts with `--port`, once it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*map(str, command), "--host", "127.0.0.1", "--port", str(port)], **options) as process:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(url + path).close()
                    break
                except OSError:
                    assert process.poll() is None, command
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()
