"""Writes docs/templates.md: what is proven of every chat template of the test assets: `python -m docs.templates`.

It needs the assets ($NGPT_ASSETS, or `shared/assets` beside the repository) and no network. Every template is run over
a tiny tokenizer with the control tokens that templates write. All columns but the time are the same on every machine.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import normalise
from niels_gpt.renderers.registry import FAMILIES, MODEL_RENDERER_MAP
from niels_gpt.renderers.template.probe_results import STATUSES, ProbeResult, TemplateReport, report_on
from niels_gpt.renderers.template.proofs.probes import Probe
from niels_gpt.renderers.template.proofs.proof import PREFIX
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.load import open_encoder
from tests.assets import ASSETS
from tests.renderers.every_template import SOURCES, controls, source_of
from tests.renderers.frozen_chats import Chat, other_chats
from tests.renderers.tiny_families import Tokens, byte_level

PAGE: Final = Path(__file__).parent / "templates.md"
GROUPS: Final = {
    "Models' own": "that come with the tokenizer of a model",
    "templates": "that TRL keeps to recognise models",
    "templates_wild": "from inference servers, fine-tuning tools and models",
    "templates_synthetic": "written to lose the origin of texts: index loops, macros, rebuilt messages, filters",
}
# What ends a turn, the first that a template writes; tokenizers' configs say so, which the templates come without.
STOPS: Final = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "[|endofturn|]"),
    *("<|endofturn|>", "<|end_of_turn|>", "<|end|>", "<|return|>", "<|eom|>", "<|eos|>", "<｜end▁of▁sentence｜>"),
    *("<|assistant_end|>", "<seed:eos>", "<sep>", "<|eot|>", "<|EOT|>", "<|message_sep|>", "<end_of_utterance>"),
    *("<|stop|>", "</s>", "<|endoftext|>", "<eos>"),
)
# Templates whose turns end in the opener of the next one: serving stops there too.
OPENERS: Final = {
    "[gMASK]": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "<turn|>": ("<turn|>", "<|tool_response>"),
}
_MORE: Final = ("<|tool_response>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|end_of_turn|>")
_ROUNDS: Final = 3  # of timing; the fastest counts
_MOST_KINDS: Final = 5  # that are named
_LONGEST: Final = 90  # characters of a reason
INTRODUCTION: Final = """\
# What is proven of chat templates

`TemplateRenderer` finds for every character of a rendering its message, and whether the model emits it. This page says
for which conversations that is proven, with each of {total} chat templates. They belong to the test assets, which are
not in this repository. For a template of yours, this command shows the same, probe by probe and in colour:

```
niels-gpt doctor template ~/models/mine
```

