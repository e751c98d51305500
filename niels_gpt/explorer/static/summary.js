import { choices, h, number, percent } from "./dom.js";
import { CONTROL, PADDING, roleOf } from "./token_table.js";

// The parts above the tokens: loss modes, counts, legend, and the whole sequence as a ribbon.

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

// Drawings do not follow the style sheet when the system changes between light and dark.
export function redraw() {
  for (const canvas of document.querySelectorAll("canvas")) canvas.draw?.();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

const RIBBON = 1200;

// The whole sequence in 1200 pixels: the role of the tokens above, and below how many of them are trained.
export function ribbon(tokens) {
  const { view } = tokens;
  const canvas = h("canvas", { class: "ribbon", width: RIBBON, height: 22, "aria-hidden": "true", title: "The whole sequence: roles above, trained below. Click to go there." });
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    tokens.moveTo(Math.floor(((event.clientX - box.left) / box.width) * view.n), true, "center");
  });
  canvas.draw = () => {
    const style = getComputedStyle(canvas), pen = canvas.getContext("2d");
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const of = Object.fromEntries(["system", "user", "assistant", "tool", "none", "episode"].map((role) => [role, colour(role)]));
    const ink = colour("trained"), alternate = [colour("episode"), colour("episode-odd")];
    pen.clearRect(0, 0, RIBBON, 22);
    for (let x = 0; x < RIBBON && view.n; x++) {
      const from = Math.floor((x * view.n) / RIBBON), upto = Math.max(from + 1, Math.floor(((x + 1) * view.n) / RIBBON));
      const role = roleOf(view, from);
      if (!(view.facts[from] & PADDING)) {
        pen.fillStyle = role === "episode" ? alternate[view.group[from] % 2] : of[role] ?? of.none;
        pen.fillRect(x, 0, 1, 13);
      }
      let trained = 0;
      for (let at = from; at < upto; at++) trained += tokens.trained[at];
      if (trained) {
        pen.globalAlpha = 0.35 + (0.65 * trained) / (upto - from);
        pen.fillStyle = ink;
        pen.fillRect(x, 15, 1, 7);
        pen.globalAlpha = 1;
      }
    }
  };
  requestAnimationFrame(() => canvas.draw());
  return canvas;
}
