"""Chat templates that ask for more memory or time than there is, by class; and a program that runs them one by one.

Each must end in a `TemplateError` or `MessageError` within small limits. The program keeps an address-space limit, so
that a bomb that is not contained ends as an error of Python or of the system, and not the machine's memory.
"""

# ruff: noqa: E501 (a template is one line)

from __future__ import annotations

import json
import resource
import sys
import time
from functools import cache
from typing import Any

from tests.memory import peak

E = "{% endfor %}"
NS = "{% set ns = namespace(x='x', l=[1], d={}, n=3, t=(1,)) %}"
R60 = "{% for i in range(60) %}"
RBIG = "{% for i in range(100000) %}"
BIG = "{% set big = ('x' * 1000000) %}"
LONG = "{% set long = ('x' * 4000000) %}"


def _loops(inner: str) -> str:
    return NS + R60 + inner + E + "{{ ns.x | length }}"


def _held(value: str, times: str = RBIG) -> str:
    """Many values, all kept."""
    return BIG + NS + times + "{% set ns.l = ns.l + [" + value + "] %}" + E


def _nested(depth: int, inner: str, number: int = 100000) -> str:
    """Loops in loops."""
    opened = "".join(f"{{% for i{at} in range({number}) %}}" for at in range(depth))
    return opened + inner + E * depth


def _graph(use: str, double: str = "{% set ns.l = [ns.l, ns.l] %}") -> str:
    """A structure that holds everything twice, sixty times over."""
    return NS + R60 + double + E + use


