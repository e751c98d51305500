import { ask, h, latest, number, oneStop, percent } from "./dom.js";
import { unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";

// Rows as they will be trained. A bar is a row, its parts are episodes; attention must not cross the lines between them.

const LIMIT = 30;
const POLICIES = [["head", "keep the first tokens"], ["tail", "keep the last tokens"], ["drop_partial_turn", "no loss on a cut turn"], ["skip", "leave the episode out"], ["error", "refuse"]];

export class TrainingView {
  constructor(owner) {
    Object.assign(this, { owner, current: latest(), opening: latest(), start: 0 });
    const again = () => { this.start = 0; this.refresh(); };
    this.size = h("input", { type: "number", min: 1, value: 1024, "aria-label": "Block size, tokens", onchange: again });
    this.policy = h("select", { "aria-label": "Episodes that are too long", onchange: again }, POLICIES.map(([name, title]) => h("option", { value: name }, `${name}: ${title}`)));
    this.packed = h("input", { type: "checkbox", checked: true, onchange: again });
    this.status = h("p", { class: "lead", role: "status" });
    this.bars = h("div", { class: "bars" });
    oneStop(this.bars, "button.bar-row");
    this.detail = h("div", { class: "detail" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.element = h("div", { class: "training" },
      h("div", { class: "bar controls" }, h("label", {}, "block size ", this.size), h("label", {}, "too long ", this.policy), h("label", {}, this.packed, " packed")),
      this.problem, this.status, h("div", { class: "browse" }, this.bars, this.detail));
  }

  asked() {
    const fit = { block_size: Number(this.size.value), too_long: this.policy.value, packed: this.packed.checked };
    return { fit, split: this.owner.split, start: this.start, limit: LIMIT };
  }

  async refresh() {
    if (this.element.hidden) return;
    const mine = this.current();
    this.bars.setAttribute("aria-busy", "true");
    if (!this.bars.firstChild) this.status.textContent = "Making the rows …";
    try {
      const { fitted } = await ask("/api/training", this.asked());
      if (!mine()) return;
      this.problem.hidden = true;
      this.show(fitted);
    } catch (error) {
      if (!mine()) return;
      this.problem.textContent = error.message;
      this.problem.hidden = false;
      this.status.textContent = "";
      this.bars.replaceChildren();
      this.detail.replaceChildren();
    }
    this.bars.setAttribute("aria-busy", "false");
  }

  show(fitted) {
    const lost = fitted.cut ? `${number(fitted.cut)} of them are cut and lose ${number(fitted.lost)} tokens` : "none is cut";
    const out = fitted.left_out ? `, ${number(fitted.left_out)} more are left out` : "";
    this.status.textContent = `${fitted.source}: ${number(fitted.rows)} rows of ${number(fitted.width)} tokens, ${percent(fitted.utilisation, 1)} filled, ${number(fitted.episodes)} episodes; ${lost}${out}.`;
    const bar = (row) => {
      const parts = row.parts.map((part, at) => {
        // A bar has room for about 60 characters. A number that was cut off would be another number.
        const fits = (String(part.episode).length + 1) * fitted.width <= 60 * part.length;
        const piece = h("span", { class: `part${at % 2 ? " odd" : ""}${part.cut ? " cut" : ""}`, title: `${part.episode}: ${number(part.length)} tokens${part.cut ? `, ${number(part.cut)} cut off` : ""}` }, fits ? String(part.episode) : null, part.cut ? h("b", {}, `✂ ${number(part.cut)}`) : null);
        piece.style.flexGrow = part.length;
        return piece;
      });
      const room = h("span", { class: "room" }, row.room > fitted.width / 12 ? `${number(row.room)} free` : "");
      room.style.flexGrow = row.room;
      const named = `row ${row.row}: ${row.parts.length} ${row.parts.length === 1 ? "episode" : "episodes"}, ${row.room} free`;
      return h("button", { type: "button", class: "bar-row", "data-row": row.row, "aria-label": named, onclick: () => this.open(row.row) }, h("span", { class: "index" }, number(row.row)), h("span", { class: "parts" }, parts, row.room ? room : null));
    };
    const pager = h("div", { class: "pager" },
      h("button", { type: "button", disabled: this.start === 0, onclick: () => { this.start = Math.max(0, this.start - LIMIT); this.refresh(); } }, "Earlier"),
      h("span", {}, `rows ${number(this.start)} to ${number(this.start + Math.max(0, fitted.shown.length - 1))}`),
      h("button", { type: "button", disabled: this.start + LIMIT >= fitted.rows, onclick: () => { this.start += LIMIT; this.refresh(); } }, "Later"));
    const bars = fitted.shown.map(bar);
    bars.slice(1).forEach((one) => { one.tabIndex = -1; });
    this.bars.replaceChildren(pager, ...bars);
    if (fitted.shown.length) this.open(fitted.shown[0].row);
  }

  async open(row) {
    const mine = this.opening();
    const { table } = await ask("/api/training", { ...this.asked(), row });
    if (!mine()) return; // another row was chosen meanwhile; answers may come in another order than they were asked for
    for (const bar of this.bars.querySelectorAll(".bar-row")) bar.toggleAttribute("aria-current", Number(bar.dataset.row) === row);
    this.panel?.tokens.drop();
    this.panel = tokenPanel(unpacked(table), "stored", { inspect: this.owner.inspect, label: `training row ${row}` });
    this.detail.replaceChildren(h("h2", {}, `Row ${number(row)} as trained`), this.panel.element);
  }
}
