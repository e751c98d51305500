"""Templates that fail, misbehave or try to get out of the sandbox: clear errors, and nothing of Python is reached."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.environment import compile_template, run_template
from niels_gpt.renderers.template.renderer import no_clock
from tests.renderers.small import assistant, call, made, user
from tests.renderers.test_bad_chats import ASKED, refusal, template

RAISED, FAILED = "template_raised", "template_failed"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}{% if loop.last %}{{ raise_exception('no') }}{% endif %}{% endfor %}", RAISED),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", FAILED),
        ("{{ messages[7].content }}", RAISED),
        ("{{ 1 // 0 }}", FAILED),
    ],
)
def test_the_message_on_which_a_template_fails_is_named(source: str, reason: str) -> None:
    """The last message of the shortest beginning with this error."""
    source = "{% if messages | length > 1 %}" + source + "{% else %}{{ messages[0].content }}{% endif %}"
    error = refusal(template(source), [ASKED, ASKED])
    assert error.reason == reason
    said = "the chat template refuses: " if reason == RAISED else "the chat template fails on it: "
    assert str(error).startswith(f"message 1: {said}")


@pytest.mark.parametrize(
    ("source", "line"), [("{% for m in messages %}", 1), ("a\n\n{{ x | nosuchfilter }}", 3), ("{% endfor %}", 1)]
)
def test_syntax_errors_name_their_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"line {line}: "):
        template(source)


# Ways out of sandboxes that are known, one of each kind.
ATTEMPTS = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ strftime_now.__closure__ }}{{ raise_exception.__globals__ }}",
    "{{ (messages | map('upper')).gi_frame.f_back.f_globals }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ 'x'.format.__wrapped__.__globals__ }}",
    "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "{{ [1] | map(attribute='__class__') | list }}",
    "{{ '' | attr('__class__') | attr('__mro__') }}",
    "{{ ''['__cla' ~ 'ss__'] }}{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{% for x in messages %}{{ loop._iterable }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}{{ f._func.__code__ }}",
    "{% set ns = namespace(__class__=1) %}{{ ns.__init__ }}{{ ns._Namespace__attrs }}",
    "{% include '/etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ __import__('os') }}{{ open('/etc/passwd') }}{{ eval('1') }}",
    "{{ 'a'.encode().decode('zlib') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].clear() }}",
    "{{ dict.update(messages[0], {'a': 1}) }}",
    "{% for i in range(100001) %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
)
SIGNS = ("<class", "<module", "<function", "<built-in", "<bound method", "<code", "<frame", "root:", "uid=", "Context(")


@pytest.mark.parametrize("source", ATTEMPTS)
def test_nothing_of_python_is_reached_or_changed(source: str) -> None:
    chat: Any = [user(), assistant(tool_calls=[call()])]
    text = ""
    with suppress(TemplateError, MessageError):
        text = made(source, clock=lambda form: "day").text(chat)
    assert not [sign for sign in SIGNS if sign in text]
    assert chat == [user(), assistant(tool_calls=[call()])]


def test_no_filter_changes_what_it_is_given() -> None:
    """Jinja's own `indent` adds a newline to a list."""
    given = [{"type": "text", "text": "a"}]
    with suppress(MessageError, TemplateError):
        run_template(compile_template("{{ parts | indent }}", no_clock), {"parts": given})
    assert given == [{"type": "text", "text": "a"}]
