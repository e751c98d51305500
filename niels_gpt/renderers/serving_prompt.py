"""The generation prompt of a template, where it is proven not to depend on what the messages say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import jinja2
from jinja2 import nodes

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.jinja import TracingEnvironment, one_compiles
from niels_gpt.renderers.template_bounds import BoundedEnvironment
from niels_gpt.renderers.template_run import run_template

_FLAG = "add_generation_prompt"
_CONVERSATION = frozenset({"messages", "tools", "documents"})


def fixed_prompt(source: str, clock: Callable[[str], str], variables: Mapping[str, Any]) -> str | None:
    """What a template writes behind every conversation where `add_generation_prompt` is set; `None`: not proven.

    It is proven where one `if` at the end of the template is the only place that looks at the flag, and where neither
    its condition nor its body calls anything, or reads the conversation or a variable that the template sets::

        {% for m in messages %}...{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}

    SmolLM3's prompt reads a variable that it sets from the system text, so nothing is proven.
    """
    environment = TracingEnvironment(clock)
    with one_compiles():
        tree = environment.parse(source)
    found = _only_prompt(tree)
    if found is None:
        return None
    names = {name.name for name in found.find_all(nodes.Name) if name.ctx == "load"} - {_FLAG}
    written = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    written |= {macro.name for macro in tree.find_all(nodes.Macro)}
    if names & (_CONVERSATION | written | environment.globals.keys()) or any(True for _ in _not_fixed(found)):
        return None
    alone = nodes.Template([found], lineno=1)
    bounded = BoundedEnvironment(clock)
    alone.set_environment(bounded)
    with one_compiles():
        code = bounded.compile(alone)
    template = jinja2.Template.from_code(bounded, code, bounded.make_globals(None))
    try:
        return "".join(chunk.text for chunk in run_template(template, {**variables, _FLAG: True}))
    except (MessageError, TemplateError):  # it is refused where it is rendered
        return None


def _not_fixed(node: nodes.Node) -> Iterator[nodes.Node]:
    """What may do something else the next time, or sets what others read."""
    kinds = (nodes.Call, nodes.Assign, nodes.AssignBlock, nodes.For, nodes.Block, nodes.Include, nodes.Import)
    return chain.from_iterable(node.find_all(kind) for kind in kinds)


def _only_prompt(tree: nodes.Template) -> nodes.If | None:
    """The `if` that writes the prompt, if it is the template's last statement that writes, and alone with the flag."""
    last = next((node for node in reversed(tree.body) if not _is_silent(node)), None)
    flags = [name for name in tree.find_all(nodes.Name) if name.name == _FLAG]
    if not isinstance(last, nodes.If) or not flags or any(name.ctx != "load" for name in flags):
        return None
    own = {id(name) for name in last.find_all(nodes.Name)}
    return last if all(id(name) in own for name in flags) else None


def _is_silent(node: nodes.Node) -> bool:
    """A statement that writes nothing."""
    if isinstance(node, nodes.Output):
        return all(isinstance(part, nodes.TemplateData) and not part.data for part in node.nodes)
    return isinstance(node, nodes.Macro | nodes.Assign)
