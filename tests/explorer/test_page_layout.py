"""What a reader sees of the page in a real Chromium: heights, overlaps, addresses, narrow windows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.findings import read_findings
from niels_gpt.explorer.renderer_list import RendererList
from tests.explorer.conftest import Watched, chat_file, serving, visited

Visit = Callable[..., Watched]
NARROW = {"width": 390, "height": 844}
# Elements of one kind whose text is wider than they are.
CUT = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"

# Nothing lies over its beginning.
ON_TOP = """(e) => { const { x, y } = e.getBoundingClientRect();
    return e.contains(document.elementFromPoint(x + 4, y + 4)); }"""


def turns(n: int, text: str = "a word or two") -> list[dict[str, Any]]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": f"{text} {at}"} for at in range(n)]


@pytest.fixture(scope="module")
def address(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that begins with a dataset: 60 rows of 2 to 120 turns, the last one a giant."""
    folder = tmp_path_factory.mktemp("layout")
    chats = [turns(2 + 2 * (at % 30)) for at in range(58)] + [turns(120), turns(2, "giant " * 20_000)]
    chats[11][1]["tool_calls"] = [{"type": "function", "function": {"name": "umbrella", "arguments": {}}}]
    chats[11].insert(2, {"role": "tool", "content": "none", "name": "umbrella"})
    threads = ["huggingface/trl#1623", "https://example.org/page", "a talk"]
    finding = {
        "rule": "never-ending",
        "severity": "error",
        "title": "Never ends",
        "count": 1200,
        "rows": 41,
        "summary": "x",
    }
    finding |= {"cause": "y", "fix": "z"}
    window = [
        {"id": 5, "text": " a", "trained": True, "role": "user"},
        {"id": 4, "text": "\n", "trained": False, "role": None},
    ]
    place = {"where": "chats.jsonl:8", "message": 1, "token": 5, "note": "this", "window": window, "mark": 1}
    evidence = [{"row": row, **place} for row in (7, 7, 59, 3)]
    report = {
        "version": 1,
        "rows": 60,
        "skipped": {},
        "judged": 0,
        "findings": [{**finding, "thread": t, "evidence": evidence} for t in threads],
    }
    (folder / "report.json").write_text(json.dumps(report))
    renderers = RendererList([str(tokenizer_dir)])
    dataset = open_dataset(chat_file(folder / "chats.jsonl", chats), renderers)
    with serving(Explorer(renderers, dataset, read_findings(folder / "report.json"))) as found:
        yield found


def until(met: Callable[[], bool]) -> None:
    """Wait for what the page's policy forbids to evaluate there again and again."""
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def open_row(page: Any, row: int) -> None:
    page.get_by_role("button", name=f"row {row}", exact=True).click()
    page.locator(".detail h2", has_text=f"Row {row}").wait_for()


def test_rows_have_addresses_and_back_returns(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#dataset?row=3").page
    page.locator(".detail h2", has_text="Row 3").wait_for()
    open_row(page, 5)
    assert page.url.endswith("#dataset?row=5")
    open_row(page, 9)
    page.get_by_role("tab", name="Mask").click()
    page.wait_for_selector(".t.trained")
    page.go_back()
    page.locator(".detail h2", has_text="Row 9").wait_for()
    page.go_back()
    page.locator(".detail h2", has_text="Row 5").wait_for()
    page.go_back()
    page.locator(".detail h2", has_text="Row 3").wait_for()
    page.go_forward()
    page.locator(".detail h2", has_text="Row 5").wait_for()
    page.get_by_role("tab", name="Formats").click()
    page.get_by_role("tab", name="Dataset").click()
    assert page.url.endswith("#dataset?row=5")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("split=test&row=3", 'names the split "test"; there is all'),
        ("finding=7&row=3", "names the finding 7; the report has 3"),
        ("finding=x&row=3", "names the finding x"),
        ("row=99", "rows 0 to 59; there is no row 99"),
        ("row=x", "row"),
    ],
)
def test_an_address_of_another_dataset_is_told(address: str, visit: Visit, place: str, message: str) -> None:
    """A row of another split was shown as the one that the link names."""
    page = visit(f"{address}/#dataset?{place}").page
    page.locator(".dataset .problem", has_text=message).first.wait_for()
    assert page.locator(".detail h2").count() == 0
    open_row(page, 5)
    assert page.url.endswith("#dataset?row=5")
    assert not page.locator(".dataset .problem").first.is_visible()


