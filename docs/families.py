"""Writes docs/families.md from the families themselves: python -m docs.families

Every family renders the same conversation over a tiny tokenizer that is trained here and has the family's own tokens,
so nothing is needed that is not in the repository.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

from niels_gpt.display.example import ExampleView
from niels_gpt.explorer.example_view import view_rendered
from niels_gpt.messages import Conversation, normalise
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
from tests.renderers.tiny_families import TEXTS, folder_of

HERE = Path(__file__).parent
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL_IDS = {
    **dict.fromkeys(("mistral", "mistral-v7", "mistral-v11", "mistral-v13"), "weather01"),
    "kimi-k2": "functions.get_weather:0",
    "kimi-k2-thinking": "functions.get_weather:0",
    "kimi-k2.5": "functions.get_weather:0",
}
ASKS = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "I need the weather.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "4 degrees, rain"}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "How is the weather in Oslo?"},
    ASKS,
    RESULT,
    {"role": "assistant", "content": "It rains at 4 degrees.", "reasoning_content": "Now I know."},
    {"role": "user", "content": "Celsius?"},
    {"role": "assistant", "content": "Yes, Celsius.", "reasoning_content": "It is Norway."},
]
TEXT = (
    *TEXTS,
    "You are a helpful assistant. system user assistant tool model function name description parameters type object",
    " properties required string integer weather city days arguments get_weather call result tools reasoning thinking",
    *(message["content"] + " " + message.get("reasoning_content", "") for message in CHAT),
)
INTRODUCTION = (
    "One conversation as every family writes it: a system message, a tool, reasoning, a call, its result, an answer "
    "and another question. Families without tools get it without the call; reasoning is left out where a format "
    "refuses it. The tokenizers are tiny ones with each family's own tokens, so markers count as they do in the real "
    "ones, and words may not."
)
HOW_TO_READ = (
    "Text between ⟦ and ⟧ is trained by default: what the model itself would emit. The same in colour, token by "
    "token: [the explorer](explorer.md). Options: [renderers](renderers.md). A family of your own: "
    "[add a family](add_a_family.md). This page is written by `python -m docs.families`."
)


BESIDE = (
    "Conversations without tools in a second, on one core, in one run of {conversations} each (real text, processor "
    "time, {date}, load {load}; {versions}), written by `python -m benchmarks.beside`. Transformers' template and the "
    "`renderers` package: how many of these have our ids (of the others, how many differ in a way that is listed), and "
    "ids alone are measured. Ours are ids and mask, in batches. *Encoder*: the time that the engine which ours uses "
    "takes for the finished texts alone, in percent of ours, measured in turns with ours{own_run}; the rest is what "
    "ours takes for writing the texts and for whose each token is. It is above 100 % where the pieces of a text, which "
    "ours gives the engine, are encoded more quickly than the whole (Gemma, ngpt). What differs from the templates and "
    "from tml-renderers (counted over all options of a family), one by one and with who is right: "
    "[deviations](deviations.md). *Tiny*: no tokenizer of the model is at hand, so ours was measured with one of some "
    "hundred tokens, which is quicker; such a rate is not to be compared with the others, which have the model's own "
    "tokenizer or one of 32,000 tokens. `not compared` concerns this run: the tests of a family compare it with copies "
    "of its template where there are any."
)
_LESS = {
    "inkling": "; it also takes images and audio, which ours refuses"
}  # what tml-renderers does, and ours does not
_OTHERS = ("transformers' template", "`renderers`", "tml-renderers")
_RIGHT = ("ours", "theirs", "a convention")
_GOAL = 10  # times as fast as tml-renderers


@dataclass(frozen=True)
class Shown:
    """A family with its example."""

    name: str

    @cached_property
    def renderer(self) -> Family:
        """The family over its tiny tokenizer."""
        return FAMILIES[self.name](folder_of(self.name, texts=TEXT))

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as far as the format has a place for it."""
        messages = copy.deepcopy(CHAT)
        if self.renderer.calls is None:
            del messages[2:4]
        for message in messages:
            if self.name == "ngpt":
                message.pop("reasoning_content", None)
            for call in message.get("tool_calls", ()):
                call["id"] = CALL_IDS.get(self.name, "call_1")
            if message["role"] == "tool":
                message["tool_call_id"] = CALL_IDS.get(self.name, "call_1")
        return messages

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The tool, in formats that have some."""
        return None if self.renderer.calls is None else [TOOL]

    @cached_property
    def view(self) -> ExampleView:
        """The example, token by token."""
        chat = Conversation(normalise(self.messages), "example", tools=self.tools)
        return view_rendered(self.renderer, chat)

    @property
    def facts(self) -> dict[str, str]:
        """The rows of the family's table; code is between backticks."""
        models = [name for name, family in MODEL_RENDERER_MAP.items() if family == self.name]
        facts = {"models": ", ".join(models)} if models else {}
        prompt = Emitter()
        prompt.scaffold("")
        self.renderer.generation_prompt(ConversationView(CHAT[1:2], self.renderer.roles, self.renderer.name), prompt)
        turn = self.renderer.emit([{"role": "user", "content": "a"}, {"role": "assistant", "content": "hi"}])
        facts |= {
            "end of turn": self._end(),
            "prompt": code("".join(prompt.texts)) or "nothing",
            # What the model writes in a turn without reasoning.
            "sampled": code("".join(piece.text for piece in turn.pieces() if piece.msg == 1 and piece.sampled)),
            "reasoning": self._reasoning(),
            "calls": (type(self.renderer.calls).__doc__ or "").split("\n")[0] if self.renderer.calls else "none",
            "tokens": self._overhead(),
        }
        return facts

    def _end(self) -> str:
        stops = [self.renderer.encoder.decode([stop]) for stop in self.renderer.get_stop_token_ids()]
        if not self.renderer.end_turn[0]:
            return f"none; the next turn's opener ends it: {', '.join(map(code, stops[1:]))}"
        more = f"; sampling also stops at {', '.join(map(code, stops[1:]))}" if stops[1:] else ""
        after = self.renderer.end_turn[1]
        return code(stops[0]) + more + (f"; followed by {code(after)}" if after else "")

    def _reasoning(self) -> str:
        text = self.renderer.text(self.messages, tools=self.tools)
        if "It is Norway." not in text and "Now I know." not in text:
            produced = self.renderer.calls and self.renderer.text(self.messages[:3], tools=self.tools)
            return "of turns that call, until they are history" if produced and "I need" in produced else "no place"
        return "kept in history" if "Now I know." in text else "dropped from history once a user speaks again"

    def _overhead(self) -> str:
        """Tokens of a user's and an assistant's turn beside their texts."""
        chat = [{"role": role, "content": "hello"} for role in ("user", "assistant") * 2]
        owners = self.renderer.render(chat).message_indices
        text = len(self.renderer.encoder.encode_pieces(["hello"], [False])[0])
        # The second pair of turns: what begins a conversation may count for the first.
        user, assistant = (owners.count(index) - text for index in (2, 3))
        facts = self.renderer.render(self.messages, tools=self.tools)
        scaffold = f"{facts.is_content.count(False)} of {len(facts.token_ids)} in the example below"
        return f"{user} beside a user's text, {assistant} beside an assistant's; {scaffold}"