BOMBS: dict[str, str] = {
    # doubling
    "double +": _loops("{% set ns.x = ns.x + ns.x %}"),
    "double ~": _loops("{% set ns.x = ns.x ~ ns.x %}"),
    "double join": _loops("{% set ns.x = [ns.x, ns.x] | join %}"),
    "double join method": _loops("{% set ns.x = ''.join([ns.x, ns.x]) %}"),
    "double join with itself": _loops("{% set ns.x = ns.x.join(['a', 'b', 'c']) %}"),
    "double format": _loops("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
    "double format twice": _loops("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "double format_map": _loops("{% set ns.x = '{a}{a}'.format_map({'a': ns.x}) %}"),
    "double percent": _loops("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    "double percent by name": _loops("{% set ns.x = '%(a)s%(a)s' % {'a': ns.x} %}"),
    "double format filter": _loops("{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"),
    "double replace": _loops("{% set ns.x = ns.x | replace('x', 'xx') %}"),
    "double replace method": _loops("{% set ns.x = ns.x.replace('x', 'xx') %}"),
    "square replace": _loops("{% set ns.x = ns.x.replace('x', ns.x + 'x') %}"),
    "replace nothing": _loops("{% set ns.x = ns.x.replace('', 'x') %}"),
    "replace filter nothing": _loops("{% set ns.x = ns.x | replace('', 'x') %}"),
    "double set block": _loops("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "double macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + _loops("{% set ns.x = f(ns.x) %}"),
    "double call block": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + _loops("{% set ns.x %}{% call f() %}{{ ns.x }}{% endcall %}{% endset %}"),
    "double filter block": _loops("{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}"),
    "double content": "{% set ns = namespace(x=messages[0].content) %}" + R60 + "{% set ns.x = ns.x + ns.x %}" + E,
    "double list": _loops("{% set ns.l = ns.l + ns.l %}"),
    "double tuple": _loops("{% set ns.t = ns.t + ns.t %}"),
    "double list by times": _loops("{% set ns.l = ns.l * 2 %}"),
    "double translate": _loops("{% set ns.x = ns.x.translate({120: 'xx'}) %}"),
    "double tojson": _loops("{% set ns.x = ns.x | tojson | tojson %}"),
    "double pprint": _loops("{% set ns.x = ns.x | pprint | pprint %}"),
    "double string of list": _loops("{% set ns.x = [ns.x, ns.x] | string %}"),
    "double urlencode": _loops("{% set ns.x = ('%' ~ ns.x) | urlencode | replace('%', '%%') %}"),
    "double bytes": "{% set ns = namespace(x='x'.encode()) %}" + R60 + "{% set ns.x = ns.x + ns.x %}" + E,
    "double upper": "{% set ns = namespace(x='ŉ') %}" + R60 + "{% set ns.x = ns.x.upper() ~ ns.x %}" + E,
    "double slice": _loops("{% set ns.x = ns.x[::-1] ~ ns.x[:] %}"),
    "double markup": "{% autoescape true %}"
    + _loops("{% set ns.x = ('<' ~ ns.x) | e ~ ns.x %}")
    + "{% endautoescape %}",
    # widths
    "center": "{{ 'x' | center(2000000000) }}",
    "center method": "{{ 'x'.center(2000000000) }}",
    "center in a loop": RBIG + "{% set x = 'x' | center(60000000) %}" + E,
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "rjust": "{{ 'x'.rjust(2000000000) }}",
    "zfill": "{{ 'x'.zfill(2000000000) }}",
    "zfill of bytes": "{{ 'x'.encode().zfill(2000000000) }}",
    "ljust of content": "{{ messages[0].content.ljust(2000000000) }}",
    "expandtabs": "{{ '\t\t\t\t'.expandtabs(2000000000) }}",
    "expandtabs named": "{{ '\t\t\t\t'.expandtabs(tabsize=2000000000) }}",
    "indent": "{{ 'a\nb\nc' | indent(2000000000) }}",
    "indent by a text": BIG + "{{ ('a\n' * 10000) | indent(big) }}",
    "indent first": "{{ 'a' | indent(2000000000, true) }}",
    "indent blank": "{{ ('\n' * 100000) | indent(100000, blank=true) }}",
    "format spec": "{{ '{:>2000000000}'.format('x') }}",
    "format nested spec": "{{ '{:>{}}'.format('x', 2000000000) }}",
    "format precision": "{{ '{:.2000000000f}'.format(1.5) }}",
    "format number": "{{ '{:02000000000d}'.format(7) }}",
    "format many": "{{ ('{:>9999999}' * 1000).format(*range(1000)) }}",
    "format_map spec": "{{ '{a:>2000000000}'.format_map({'a': 'x'}) }}",
    "format of content": BIG + "{{ ('{0}' * 100000).format(big) }}",
    "format by index": "{{ ('{0[content]}' * 1000000).format(messages[0]) }}",
    "percent width": "{{ '%2000000000s' % 'x' }}",
    "percent star": "{{ '%*s' % (2000000000, 'x') }}",
    "percent precision": "{{ '%.2000000000f' % 1.5 }}",
    "percent zero": "{{ '%02000000000d' % 7 }}",
    "percent of bytes": "{{ '%2000000000s'.encode() % 'x'.encode() }}",
    "percent many": BIG + "{{ ('%(a)s' * 100000) % {'a': big} }}",
    "format filter width": "{{ '%2000000000s' | format('x') }}",
    "tojson indent": "{{ [[1]] | tojson(indent=2000000000) }}",
    "tojson indent nested": "{{ [[[[[[1] * 1000] * 100] * 10]]] | tojson(indent=900) }}",
    "tojson indent text": BIG + "{{ ([1] * 60000) | tojson(indent=big) }}",
    "tojson separators": BIG + "{{ ([1] * 60000) | tojson(separators=(big, big)) }}",
    "to_bytes": "{{ (1).to_bytes(2000000000, 'big') | length }}",
    "wordwrap": BIG + "{{ ('ab ' * 100000) | wordwrap(3, wrapstring=big) }}",
    "wordwrap long": LONG + "{{ long | wordwrap(1) }}",
    "wordwrap dashes": "{{ ('a-' * 2000000) | wordwrap(79) }}",
    "batch fill": "{{ [1] | batch(2000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(2000000000) | list }}",
    "slice fill": "{{ [1] | slice(2000000000, 'x') | list }}",
    "round": "{{ 5 | round(-2000000000) }}",
    "round floor": "{{ 5 | round(200000000, 'floor') }}",
    "urlize rel": BIG + "{{ ('http://a.b ' * 100000) | urlize(rel=big) }}",
    "urlize target": BIG + "{{ ('http://a.b ' * 100000) | urlize(target=big) }}",
    "lipsum": "{{ lipsum(n=100000000) }}",
    "strftime": "{{ strftime_now('%Y' * 4000000) }}",
    "bytes hex": BIG + "{{ big.encode().hex('-') | length }}" + RBIG + "{% set x = big.encode().hex('-') %}" + E,
    "encode": LONG + RBIG + "{% set x = long.encode('utf-32') %}" + E,
    "encode named": RBIG + "{% set x = ('\u2028' * 1000000).encode('ascii', 'namereplace') %}" + E,
    "encode punycode": "{{ ('\u00fc\u4e2d' * 1000000).encode('punycode') }}",
    "encode idna": "{{ ('\u00fc' * 1000000).encode('idna') }}",
    "decode punycode": "{{ ('a' * 4000000).encode().decode('punycode') }}",
    # times
    "times": "{{ 'x' * 2000000000 }}",
    "times left": "{{ 2000000000 * 'x' }}",
    "times content": "{{ messages[0].content * 2000000000 }}",
    "times list": "{{ ([0] * 2000000000) | length }}",
    "times bytes": "{{ ('x'.encode() * 2000000000) | length }}",
    "times filter": "{{ ('x' * 8000000) | upper | lower | title | upper | wordcount }}" * 30,
    "times of list of texts": BIG + "{{ ([big] * 100000) | join | length }}",
    "times of list written": BIG + "{{ [big] * 100000 }}",
    "times of list with ~": BIG + "{% set x = ([big] * 100000) ~ '' %}",
    "times of list as json": BIG + "{{ ([big] * 100000) | tojson }}",
    "times of dict values": BIG + "{{ dict.fromkeys(range(100000), big) | string | length }}",
    "fromkeys": "{% for i in range(100000) %}{% set d = dict.fromkeys(range(100000), 1) %}{% endfor %}",
    # integers
    "square": _loops("{% set ns.n = ns.n * ns.n %}"),
    "square power": _loops("{% set ns.n = ns.n ** 2 %}"),
    "power": "{{ 10 ** 1000000000 }}",
    "power of power": "{{ 10 ** (10 ** 10) }}",
    "power negative": "{{ (-3) ** 1000000000 }}",
    "power of true": "{% set x = (3 ** 10000) ** (3 ** 5) %}",
    "hexadecimal": "{{ ('f' * 8000000) | int(base=16) }}",
    "sum of integers": NS + RBIG + "{% set ns.n = ns.n + ns.n %}" + E,
    "modulo": NS + RBIG + "{% set x = (3 ** 9000) % (3 ** 4500 + 1) // 7 %}" + E + _nested(3, "{{ 3 ** 10000 }}"),
    # loops and recursion
    "loops 2": _nested(2, ""),
    "loops 3": _nested(3, "{% set x = 1 %}"),
    "loops written": _nested(3, "x"),
    "loops written nothing": _nested(3, "{{ '' }}"),
    "loops with a condition": _nested(1, "{% for j in range(100000) if false %}{% endfor %}"),
    "loops over pairs": RBIG + "{% for a, b in [(1, 2)] * 60000 %}{% endfor %}" + E,
    "loops over a text": LONG + RBIG + "{% for c in long %}{% endfor %}" + E,
    "loops over content": RBIG + "{% for c in messages[0].content * 10000 %}{% endfor %}" + E,
    "loops in a macro": "{% macro f() %}" + _nested(3, "") + "{% endmacro %}{{ f() }}",
    "long body": _nested(2, "{% set x = 1 %}" * 5000, 20000),
    "long straight conditions": _nested(2, "{% if 1 == i0 %}{% endif %}" * 5000, 20000),
    "macro of a loop": "{% macro f() %}x{% endmacro %}" + _nested(2, "{{ f() }}"),
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive macro twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive macro silent": "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}"
    "{% endmacro %}{% set x = f(60) %}",
    "mutual macros": "{% macro f(n) %}{% if n %}{{ g(n - 1) }}{{ g(n - 1) }}{% endif %}{% endmacro %}"
    "{% macro g(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(40) }}",
    "recursive macro with a long argument": LONG + "{% macro f(x) %}{{ f(x + 'y') }}{{ x }}{% endmacro %}{{ f(long) }}",
    "recursive loop": "{% for i in [[1, 1]] recursive %}{{ loop([[1, 1], [1, 1]]) }}{% endfor %}",
    "recursive loop deep": "{% for x in range(2) recursive %}{% if loop.depth < 60 %}{{ loop(range(2)) }}{% endif %}{% endfor %}",
    "recursive caller": "{% macro f(n) %}{% if n %}{% call f(n - 1) %}{{ caller() }}{{ caller() }}{% endcall %}"
    "{% else %}{{ caller() }}{% endif %}{% endmacro %}{% call f(60) %}x{% endcall %}",
    "block of itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "block twice": "{% block a %}{% for i in range(100) %}{{ self.b() }}{% endfor %}{% endblock %}"
    "{% block b %}{% for i in range(100000) %}{{ self.c() }}{% endfor %}{% endblock %}{% block c %}x{% endblock %}",
    "chain of filters": NS + "{% set ns.g = range(3) %}" + RBIG + "{% set ns.g = ns.g | map('string') %}" + E,
    "chain of filters read": NS
    + "{% set ns.g = range(3) %}"
    + RBIG
    + "{% set ns.g = ns.g | map('string') %}"
    + E
    + "{{ ns.g | list }}",
    "chain of reversed": NS
    + "{% set ns.g = [1] %}"
    + RBIG
    + "{% set ns.g = ns.g | select %}"
    + E
    + "{{ ns.g | first }}",
    "chain through lists": NS
    + "{% set ns.g = [1] %}"
    + RBIG
    + "{% set ns.g = [ns.g] | select %}"
    + E
    + "{{ ns.g | first }}",
    "chain through maps": NS
    + "{% set ns.g = [1] %}"
    + RBIG
    + "{% set ns.g = [ns.g] | map('list') %}"
    + E
    + "{{ ns.g | list }}",
    "deep list": NS + RBIG + "{% set ns.l = [ns.l] %}" + E + "{{ ns.l }}",
    "deep list as json": NS + RBIG + "{% set ns.l = [ns.l] %}" + E + "{{ ns.l | tojson }}",
    "deep list compared": NS + RBIG + "{% set ns.l = [ns.l] %}" + E + "{{ ns.l == [ns.l] }}",
    "deep dict": NS + RBIG + "{% set ns.d = {'a': ns.d} %}" + E + "{{ ns.d | pprint }}",
    "deep dict as json": NS
    + "{% for i in range(900) %}{% set ns.d = {'a': ns.d} %}"
    + E
    + "{{ ns.d | tojson(indent=900) }}",
    "namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    # filters over ranges
    "sum of lists": "{{ ([[1, 2, 3, 4]] * 60000) | sum(start=[]) | length }}",
    "sum of tuples": "{{ ([(1, 2, 3, 4)] * 60000) | sum(start=()) | length }}",
    "sum in a loop": RBIG + "{% set x = range(100000) | sum %}" + E,
    "sort in a loop": RBIG + "{% set x = range(100000) | sort %}" + E,
    "sort long texts": LONG + "{% set l = [long ~ 'a', long ~ 'b'] * 10000 %}{{ l | sort | length }}",
    "sort lists": "{% for i in range(1000) %}{% set x = ([[1] * 1000] * 1000) | sort %}" + E,
    "list in a loop": RBIG + "{% set x = range(100000) | list %}" + E,
    "lists held": _held("range(10000) | list"),
    "unique in a loop": RBIG + "{% set x = range(100000) | unique | list %}" + E,
    "batch in a loop": RBIG + "{% set x = range(100000) | batch(2) | list %}" + E,
    "slice in a loop": RBIG + "{% set x = range(100000) | slice(2) | list %}" + E,
    "map in a loop": RBIG + "{% set x = range(100000) | map('string') | join %}" + E,
    "map center": "{% set x = range(100000) | map('string') | map('center', 1000000) | list %}",
    "map long": "{% set x = range(100000) | map('string') | map('center', 60000) | list %}",
    "select in a loop": RBIG + "{% set x = range(100000) | select('none') | list %}" + E,
    "reject in a loop": RBIG + "{% set x = range(100000) | reject('number') | list %}" + E,
    "selectattr in a loop": RBIG + "{% set x = ([{'a': 1}] * 60000) | selectattr('a', '>', 1) | list %}" + E,
    "groupby in a loop": RBIG + "{% set x = ([{'a': 1}] * 60000) | groupby('a') %}" + E,
    "min in a loop": RBIG + "{% set x = range(100000) | min + range(100000) | max %}" + E,
    "dictsort in a loop": "{% set d = dict.fromkeys(range(60000), 1) %}" + RBIG + "{% set x = d | dictsort %}" + E,
    "items in a loop": "{% set d = dict.fromkeys(range(60000), 1) %}" + RBIG + "{% set x = d.items() | list %}" + E,
    "reverse in a loop": LONG + RBIG + "{% set x = long | reverse %}" + E,
    "last in a loop": RBIG + "{% set x = range(100000) | list | last %}" + E,
    "length of a generator": RBIG
    + "{% for x in range(100000) | map('string') %}{{ loop.length }}{% break %}{% endfor %}"
    + E,
    "join in a loop": RBIG + "{% set x = range(100000) | join(',') %}" + E,
    "join by a long text": BIG + "{{ range(100000) | join(big) | length }}",
    "join method by a long text": BIG + "{{ big.join(range(100000) | map('string')) | length }}",
    "join characters": LONG + "{{ long | join('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') | length }}",
    "list of characters": LONG + "{% set a = (long | list) + (long | list) + (long | list) %}",
    "characters of content": "{% set x = (messages[0].content * 1000000) | list | length %}",
    "split to characters": "{% set x = ('x ' * 4000000).split(' ') %}",
    "split many": RBIG + "{% set x = ('x ' * 30000).split() %}" + E,
    "splitlines": "{% set x = ('\n' * 8000000).splitlines() %}",
    "splits held": _held("('x ' * 1000).split()"),
    "split of content": "{% set x = (messages[0].content * 200000).split('e') %}",
    # values kept
    "texts held": _held("big ~ i"),
    "texts held in variables": BIG + "".join(f"{{% set v{at} = big * 8 ~ {at} %}}" for at in range(2000)),
    "slices held": _held("big[i:]"),
    "namespace grown": BIG + NS + RBIG + "{% set ns.x = ns.x ~ big[:1000] %}{% set ns.l = ns.l + [ns.x] %}" + E,
    "dict grown": BIG + NS + RBIG + "{% set ns.d = dict(ns.d, **{i | string: big ~ i}) %}" + E,
    "dict of ranges": NS + RBIG + "{% set ns.d = dict(ns.d.items() | list + [(i, i)]) %}" + E,
    "list grown": NS + RBIG + "{% set ns.l = ns.l + [i] %}" + E + _nested(2, "{% set ns.l = ns.l + [1] %}"),
    "empty lists held": NS + _nested(2, "{% set ns.l = [ns.l, [], [], [], [], [], {}, {}, {}] %}"),
    "macro output": LONG
    + "{% macro f() %}{% for i in range(100000) %}{{ long }}{% endfor %}{% endmacro %}{{ f() | length }}",
    "set block output": LONG
    + "{% set x %}{% for i in range(100000) %}{{ long }}{% endfor %}{% endset %}{{ x | length }}",
    "output": LONG + RBIG + "{{ long }}" + E,
    "output of small": RBIG + "{{ 'x' * 1000 }}" + E,
    "concatenation of many": LONG + "{% set y = long" + " ~ long" * 3000 + " %}",
    "many arguments": "{% macro f() %}{{ varargs | length }}{% endmacro %}" + RBIG + "{{ f(*range(100000)) }}" + E,
    "wide characters": "{% set x = '\U0001f600' * 7000000 %}" + R60 + "{% set x = x ~ x %}" + E,
    # one structure, many paths
    "graph written": _graph("{{ ns.l }}"),
    "graph as text": _graph("{% set x = ns.l ~ '' %}"),
    "graph string": _graph("{% set x = ns.l | string %}"),
    "graph as json": _graph("{{ ns.l | tojson }}"),
    "graph pprint": _graph("{{ ns.l | pprint }}"),
    "graph compared": _graph(R60 + "{% set ns.t = [ns.t, ns.t] %}" + E + "{{ ns.l == ns.t }}"),
    "graph compared itself": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}" + R60 + "{% set ns.l = [ns.l, ns.l] %}" + E + "{{ a == ns.l }}"
    ),
    "graph ordered": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}" + R60 + "{% set ns.l = [ns.l, ns.l] %}" + E + "{{ a < ns.l }}"
    ),
    "graph is equal": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}" + R60 + "{% set ns.l = [ns.l, ns.l] %}" + E + "{{ a is eq ns.l }}"
    ),
    "graph in a list": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}" + R60 + "{% set ns.l = [ns.l, ns.l] %}" + E + "{{ a in [ns.l] }}"
    ),
    "graph index": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}" + R60 + "{% set ns.l = [ns.l, ns.l] %}" + E + "{{ [ns.l].index(a) }}"
    ),
    "graph changed": _graph(
        "{% set a = ns.l %}{% set ns.l = [1] %}"
        + R60
        + "{% set ns.l = [ns.l, ns.l] %}"
        + E
        + "{% for x in [a, ns.l] %}{{ loop.changed(x) }}{% endfor %}"
    ),
    "graph unique": _graph("{{ [ns.t, ns.t] | unique | list }}", "{% set ns.t = (ns.t, ns.t) %}"),
    "graph hashed": _graph("{{ {ns.t: 1} | length }}", "{% set ns.t = (ns.t, ns.t) %}"),
    "graph looked up": _graph("{{ {}[ns.t] }}", "{% set ns.t = (ns.t, ns.t) %}"),
    "graph looked up by get": _graph("{{ {}.get(ns.t) }}", "{% set ns.t = (ns.t, ns.t) %}"),
    "graph in a dict": _graph("{{ ns.t in {} }}", "{% set ns.t = (ns.t, ns.t) %}"),
    "graph of dicts": _graph("{{ ns.d }}", "{% set ns.d = {'a': ns.d, 'b': ns.d} %}"),
    "graph of dicts as json": _graph("{{ ns.d | tojson(indent=2) }}", "{% set ns.d = {'a': ns.d, 'b': ns.d} %}"),
    "graph formatted": _graph("{{ '{}'.format(ns.l) }}"),
    "graph formatted by percent": _graph("{{ '%s' % [ns.l] }}"),
    "graph joined": _graph("{{ ns.l | join }}"),
    "graph replaced": _graph("{{ ns.l | replace('1', '2') }}"),
    "graph upper": _graph("{{ ns.l | upper }}"),
    "graph in a call block": _graph("{% call dict(x=ns.l) %}{% endcall %}"),
    "graph sorted": _graph("{{ [ns.l, [[1]]] | sort }}"),
    "graph of namespaces": "{% set ns = namespace(a=1) %}"
    + R60
    + "{% set b = namespace(a=ns, c=ns) %}{% set ns.a = [b, b] %}"
    + E
    + "{{ ns }}",
    "graph keys": _graph("{{ ns.d.values() }}", "{% set ns.d = {'a': ns.d.values(), 'b': ns.d.values()} %}"),
    # searching
    "search": "{% set h = 'a' * 4000000 %}{% set n = 'a' * 60 + 'b' %}" + RBIG + "{{ n in h }}" + E,
    "search long": "{% set h = 'a' * 4000000 %}{% set n = 'b' + 'a' * 2000000 %}" + RBIG + "{{ n in h }}" + E,
    "find": "{% set h = 'a' * 4000000 %}{% set n = 'a' * 60 + 'b' %}" + RBIG + "{{ h.find(n) }}" + E,
    "count": "{% set h = 'a' * 4000000 %}" + RBIG + "{{ h.count('a') }}" + E,
    "split by a long text": "{% set h = 'a' * 4000000 %}{% set n = 'a' * 60 + 'b' %}"
    + RBIG
    + "{{ h.split(n) | length }}"
    + E,
    "in a list": "{% set l = range(60000) | list %}" + RBIG + "{{ 'x' in l }}" + E,
    "in a range": _nested(2, "{{ 1.5 in range(100000) }}"),
    "count in a list": "{% set l = range(60000) | list %}" + RBIG + "{{ l.count(-1) }}" + E,
    "index in a range": RBIG + "{{ range(100000).count(1.5) }}" + E,
    "compared texts": LONG + "{% set a = long ~ 'a' %}{% set b = long ~ 'b' %}" + _nested(2, "{{ a == b }}"),
    "strip": LONG + RBIG + "{% set x = (long ~ i).strip('x') %}" + E,
    "startswith": LONG + RBIG + "{{ long.startswith(long) }}" + E,
    "striptags": "{{ ('<a' * 2000000) | striptags }}",
    "striptags comments": "{{ ('<!-- a -->' * 500000) | striptags }}",
    "urlize": "{{ ('(' * 4000000) | urlize }}",
    "urlize mails": "{{ ('a@' * 2000000) | urlize }}",
    "urlize dots": "{{ ('www.' * 1000000) | urlize }}",
    "title": RBIG + "{% set x = ('a ' * 1000000) | title %}" + E,
    "wordcount": LONG + RBIG + "{% set x = long | wordcount %}" + E,
    "truncate": LONG + RBIG + "{% set x = (long ~ i) | truncate(1000000) %}" + E,
    "upper in a loop": LONG + RBIG + "{% set x = long | upper %}" + E,
    "upper method in a loop": LONG + RBIG + "{% set x = long.upper() %}" + E,
    "slices in a loop": LONG + RBIG + "{% set x = long[i:] %}" + E,
    "steps in a loop": LONG + RBIG + "{% set x = long[::-1] %}" + E,
    "concatenations in a loop": LONG + RBIG + "{% set x = long ~ i %}" + E,
    "sums in a loop": LONG + RBIG + "{% set x = long + 'x' %}" + E,
    "replace in a loop": LONG + RBIG + "{% set x = long.replace('x', 'y') %}" + E,
    "filesizeformat": RBIG + "{{ (3 ** 10000) | filesizeformat }}" + E,
    "xmlattr": BIG
    + "{{ ({'a': big, 'b': big}.items() | list * 100000) | length }}"
    + RBIG
    + "{{ {'a': big} | xmlattr }}"
    + E,
    # written to be compiled
    "25 loops": _nested(25, "x", 1),
    "200 loops": _nested(200, "x", 1),
    "100 conditions": "{% if true %}" * 150 + "x" + "{% endif %}" * 150,
    "3000 parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "3000 brackets": "{{ " + "[" * 3000 + "1" + "]" * 3000 + " }}",
    "30000 not": "{{ " + "not " * 30000 + "1 }}",
    "30000 minus": "{{ " + "-" * 30000 + "1 }}",
    "30000 plus": "{{ 1" + " + 1" * 30000 + " }}",
    "30000 attributes": "{{ a" + ".b" * 30000 + " }}",
    "30000 filters": "{{ a" + "|e" * 30000 + " }}",
    "10000 calls": "{{ a" + "()" * 10000 + " }}",
    "10000 conditional expressions": "{{ " + "1 if a else " * 10000 + "2 }}",
    "10000 else ifs": "{% if 1 == 2 %}" + "{% elif 1 == 2 %}" * 10000 + "{% endif %}{{ messages.x.y }}",
    "10000 digits": "{{ " + "9" * 10000 + " }}",
    "10000 hexadecimal digits": "{{ 0x" + "f" * 10000 + " * 2 }}",
    "constants multiplied": "{% set x = '" + "x" * 1000 + "' * 1000000000 %}",
    "constants centered": "{{ 'x' | center(60000000) | center(60000001) }}" * 100,
    "constant list": "{{ ([1] * 1000000000) | length }}",
    "constant replaced": "{{ '" + "x" * 10000 + "' | replace('x', '" + "y" * 10000 + "') | replace('y', 'zzzzzzzz') }}",
    "long source": "{{ x }}" * 500000,
    "unfinished": "{{ " * 50000,
    "unfinished comment": "{# " * 80000,
    "unfinished raw": "{% raw %}" * 25000,
    "unknown codec": "{{ 'a'.encode('nosuch') }}",
    "codec that is none": "{{ 'a'.encode('zlib') }}",
    "cycler of nothing": "{{ cycler() }}",
    "include": "{% include 'a' %}",
    "import": "{% import 'a' as b %}",
    "extends": "{% extends 'a' %}",
    "raise with a long message": LONG + "{{ raise_exception(long) }}",
    "raise with a number": "{{ raise_exception(1) }}",
}

