"""Bugs in conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.doctor import Report, diagnose
from tests.doctor.made import CHATML, Row, as_rows, assistant, by_template, chats, report_on, system, tool_chats, user
from tests.doctor.planted import Case

PLAIN = ("chatml", "llama-3", "deepseek-v3")
WITH_TOOLS = ("qwen2.5", "kimi-k2", "deepseek-v3")
TOKENIZERS = ("qwen2.5", "llama-3", "gemma")
DROPS_SYSTEM = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
FOLDS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ START + m.role + '\n' }}"
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{{ m.content + STOP + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ START + 'assistant\n' }}{% endif %}"
)
ODD = "{{ messages[-1].content }}{% if add_generation_prompt %}{{ messages[0].content }}{% endif %}"


def two_users(made: list[Row]) -> None:
    made[0]["messages"].insert(1, user("hello again"))


def no_answer(made: list[Row]) -> None:
    made[1]["messages"].pop()


def late_call(made: list[Row]) -> None:
    made[2]["messages"].append({"role": "tool", "content": "the fox", "tool_call_id": "functions.get:0"})


def silent(made: list[Row]) -> None:
    made[0]["messages"][1]["content"] = "  "


def broken(made: list[Row]) -> None:
    made[1]["messages"][0] = {"content": "hello"}


def hollow(made: list[Row]) -> None:
    made[1]["messages"] = []


def copied(made: list[Row]) -> None:
    made.append(json.loads(json.dumps(made[2])))


def forged(spelling: str) -> Callable[[list[Row]], None]:
    def plant(made: list[Row]) -> None:
        made[0]["messages"][0]["content"] += f" {spelling} the fox"

    return plant


def unread(made: list[Row]) -> None:
    made[3]["messages"][1]["thoughts"] = "the fox is quick"


def markup_in_an_answer(made: list[Row]) -> None:
    made[3]["messages"][1]["content"] += ' <tool_call>{"name": "jump", "arguments": {}}</tool_call>'


SPELT = {"chatml": "<|im_start|>", "llama-3": "<|eot_id|>", "deepseek-v3": "<｜end▁of▁sentence｜>"}
# Rule, families, plant, what rightly fires too.
PLANTS: tuple[tuple[str, tuple[str, ...], Callable[[list[Row]], None], tuple[str, ...]], ...] = (
    ("role-order", PLAIN, two_users, ()),
    ("role-order", PLAIN, no_answer, ()),
    ("empty-answer", PLAIN, silent, ()),
    ("unusable-row", PLAIN, broken, ()),
    ("empty-row", PLAIN, hollow, ()),
    ("duplicate-row", PLAIN, copied, ()),
    ("unread-keys", PLAIN, unread, ()),
    ("round-trip", ("qwen2.5", "qwen3", "glm-4.5", "nemotron-3"), markup_in_an_answer, ()),
    ("template-raises", ("gemma", "mistral"), two_users, ("role-order",)),
    ("template-raises", ("ngpt", "chatml"), late_call, ("role-order",)),
    *(("special-tokens-in-content", (family,), forged(SPELT[family]), ()) for family in PLAIN),
)


def _chats(family: str, plant: Callable[[list[Row]], None] | None, _: Path) -> Report:
    made = as_rows(chats())
    if plant is not None:
        plant(made)
    return report_on(family, made)


def _last_turns(each: int, family: str, planted: bool, _: Path) -> Report:
    """The setting trains the last turn alone; weights in each so many rows that say the same are the user's choice."""
    made = as_rows(chats(20))
    for row in made[::each] if not planted else ():
        row["messages"][1]["weight"] = 0
    return report_on(family, made, loss_on="last_message" if planted else None)


NULLABLE: Row = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
        },
    },
}


def _through_arrow(share: int, family: str, planted: bool, folder: Path) -> Report:
    """A parameter that may be null, left out in some rows: parquet gives it back as null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tools = json.dumps([NULLABLE])
    made = tool_chats(lambda n: {"city": f"x{n}", "days": 1} if not planted or n % share else {"city": f"x{n}"}, 6)
    pq.write_table(pa.Table.from_pylist([row | {"tools": tools} for row in made]), folder / "rows.parquet")
    return report_on(family, folder / "rows.parquet")


def _nulls_in_tools(share: int, family: str, planted: bool, _: Path) -> Report:
    """Declarations with the keys of other tools, as they come out of Arrow, written to JSON lines."""
    made = tool_chats(lambda n: {"city": f"x{n}"})
    for row in made[:: share // 2] if planted else ():
        row["tools"] = json.loads(json.dumps(row["tools"]))
        row["tools"][0]["function"]["parameters"]["properties"]["query"] = None
        row["tools"][0]["function"]["parameters"]["required"] = None
    return report_on(family, made)


def _unwritten_reasoning(some: bool, family: str, planted: bool, _: Path) -> Report:
    made = chats(20, turns=1, reasons=planted)
    if some:
        made[2:] = chats(20, turns=1)[2:]
    return report_on(family, as_rows(made))


def _unwritten_name(some: bool, family: str, planted: bool, _: Path) -> Report:
    """Names of users, which these families do not write."""
    made = chats(20)
    for messages in made[: 2 if some else 20] if planted else ():
        messages[0]["name"] = "Anna"
    return report_on(family, as_rows(made))


WITHOUT_REASONING = ("llama-3", "qwen2.5", "gemma", "mistral", "chatml")


def _calls_with(name: str, arguments: tuple[str, ...], share: int, family: str, planted: bool, _: Path) -> Report:
    """Calls of another name, or with other arguments, than the row's tools declare."""
    made = tool_chats(lambda n: {"city": f"x{n}", "days": n}, 6)
    for row in made[::share] if planted else ():
        function = {"name": name, "arguments": dict.fromkeys(arguments, "Oslo")}
        row["messages"][1]["tool_calls"][0]["function"] = function
    return report_on(family, made)


