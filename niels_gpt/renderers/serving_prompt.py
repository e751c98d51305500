"""The generation prompt of a template, where it is proven not to depend on what the messages say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jinja2
from jinja2 import nodes

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.jinja import TracingEnvironment, one_compiles
from niels_gpt.renderers.template_bounds import BoundedEnvironment
from niels_gpt.renderers.template_run import run_template
from niels_gpt.renderers.turns import Controls

_FLAG = "add_generation_prompt"
_CONVERSATION = frozenset({"messages", "tools", "documents"})


def fixed_prompt(source: str, clock: Callable[[str], str], variables: Mapping[str, Any]) -> str | None:
    """What a template writes last where `add_generation_prompt` is set; `None`: it may depend on the messages.

    It is the same behind every conversation where the template's last statement that writes is an `if` that looks at
    the flag, and neither its condition nor its body calls anything or reads what depends on the conversation::

        {% for m in messages %}...{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}

    SmolLM3's prompt reads a variable that it sets from the system text, so it is not. A template without the flag
    writes no prompt.
    """
    environment = TracingEnvironment(clock)
    with one_compiles():
        tree = environment.parse(source)
    if all(name.name != _FLAG for name in tree.find_all(nodes.Name)):
        return ""
    writing = [number for number, node in enumerate(tree.body) if not _is_silent(node)]
    if not writing:
        return None
    last = tree.body[writing[-1]]
    settings = [node for node in tree.body[: writing[-1]] if _only_sets(node)]
    changing = _changing(tree, settings, environment)
    if not isinstance(last, nodes.If) or _FLAG not in _names(last.test) or not _is_fixed(last, changing):
        return None
    alone = nodes.Template([*(node for node in settings if _is_fixed(node, changing)), last], lineno=1)
    bounded = BoundedEnvironment(clock)
    alone.set_environment(bounded)
    with one_compiles():
        code = bounded.compile(alone)
    template = jinja2.Template.from_code(bounded, code, bounded.make_globals(None))
    try:
        return "".join(chunk.text for chunk in run_template(template, {**variables, _FLAG: True}))
    except (MessageError, TemplateError):  # it is refused where it is rendered
        return None


def opening_of(prompt: str, controls: Controls) -> str:
    """What a turn in history has of a prompt: all but a tag at the end, which history may write otherwise.

    ::

        <|im_start|>assistant\n<think>\n    opening  <|im_start|>assistant\n
    """
    opening = prompt[: max(0, prompt.rfind("<"))]
    return opening if controls.first(opening) else prompt


def _changing(tree: nodes.Template, settings: Sequence[nodes.Node], environment: TracingEnvironment) -> set[str]:
    """The names that may stand for something else in each conversation.

    Of what the template sets these are all but the variables that are set at its top, from what does not change.
    """
    set_there = Counter(name.name for node in settings for name in node.find_all(nodes.Name) if name.ctx != "load")
    set_anywhere = Counter(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
    changing = {name for name, times in set_anywhere.items() if set_there[name] < times or name == _FLAG}
    changing |= {*_CONVERSATION, *environment.globals, *(macro.name for macro in tree.find_all(nodes.Macro))}
    while more := {
        name.name
        for node in settings
        if not _is_fixed(node, changing)
        for name in node.find_all(nodes.Name)
        if name.ctx != "load" and name.name not in changing
    }:
        changing |= more
    return changing


def _is_fixed(node: nodes.Node, changing: Set[str]) -> bool:
    """A statement does the same in every conversation."""
    kinds = (nodes.Call, nodes.AssignBlock, nodes.For, nodes.Block, nodes.Include, nodes.Import)
    calls = any(True for kind in kinds for _ in node.find_all(kind))
    return not calls and not _names(node) & changing


def _names(node: nodes.Node) -> set[str]:
    """The names that a statement reads."""
    found = [*node.find_all(nodes.Name), *([node] if isinstance(node, nodes.Name) else [])]
    return {name.name for name in found if name.ctx == "load"}


def _only_sets(node: nodes.Node) -> bool:
    """A statement that sets variables, perhaps under a condition, and writes nothing."""
    if isinstance(node, nodes.Assign):
        return isinstance(node.target, nodes.Name)
    return isinstance(node, nodes.If) and all(map(_only_sets, [*node.body, *node.elif_, *node.else_]))


def _is_silent(node: nodes.Node) -> bool:
    """A statement that writes nothing."""
    if isinstance(node, nodes.Output):
        return all(isinstance(part, nodes.TemplateData) and not part.data for part in node.nodes)
    return isinstance(node, nodes.Macro | nodes.Assign) or _only_sets(node)
