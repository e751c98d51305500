"""Finds the characters of an assistant turn that the model emits: from the end of the generation prompt to the stop.

::

    generation prompt   <a>\\n<think>\\n                       the prefill: serving writes it before the model samples
    turn                <a>\\n<think>\\nHm.</think>4<e>\\n
    sampled                           Hm.</think>4<e>       up to the stop <e>, without the newline after it

`sampled_span` compares one turn with its generation prompt. The prompt comes from rendering the messages before the
turn (`renderer.py`), or from `fixed_prompt`, which proves for most templates that it is always the same.

What this guarantees: no character that the generation prompt supplies counts as sampled. What it does not: that the
turn begins as the prompt does. Some templates write history differently; then the span starts at the first character of
the message's content, and `RenderedTokens.attribution` says so ("partial: ...").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jinja2
from jinja2 import nodes

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.attribution import ControlTokens, Span
from niels_gpt.renderers.template.bounds import BoundedEnvironment
from niels_gpt.renderers.template.jinja import TrackingEnvironment, compile_lock
from niels_gpt.renderers.template.run import run_template
from niels_gpt.renderers.template.substitution import common_prefix

_FLAG = "add_generation_prompt"
_CONVERSATION = frozenset({"messages", "tools", "documents"})  # the variables that change with the conversation


def sampled_span(turn: Sequence[Span], text: str, prompt: str, controls: ControlTokens) -> tuple[int, int, bool]:
    """Where the sampled part of a turn starts and stops, in characters of its joined spans.

    It starts after the prefix that the turn shares with the generation prompt. It ends with the stop token after the
    last character of the message's content, or with the turn if its format has no stop::

        prompt   <a>\\n              turn   <a>\\nHi there<e>\\n      content  4..12
                                    start 4, stop 15, found True

    Args:
        text: the texts of the turn, joined.
        prompt: the generation prompt before this turn.

    Returns:
        `(start, stop, found)`: `found` is whether the turn begins as the prompt does. If not, `start` is the first
        character of the message's content.
    """
    first, last = _content_bounds(turn)
    prefill = _prefill_length(text, prompt, controls)
    found = _matches_prompt(prompt, prefill)
    if not found:  # the white space between two turns may belong to either, so the prompt is tried without it
        lead = len(text) - len(text.lstrip())
        after_lead = _prefill_length(text[lead:], prompt.lstrip(), controls)
        found = _matches_prompt(prompt.lstrip(), after_lead)
        prefill = lead + after_lead if found else first
    # The stop is searched after the content, which may contain one. If there is no content, markup precedes the stop.
    stop = controls.stop_after(text, max(last, prefill), at_once=last > 0)
    return min(prefill, len(text)), len(text) if stop is None else stop, found


def _matches_prompt(prompt: str, shared: int) -> bool:
    """Whether a turn begins as the prompt does: with all of it, or without a tag or white space at the prompt's end."""
    rest = prompt[shared:].lstrip()
    return shared == len(prompt) or (shared > 0 and (not rest or rest.startswith("<")))


def _prefill_length(text: str, prompt: str, controls: ControlTokens) -> int:
    """How many characters at the beginning of a turn the prompt supplies, without a part of a tag or control token.

    ::

        prompt  <a>\\n<think>\\n      turn  <a>\\n<tool_call>      supplied  <a>\\n      (not <a>\\n<t)
    """
    if text.startswith(prompt):
        return len(prompt)
    return controls.before_split_token(text, before_open_tag(text, common_prefix(text, prompt)))


def before_open_tag(text: str, end: int) -> int:
    """`end`, moved back to the beginning of a tag that it cuts in two: 4 becomes 1 in `a<think>`."""
    opened = text.rfind("<", 0, end)
    return opened if opened > text.rfind(">", 0, end) else end


def _content_bounds(turn: Sequence[Span]) -> tuple[int, int]:
    """The start of the first and the end of the last character of message content; (0, 0) if there is none."""
    at, first, last = 0, None, 0
    for span in turn:
        if span.origin >= 0 and span.text:
            first = at if first is None else first
            last = at + len(span.text)
        at += len(span.text)
    return first or 0, last


# ---- generation prompts


def added_prompt(with_prompt: str, without: str, controls: ControlTokens) -> str:
    """The generation prompt: what follows the common prefix of the renderings with and without it.

    The shorter text need not be a prefix of the longer: some templates write eos at the end only without a prompt.
    """
    shared = common_prefix(with_prompt, without)
    opened = before_open_tag(with_prompt, shared)
    if "\n" not in with_prompt[opened:shared]:  # else that `<` is text of a message
        shared = opened  # <|end_of_text|> and <|start_of_role|>, where the tokenizer does not have the second
    return with_prompt[controls.before_split_token(with_prompt, shared) :]


def end_of_same(expected: str, text: str) -> int | None:
    """The length of the beginning of `text` that equals `expected` apart from white space; `None` if there is none.

    White space after it is included if the expected text ends in white space, and no more than that if it is the same::

        expected  "\\nASSISTANT:\\n"     text  "\\n    ASSISTANT: Hi"       ends before "Hi"
        expected  "\\nASSISTANT:"       text  "\\n    ASSISTANT: Hi"       ends before " Hi"
        expected  "ASSISTANT:\\n"       text  "\\nASSISTANT:\\n Hi"       ends before " Hi"
    """
    at = 0
    for character in "".join(expected.split()):
        while at < len(text) and text[at] != character and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != character:
            return None
        at += 1
    spaces = expected[len(expected.rstrip()) :]
    return at + (len(spaces) if text.startswith(spaces, at) else len(text[at:]) - len(text[at:].lstrip()))


