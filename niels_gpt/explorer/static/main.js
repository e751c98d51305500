import { Refused, address, ask, choices, h } from "./dom.js";
import { DatasetView } from "./dataset.js";
import { DriftView } from "./drift.js";
import { Editor } from "./editor.js";
import { FindingsView } from "./findings.js";
import { Mask } from "./mask.js";
import { HINT, inspectInto } from "./tokens.js";
import { FormatsView } from "./formats.js";

// One page, five views. The address names the one that is shown, and the row, so the browser's Back button works.

const TABS = [["formats", "Formats"], ["mask", "Mask"], ["dataset", "Dataset"], ["drift", "Drift"], ["findings", "Findings"]];

async function begin() {
  const place = document.getElementById("view");
  let session;
  try {
    session = await ask("/api/session");
  } catch (error) {
    place.replaceChildren(h("p", { class: "problem" }, error.message));
    return;
  }
  const bar = document.getElementById("inspector");
  const hint = h("p", { class: "hint" }, HINT);
  bar.replaceChildren(hint);
  // What a view does not show in its own place, such as an export that failed.
  addEventListener("unhandledrejection", (event) => {
    if (!(event.reason instanceof Refused)) return;
    event.preventDefault();
    bar.replaceChildren(h("p", { class: "problem", role: "alert" }, event.reason.message));
  });
  const state = { mode: session.default_mode };
  let shown = null;
  const editor = new Editor(() => shown?.refresh?.());
  const context = { session, editor, state, inspect: inspectInto(bar), forget: () => bar.replaceChildren(hint), goto };
  const views = { formats: new FormatsView(context), mask: new Mask(context), dataset: new DatasetView(context), drift: new DriftView(context) };
  views.findings = new FindingsView({ session, open: (evidence) => { if (session.dataset) { views.dataset.next = evidence; location.hash = address("dataset", { split: session.dataset.splits.length > 1 ? evidence.split : null, row: evidence.row }); } else goto("dataset"); } });
  const opened = document.getElementById("opened");
  opened.textContent = session.dataset ? session.dataset.name.split("/").at(-1) : "no dataset";
  opened.title = session.dataset?.name ?? "";

  const usable = TABS.map(([name, title]) => ({ name, title: name === "findings" && session.findings ? `${title} (${session.findings.findings.length})` : title }));
  const tabs = choices("Views", usable, "formats", (name) => goto(name), "tab");
  tabs.id = "tabs";
  for (const tab of tabs.children) { tab.id = `tab-${tab.dataset.name}`; tab.setAttribute("aria-controls", "view"); }
  document.getElementById("tabs").replaceWith(tabs);
  place.setAttribute("role", "tabpanel");

  function goto(name) {
    if (placed().name !== name) location.hash = address(name, views[name].shown?.());
    else enter();
  }
  function placed() {
    const [name, query] = location.hash.slice(1).split("?");
    return { name, query: new URLSearchParams(query) };
  }
  function enter() {
    const { name: asked, query } = placed();
    const name = views[asked] ? asked : session.findings ? "findings" : session.dataset ? "dataset" : "formats";
    if (shown === views[name]) {
      shown.follow?.(query);
      return;
    }
    shown = views[name];
    tabs.choose(name);
    place.setAttribute("aria-labelledby", `tab-${name}`);
    place.replaceChildren();
    bar.replaceChildren(hint);
    document.title = `${TABS.find((tab) => tab[0] === name)[1]} · niels_gpt explorer`;
    shown.enter(place);
    shown.follow?.(query);
  }
  // Not by its address, which would name no view.
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); place.focus(); });
  addEventListener("hashchange", enter);
  enter();
}

begin();
