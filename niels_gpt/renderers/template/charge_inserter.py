"""Adds charges to a template's syntax tree where compiled code does not call the environment (`bounds.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import jinja2.nodes as nodes
from jinja2.visitor import NodeTransformer

from niels_gpt.errors import TemplateError
from niels_gpt.renderers.template.budget import NODE

DEEPEST: Final = 40  # statements nested in statements; compiling takes time in proportion to the depth
_RECORDED: Final = frozenset(["eq", "ne", "in", "notin"])
_BODIES: Final = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


class ChargeInserter(NodeTransformer):
    """Adds calls that charge, and calls that record what is read (`reads.py`).

    ::

        {% for m in xs %}{{ m }}{% endfor %}
        ->  {% for m in context.charge_loop(xs) %}{% do context.charge(192) %}{{ context.charge_output(m) }}{% endfor %}
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (the library's names)
        """Every iteration is charged the loop's body, and every element the loop's condition."""
        cost = _cost(node.body)
        test_cost = 0 if node.test is None else _cost([node.test])
        self.generic_visit(node)
        node.iter = _context_call("charge_loop", node.iter)
        node.body.insert(0, _charge(cost, node.lineno))
        if node.test is not None:
            node.test = nodes.And(_context_call("charge", nodes.Const(test_cost)), node.test, lineno=node.lineno)
        return node

    def _body(self, node: Any) -> Any:
        """Every execution of a macro, a call block or a block is charged its body."""
        cost = _cost(node.body)
        self.generic_visit(node)
        node.body.insert(0, _charge(cost, node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _body  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """Output converts values to text."""
        self.generic_visit(node)
        node.nodes = [_unless_constant("charge_output", child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """`a ~ b`: each part is charged, then the result."""
        self.generic_visit(node)
        if all(isinstance(part, nodes.Const) for part in node.nodes):
            return node
        node.nodes = [_unless_constant("charge_output", part) for part in node.nodes]
        return _context_call("charge_result", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """A slice is a new value. Characters of a text are read, and so is a text by which something is looked up."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return node
        node.node = _unless_constant("note", node.node)
        if isinstance(node.arg, nodes.Slice):
            return _context_call("charge_result", node)
        node.arg = _unless_constant("note", node.arg)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:  # noqa: N802
        """`f(*text)` reads characters."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _context_call("note", node.dyn_args)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802
        """Both sides are charged, except in a comparison with a constant, which ends at the first difference.

        What is read is recorded, except in comparisons with roles, which are in every template.
        """
        self.generic_visit(node)
        sides: list[Any] = [node, *node.ops]
        is_recorded = not any(_is_no_text(side.expr) for side in sides)
        searches = any(operand.op in ("in", "notin") for operand in node.ops)
        if searches or not any(isinstance(side.expr, nodes.Const) for side in sides):
            for side in sides:
                is_searched = isinstance(side, nodes.Operand) and side.op in ("in", "notin")
                side.expr = _unless_constant("charge_search" if is_searched else "charge_comparison", side.expr)
        return _recorded(node) if is_recorded else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Dict:  # noqa: N802
        """The keys of a new mapping are hashed, and found again by what they are."""
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _context_call("note", _context_call("charge_comparison", pair.key))
        return node


def _recorded(node: nodes.Compare) -> nodes.Expr:
    """The comparison, in which what is read is recorded."""
    sides: list[Any] = [node, *node.ops]
    op = node.ops[0].op
    if len(node.ops) > 1 or op not in _RECORDED:
        for side in sides:
            side.expr = _unless_constant("note", side.expr)
        return node
    function = nodes.Getattr(nodes.ContextReference(), "contains" if "in" in op else "equal", "load")
    call = nodes.Call(function, [node.expr, node.ops[0].expr], [], None, None, lineno=node.lineno)
    return nodes.Not(call, lineno=node.lineno) if op in ("ne", "notin") else call


def _is_no_text(node: nodes.Node) -> bool:
    """Whether an operand is a role or a type, a property of a loop, a number or `none`."""
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str)
    if isinstance(node, nodes.Getattr):
        return node.attr in ("role", "type") or (isinstance(node.node, nodes.Name) and node.node.name == "loop")
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value in ("role", "type")
    return False


def check_depth(template: nodes.Template) -> None:
    """Refuse statements that are nested deeper than any template needs: compiling takes time in proportion.

    Raises:
        TemplateError: statements are nested too deeply.
    """
    level: list[nodes.Node] = [template]
    for _ in range(DEEPEST):
        level = [child for node in level for child in _statements(node)]
    if level:
        raise TemplateError(
            f"the chat template nests more than {DEEPEST} statements (line {level[0].lineno}); repair it, or use "
            "another template"
        )


def _statements(node: nodes.Node) -> list[nodes.Node]:
    """The statements directly inside one."""
    parts = (getattr(node, name) for name in ("body", "elif_", "else_") if name in node.fields)
    return [child for part in parts for child in part if not isinstance(child, nodes.Output)]


def _cost(body: Iterable[nodes.Node]) -> int:
    """The charge for executing these nodes once, without the bodies of loops and macros, which charge themselves."""
    count, waiting = 1, list(body)
    while waiting:
        node = waiting.pop()
        count += 1
        waiting.extend(node.iter_child_nodes(exclude=("body",) if isinstance(node, _BODIES) else None))
    return NODE * count


def _context_call(method: str, value: Any) -> nodes.Call:
    """`context.method(value)`."""
    function = nodes.Getattr(nodes.ContextReference(), method, "load")
    return nodes.Call(function, [value], [], None, None, lineno=value.lineno)


def _unless_constant(method: str, value: Any) -> Any:
    """`context.method(value)`; a constant as it is."""
    return value if isinstance(value, nodes.Const | nodes.TemplateData) else _context_call(method, value)


def _charge(cost: int, line: int) -> nodes.ExprStmt:
    """`context.charge(cost)` as a statement."""
    return nodes.ExprStmt(_context_call("charge", nodes.Const(cost, lineno=line)), lineno=line)