def code(text: str) -> str:
    """A text as code, newlines visible."""
    return f"`{text.replace(chr(10), '⏎')}`" if text else ""


def markdown(shown: Shown) -> str:
    """A family's part of the page for GitHub."""
    rows = (f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in shown.facts.items())
    parts = [
        "".join(token.text for token in tokens) if not trained else "⟦" + "".join(token.text for token in tokens) + "⟧"
        for trained, tokens in groupby(shown.view.tokens, key=lambda token: token.kind == "trained")
    ]
    table = "\n".join(["| | |", "|---|---|", *rows])
    text = "".join(parts).removesuffix("\n")
    return f"## {shown.name}\n\n{table}\n\n````text\n{text}\n````\n"


def beside() -> str:
    """The table of the families beside other packages, as `python -m benchmarks.beside` measured them."""
    document = json.loads((HERE / "families_beside.json").read_text(encoding="utf-8"))
    about, rows = document["about"], document["families"]
    versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    own_run = f", in a run of its own, load {about['encoder_load']}" if "encoder_load" in about else ""
    text = BESIDE.format(**(about | {"versions": versions, "own_run": own_run})) + "".join(
        f" `{name}` was measured in a run of its own ({row['later']['date']}, load {row['later']['load']}, "
        f"{row['later']['conversations']} conversations)."
        for name, row in rows.items()
        if "later" in row
    )
    lines = [
        f"| {name} | {' | '.join(_compared(name, rows[name], rows[name].get('later', about)['conversations']))} |"
        for name in FAMILIES
        if name in rows
    ]
    columns = ("family", "ours", "encoder", *_OTHERS, "tml-renderers: who is right")
    head = f"| {' | '.join(columns)} |\n|---|---:|---:|---|---|---|---|"
    paragraphs = f"{fill(text, 120)}\n\n{fill(_goal(rows), 120)}"
    return f"## Beside other packages\n\n{paragraphs}\n\n{head}\n" + "\n".join(lines) + "\n"