| column | meaning |
|---|---|
| proven | probe conversations that are attributed as the proof says, from end to end |
| partial | probes of which something is not proven: `rendered.attribution` says what, and training refuses them |
| refused | probes that the template refuses |
| with stop | partial ones with the [`final_stop`](attribution.md#answers-without-a-stop) that the command proposes |
| prompt | "prefix": every answer begins where the generation prompt ends; else in how many probes it does |
| stop | what ends the model's part of an answer; "none": it ends in ordinary text, or at the opener of the next turn |
| marks | whether `{{% generation %}}`, whose inside TRL trains, encloses the stops of answers; empty without marks |
| oracle | share of the rendered probes that the oracle attributes [one by one](#attributed-each-by-itself) |
| odd | the same share of other conversations, with white space around texts, markup, and control tokens spelled out |
| time | how long `emit` takes for the probes, in times of plain Jinja; measured, so it varies by some tenths |

[Attribution](attribution.md) says what "full" promises and what it does not. This page is written by
`python -m docs.templates`.
"""
COLUMNS: Final = "The first two columns count templates, the others probes."
ORACLE: Final = """\
## Attributed each by itself

Most conversations take two or three renderings of the template, because what was proven once of a kind of conversation
is remembered. Where that does not fit, the oracle proves the attribution of the conversation itself
(`rendered.attribution_route` is "oracle"), which takes two renderings per message. With the following templates this
happens to more than one rendered probe in a hundred. They are listed by the kind of probe to which it happens; in
"markup" an answer has a think block in its text, for which these templates look:

{names}
"""


def stops_of(name: str) -> tuple[str, ...]:
    """The spellings at which serving would stop, the first is eos: the family's, or what the template writes."""
    if SOURCES[name].is_dir():
        about = json.loads((SOURCES[name] / "family.json").read_text(encoding="utf-8"))
        family = FAMILIES.get(MODEL_RENDERER_MAP.get(about["hub_names"][0], ""))
        if family is not None:
            return tuple(family.stops)
    source = source_of(name)
    for mark, stops in OPENERS.items():
        if mark in source:
            return stops
    return (next((stop for stop in STOPS if stop in source), _own_eos(name)),)


def _own_eos(name: str) -> str:
    """The eos token that a model's tokenizer names, `</s>` for templates without a tokenizer."""
    file = SOURCES[name] / "tokenizer_config.json"
    if not file.is_file():
        return "</s>"
    eos = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    return str(eos["content"] if isinstance(eos, dict) else eos or "</s>")


@cache
def encoder_with(stops: tuple[str, ...]) -> Any:
    """The tiny tokenizer with these stops."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-templates-"))
    spellings = tuple(dict.fromkeys([*controls(), *STOPS, *stops, *_MORE]))
    tokenizer = byte_level(Tokens(controls=spellings, added=("<think>", "</think>")))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": stops[0]}), encoding="utf-8")
    ids = [tokenizer.token_to_id(stop) for stop in stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}), encoding="utf-8")
    return open_encoder(folder)


def renderer_of(name: str) -> TemplateRenderer:
    """The renderer of a template of the assets."""
    stops = stops_of(name)
    return TemplateRenderer(
        encoder_with(stops),
        template=source_of(name),
        clock=lambda form: "2026-01-01",
        bos_token="<s>",
        eos_token=stops[0],
    )


def row(name: str, *, timed: bool = True) -> tuple[list[str], str]:
    """The cells of a template's row, and its `slow_kinds`; the last cell, the time, is empty unless `timed`."""
    renderer = renderer_of(name)
    report = report_on(renderer, name)
    cells = [
        f"`{name.rpartition('/')[2]}`",
        *(str(report.counts[status] or "") for status in STATUSES),
        str(partial_with_stop(name, report) or ""),
        main_reason(report),
        prompt(report),
        stops(report),
        marks(renderer, report),
        oracle([result.route for result in report.results if result.route]),
        oracle(odd_routes(renderer)),
        time_beside_jinja(renderer, report) if timed else "",
    ]
    return cells, slow_kinds(report)


def partial_with_stop(name: str, report: TemplateReport) -> int:
    """How many probes are partial with the proposed `final_stop`; it changes none that are not partial without it."""
    if not report.final_stop:
        return report.counts["partial"]
    return report_on(renderer_of(name).with_final_stop(report.final_stop), name).counts["partial"]


def main_reason(report: TemplateReport) -> str:
    """The most frequent reason for what is not proven, that of partial ones first."""
    reasons = [*report.reasons("partial"), *report.reasons("refused")]
    return plain(reasons[0]) if reasons else ""


def plain(text: str) -> str:
    """A reason without quoted text, which may be the template's own, and short enough for a cell."""
    text = re.sub(r"(?<!\w)'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "…", text)
    text = re.sub(r"(the chat template refuses): .*", r"\1", text)
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"


def prompt(report: TemplateReport) -> str:
    """Whether answers begin where the generation prompt ends."""
    rules = [{span.rule for span in result.spans} for result in report.results if result.spans]
    same = sum(found == {PREFIX} for found in rules)
    return "" if not rules else "prefix" if same == len(rules) else f"{same} of {len(rules)}"


def stops(report: TemplateReport) -> str:
    """The control tokens that end sampled spans."""
    return ", ".join(f"`{stop}`".replace("|", "\\|") if stop else "none" for stop in report.stops)


def marks(renderer: TemplateRenderer, report: TemplateReport) -> str:
    """Whether `{% generation %}` holds the stops of answers; empty without such marks."""
    if not re.search(r"\{%-?\s*generation\s*-?%\}", renderer.source):
        return ""
    from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

    compiled, stops = _compile_jinja_template(renderer.source), renderer.get_stop_token_ids()
    spellings = tuple(text for text, token in renderer.encoder.control_ids.items() if token in stops)
    found: Counter[bool] = Counter()
    for result in report.of("proven"):
        variables = {**_variables(result.probe), **renderer.encoder.special_tokens, "bos_token": "<s>"}
        messages, tools = variables.pop("messages"), variables.pop("tools")
        # Servers and we decode arguments and join parts that a template does not read; transformers does not.
        with suppress(jinja2.TemplateError, TypeError):
            text, spans = _render_with_assistant_indices(compiled, messages, tools, None, False, **variables)
            found.update(text[start:stop].rstrip().endswith(spellings) for start, stop in spans)
    return {(True,): "with stop", (False,): "without stop", (): ""}.get(
        tuple(found), f"{found[True]} of {found.total()} with stop"
    )


def _variables(probe: Probe) -> dict[str, Any]:
    # A copy: Jinja's own `indent` changes a list that it is given.
    return copy.deepcopy({"messages": list(probe.messages), "tools": probe.tools and list(probe.tools)})


@cache
def other_conversations() -> list[Chat]:
    """One of each kind of the probes, and of longer ones, with other texts."""
    return [chat for chat in other_chats() if chat.name.endswith("#1")]


def oracle(routes: Sequence[str]) -> str:
    """The share of conversations that are attributed each by itself, in percent; "" for none."""
    share = routes.count("oracle") / max(len(routes), 1)
    return f"{share:.1%}" if share else ""


def odd_routes(renderer: TemplateRenderer) -> list[str]:
    """How the other conversations that the template renders are attributed."""
    routes = []
    for chat in other_conversations():
        with suppress(MessageError, TemplateError):
            routes.append(renderer.emit(chat.messages, tools=chat.tools).notes.route)
    return routes


def slow_kinds(report: TemplateReport) -> str:
    """The kinds of the probes that are attributed each by itself, if they are more than 1 %; else ""."""
    kinds = {True: Counter[str](), False: Counter[str]()}
    for result in report.results:
        if result.route:
            kind = result.probe.name.removesuffix(", tools").removesuffix(", system")
            kinds[result.route == "oracle"][kind if not kind.startswith("contents with") else "searched strings"] += 1
    slow, quick = kinds[True], kinds[False]
    if slow.total() <= (slow.total() + quick.total()) / 100:
        return ""
    return "nearly all" if slow.total() > 9 * quick.total() else "many" if len(slow) > _MOST_KINDS else ", ".join(slow)


def time_beside_jinja(renderer: TemplateRenderer, report: TemplateReport) -> str:
    """The time of `emit` beside that of a plain rendering; "" for what is always refused."""
    rendered = [result for result in report.results if result.pieces]
    return f"{_ratio(renderer, rendered[:: max(1, len(rendered) // 12)]):.1f}" if rendered else ""


def _emitted(renderer: TemplateRenderer, result: ProbeResult) -> Any:
    probe = result.probe
    return renderer.emit(normalise(list(probe.messages)), tools=probe.tools and list(probe.tools))


def _ratio(renderer: TemplateRenderer, results: list[ProbeResult]) -> float:
    """The time of `emit` divided by that of the same template in transformers' environment."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    compiled, special = (
        _compile_jinja_template(renderer.source),
        {**renderer.encoder.special_tokens, "bos_token": "<s>"},
    )
    ours = plain_seconds = 0.0
    for result in results:
        variables = {**special, "add_generation_prompt": False, **_variables(result.probe)}
        try:
            compiled.render(**variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            continue  # the template refuses it, by `raise_exception` or by an operation that Python refuses
        plain_seconds += _fastest(lambda variables=variables: compiled.render(**variables))
        ours += _fastest(lambda result=result: _emitted(renderer, result))
    return ours / plain_seconds if plain_seconds else 0.0


def _fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


COUNTS: Final = (*STATUSES, "with stop")
HEAD: Final = ("template", *COUNTS, "main reason", "prompt", "stop", "marks", "oracle", "odd", "time")


def groups() -> dict[str, list[str]]:
    """The names of all templates by their group."""
    return {
        group: [name for name in SOURCES if (name.partition("/")[0] if "/" in name else "Models' own") == group]
        for group in GROUPS
    }


def page(*, timed: bool = True, said: Callable[[str], None] = print) -> str:
    """The page; without times, cells of that column are empty."""
    parts = [INTRODUCTION.format(total=len(SOURCES))]
    totals = [_line(("", "templates", "all proven", *COUNTS)), _line(("---", *("---:",) * 6))]
    tables: list[str] = []
    slow: dict[str, list[str]] = {}
    for group, names in groups().items():
        rows = []
        for name in names:
            try:
                cells, kinds = row(name, timed=timed)
                rows.append(cells)
                if kinds:
                    slow.setdefault(kinds, []).append(cells[0])
            except (MessageError, TemplateError) as error:
                rows.append([f"`{name.rpartition('/')[2]}`", *[""] * 4, plain(str(error)), *[""] * 6])
            said(name)
        counts = [sum(int(cells[at] or 0) for cells in rows) for at in range(1, 5)]
        full = sum(bool(cells[1]) and not cells[2] for cells in rows)
        totals.append(_line((group, len(rows), full, *(f"{count:,}" for count in counts))))
        tables += ["", f"## {group}", "", f"{len(rows)} {GROUPS[group]}.", ""]
        aligned = ["---:" if title in (*COUNTS, "oracle", "odd", "time") else "---" for title in HEAD]
        tables += [_line(HEAD), _line(aligned), *map(_line, rows)]
    return (
        "\n".join(
            [
                *(*parts, "## In total", "", COLUMNS, "", *totals, ""),
                ORACLE.format(names=_named(slow)).rstrip(),
                *tables,
            ]
        )
        + "\n"
    )


def _named(slow: dict[str, list[str]]) -> str:
    """A line for each set of kinds, those of most templates first."""
    most_first = sorted(slow.items(), key=lambda one: -len(one[1]))
    return "\n".join(f"* {kinds} ({len(names)}): {', '.join(names)}" for kinds, names in most_first)


def _line(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    if not ASSETS.is_dir():
        raise SystemExit("needs the test assets: set NGPT_ASSETS")
    PAGE.write_text(page(), encoding="utf-8")
