import { h } from "./dom.js";
import { TokenView } from "./tokens.js";
import { counts, legend, meter, modeBar } from "./summary.js";

// Tokens under their legend, counts and modes. Switching the mode asks nothing of the server.

export function tokenPanel(view, mode, { inspect, label, picked = () => {}, compact = false, heading = "" } = {}) {
  const known = view.modes.some((each) => each.name === mode) ? mode : view.modes[0]?.name;
  const tokens = new TokenView(view, known, { inspect, label });
  const summary = h("div", { class: "summary" });
  const refresh = () => summary.replaceChildren(meter(view, tokens.mode), counts(view, tokens.mode));
  const set = (name) => {
    tokens.setMode(name);
    refresh();
    picked(name);
  };
  refresh();
  const bar = view.modes.length > 1 && !compact ? modeBar(view, known, set) : null;
  const element = h("section", { class: compact ? "panel compact" : "panel", "aria-label": label },
    heading ? h("h2", {}, heading) : null,
    bar, summary,
    view.note && !(compact && view.unit === "character") ? h("p", { class: "note" }, view.note) : null,
    compact ? null : legend(view),
    tokens.element);
  return { element, tokens, setMode: (name) => { bar?.choose(name); tokens.setMode(name); refresh(); } };
}