def _goal(rows: dict[str, Any]) -> str:
    """How often ours is as fast as meant, and where its encoder alone is not. Rates of tiny tokenizers say nothing."""
    known = {name: row for name, row in rows.items() if row["tml"] is not None and row["tokenizer"] != "tiny"}
    times = {name: round(row["rates"]["ours"] / row["rates"]["tml-renderers"], 1) for name, row in known.items()}
    possible = {name: round(each / known[name]["encoder"], 1) for name, each in times.items()}
    shown = [f"{name} {each} ({possible[name]})" for name, each in times.items()]
    within = [name for name, each in possible.items() if each >= _GOAL]
    return (
        f"Ours was meant to be {_GOAL} times as fast as tml-renderers. Of the {len(times)} families that tml-renderers "
        f"knows and whose own tokenizer, or one of 32,000 tokens, is at hand, it is so for "
        f"{sum(each >= _GOAL for each in times.values())}. Times the rate of tml-renderers, and in parentheses what "
        f"the encoder alone would be: {', '.join(shown)}. Below {_GOAL} in parentheses, no grammar can reach the aim "
        f"with this encoder; only a faster encoder could. It is {_GOAL} or more for {', '.join(within) or 'none'}."
    )


def _compared(name: str, row: dict[str, Any], size: int) -> list[str]:
    """The cells of a family, of which `size` conversations were rendered."""

    def rate(way: str) -> str:
        return f"{row['rates'][way]:,}" if way in row["rates"] else ""

    def equal(way: str) -> str:
        same = row["equal"].get(way)
        if same is None:
            return "not compared"
        listed, unexplained = row.get("listed", {}).get(way, 0), size - same - row.get("listed", {}).get(way, 0)
        others = f" ({listed} listed{f', {unexplained} not' if unexplained else ''})"
        return f"{'equal' if same == size else f'{same} of {size} equal{others}'}, {rate(way)}"

    own = f"{rate('ours')}{' (tiny)' if row['tokenizer'] == 'tiny' else ''}"
    cells = [own, f"{row['encoder']:.0%}", equal("transformers"), equal("renderers")]
    if row["tml"] is None:
        return [*cells, "does not know it", ""]
    listed = _listed(name)
    state = f"`{row['tml']}`, {listed.total()} differences listed, {rate('tml-renderers')}{_LESS.get(name, '')}"
    return [*cells, state, ", ".join(f"{right}: {listed[right]}" for right in _RIGHT if listed[right])]


def _listed(family: str) -> Counter[str]:
    """How many differences from tml-renderers docs/deviations.md lists for a family, by who is right."""
    page = (HERE / "deviations.md").read_text(encoding="utf-8")
    table = page.partition("## From tml-renderers")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    listed: Counter[str] = Counter()
    for row in rows:
        # The cell of families: "qwen3 with thinking, inkling", or "all but qwen3, inkling".
        named = {each.split(" ")[0] for each in row[1].removeprefix("all but ").split(", ")}
        if (family in named) != row[1].startswith("all but "):
            listed[row[-1].removesuffix(" |")] += 1
    return listed


def page() -> str:
    """The page as markdown."""
    every = [Shown(name) for name in FAMILIES]
    links = " · ".join(f"[{one.name}](#{one.name.replace('.', '')})" for one in every)
    return (
        f"# The families\n\n{fill(INTRODUCTION, 120)}\n\n{fill(HOW_TO_READ, 120)}\n\n{links}\n\n{beside()}\n"
        + "\n".join(map(markdown, every))
    )


if __name__ == "__main__":
    (HERE / "families.md").write_text(page(), encoding="utf-8")
