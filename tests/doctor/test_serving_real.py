"""`doctor serving` beside llama.cpp's server and `transformers serve`, with tiny random models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httpx")
pytest.importorskip("transformers")

import niels_gpt as ng
from niels_gpt.doctor.serving.check import check_serving
from tests.assets import ASSETS, needs_assets
from tests.doctor.llama_server import llama_server, running, write_model
from tests.doctor.test_serving import PLANTED

pytestmark = [needs_assets, pytest.mark.slow]
QWEN = ASSETS / "qwen3-8b"


@pytest.mark.parametrize("cause", [None, *PLANTED])
def test_llama_cpp_is_silent_with_the_same_template_and_names_what_another_writes(
    cause: str | None, tmp_path: Path
) -> None:
    own = json.loads((QWEN / "tokenizer_config.json").read_bytes())["chat_template"]
    write_model(QWEN, tmp_path / "tiny.gguf", own if cause is None else PLANTED[cause](own))
    command = [llama_server(), "-m", tmp_path / "tiny.gguf", "--jinja", "-c", "4096"]
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as url:
        report = check_serving(url, ng.renderer(QWEN))
    assert report.server == "llama.cpp"
    assert list(report.causes) == ([] if cause is None else [cause]), report.results
    assert report.passed == (cause is None)


def test_transformers_serve_is_compared_by_the_number_of_tokens(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(QWEN)
    tokenizer.save_pretrained(tmp_path)
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, **size)
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [151645, 151643]
    model.save_pretrained(tmp_path)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", tmp_path, "--device", "cpu"]
    with running(command, env={**os.environ, "HF_HUB_CACHE": str(tmp_path)}) as url:
        report = check_serving(url, ng.renderer(QWEN))
    assert report.by == "number of tokens"
    assert report.passed, [each for each in report.results if each.status != "equal"]
