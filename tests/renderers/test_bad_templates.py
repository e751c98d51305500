"""Templates that refuse, fail, or misbehave: clear errors, with the message's index where there is one."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from tests.renderers.test_bad_chats import ASKED, refusal, template

RAISED, FAILED = "template_raised", "template_failed"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for m in messages %}{% if loop.last %}{{ raise_exception('no') }}{% endif %}{% endfor %}",
            RAISED,
        ),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", FAILED),
        ("{% for m in messages %}{{ m.name.x }}{% endfor %}", RAISED),
        ("{{ messages[7].content }}", RAISED),
        ("{{ 1 // 0 }}", FAILED),
    ],
)
def test_templates_that_fail_on_a_message(source: str, reason: str) -> None:
    """The last message of the shortest beginning with this error is named."""
    alone = "{% else %}{{ messages[0].content }}{% endif %}"
    error = refusal(template("{% if messages | length > 1 %}" + source + alone), [ASKED, ASKED])
    assert error.reason == reason
    said = "the chat template refuses: " if reason == RAISED else "the chat template fails on it: "
    assert str(error).startswith(f"message 1: {said}")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for m in messages %}", "line 1: "),
        ("a\n\n{{ x | nosuchfilter }}", "line 3: "),
        ("{% endfor %}", "line 1: "),
    ],
)
def test_templates_with_a_syntax_error(source: str, told: str) -> None:
    with pytest.raises(TemplateError, match=told):
        template(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100001) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].clear() }}",
    ],
)
def test_templates_that_misbehave(source: str) -> None:
    with pytest.raises((TemplateError, MessageError)):
        template(source).render([ASKED])


def test_templates_that_call_themselves() -> None:
    with pytest.raises((TemplateError, MessageError)):
        template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render([ASKED])
