import { h } from "./dom.js";
import { unpacked } from "./token_table.js";
import { HINT, inspectInto } from "./tokens.js";
import { modeBar } from "./summary.js";
import { tokenPanel } from "./panel.js";

// An exported file: the same tokens, modes and cursor, from the data in the file.

const held = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("exported");
const bar = h("footer", { id: "inspector", role: "status", "aria-live": "polite" }, h("p", { class: "hint" }, HINT));
const views = held.tables.map((table, at) => ({ ...unpacked(table), differs: held.drift ? [held.drift.left, held.drift.right][at] : null }));
const compact = views.length > 1;
const panels = views.map((view) => tokenPanel(view, held.mode, {
  inspect: inspectInto(bar), compact, label: view.title, heading: compact ? `${view.title}${view.tokenizer ? ` · ${view.tokenizer}` : ""}` : "",
}));
root.append(
  h("header", { class: "top" }, h("h1", {}, "niels_gpt ", h("span", {}, held.title))),
  held.drift?.verdict ? h("p", { class: "verdict" }, held.drift.verdict) : "",
  compact && views[0].modes.length > 1 ? modeBar({ ...views[0], modes: views[0].modes.map((each) => ({ ...each, count: null })) }, held.mode, (name) => panels.forEach((panel) => panel.setMode(name))) : "",
  h("div", { class: compact ? "formats" : "single" }, panels.map((panel) => panel.element)),
);
document.body.append(bar);
