import { ask, h, later, latest, number, percent, saved } from "./dom.js";
import { EditedView } from "./editor.js";
import { unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";
import { modeBar } from "./summary.js";
import { rendererKey } from "./picker.js";

// One conversation in several formats, side by side. Each card has a request of its own: a slow tokenizer delays only
// its card.

const FIRST = ["raw", "chatml", "qwen3", "llama-3", "gemma", "mistral", "glm-5"];

export class FormatsView extends EditedView {
  constructor(context) {
    super(context);
    const { session } = context;
    this.cards = new Map();
    const begun = session.renderers.filter((entry) => FIRST.includes(entry.renderer));
    const own = session.renderers.find((entry) => rendererKey(entry) === rendererKey(session.first));
    this.chosen = new Set([...begun, ...(own ? [own] : [])].map(rendererKey));
    this.modes = h("div", { class: "mode-place" });
    this.grid = h("div", { class: "formats" });
    this.table = h("div", { class: "overhead" });
    this.lay(this.chips(), this.modes, this.table, this.grid);
    this.tabulate = later(30, () => this.overhead());
  }

  chips() {
    const chip = (entry) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(this.chosen.has(rendererKey(entry))),
      title: entry.tokenizer ? `tokenizer ${entry.tokenizer}` : "no tokenizer of this family is available: shown as text",
      onclick: (event) => {
        const key = rendererKey(entry), on = !this.chosen.has(key);
        if (on) this.chosen.add(key); else this.chosen.delete(key);
        event.currentTarget.setAttribute("aria-pressed", String(on));
        this.refresh();
      },
    }, entry.title, entry.tokenizer ? null : h("small", {}, "text"));
    return h("div", { class: "chips", role: "group", "aria-label": "Formats to show" },
      this.session.renderers.map(chip),
      h("button", { type: "button", class: "action", onclick: () => this.save() }, "Export as HTML"));
  }

  refresh() {
    const shown = this.session.renderers.filter((entry) => this.chosen.has(rendererKey(entry)));
    for (const [key, card] of this.cards) if (!this.chosen.has(key)) { card.element.remove(); this.cards.delete(key); }
    this.editor.tell(null);
    for (const entry of shown) {
      const key = rendererKey(entry);
      if (!this.cards.has(key)) this.cards.set(key, new Card(entry, this));
      const card = this.cards.get(key);
      this.grid.append(card.element);
      card.load();
    }
  }

  // The overhead of a format: the tokens that it adds to the bare text, in total and per message.
  overhead() {
    const rows = [...this.cards.values()].filter((card) => card.view).map((card) => {
      const { total, scaffold } = card.view.counts, mode = card.panel.tokens.mode;
      return { card, total, scaffold, trained: mode.count, unit: card.view.unit, messages: card.view.groups.length };
    });
    // Characters have no bar: beside those of tokens it would be on another scale.
    const most = Math.max(1, ...rows.filter((row) => row.unit === "token").map((row) => row.total));
    const line = (row) => {
      const bar = h("span", { class: "cost", "aria-hidden": "true" }, h("i", { class: "body" }), h("i", { class: "scaffold" }));
      const scale = row.unit === "token" ? 100 / most : 0;
      bar.children[0].style.width = `${(row.total - row.scaffold) * scale}%`;
      bar.children[1].style.width = `${row.scaffold * scale}%`;
      return h("tr", {}, h("th", { scope: "row" }, row.card.entry.title), h("td", {}, bar),
        h("td", {}, `${number(row.total)}${row.unit === "token" ? "" : " ch"}`), h("td", {}, number(row.scaffold)),
        h("td", {}, percent(row.scaffold, row.total)), h("td", {}, (row.scaffold / Math.max(1, row.messages)).toFixed(1)), h("td", {}, percent(row.trained, row.total)));
    };
    this.table.replaceChildren(rows.length ? h("table", { class: "figures" },
      h("caption", {}, "What each format costs. “ch” counts characters, where no tokenizer is available."),
      h("thead", {}, h("tr", {}, ["format", "cost", "total", "overhead", "share", "per message", "loss share"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(line))) : "");
    if (!this.modes.firstChild && rows.length) this.modes.append(modeBar({ ...rows[0].card.view, modes: this.session.modes.map((mode) => ({ ...mode, count: null })) }, this.state.mode, (name) => this.setMode(name)));
  }

  setMode(name) {
    this.state.mode = name;
    for (const card of this.cards.values()) card.panel?.setMode(name);
    this.tabulate();
  }

  async save() {
    const views = [...this.cards.values()].filter((card) => card.table);
    saved("formats.html", await ask("/api/export", { kind: "formats", title: "formats", mode: this.state.mode, tables: views.map((card) => card.table) }));
  }
}

class Card {
  constructor(entry, formats) {
    Object.assign(this, { entry, formats, current: latest() });
    this.body = h("div", { class: "card-body", "aria-busy": "true" }, h("p", { class: "note" }, entry.tokenizer ? `loading ${entry.tokenizer} …` : "…"));
    this.element = h("article", { class: "card", "aria-label": entry.title, "data-renderer": rendererKey(entry) },
      h("h3", {}, entry.title, h("small", {}, entry.tokenizer || "text, no ids")), this.body);
  }

  async load() {
    const mine = this.current();
    try {
      const table = await ask("/api/render", { ...this.formats.editor.asked(), choice: { renderer: this.entry.renderer, tokenizer: this.entry.tokenizer } });
      if (!mine()) return;
      this.table = { ...table, title: this.entry.title };
      this.view = unpacked(this.table);
      this.panel?.tokens.drop();
      this.panel = tokenPanel(this.view, this.formats.state.mode, { inspect: this.formats.inspect, compact: true, label: this.entry.title });
      this.body.replaceChildren(this.panel.element);
    } catch (error) {
      if (!mine()) return;
      this.table = this.view = this.panel = null;
      this.body.replaceChildren(h("p", { class: "problem" }, error.message));
      if (error.answer?.message == null && error.answer?.reason) this.formats.editor.tell(error);
    }
    this.body.setAttribute("aria-busy", "false");
    this.formats.tabulate();
  }
}
