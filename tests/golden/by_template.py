"""Golden texts of small chat templates, each of a class on which an attribution was wrong once.

`templates/CASE.txt` holds a template, conversations, and below each conversation its rendering, piece by piece, as the
files of families hold theirs, and whether it is fully attributed::

    # The stop is sampled wherever it is written.
    options      | {"stops": ["<|im_end|>"]}
    template     | {% for m in messages %}...
    message      | {"role": "user", "content": "Hi"}
    TEMPLATE   0 | <|im_start|>user\\n
    CONTEXT    0 | Hi
    ...
    full         | by gaps

`options` are those of `TemplateRenderer`, with `controls` for a tokenizer that has these control tokens (else it is the
tiny one of Qwen3). For a new case, write a file down to its messages; `python -m tests.golden update templates` adds
the renderings. `as text` counts the control tokens' spellings that stay ordinary text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.folders import shared_folder
from tests.golden import FOLDER, block, blocks, lines
from tests.renderers.tiny_families import Tokens, byte_level, folder_of

TEMPLATES = FOLDER / "templates"
INPUTS = ("options", "template", "message", "tool", "prompt")
Blocks = list[tuple[str, str]]


def rendered(text: str) -> str:
    """The text of a file with the renderings of now in the place of those that it holds."""
    title, _, rest = text.partition("\n")
    found, options, template = [title], dict[str, Any](), ""
    for is_input, run in groupby(blocks(rest), lambda one: one[0] in INPUTS):
        if not is_input:
            continue
        given = [*run]
        for margin, inside in given:
            found += block(margin, inside)
            options = json.loads(inside) if margin == "options" else options
            template = inside if margin == "template" else template
        found += [*_rendering(template, options, given), ""]
    return "\n".join(found)


def _rendering(template: str, options: dict[str, Any], inputs: Blocks) -> Iterator[str]:
    messages = [json.loads(inside) for margin, inside in inputs if margin == "message"]
    tools = [json.loads(inside) for margin, inside in inputs if margin == "tool"]
    given = {name: value for name, value in options.items() if name != "controls"}
    try:
        renderer = TemplateRenderer(_tokenizer(tuple(options.get("controls", ()))), template=template, **given)
        renderer = renderer.lists_unwritten()
        asked: Any = {"tools": tools or None, "add_generation_prompt": any(margin == "prompt" for margin, _ in inputs)}
        out, ids = renderer.emit(messages, **asked), renderer.render_ids(messages, **asked)
    except (MessageError, TemplateError) as error:
        yield from block("refused", str(error))
        return
    yield from lines(out.pieces())
    text = "".join(out.texts)
    for token, number in renderer.encoder.control_ids.items():
        if text.count(token) != ids.count(number):
            yield from block("as text", f"{text.count(token) - ids.count(number)} of {token}")
    for one in out.notes.unwritten:
        yield from block("unwritten", str(one))
    for one in out.notes.by_format:
        yield from block("by format", str(one))
    verdict, _, reason = out.attribution.partition(": ")
    yield from block(verdict, reason or f"by {out.notes.route}")


@cache
def _tokenizer(controls: tuple[str, ...]) -> Path:
    """A folder with a tiny tokenizer that has these control tokens, the first of which is eos; default Qwen3's."""
    if not controls:
        return folder_of("qwen3")
    folder = shared_folder("tiny-controls-")
    byte_level(Tokens(controls)).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": controls[0]}), encoding="utf-8")
    return folder


def template_of(case: str) -> str:
    """The first template of a file."""
    text = (TEMPLATES / f"{case}.txt").read_text(encoding="utf-8")
    return next(inside for margin, inside in blocks(text.partition("\n")[2]) if margin == "template")


# By what is particular to them; for tests of other promises.
OWN_TEMPLATES = {
    "ends a turn before the next": template_of("a_stop_that_only_a_users_turn_writes_is_one"),
    "joins turns of one role": template_of("a_blank_question_in_a_turn_of_several_has_its_stop"),
    "no header after a result": template_of("an_answer_behind_a_result_without_another_header"),
    "no stop at the end": template_of("the_markup_of_a_call_is_not_its_stop"),
    "quotes the user": template_of("a_span_never_crosses_data_of_another_message"),
}


def update() -> None:
    """Write the renderings of now into all files."""
    for file in sorted(TEMPLATES.glob("*.txt")):
        file.write_text(rendered(file.read_bytes().decode()), encoding="utf-8", newline="\n")


def difference(file: Path) -> str:
    """What is rendered otherwise than a file says, as a diff; "" for nothing."""
    old = file.read_bytes().decode()
    return "\n".join(difflib.unified_diff(old.splitlines(), rendered(old).splitlines(), file.name, "rendered", n=2))