# Those that use up the budget of work in many small steps, which takes the longest.
LONG_ONES = (
    "double replace",
    "double replace method",
    "replace nothing",
    "replace filter nothing",
    "double translate",
    "double pprint",
    "double urlencode",
    "double slice",
    "percent many",
    "tojson indent nested",
    "bytes hex",
    "fromkeys",
    "loops 2",
    "loops 3",
    "loops written",
    "loops written nothing",
    "loops with a condition",
    "loops over pairs",
    "loops in a macro",
    "long body",
    "macro of a loop",
    "recursive macro twice",
    "recursive macro silent",
    "mutual macros",
    "recursive macro with a long argument",
    "recursive loop deep",
    "block twice",
    "chain through lists",
    "chain through maps",
    "deep list",
    "deep list as json",
    "deep list compared",
    "deep dict",
    "sum in a loop",
    "sort in a loop",
    "sort lists",
    "list in a loop",
    "lists held",
    "unique in a loop",
    "batch in a loop",
    "slice in a loop",
    "map in a loop",
    "select in a loop",
    "reject in a loop",
    "selectattr in a loop",
    "groupby in a loop",
    "dictsort in a loop",
    "items in a loop",
    "last in a loop",
    "length of a generator",
    "join method by a long text",
    "splitlines",
    "splits held",
    "texts held",
    "texts held in variables",
    "slices held",
    "namespace grown",
    "dict of ranges",
    "list grown",
    "empty lists held",
    "output of small",
    "concatenation of many",
    "many arguments",
    "graph written",
    "graph as text",
    "graph string",
    "graph as json",
    "graph pprint",
    "graph compared",
    "graph compared itself",
    "graph ordered",
    "graph is equal",
    "graph in a list",
    "graph index",
    "graph changed",
    "graph unique",
    "graph hashed",
    "graph looked up",
    "graph looked up by get",
    "graph in a dict",
    "graph of dicts",
    "graph of dicts as json",
    "graph formatted",
    "graph formatted by percent",
    "graph joined",
    "graph replaced",
    "graph upper",
    "graph in a call block",
    "graph sorted",
    "graph keys",
    "search",
    "search long",
    "find",
    "count",
    "split by a long text",
    "in a list",
    "in a range",
    "index in a range",
    "strip",
    "wordcount",
    "steps in a loop",
    "replace in a loop",
    "100 conditions",
    "3000 parentheses",
    "30000 plus",
    "30000 attributes",
    "30000 filters",
    "10000 calls",
    "constants centered",
)
SLOWEST = 6  # seconds of the processor


