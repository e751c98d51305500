"""Known ways out of Jinja's sandbox stay closed: nothing of Python's internals is reached, called or written."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
from jinja2.filters import FILTERS

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.environment import compile_template, run_template
from niels_gpt.renderers.template.renderer import TemplateRenderer, no_clock
from niels_gpt.tokenizer.load import open_encoder
from tests.renderers.tiny_families import folder_of

CHAT = [
    {"role": "user", "content": "hello"},
    {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}],
    },
]
# What a template can get hold of.
THINGS = (
    "''",
    "messages",
    "messages[0]",
    "messages[0].content",
    "messages[1].tool_calls[0].function.arguments",
    "range",
    "dict",
    "namespace",
    "namespace(a=1)",
    "cycler('a')",
    "joiner()",
    "raise_exception",
    "strftime_now",
    "self",
    "[]",
    "()",
    "{}",
    "1",
    "1.5",
    "true",
    "none",
    "nothing",
    "f",
    "f()",
    "(messages | map('upper'))",
    "('<b>' | e)",
    "'x'.format",
    "'x'.join",
    "messages.index",
    "{}.items()",
    "'a'.encode()",
)
SECRETS = (
    "__class__",
    "__class__.__mro__",
    "__class__.__base__.__subclasses__()",
    "__init__.__globals__",
    "__globals__",
    "__builtins__",
    "__dict__",
    "__reduce_ex__(2)",
    "__self__",
    "__func__",
    "__code__",
    "__getattribute__('__class__')",
    "__call__",
    "__format__('')",
    "_TemplateReference__context",
    "environment",
    "func_globals",
    "gi_frame.f_globals",
    "gi_code",
    "cr_frame",
    "tb_frame",
    "f_back",
    "mro()",
)
# How an attribute is asked for.
WAYS = (
    "{{{{ {thing}.{path} }}}}",
    "{{{{ {thing}['{first}'] }}}}",
    "{{{{ {thing} | attr('{first}') }}}}",
    "{{{{ [{thing}] | map(attribute='{first}') | list }}}}",
    "{{{{ [{thing}] | selectattr('{first}') | list | length }}}}",
    "{{{{ [{thing}] | sum(attribute='{first}', start=[]) }}}}",
    "{{{{ '{{0.{first}}}'.format({thing}) }}}}",
    "{{{{ '{{a.{first}}}'.format_map({{'a': {thing}}}) }}}}",
    "{{{{ '{{0[{first}]}}'.format({thing}) }}}}",
    "{{{{ {thing}['__cla' ~ 'ss__'] }}}}",
    "{{{{ {thing}['\\x5f\\x5fclass\\x5f\\x5f'] }}}}",
    "{{% set x = {thing} %}}{{{{ x.{path} }}}}",
)
ATTEMPTS = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os') }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ range.__init__ }}",
    "{{ dict.mro() }}",
    "{{ dict.__subclasses__() }}",
    "{{ (messages | map('upper')).gi_frame.f_back.f_globals }}",
    "{{ (messages | map('upper')).gi_frame.f_builtins }}",
    "{{ (messages | select).gi_code }}",
    "{{ '%s' % messages.__class__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__init__.__globals__}'.format(cycler) }}",
    "{{ '{.__class__}'.format(messages) }}",
    "{{ '{a.__class__}'.format(a=1) }}",
    "{{ ('{0.__class__}' | e).format(1) }}",
    "{{ ('{0.__cla' ~ 'ss__}').format(1) }}",
    "{{ '{0.format.__self__}'.format('x') }}",
    "{{ 'x'.format.__globals__ }}",
    "{{ 'x'.format.function }}",
    "{{ 'x'.format.__wrapped__.__globals__ }}",
    "{{ 'x'.format_map.__func__ }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "{{ [1] | map(attribute='__class__') | list }}",
    "{{ [1] | groupby('__class__') }}",
    "{{ [1] | sort(attribute='__class__') }}",
    "{{ [1] | unique(attribute='__class__') | list }}",
    "{{ [1] | join(attribute='__class__') }}",
    "{{ [1] | max(attribute='__class__') }}",
    "{{ 1 | attr('__class__') }}",
    "{{ '' | attr('__class__') | attr('__mro__') }}",
    "{{ messages.append(1) }}{{ messages | length }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('content') }}",
    "{{ messages[0].clear() }}",
    "{{ messages[0].setdefault('a', 1) }}",
    "{{ messages.sort() }}",
    "{{ messages.reverse() }}",
    "{{ messages.extend([1]) }}",
    "{{ dict.update(messages[0], {'a': 1}) }}",
    "{{ [].append.__self__ }}",
    "{% for x in messages %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in messages %}{{ loop._iterable }}{{ loop._recurse }}{% endfor %}",
    "{% for x in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro f() %}{{ caller.__class__ }}{% endmacro %}{% call f() %}{% endcall %}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}{{ f._func }}",
    "{% macro f() %}{% endmacro %}{{ f._environment }}",
    "{% macro f() %}{% endmacro %}{{ f._func.__code__ }}",
    "{% block a %}{% endblock %}{{ self.a.__class__ }}",
    "{% block a %}{% endblock %}{{ self.a._context }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% set ns = namespace() %}{{ ns.__init__ }}{{ ns._Namespace__attrs }}",
    "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% from 'os' import system %}",
    "{% extends '/etc/passwd' %}",
    "{% include messages %}",
    "{{ nothing.__class__ }}",
    "{{ nothing._fail_with_undefined_error }}",
    "{{ nothing.__init__.__globals__ }}",
    "{{ 'a'.encode('idna').__class__ }}",
    "{{ 'a'.encode().decode('zlib') }}",
    "{{ context }}{{ environment }}{{ resolve }}{{ missing }}{{ concat }}",
    "{{ __import__('os') }}{{ open('/etc/passwd') }}{{ eval('1') }}{{ exec('1') }}",
    "{% debug %}",
    "{% do messages.append(1) %}",
    "{{ messages | pprint | attr('__class__') }}",
    "{{ messages | tojson | attr('__init__') | attr('__globals__') }}",
    "{{ (1).real.__class__ }}{{ (1).__add__(1) }}",
    "{{ dict(a=1).get.__self__ }}",
    "{{ [].__getitem__(0) }}",
)
SIGNS = ("<class", "<module", "<function", "<built-in", "<bound method", "<code", "<frame", "root:", "uid=", "Context(")


def attempts() -> list[str]:
    """The known ones, and 400 of things, paths and ways, drawn with a seed."""
    rng = random.Random(17)
    drawn = []
    for _ in range(400):
        thing, path, way = rng.choice(THINGS), rng.choice(SECRETS), rng.choice(WAYS)
        source = way.format(thing=thing, path=path, first=path.split(".")[0].split("(")[0])
        drawn.append("{% macro f() %}{% endmacro %}" + source)
    return [*ATTEMPTS, *drawn]


def outcome(encoder: Any, source: str) -> str:
    """What the template wrote, or its error."""
    messages: Any = [dict(message) for message in CHAT]
    try:
        text = TemplateRenderer(encoder, template=source, clock=lambda form: "day").text(messages)
    except (TemplateError, MessageError) as error:
        return type(error).__name__
    assert messages == CHAT
    return text


def test_nothing_gets_out() -> None:
    encoder = open_encoder(folder_of("qwen3"))
    got = {source: outcome(encoder, source) for source in attempts()}
    assert len(got) > 400
    assert got["{{ dict.update(messages[0], {'a': 1}) }}"] == "MessageError"  # it has no such method
    assert {source: text for source, text in got.items() if any(sign in text for sign in SIGNS)} == {}
    refused = [source for source in ATTEMPTS if got[source] in ("TemplateError", "MessageError")]
    assert len(refused) > len(ATTEMPTS) // 3  # the others write nothing


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_no_filter_changes_what_it_is_given(name: str) -> None:
    """Jinja's own `indent` adds a newline to a list."""
    given = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    template = compile_template("{{ parts | " + name + " }}", no_clock)
    with suppress(MessageError, TemplateError):
        run_template(template, {"parts": given})
    assert given == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