def history_opening(prompt: str, controls: ControlTokens) -> str:
    """The part of a generation prompt that turns in history have too: all but a tag at its end.

    ::

        <|im_start|>assistant\\n<think>\\n    ->  <|im_start|>assistant\\n
    """
    opening = prompt[: max(0, prompt.rfind("<"))]
    return opening if controls.first(opening) else prompt


def fixed_prompt(source: str, clock: Callable[[str], str], variables: Mapping[str, Any]) -> str | None:
    """The generation prompt of a template if it is the same after every conversation; `None` if that is not certain.

    With a fixed prompt a conversation takes one run of the template, in place of one more for each assistant turn.

    It is certain if the last statement of the template that writes anything is an `if` that tests the flag
    `add_generation_prompt`, and neither its condition nor its body makes calls or reads what depends on the
    conversation::

        {% for m in messages %}...{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}

    SmolLM3's prompt reads a variable that it sets from the system message, so its prompt is not fixed. A template that
    never reads the flag has the fixed prompt "".
    """
    environment = TrackingEnvironment(clock)
    with compile_lock():
        tree = environment.parse(source)
    tree.body = [node for node in tree.body if not _is_default_of_flag(node)]
    if all(name.name != _FLAG for name in tree.find_all(nodes.Name)):
        return ""
    writing = [number for number, node in enumerate(tree.body) if not _is_silent(node)]
    if not writing:
        return None
    last = tree.body[writing[-1]]
    settings = [node for node in tree.body[: writing[-1]] if _only_sets(node)]
    changing = _changing_names(tree, settings, environment)
    if not isinstance(last, nodes.If) or _FLAG not in _names(last.test) or not _is_fixed(last, changing):
        return None
    return _render_statements([*(node for node in settings if _is_fixed(node, changing)), last], clock, variables)


def _render_statements(
    statements: list[nodes.Node], clock: Callable[[str], str], variables: Mapping[str, Any]
) -> str | None:
    """The output of these statements with `add_generation_prompt` set; `None` if they fail."""
    environment = BoundedEnvironment(clock)
    tree = nodes.Template(statements, lineno=1)
    tree.set_environment(environment)
    with compile_lock():
        code = environment.compile(tree)
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    try:
        return "".join(chunk.text for chunk in run_template(template, {**variables, _FLAG: True}))
    except (MessageError, TemplateError):  # the same failure is reported when a conversation is rendered
        return None


def _changing_names(tree: nodes.Template, settings: Sequence[nodes.Node], environment: TrackingEnvironment) -> set[str]:
    """The names whose values may depend on the conversation.

    Every variable that the template sets is among them, unless it is set only at the template's top level, from values
    that do not depend on the conversation themselves.

    Args:
        settings: the statements at the top level that only set variables.
    """
    set_at_top = Counter(name.name for node in settings for name in node.find_all(nodes.Name) if name.ctx != "load")
    set_anywhere = Counter(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
    changing = {name for name, times in set_anywhere.items() if set_at_top[name] < times or name == _FLAG}
    changing |= {*_CONVERSATION, *environment.globals, *(macro.name for macro in tree.find_all(nodes.Macro))}
    # A variable that is set from a changing one changes too; repeat until no more are found.
    while more := {
        name.name
        for node in settings
        if not _is_fixed(node, changing)
        for name in node.find_all(nodes.Name)
        if name.ctx != "load" and name.name not in changing
    }:
        changing |= more
    return changing


def _is_default_of_flag(node: nodes.Node) -> bool:
    """Whether a statement only gives the flag a value where it has none, which never happens here::

    {% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
    """
    if not isinstance(node, nodes.If) or node.elif_ or node.else_:
        return False
    is_negated = isinstance(node.test, nodes.Not)
    test = node.test.node if isinstance(node.test, nodes.Not) else node.test
    if not isinstance(test, nodes.Test) or not isinstance(test.node, nodes.Name) or test.node.name != _FLAG:
        return False
    return test.name == ("defined" if is_negated else "undefined")


def _is_fixed(node: nodes.Node, changing: Set[str]) -> bool:
    """Whether a statement does the same in every conversation: it makes no calls and reads no changing name."""
    kinds = (nodes.Call, nodes.AssignBlock, nodes.For, nodes.Block, nodes.Include, nodes.Import)
    calls = any(True for kind in kinds for _ in node.find_all(kind))
    return not calls and not _names(node) & changing


def _names(node: nodes.Node) -> set[str]:
    """The names that a statement or an expression reads."""
    found = [*node.find_all(nodes.Name), *([node] if isinstance(node, nodes.Name) else [])]
    return {name.name for name in found if name.ctx == "load"}


def _only_sets(node: nodes.Node) -> bool:
    """Whether a statement sets variables, perhaps under a condition, and writes no output."""
    if isinstance(node, nodes.Assign):
        return isinstance(node.target, nodes.Name)
    return isinstance(node, nodes.If) and all(map(_only_sets, [*node.body, *node.elif_, *node.else_]))


def _is_silent(node: nodes.Node) -> bool:
    """Whether a statement writes no output."""
    if isinstance(node, nodes.Output):
        return all(isinstance(part, nodes.TemplateData) and not part.data for part in node.nodes)
    return isinstance(node, nodes.Macro | nodes.Assign) or _only_sets(node)
