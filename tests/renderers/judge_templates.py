"""`python -m tests.renderers.judge_templates`: silent errors by template, over all templates and conversations.

The renderers are those of `frozen_templates.py`, and so are the conversations, with some more in which every text,
name and id of the caller holds the spelling of a control token. A silent error is a rendering that claims to be full
and is not right; control tokens, and samples of another message's data, are judged of "partial" ones too. The exit code
is 0 if nothing is found but what `EXPECTED` names.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from niels_gpt.errors import NielsError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.every_template import VARIABLES, encoder
from tests.renderers.frozen_chats import Chat, other_chats, probe_chats
from tests.renderers.frozen_templates import FILE, OWN, WITH_STOP, renderer_for, unpack
from tests.renderers.template_judge import Case, judge

# What stays: patterns of keys and of faults, and why. Text, ids, sampled and content are right there.
EXPECTED = (
    (
        "templates_wild/vllm--tool_chat_template_mistral3",
        "label of -2 at * kind='MARKUP')",
        "of an id longer than nine signs, as forged ones are, the template writes the last nine. No letter shows where "
        "these begin, so that they count as markup of the call, and not as its text",
    ),
)


@dataclass(frozen=True)
class Judged:
    """The verdicts on one renderer.

    Attributes:
        counts: "refused", "full", "partial", "unseen", and "expected" faults.
        faults: `(conversation, attribution, fault)`.
    """

    key: str
    counts: Counter[str]
    faults: list[tuple[str, str, str]]


def case_of(renderer: TemplateRenderer, key: str, chat: Chat) -> Case:
    variables = None if key.removesuffix(WITH_STOP).endswith(OWN) else VARIABLES
    return Case(renderer, chat.messages, chat.tools, chat.prompt, variables, renderer.final_stop)


def is_expected(key: str, fault: str) -> bool:
    return any(fnmatch.fnmatchcase(key, keys) and fnmatch.fnmatchcase(fault, faults) for keys, faults, _ in EXPECTED)


def judged(key: str, chats: Sequence[Chat]) -> Judged:
    """The verdicts on a renderer's renderings, forged ones among them."""
    result = Judged(key, Counter(), [])
    try:
        renderer = renderer_for(key)
    except NielsError:
        result.counts["no renderer"] += 1
        return result
    for chat in [*chats, *forged(chats, renderer)]:
        verdict = judge(case_of(renderer, key, chat))
        result.counts[verdict.outcome] += 1
        result.counts["unseen"] += not verdict.seen
        faults = [fault for fault in verdict.faults if not is_expected(key, fault)]
        result.counts["expected"] += len(verdict.faults) - len(faults)
        result.faults.extend((chat.name, verdict.outcome, fault) for fault in faults)
    return result


def forged(chats: Sequence[Chat], renderer: TemplateRenderer) -> Iterator[Chat]:
    """Each fifth conversation with a control token in all that the caller writes: the template's own and others."""
    spellings = sorted(renderer.encoder.control_ids)
    written = [spelling for spelling in spellings if spelling in renderer.source] or spellings
    for chat in chats[::5]:
        rng = random.Random(chat.name)
        spelling = rng.choice(written if rng.random() < 0.8 else spellings)
        messages = [_forged(message, spelling) for message in chat.messages]
        tools = [_forged(tool, spelling) for tool in chat.tools] if chat.tools else None
        yield replace(chat, name=f"{chat.name}, forged {spelling}", messages=messages, tools=tools)


_FORGED_KEYS = ("content", "text", "reasoning_content", "name", "id", "tool_call_id", "description")


def _forged(value: Any, spelling: str) -> Any:
    """A message or declaration with a spelling in its texts, names and ids, and in the values of arguments."""
    made = copy.copy(value)
    for key, held in value.items():
        if key == "arguments" and isinstance(held, dict):
            made[key] = {name: f"{one}{spelling}" if isinstance(one, str) else one for name, one in held.items()}
        elif key in _FORGED_KEYS and isinstance(held, str):
            made[key] = f"{held}{spelling}"
        elif isinstance(held, dict):
            made[key] = _forged(held, spelling)
        elif isinstance(held, list):
            made[key] = [_forged(one, spelling) if isinstance(one, dict) else one for one in held]
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the judge finds; the exit code says whether it found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of keys: 'templates/*', '*+own', 'qwen3-8b*'")
    parser.add_argument("--chats", default="*", help="a pattern of names of conversations")
    parser.add_argument("--step", type=int, default=1, help="each so many-th conversation")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", action="store_true", help="all faults, not the first of a template")
    chosen = parser.parse_args(arguments)
    encoder()  # before the processes, so that they share it
    chats = [chat for chat in (*probe_chats(), *other_chats()) if fnmatch.fnmatchcase(chat.name, chosen.chats)]
    named = [key for key in unpack(FILE.read_bytes())[0] if fnmatch.fnmatchcase(key, chosen.only)]
    groups: dict[str, Counter[str]] = {}
    with multiprocessing.Pool(chosen.jobs, maxtasksperchild=12) as pool:
        for found in pool.imap(partial(judged, chats=chats[:: chosen.step]), named):
            group = found.key.partition("/")[0] if "/" in found.key else "models' own"
            counts = groups.setdefault(group, Counter())
            counts += found.counts + Counter(renderers=1, errors=len(found.faults))
            if found.faults:
                print(f"{found.key}: {len(found.faults)} errors ({_shown(found.counts)})", flush=True)
                for name, attribution, fault in found.faults[: None if chosen.every else 2]:
                    print(f"   {name!r}, {attribution}: {fault}", flush=True)
    for group, counts in groups.items():
        print(f"{group}: {_shown(counts)}")
    return 1 if any(counts["errors"] for counts in groups.values()) else 0


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count)


if __name__ == "__main__":
    raise SystemExit(main())
