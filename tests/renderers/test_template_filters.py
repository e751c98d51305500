"""Filters, methods and tests of templates write what Jinja's own write, with origins or without."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from jinja2.sandbox import ImmutableSandboxedEnvironment

from niels_gpt.errors import MessageError, TemplateError
from tests.renderers.small import call, result
from tests.renderers.test_template import chatml

TEXTS = ("doc_id's a-b <b>x</b> &amp; it's\n  two\nthree four\tx", "Hello wörld ǆ", "")
# One on each line; `c` is the content of a message. The last five look for how origins are kept.
EXPRESSIONS = r"""
'a' | safe + '<b>'
c | safe ~ '<i>'
c | safe + '<i>'
'<i>' + (c | safe)
c | safe | replace('x', '<y>')
'<x>' | safe | join
['<a>' | safe, '<b>'] | join(',')
['<a>', '<b>'] | join('<' | safe)
('%s' | safe) | format('<z>')
'&lt;' | safe | striptags
c | safe is escaped
c is escaped
c | e
c | escape ~ c
(c | e) + c
c | e | e
c | forceescape
'<' | e is escaped
c | title
'doc_id' | title
c.title()
c | capitalize
c | upper | lower
c | lower | title
c | indent
c | indent(2, true)
c | indent('>> ')
c | indent(blank=true)
('a\nb' | safe) | indent
c | wordwrap(7)
c | wordwrap(5, false, '<br>')
c | truncate(9)
c | center(80)
c | trim
c | wordcount
c | replace('o', '0', 1)
c | string
c | list
c | first
c | last
c | length
c | striptags
c | urlize
c | urlencode
c | pprint
c | default('<')
{'a': c} | xmlattr
c | int
'3.7' | float
'%s-%s' | format(c, '<z>')
'%s' % c
'{}<'.format(c)
c[::2]
c.splitlines() | length
'a' ~ 1 ~ none
[3, 1, 2] | sort | join
[1, 2, 3] | sum
[1, 2, 3] | batch(2) | list
['b', 'A'] | sort | join
['a', 'A', 'b'] | unique | join
{'b': 1, 'a': 2} | dictsort
[{'a': 1}] | map(attribute='a') | join
none | string
true | string
1.0 | string
3.75 | round(1)
12345678 | filesizeformat
c.runs is defined
c.cut is defined
m.index is defined
m.origin is defined
messages.origin is defined
""".strip().splitlines()


def by_jinja(template: str, messages: Any) -> str:
    """The text, or the error's name, in an environment as transformers makes it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_writes_what_jinja_writes(expression: str) -> None:
    template = "{% for m in messages %}{% set c = m.content %}[{{ " + expression + " }}]{% endfor %}"
    chat = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), TEXTS, strict=True)]
    if expression in ("c | first", "c | last"):
        chat.pop()  # of an empty text, both are undefined
    assert chatml(template).text(chat) == by_jinja(template, chat)


@pytest.mark.parametrize("expression", ["[1, 2] | indent", "5 | indent"])
def test_a_list_or_a_number_is_refused_where_jinja_refuses_it(expression: str) -> None:
    with pytest.raises((TypeError, AttributeError)):
        by_jinja("{{ " + expression + " }}", [])
    with pytest.raises((MessageError, TemplateError)):
        chatml("{{ " + expression + " }}").text([{"role": "user", "content": "a"}])


def test_a_content_of_none_is_absent() -> None:
    """As transformers drops it, and not empty: templates ask whether it is there."""
    template = "{% for m in messages %}[{{ m.content is defined }} {{ m.content }}]{% endfor %}"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call()]}, result()]
    assert chatml(template).text(chat).startswith("[True a][False ]")
