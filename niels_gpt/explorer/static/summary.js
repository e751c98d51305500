import { choices, h, number, percent } from "./dom.js";
import { CONTROL } from "./token_table.js";

// The parts above the tokens: loss modes, counts and the legend.

export function modeBar(view, mode, pick) {
  const real = view.counts.total;
  const options = view.modes.map((each) => ({
    name: each.name, title: each.title, hint: each.meaning, extra: each.count === null ? null : percent(each.count, real),
  }));
  return choices("Which tokens are trained", options, mode, pick);
}

export function counts(view, mode) {
  const { total, body, scaffold, padding } = view.counts;
  const unit = view.unit === "token" ? "tokens" : "characters";
  const parts = [["total", `${number(total)} ${unit}`]];
  if (view.facts_known) parts.push(["content", number(body)], ["scaffold", `${number(scaffold)} · ${percent(scaffold, total)}`]);
  if (padding) parts.push(["padding", number(padding)]);
  parts.push(["trained", number(mode.count)], ["loss share", percent(mode.count, total)]);
  return h("dl", { class: "counts" }, parts.map(([name, value]) => h("div", { "data-count": name }, h("dt", {}, name), h("dd", {}, value))));
}

export function meter(view, mode) {
  const share = view.counts.total ? mode.count / view.counts.total : 0;
  const bar = h("div", { class: "meter", role: "img", "aria-label": `loss share ${percent(mode.count, view.counts.total)}` }, h("i", {}));
  bar.firstChild.style.width = `${100 * share}%`;
  return bar;
}

export function legend(view) {
  const roles = [...new Set(view.groups.map((group) => group.role))].filter((role) => role !== "episode");
  const key = (kinds, sample, meaning) => h("li", {}, h("span", { class: `t ${kinds}` }, sample), ` ${meaning}`);
  return h("ul", { class: "legend", "aria-label": "Legend" },
    roles.map((role) => h("li", { class: `role-${role}` }, h("span", { class: "swatch" }), role)),
    key("body trained", "trained", "in the loss"),
    view.facts_known ? key("body sampled", "sampled", "the model's, not in the loss") : null,
    view.facts_known ? key("body", "content", "from your data") : null,
    view.facts_known ? key("scaffold", "scaffold", "the format's own") : null,
    view.facts.some((facts) => facts & CONTROL) ? key("scaffold control", "control", "control token") : null,
    h("li", {}, h("span", { class: "t" }, "·⏎⇥"), " space, newline, tab"),
  );
}
