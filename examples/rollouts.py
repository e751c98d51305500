"""Several turns sampled from an inference server, as one row for a trainer: the very ids that were sampled.

python examples/rollouts.py --url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-8B --tokenizer ~/models/Qwen3-8B
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import httpx

from niels_gpt.errors import NielsError
from niels_gpt.renderers.base import create_renderer, load_tokenizer
from niels_gpt.renderers.client import generate
from niels_gpt.rollouts import Trajectory, trajectory


async def rollout(url: str, model: str, renderer: object, turns: int) -> Trajectory:
    """A conversation of `turns` replies; the user says "go on" between them."""
    messages = [{"role": "user", "content": "Count from one."}]
    results = []
    prompt = None
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        for _ in range(turns):
            made = await generate(
                client=client,
                renderer=renderer,
                messages=messages,
                model=model,
                prompt_ids=None if prompt is None else prompt.token_ids,
                prompt_attribution=prompt,
                sampling_params={"max_tokens": 256},
            )
            results.append(made)
            new = [{"role": "user", "content": "Go on."}]
            prompt = renderer.bridge_to_next_turn(made["prompt_ids"], made["completion_ids"], new)
            if prompt is None:  # this format cannot go on from here
                break
            messages += [{"role": "assistant", "content": made["content"]}, *new]
    return trajectory(results)


def main() -> None:
    """Sample one rollout and say how much of it is trained on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()

    try:
        renderer = create_renderer(load_tokenizer(given.tokenizer), given.renderer)
        row = asyncio.run(rollout(given.url, given.model, renderer, given.turns))
    except NielsError as error:  # no server, no such tokenizer: its message says what to do
        sys.exit(f"error: {error}")
    print(f"{len(row.ids)} tokens, {row.mask.sum()} sampled")


if __name__ == "__main__":
    main()
