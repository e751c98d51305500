"""Chat templates that run without end, fill the memory or write too much; for tests of `--isolate`."""

from __future__ import annotations

NS = "{% set ns = namespace(x='x', l=[1], d={}, n=3) %}"
BIG = "{% set big = ('x' * 1000000) %}"
R, E = "{% for i in range(100000) %}", "{% endfor %}"


def _sixty_times(inner: str) -> str:
    return NS + "{% for i in range(60) %}" + inner + E


BOMBS: dict[str, str] = {
    # values that double
    "double +": _sixty_times("{% set ns.x = ns.x + ns.x %}"),
    "double join": _sixty_times("{% set ns.x = [ns.x, ns.x] | join %}"),
    "double format": _sixty_times("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "double replace": _sixty_times("{% set ns.x = ns.x | replace('x', 'xx') %}"),
    "double list": _sixty_times("{% set ns.l = ns.l + ns.l %}"),
    "double macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + _sixty_times("{% set ns.x = f(ns.x) %}"),
    "square": _sixty_times("{% set ns.n = ns.n * ns.n %}"),
    # values that are large at once
    "times": "{{ 'x' * 20000000000 }}",
    "times content": "{{ messages[0].content * 2000000000 }}",
    "center": "{{ messages[0].content | center(20000000000) }}",
    "width": "{{ '%20000000000s' % messages[0].content }}",
    "tojson": "{{ [[1]] | tojson(indent=20000000000) }}",
    "power": "{{ (messages | length) * 10 ** 10000000000 }}",
    "lists held": BIG + NS + R + "{% set ns.l = ns.l + [big ~ i] %}" + E,
    # work without end
    "loops": R + R + R + E + E + E,
    "sort": R + "{% set x = range(100000) | sort %}" + E,
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro of itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in range(2) recursive %}{% if loop.depth < 60 %}{{ loop(range(2)) }}{% endif %}" + E,
    "graph": NS + "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}" + E + "{{ ns.l }}",
    "the date": R + R + "{{ strftime_now('%d') }}" + E + E,
    # output, and source
    "written": BIG + "{% for i in range(300) %}{{ big }}" + E,
    "written by loops": R + R + "{{ messages[0].content }}" + E + E,
    "30000 plus": "{{ " + "1 + " * 30000 + "1 }}",
    "unfinished": "{{ " * 40000,
    "long": "{{ x }}" * 500000,
}