@cache
def _encoder() -> Any:
    from niels_gpt.tokenizer.load import open_encoder
    from tests.renderers.tiny_families import folder_of

    return open_encoder(folder_of("qwen3"))


def run(name: str, messages: list[dict[str, Any]]) -> tuple[str, float]:
    """How a bomb ended, and after how many seconds of the processor."""
    from niels_gpt.errors import MessageError, TemplateError
    from niels_gpt.renderers.template.renderer import TemplateRenderer

    encoder = _encoder()
    start = time.process_time()
    try:
        rendered = TemplateRenderer(encoder, template=BOMBS[name]).render(messages)
        ended = f"rendered {len(rendered.token_ids)} ids"
    except (TemplateError, MessageError) as error:
        ended = f"{type(error).__name__}: {error}"
    return ended, time.process_time() - start


def main(names: list[str], memory: int) -> None:
    """Run bombs in this process and write a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    messages = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
    for name in names:
        print(json.dumps({"bomb": name}), flush=True)
        ended, seconds = run(name, messages)
        print(json.dumps({"bomb": name, "ended": ended, "seconds": seconds, "peak": peak() >> 20}), flush=True)


if __name__ == "__main__":
    main(sys.argv[2:] or list(BOMBS), int(float(sys.argv[1]) * 1024**3))
