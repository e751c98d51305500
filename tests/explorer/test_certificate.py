"""The certificate of a template in the list of formats: made on request, over HTTP and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from niels_gpt.explorer.api import Explorer
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.renderers.choice import RendererOptions
from tests.doctor.test_template import CHATML, QUOTES, model
from tests.explorer.conftest import Watched, client_of, serving


@pytest.fixture
def explorer(tmp_path: Path) -> Explorer:
    """A model whose own template is certified, and a template file that is not."""
    file = tmp_path / "quotes.jinja"
    file.write_text(QUOTES)
    return Explorer(RendererList([str(model(tmp_path / "tiny", CHATML))], RendererOptions("auto", template=file)))


def test_over_http(explorer: Explorer) -> None:
    with client_of(explorer) as client:
        own = client.ask("/api/certificate", {"choice": {"renderer": "template", "tokenizer": "tiny"}})
        assert own["passed"]
        assert own["counts"]["certified"] > 100
        assert "probes" not in own
        file = client.ask("/api/certificate", {"choice": {"renderer": "file", "tokenizer": "tiny"}})
        assert not file["passed"]
        assert any("message 1 holds data of message 0" in reason["text"] for reason in file["reasons"]["partial"])
        for family in ("qwen3", "raw"):
            refused = client.ask("/api/certificate", {"choice": {"renderer": family, "tokenizer": ""}}, status=400)
            assert "only templates have a certificate" in refused["error"]


@pytest.fixture
def address(explorer: Explorer) -> Iterator[str]:
    with serving(explorer) as found:
        yield found


def test_on_the_page(address: str, visit: Callable[..., Watched]) -> None:
    watched = visit(f"{address}/#formats")
    page = watched.page
    page.wait_for_selector('[data-renderer="file@tiny"] .t')
    page.get_by_role("button", name="template of tiny").click()
    page.wait_for_selector('[data-renderer="template@tiny"] .t')
    assert not any("certificate" in request for request in watched.requests)  # made when asked for
    assert page.locator('[data-renderer="qwen3@"] .certificate').count() == 0
    for card in ("file@tiny", "template@tiny"):
        page.locator(f'[data-renderer="{card}"]').get_by_role("button", name="Certify this template").click()
        page.locator(f'[data-renderer="{card}"] .certificate', has_text="certified").wait_for()
        page.locator(f'[data-renderer="{card}"] .certificate summary').wait_for()
    assert page.locator('[data-renderer="file@tiny"] .certificate .problem', has_text="partial").count() == 1
    assert page.locator('[data-renderer="template@tiny"] .certificate .problem').count() == 0
    page.locator('[data-renderer="file@tiny"] .certificate summary').click()
    page.get_by_text("message 1 holds data of message 0").first.wait_for()