def test_the_inspector_forgets_the_last_row(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#dataset?row=3").page
    page.wait_for_selector(".rows-table tr[data-row]")
    page.locator(".detail h2", has_text="Row 3").wait_for()
    page.locator(".detail .tokens .t").first.click()
    page.locator("#inspector dl").wait_for()
    open_row(page, 5)
    page.locator("#inspector dl").wait_for(state="detached")


def test_a_long_name_fits_a_telephone(tokenizer_dir: Path, tmp_path: Path, visit: Visit) -> None:
    """It made the page wider than the window, and the header so high that it covered the beginning of a row."""
    renderers = RendererList([str(tokenizer_dir)])
    path = chat_file(tmp_path / f"{'a_long_name_of_a_file_' * 4}.jsonl", [turns(40)] * 40)
    with visited(visit, Explorer(renderers, open_dataset(path, renderers)), "#dataset") as page:
        page.set_viewport_size(NARROW)
        open_row(page, 30)
        heading = page.locator(".detail h2")
        until(lambda: 0 <= heading.bounding_box()["y"] < NARROW["height"] / 2)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        until(lambda: heading.evaluate(ON_TOP))


def test_back_keeps_the_search(address: str, visit: Visit) -> None:
    """To the row before, and then to the list with no row."""
    page = visit(f"{address}/#dataset").page
    page.get_by_label("Search", exact=True).fill("two 50")
    rows, found = page.locator("tr[data-row]"), ["25", "26", "27", "28", "29", "55", "56", "57", "58"]
    until(lambda: rows.evaluate_all("(all) => all.map((e) => e.dataset.row)") == found)
    open_row(page, 26)
    open_row(page, 56)
    page.go_back()
    page.locator(".detail h2", has_text="Row 26").wait_for()
    assert page.get_by_label("Search", exact=True).input_value() == "two 50"
    assert rows.count() == 9
    page.go_back()
    page.locator(".detail .note", has_text="Choose a row.").wait_for()
    assert page.locator("tr[aria-current]").count() == 0
    page.go_forward()
    page.locator(".detail h2", has_text="Row 26").wait_for()


def test_back_from_a_row_that_is_still_loading(address: str, visit: Visit) -> None:
    """The list stays without a row, and is not drawn as if one were loading."""
    page = visit(f"{address}/#dataset").page
    open_row(page, 3)
    held: list[Any] = []
    detail = page.locator(".detail").first
    page.route("**/api/row", lambda route: held.append(route))
    page.get_by_role("button", name="row 7", exact=True).click()
    until(lambda: detail.get_attribute("aria-busy") == "true" and held)
    page.go_back()
    detail.locator(".note", has_text="Choose a row.").wait_for()
    assert detail.get_attribute("aria-busy") == "false"
    with page.expect_response("**/api/row"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert detail.inner_text() == "Choose a row."
    page.unroute_all(behavior="wait")


def test_a_list_is_one_stop_of_tab(address: str, visit: Visit) -> None:
    """Each of its 50 rows was one, before the row that is shown could be reached."""
    page = visit(f"{address}/#dataset?row=3").page
    page.locator(".detail h2", has_text="Row 3").wait_for()
    page.locator('button.row[aria-label="row 3"][tabindex="0"]').wait_for()  # it is the stop once the list is drawn
    page.get_by_role("button", name="Go", exact=True).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.activeElement.ariaLabel === 'row 4'")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.detail') !== null")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.ariaLabel") == "row 4"


def test_rows_as_trained_are_one_stop_of_tab(episodes_address: str, visit: Visit) -> None:
    page = visit(f"{episodes_address}/#dataset").page
    page.get_by_role("radio", name="As trained").click()
    page.locator(".training .who").first.wait_for(state="attached")
    page.locator(".bar-row").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.row") == "1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.detail') !== null")


def test_findings_link(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#findings").page
    page.locator(".finding").first.wait_for()
    threads = page.locator(".finding dd a").evaluate_all("(all) => all.map((a) => [a.textContent, a.href])")
    assert threads == [
        ["huggingface/trl#1623", "https://github.com/huggingface/trl/issues/1623"],
        ["https://example.org/page", "https://example.org/page"],
    ]
    assert page.locator(".overview tbody tr").count() == 3
    assert page.locator(".overview tbody td").all_inner_texts()[2:4] == ["1,200", "41"]
    example = page.locator(".example .t").evaluate_all(
        "(all) => all.slice(0, 2).map((e) => [e.textContent, e.className])"
    )
    assert example == [["·\u200ba", "t role-user body trained"], ["⏎\n", "t role-none scaffold marked"]]
    link = page.get_by_role("link", name="row 7", exact=True).first
    assert link.get_attribute("href") == "#dataset?row=7"
    link.click()
    page.wait_for_selector(".detail .t.marked")
    page.go_back()
    page.locator(".finding").first.wait_for()


def test_rows_of_a_finding(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#findings").page
    page.get_by_role("link", name="show 3 rows").nth(1).click()
    rows = page.locator("tr[data-row]")
    until(lambda: rows.evaluate_all("(all) => all.map((e) => e.dataset.row)") == ["3", "7", "59"])
    assert page.url.endswith("#dataset?finding=1")
    open_row(page, 59)
    assert page.url.endswith("#dataset?finding=1&row=59")
    assert page.locator(".detail .note a").count() == 3, "three findings name the row"
    page.get_by_label("Search", exact=True).fill("giant")
    until(lambda: rows.evaluate_all("(all) => all.map((e) => e.dataset.row)") == ["59"])
    page.get_by_label("Search", exact=True).fill("")
    page.get_by_label("Rows of a finding").select_option("")
    until(lambda: rows.count() == 50)
    assert page.url.endswith("#dataset?row=59")


def test_on_a_telephone_a_chosen_row_is_in_sight(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#dataset").page
    page.set_viewport_size(NARROW)
    page.wait_for_selector(".rows-table tr[data-row]")
    open_row(page, 40)
    heading = page.locator(".detail h2")
    until(lambda: heading.bounding_box()["y"] < NARROW["height"] / 2)
    assert heading.bounding_box()["y"] >= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert page.locator(".detail .who").evaluate_all(CUT) == []


def test_long_findings_fit_a_telephone(tokenizer_dir: Path, tmp_path: Path, visit: Visit) -> None:
    note = "message 0: content.0 is of type 'image_url'; expected a text part {'type': 'text', 'text': ...}, " * 2
    place = {"row": 0, "where": "a/long/path/" * 9, "message": 1, "token": 5, "note": note, "window": [], "mark": 0}
    finding = {"rule": "x", "severity": "error", "title": "contents contain the text of control tokens", "count": 2}
    finding |= {"rows": 1, "summary": note, "cause": note, "fix": "unbroken" * 20, "thread": "o/r#1"}
    report = {"version": 1, "rows": 1, "skipped": {}, "judged": 0, "findings": [{**finding, "evidence": [place]}] * 2}
    (tmp_path / "report.json").write_text(json.dumps(report))
    renderers = RendererList([str(tokenizer_dir)])
    dataset = open_dataset(chat_file(tmp_path / "chats.jsonl", [turns(2)]), renderers)
    with serving(Explorer(renderers, dataset, read_findings(tmp_path / "report.json"))) as found:
        page = visit(f"{found}/#findings").page
        page.set_viewport_size(NARROW)
        page.wait_for_selector(".finding")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        page.close()


def test_keys_are_explained(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#dataset").page
    page.wait_for_selector(".rows-table tr[data-row]")
    page.get_by_label("Search", exact=True).press("?")  # typing is no question
    assert page.get_by_role("dialog").is_hidden()
    page.get_by_role("tab", name="Dataset").press("?")
    page.get_by_role("dialog", name="Keyboard help").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    page.get_by_role("button", name="Keyboard help").click()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").wait_for(state="hidden")


def test_rows_are_found_by_text_and_role(address: str, visit: Visit) -> None:
    page = visit(f"{address}/#dataset").page
    found = page.locator(".pager [role=status]")
    page.get_by_label("Search", exact=True).fill("TWO 56")
    until(lambda: found.inner_text().startswith("3 found"))
    page.get_by_label("Messages of").select_option("assistant")  # even ones are of users
    until(lambda: found.inner_text().startswith("0 found"))
    page.get_by_label("Messages of").select_option("user")
    until(lambda: found.inner_text().startswith("3 found"))
    assert "of 60" in found.inner_text()


def test_packed_rows_are_blocks_of_attention(episodes_address: str, visit: Visit) -> None:
    page = visit(f"{episodes_address}/#dataset").page
    page.get_by_label("Block size").wait_for(state="attached")
    page.get_by_role("radio", name="As trained").click()
    page.get_by_label("Block size").fill("4096")
    page.get_by_label("Block size").press("Enter")
    page.locator(".training .lead", has_text="4,097 tokens").wait_for()
    page.locator(".bar-row[aria-current]").wait_for()
    label = page.locator("canvas.blocks").get_attribute("aria-label")
    parts = page.locator(".bar-row[aria-current] .part").count()
    assert label is not None
    assert label.count(",") + 1 == parts
    painted = page.locator("canvas.blocks").evaluate(
        "(c) => [[2, 6], [6, 2]].map(([x, y]) => c.getContext('2d').getImageData(x, y, 1, 1).data[3] > 0)"
    )
    assert painted == [True, False], "what comes later is not seen"
    assert page.locator(".training .who").count() >= parts
    assert page.locator(".training .who").evaluate_all(CUT) == []


def test_images_are_shown_from_beside_the_file(tokenizer_dir: Path, tmp_path: Path, visit: Visit) -> None:
    """Of the folder and of the row itself; nothing else of the machine is read."""
    pytest.importorskip("PIL", reason="the extra 'vision' is not installed")
    import base64

    import httpx

    from tests.renderers.tiny_images import picture, png

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(png(picture(30, 20)))
    (tmp_path / "secret.png").write_bytes(png(picture()))
    (tmp_path / "photos" / "no.png").write_text("secret text")
    uri = f"data:image/png;base64,{base64.b64encode(png(picture(12, 8))).decode()}"
    sources = ["a.png", uri, "../secret.png", "no.png", "https://example.org/x.png", "missing.png"]
    content = [{"type": "image", "image": source} for source in sources] + [{"type": "text", "text": "?"}]
    chat = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}]
    renderers = RendererList([str(tokenizer_dir)])
    dataset = open_dataset(chat_file(tmp_path / "photos" / "chats.jsonl", [chat]), renderers)
    with serving(Explorer(renderers, dataset)) as found:
        answers = [httpx.get(f"{found}/api/image?row=0&message=0&part={part}") for part in range(8)]
        assert [answer.status_code for answer in answers] == [200, 200, 400, 400, 400, 400, 400, 400]
        assert answers[0].headers["content-type"] == "image/png"
        assert "secret" not in answers[3].text.replace("secret.png", "")
        assert httpx.get(f"{found}/api/image?row=0&message=zero&part=0").status_code == 400
        assert httpx.get(f"{found}/api/image?row=9&message=0&part=0").status_code == 404
        page = visit(f"{found}/#dataset?row=0").page
        sizes, reasons = page.locator(".images img"), page.locator(".images .problem")
        until(lambda: (sizes.count(), reasons.count()) == (2, len(sources) - 2))
        assert "does not lie in" in reasons.first.inner_text()
        until(lambda: sizes.evaluate_all("(all) => all.map((i) => i.naturalWidth)")[:2] == [30, 12])
        # The family takes no images; the row is shown as JSON, without the bytes of its image.
        assert "characters)" in page.locator("pre.json").inner_text()
        assert uri not in page.locator("pre.json").inner_text()
        page.close()


def test_the_row_that_was_chosen_last_stays(episodes_address: str, visit: Visit) -> None:
    """The first row is opened by itself; its answer may come after that of a row that was chosen meanwhile."""
    page = visit(f"{episodes_address}/#dataset").page
    first: list[Any] = []

    def answer(route: Any) -> None:
        if route.request.post_data_json.get("row") == 0 and not first:
            first.append(route)
        else:
            route.continue_()

    page.route("**/api/training", answer)
    page.get_by_role("radio", name="As trained").click()
    page.locator(".bar-row").last.click()
    page.get_by_role("heading", name="as trained").wait_for()
    chosen = page.get_by_role("heading", name="as trained").inner_text()
    assert chosen != "Row 0 as trained"
    with page.expect_response("**/api/training"):
        first[0].continue_()
    page.wait_for_timeout(300)
    assert page.get_by_role("heading", name="as trained").inner_text() == chosen
    page.unroute_all(behavior="wait")


# Where a view is shown; of the rows those of a finding only, because a rule is tried on every element.
PLACES = {"formats": "formats", "mask": "mask", "rows": "dataset?finding=0&row=3", "training": "dataset"}
PLACES |= {view: view for view in ("drift", "findings")}
READY = {"formats": ".overhead td", "mask": ".t.trained", "rows": ".detail .t", "training": ".training .t.padding"}
READY |= {"drift": ".verdict", "findings": ".finding"}
COLOUR_RULES = ["color-contrast", "link-in-text-block"]


@pytest.mark.parametrize("view", PLACES)
def test_axe_finds_nothing(address: str, episodes_address: str, visit: Visit, view: str) -> None:
    """The rules of axe-core for accessibility, on a desk and on a telephone, light and dark."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    rules = (resources.files(axe) / "axe.min.js").read_text(encoding="utf-8")
    page = visit(f"{episodes_address if view == 'training' else address}/#{PLACES[view]}").page
    if view == "formats":  # the other cards have all that these have
        for name in ("qwen3", "llama-3", "gemma", "glm-5", "mistral"):
            page.locator(".chip", has_text=re.compile(f"^{name}(text)?$")).click()
    if view == "training":
        page.get_by_role("radio", name="As trained").click()
        page.get_by_label("Block size").fill("2000")
        page.get_by_label("Block size").press("Enter")
        page.locator(".training .lead", has_text="2,001 tokens").wait_for()
        pager, later = page.locator(".bars .pager"), page.locator(".bars").get_by_role("button", name="Later")
        while later.is_enabled():
            before = pager.inner_text()
            later.click()
            until(lambda before=before: pager.inner_text() != before)
        page.locator(".bar-row").last.click()  # the last row has several episodes, and room
    page.locator(READY[view]).first.wait_for(state="attached")
    page.evaluate(rules)
    run = "(options) => axe.run(options).then((all) => all.violations.map((one) => [one.id, one.nodes[0].html]))"
    for width in (1366, 390):
        for scheme, options in (("light", {}), ("dark", {"runOnly": COLOUR_RULES})):
            page.set_viewport_size({"width": width, "height": 860})
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(run, {**options, "resultTypes": ["violations"]})
            assert found == [], (width, scheme)