THINKS = ("qwen3", "nemotron-3", "glm-4.5")
EMPTY = ("empty-think-trained", "open-turns")
MANY = (*("unwritten", "eot-missing", "mask-all-one", "open-turns", "loss-share", "attribution-partial"),)


def _thinking(family: str, planted: bool, _: Path) -> Report:
    """Reasoning in every turn; the families keep it in the last alone."""
    return report_on(family, as_rows(chats(reasons=True, turns=2 if planted else 1)))


def _system(template: str, family: str, planted: bool, _: Path) -> Report:
    made = as_rows([[system(), *messages] for messages in chats()])
    return diagnose(made, renderer=by_template(family, template if planted else CHATML))


Arguments = Callable[[int], Any]


def _calls(bad: Arguments, good: Arguments, family: str, planted: bool, _: Path) -> Report:
    return report_on(family, tool_chats(bad if planted else good))


def _odd(family: str, planted: bool, _: Path) -> Report:
    made = [[user("hello"), assistant("the fox")], *chats()]
    return diagnose(as_rows(made), renderer=by_template(family, ODD if planted else CHATML))


SOME = ((False,), (True,))
TWICE = (lambda n: {"arguments": json.dumps({"city": f"x{n}"})}, lambda n: {"city": json.dumps({"name": n})})
NULLS = (lambda n: {"city": f"x{n}", "zip": None}, lambda n: {"city": f"x{n}", "days": None})
# Rule, families, what makes the data, its arguments with the bug and without it, what rightly fires too.
SPECIAL: tuple[tuple[str, tuple[str, ...], Callable[..., Report], Any, Any, tuple[str, ...]], ...] = (
    ("unwritten", WITHOUT_REASONING, _unwritten_reasoning, SOME, SOME, ()),
    ("unwritten", WITHOUT_REASONING, _unwritten_name, SOME, SOME, ()),
    ("tool-arguments-null", WITH_TOOLS, _through_arrow, ((2,), (6,)), ((2,),), ()),
    ("tool-arguments-null", WITH_TOOLS, _calls, (NULLS,), (NULLS,), ()),
    ("tool-schema-null", WITH_TOOLS, _nulls_in_tools, ((2,), (6,)), ((2,),), ()),
    ("tool-arguments-double-encoded", WITH_TOOLS, _calls, (TWICE,), (TWICE,), ()),
    *(
        (rule, WITH_TOOLS, _calls_with, ((name, given, 1), (name, given, 6)), ((name, given, 1),), ())
        for rule, name, given in (
            ("tool-not-offered", "get_wheather", ("city",)),
            ("tool-arguments-unknown", "get_weather", ("town",)),
            ("tool-arguments-unknown", "get_weather", ("city", "unit")),
        )
    ),
    ("turns-untrained", PLAIN, _last_turns, ((1,),), ((1,), (10,)), ()),
    ("history-thinking-stripped", THINKS, _thinking, ((),), ((),), EMPTY),
    ("system-dropped", TOKENIZERS, _system, ((DROPS_SYSTEM,),), ((DROPS_SYSTEM,),), ("unwritten",)),
    ("system-folded", TOKENIZERS, _system, ((FOLDS_SYSTEM,),), ((FOLDS_SYSTEM,),), ()),
    ("format-not-understood", TOKENIZERS, _odd, ((),), ((),), MANY),
)


def cases() -> list[Case]:
    made = [
        Case(rule, family, partial(_chats, family, given), given is not None, also)
        for rule, families, plant, also in PLANTS
        for family in families
        for given in (plant, None)
    ]
    made += [
        Case(rule, family, partial(make, *arguments, family, planted), planted, also)
        for rule, families, make, planted_with, clean_with, also in SPECIAL
        for planted, several in ((True, planted_with), (False, clean_with))
        for family in families
        for arguments in several
    ]
    return made
