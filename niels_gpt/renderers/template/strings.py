"""The strings that a template looks for in texts, found in its source; and the texts in values.

::

    {% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}     '</think>' is sought
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from jinja2 import meta, nodes
from markupsafe import escape

from niels_gpt.renderers.template.environment import ChatEnvironment

_NO_SEARCH: Final = frozenset({"get", "items", "keys", "pop"})  # methods of mappings: their arguments are keys
TAG: Final = re.compile(r"<[^<>\s]{1,40}>")
_LONGEST: Final = 64  # characters of a string that is searched for
_PARTS: Final = (nodes.Filter, nodes.Call)  # what may be a part of a text: `content | first`, `content.split()`


@dataclass(frozen=True)
class TemplateStrings:
    """The string constants of a template that matter for replacing contents.

    Attributes:
        compared: those that it does not only write, so that they must not be replaced in contents.
        searched: of these, those that it searches contents for, so that contents with them may be rendered differently.
            Names of fields (`'image' in part`) and long texts (a default system text) are not among them.
        tags: the tags in its source, such as `<think>`.
    """

    compared: tuple[str, ...]
    searched: tuple[str, ...]
    tags: frozenset[str]


def template_strings(source: str) -> TemplateStrings:
    """The strings of a template, found in its syntax tree.

    A constant is only written if it is output itself, or an operand of `+` or `~`, or one of the two in
    `{{ 'on' if x else 'off' }}`. It is searched for if it is one of `searching`, or the value of a variable
    (`{% set end = '</think>' %}`).

    Raises:
        TemplateError: as `compile_template`, which is called first.
    """
    tree = parsed(source)
    written = {
        id(value)
        for parent in tree.find_all((nodes.Output, nodes.Add, nodes.Concat))
        for child in parent.iter_child_nodes()
        for value in _values(child)
    }
    assigned = (one.node for one in tree.find_all(nodes.Assign))
    searched = {const.value for const in (*searching(tree), *filter(_is_word, assigned))}
    searched = {text for text in searched if len(text) <= _LONGEST and not text.isidentifier()}
    compared = {const.value for const in tree.find_all(nodes.Const) if id(const) not in written and _is_word(const)}
    return TemplateStrings(tuple(sorted(compared)), tuple(sorted(searched)), frozenset(TAG.findall(source)))


def variables_of(source: str) -> set[str]:
    """The names that a template reads and does not set: its variables."""
    return meta.find_undeclared_variables(parsed(source))


def parsed(source: str) -> nodes.Template:
    """The syntax tree of a template."""
    return ChatEnvironment(str).parse(source)  # with any clock: nothing is rendered


def literals(source: str) -> Iterator[tuple[int, int]]:
    """Where each string literal of a template begins and ends, with its quotes; newlines must be `\\n`."""
    at = 0
    for _, kind, value in ChatEnvironment(str).lex(source):  # which leaves white space out
        at = source.index(value, at)
        if kind == "string":
            yield at, at + len(value)
        at += len(value)


def searching(tree: nodes.Template) -> Iterator[nodes.Const]:
    """The constants that texts are searched for.

    They are arguments of a method (`content.split('</think>')`), the left side of `in`, or compared with a part of a
    text (`content[:7] == '<think>'`). What `replace` writes is none.
    """
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr not in _NO_SEARCH:
            yield from filter(_is_word, call.args[:1] if call.node.attr == "replace" else call.args)
    for filtered in tree.find_all(nodes.Filter):
        yield from filter(_is_word, filtered.args[:1] if filtered.name == "replace" else ())
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if _is_word(compare.expr) and any(operand.op in ("in", "notin") for operand in compare.ops):
            yield compare.expr
        if any(isinstance(side, _PARTS) or any(True for _ in side.find_all(nodes.Slice)) for side in sides):
            yield from filter(_is_word, sides)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches one of these texts."""
    # Of "think" and "thinking" the pattern must try the longer one first: `re` takes the first alternative.
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")  # which never matches


def _values(node: nodes.Node | None) -> Iterator[nodes.Const]:
    """The constants that may be the value of a node."""
    if isinstance(node, nodes.Const):
        yield node
    elif isinstance(node, nodes.CondExpr):
        yield from (*_values(node.expr1), *_values(node.expr2))


def _is_word(node: nodes.Node) -> TypeGuard[nodes.Const]:
    """Whether a node is a string constant with a letter or a digit."""
    return isinstance(node, nodes.Const) and isinstance(node.value, str) and any(map(str.isalnum, node.value))


def strings_in(value: Any) -> Iterator[str]:
    """All strings in a value at any depth, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from strings_in(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)


def forms_of(text: str) -> tuple[str, ...]:
    """A text as templates write it: as it is, as JSON or Python have it in quotes, and each of these as HTML."""
    forms = (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
    return *forms, *(str(escape(form)) for form in forms)
