"""Templates that run without end, fill the memory or write too much end in one clear error in their own process."""

from __future__ import annotations

import resource
import sys
import time

import pytest

pytest.importorskip("jinja2")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.isolation import LONGEST_REPLY, Isolation, TemplateProcess
from tests.renderers.template_bombs import BOMBS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a limit on memory")
CHAT = {"messages": [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_an_error(name: str) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises((TemplateError, MessageError)) as caught:
        TemplateProcess(BOMBS[name], lambda form: "26", Isolation(memory=1 << 29, seconds=0.5)).render(CHAT)
    assert len(str(caught.value)) < 3000
    assert time.monotonic() - start < 20  # to start a process, compile and render
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < LONGEST_REPLY
