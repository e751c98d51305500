import { ask, h, saved } from "./dom.js";
import { EditedView } from "./editor.js";
import { unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";
import { rendererPicker } from "./picker.js";

// One conversation in one format, token by token, under every loss mask.

export class Mask extends EditedView {
  constructor(context) {
    super(context);
    const { session } = context;
    this.picker = rendererPicker(session, "Format", session.first, () => this.refresh());
    this.custom = this.customFields();
    this.place = h("div", { class: "place" });
    this.lay(h("div", { class: "bar" }, this.picker.element, this.custom.element, h("button", { type: "button", class: "action", onclick: () => this.save() }, "Export as HTML")), this.place);
  }

  customFields() {
    const preset = h("select", { "aria-label": "custom: of the model's own tokens" }, ["all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens"].map((name) => h("option", {}, name)));
    const roles = ["system", "user", "tool"].map((name) => h("input", { type: "checkbox", value: name, "aria-label": `custom: bodies of ${name} messages` }));
    const stops = h("input", { type: "checkbox", checked: true, "aria-label": "custom: end of turn" });
    const value = () => ({
      preset: preset.value, end_of_turn: stops.checked,
      bodies_of_roles: roles.filter((box) => box.checked).map((box) => box.value),
    });
    const element = h("details", { class: "custom" }, h("summary", {}, "custom mask"),
      h("div", { class: "custom-fields" }, h("label", {}, "train ", preset),
        roles.map((box) => h("label", {}, box, ` ${box.value} bodies`)), h("label", {}, stops, " end of turn")));
    const chosen = () => { this.state.mode = "custom"; this.refresh(); };
    element.addEventListener("change", chosen);
    element.addEventListener("toggle", () => element.open && chosen());
    return { element, value };
  }

  async refresh() {
    const mine = this.current();
    const custom = this.custom.element.open || this.state.mode === "custom" ? this.custom.value() : null;
    this.place.setAttribute("aria-busy", "true");
    if (!this.panel) this.place.replaceChildren(h("p", { class: "note" }, "Loading …"));
    try {
      const table = await ask("/api/render", { ...this.editor.asked(), choice: this.picker.value(), custom });
      if (!mine()) return;
      this.editor.tell(null);
      this.table = table;
      this.panel?.tokens.drop();
      this.panel = tokenPanel(unpacked(table), this.state.mode, {
        inspect: this.inspect, label: `${table.title}, token by token`, picked: (name) => { this.state.mode = name; },
      });
      this.place.replaceChildren(this.panel.element);
    } catch (error) {
      if (!mine()) return;
      this.table = null;
      this.editor.tell(error);
      this.place.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    this.place.setAttribute("aria-busy", "false");
  }

  async save() {
    if (this.table) saved("mask.html", await ask("/api/export", { kind: "mask", title: `mask: ${this.table.title}`, mode: this.state.mode, tables: [this.table] }));
  }
}
