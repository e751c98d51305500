import { h } from "./dom.js";
import { TokenView } from "./tokens.js";
import { counts, legend, meter, modeBar, ribbon } from "./summary.js";

// Tokens with all that stands over them; the mode is switched without asking anyone.

export function tokenPanel(view, mode, { inspect, label, picked = () => {}, compact = false, heading = "" } = {}) {
  const known = view.modes.some((each) => each.name === mode) ? mode : view.modes[0]?.name;
  const tokens = new TokenView(view, known, { inspect, label });
  const told = h("div", { class: "told" });
  const strip = compact ? null : ribbon(tokens);
  const refresh = () => {
    told.replaceChildren(meter(view, tokens.mode), counts(view, tokens.mode));
    strip?.draw?.();
  };
  const set = (name) => {
    tokens.setMode(name);
    refresh();
    picked(name);
  };
  refresh();
  const bar = view.modes.length > 1 && !compact ? modeBar(view, known, set) : null;
  const element = h("section", { class: compact ? "panel compact" : "panel", "aria-label": label },
    heading ? h("h2", {}, heading) : null,
    bar, told, strip,
    view.note && !(compact && view.unit === "character") ? h("p", { class: "note" }, view.note) : null,
    compact ? null : legend(view),
    tokens.element);
  return { element, tokens, setMode: (name) => { bar?.choose(name); tokens.setMode(name); refresh(); } };
}
