"""What the source of a template shows before any conversation is rendered.

::

    {% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}

    template_strings            '</think>' is searched for in contents, so that it must stay there (`substitution.py`)
    fixed_prompt                "<a>", the same after every conversation
    flag_adds_only_the_prompt   yes: with the flag a rendering has the prompt at its end, and is otherwise the same
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import jinja2
from jinja2 import nodes

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import REASONING_FIELDS
from niels_gpt.renderers.template.execution.bounds import BoundedEnvironment
from niels_gpt.renderers.template.execution.jinja import TrackingEnvironment
from niels_gpt.renderers.template.execution.run import run_template

_FLAG: Final = "add_generation_prompt"
_CONVERSATION: Final = frozenset({"messages", "tools", "documents"})  # the variables that change with the conversation
_NO_SEARCH: Final = frozenset({"get", "items", "keys", "pop"})  # methods of mappings: their arguments are keys
# Left sides of `in` that test for a key of a message, and not for a part of a text: `'tool_calls' in message`.
_FIELDS: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "type", "text", *REASONING_FIELDS})


# ---- strings that a template looks for


@dataclass(frozen=True)
class TemplateStrings:
    """The string constants of a template that matter for substitution.

    Attributes:
        compared: those that it does not only write, so that they must not be replaced in contents.
        searched: of these, those that it searches contents for, so that contents with them may be rendered differently.
        tested: of these, those that it only tests for in a text (`'/no_think' in content`).
    """

    compared: tuple[str, ...]
    searched: tuple[str, ...]
    tested: tuple[str, ...]

    @property
    def retained(self) -> re.Pattern[str]:
        """Matches what is not replaced in contents: the compared strings of more than one letter."""
        # Of "think" and "thinking" the pattern must try the longer one first: `re` takes the first alternative.
        longest_first = sorted((text for text in self.compared if len(text) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")  # (?!) never matches


def template_strings(source: str) -> TemplateStrings:
    """The strings of a template, found in its syntax tree.

    A constant is only written if it is output itself, or an operand of `+` or `~`. It is searched for if it is an
    argument of a method (`content.split('</think>')`) or the left side of `in`.
    """
    environment = TrackingEnvironment(no_date)
    tree = environment.parse(source)
    written: set[int] = set()
    searched: set[str] = set()
    for parent in tree.find_all((nodes.Output, nodes.Add, nodes.Concat)):
        written |= {id(child) for child in parent.iter_child_nodes() if isinstance(child, nodes.Const)}
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr not in _NO_SEARCH:
            searched |= {const.value for const in call.args if _is_word(const)}
    tested = {
        compare.expr.value
        for compare in tree.find_all(nodes.Compare)
        if _is_word(compare.expr) and any(operand.op in ("in", "notin") for operand in compare.ops)
    }
    searched |= tested
    compared = {const.value for const in tree.find_all(nodes.Const) if id(const) not in written and _is_word(const)}
    return TemplateStrings(tuple(sorted(compared)), tuple(sorted(searched - _FIELDS)), tuple(sorted(tested - _FIELDS)))


def _is_word(node: nodes.Node) -> TypeGuard[nodes.Const]:
    """Whether a node is a string constant with a letter or a digit."""
    return isinstance(node, nodes.Const) and isinstance(node.value, str) and any(map(str.isalnum, node.value))


def no_date(form: str) -> str:
    """The clock of an environment that only parses."""
    raise AssertionError(form)


# ---- the generation prompt


def flag_adds_only_the_prompt(source: str) -> bool:
    """Whether `add_generation_prompt` is named nowhere, or once, as the whole condition of an `if` without `else`.

    What is written where the flag is not set also depends on it::

        {% if add_generation_prompt %}<a>{% else %}<eos>{% endif %}
    """
    before, flag, after = source.partition(_FLAG)
    if not flag:
        return True
    is_condition = re.search(r"\{%-?\s*if\s+$", before) and re.match(r"\s*-?%\}", after)
    return bool(is_condition) and not re.search(rf"{_FLAG}|\bel(?:se|if)\b", after)


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
    environment = BoundedEnvironment(clock)
    # Parsed without charges, whose calls (`context.charge(...)`) would make every statement depend on something.
    tree = TrackingEnvironment(clock).parse(source)
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
    # The prompt is what this `if` writes after the assignments that it may read, as a template of its own.
    prompt = nodes.Template([*(node for node in settings if _is_fixed(node, changing)), last], lineno=1)
    prompt.set_environment(environment)
    code = environment.compile(prompt)
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
    """Whether a statement is an `if` that tests that the flag has no value, which is never so here."""
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
    # `find_all` visits what is inside a node, and not the node itself: a condition may be a name alone.
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
