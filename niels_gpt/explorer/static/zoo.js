import { ask, h, later, latest, number, percent, saved } from "./dom.js";
import { unpacked } from "./strip.js";
import { tokenPanel } from "./panel.js";
import { modeBar } from "./summary.js";
import { exhibitKey } from "./pick.js";

// Every family's rendering of one conversation, side by side. A column is asked for by itself: slow tokenizers come later.

const FIRST = ["raw", "chatml", "qwen3", "llama-3", "gemma", "mistral", "glm-5"];

export class Zoo {
  constructor({ session, editor, inspect, state }) {
    Object.assign(this, { session, editor, inspect, state });
    this.cards = new Map();
    const begun = session.exhibits.filter((exhibit) => FIRST.includes(exhibit.renderer));
    const own = session.exhibits.find((exhibit) => exhibitKey(exhibit) === exhibitKey(session.first));
    this.chosen = new Set([...begun, ...(own ? [own] : [])].map(exhibitKey));
    this.modes = h("div", { class: "mode-place" });
    this.grid = h("div", { class: "zoo" });
    this.table = h("div", { class: "overhead" });
    this.element = h("div", { class: "with-editor" }, h("div", { class: "side" }, editor.element),
      h("div", { class: "content" }, this.chips(), this.modes, this.table, this.grid));
    this.tabulate = later(30, () => this.overhead());
  }

  chips() {
    const chip = (exhibit) => h("button", {
      type: "button", class: "chip", "aria-pressed": String(this.chosen.has(exhibitKey(exhibit))),
      title: exhibit.tokenizer ? `tokenizer ${exhibit.tokenizer}` : "no tokenizer of this family is at hand: shown as text",
      onclick: (event) => {
        const key = exhibitKey(exhibit), on = !this.chosen.has(key);
        if (on) this.chosen.add(key); else this.chosen.delete(key);
        event.currentTarget.setAttribute("aria-pressed", String(on));
        this.refresh();
      },
    }, exhibit.title, exhibit.tokenizer ? null : h("small", {}, "text"));
    return h("div", { class: "chips", role: "group", "aria-label": "Formats to show" },
      this.session.exhibits.map(chip),
      h("button", { type: "button", class: "action", onclick: () => this.save() }, "Export as HTML"));
  }

  enter(place) {
    this.element.querySelector(".side").append(this.editor.element);
    place.append(this.element);
    this.refresh();
  }

  refresh() {
    const shown = this.session.exhibits.filter((exhibit) => this.chosen.has(exhibitKey(exhibit)));
    for (const [key, card] of this.cards) if (!this.chosen.has(key)) { card.element.remove(); this.cards.delete(key); }
    this.editor.tell(null);
    for (const exhibit of shown) {
      const key = exhibitKey(exhibit);
      if (!this.cards.has(key)) this.cards.set(key, new Card(exhibit, this));
      const card = this.cards.get(key);
      this.grid.append(card.element);
      card.load();
    }
  }

  // How much a format costs: what it adds to the bare text, in all and for each message.
  overhead() {
    const rows = [...this.cards.values()].filter((card) => card.view).map((card) => {
      const { total, scaffold } = card.view.counts, mode = card.panel.tokens.mode;
      return { card, total, scaffold, trained: mode.count, unit: card.view.unit, messages: card.view.groups.length };
    });
    const most = Math.max(1, ...rows.filter((row) => row.unit === "token").map((row) => row.total));
    const mostText = Math.max(1, ...rows.filter((row) => row.unit !== "token").map((row) => row.total));
    const line = (row) => {
      const bar = h("span", { class: "cost", "aria-hidden": "true" }, h("i", { class: "body" }), h("i", { class: "scaffold" }));
      const scale = 100 / (row.unit === "token" ? most : mostText);
      bar.children[0].style.width = `${(row.total - row.scaffold) * scale}%`;
      bar.children[1].style.width = `${row.scaffold * scale}%`;
      return h("tr", {}, h("th", { scope: "row" }, row.card.exhibit.title), h("td", {}, bar),
        h("td", {}, `${number(row.total)}${row.unit === "token" ? "" : " ch"}`), h("td", {}, number(row.scaffold)),
        h("td", {}, percent(row.scaffold, row.total)), h("td", {}, (row.scaffold / Math.max(1, row.messages)).toFixed(1)), h("td", {}, percent(row.trained, row.total)));
    };
    this.table.replaceChildren(rows.length ? h("table", { class: "figures" },
      h("caption", {}, "What each format costs. “ch” counts characters, where no tokenizer is at hand."),
      h("thead", {}, h("tr", {}, ["format", "", "total", "overhead", "share", "per message", "loss share"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(line))) : "");
    if (!this.modes.firstChild && rows.length) this.modes.append(modeBar({ ...rows[0].card.view, modes: this.session.modes.map((mode) => ({ ...mode, count: null })) }, this.state.mode, (name) => this.setMode(name)));
  }

  setMode(name) {
    this.state.mode = name;
    for (const card of this.cards.values()) card.panel?.setMode(name);
    this.tabulate();
  }

  async save() {
    const views = [...this.cards.values()].filter((card) => card.strip);
    saved("zoo.html", await ask("/api/export", { kind: "zoo", title: "template zoo", mode: this.state.mode, strips: views.map((card) => card.strip) }));
  }
}

class Card {
  constructor(exhibit, zoo) {
    Object.assign(this, { exhibit, zoo, current: latest() });
    this.body = h("div", { class: "card-body", "aria-busy": "true" }, h("p", { class: "note" }, exhibit.tokenizer ? `loading ${exhibit.tokenizer} …` : "…"));
    this.element = h("article", { class: "card", "aria-label": exhibit.title, "data-exhibit": exhibitKey(exhibit) },
      h("h3", {}, exhibit.title, h("small", {}, exhibit.tokenizer || "text, no ids")), this.body);
  }

  async load() {
    const mine = this.current();
    try {
      const strip = await ask("/api/render", { ...this.zoo.editor.asked(), choice: { renderer: this.exhibit.renderer, tokenizer: this.exhibit.tokenizer } });
      if (!mine()) return;
      this.strip = { ...strip, title: this.exhibit.title };
      this.view = unpacked(this.strip);
      this.panel?.tokens.drop();
      this.panel = tokenPanel(this.view, this.zoo.state.mode, { inspect: this.zoo.inspect, compact: true, label: this.exhibit.title });
      this.body.replaceChildren(this.panel.element);
    } catch (error) {
      if (!mine()) return;
      this.strip = this.view = this.panel = null;
      this.body.replaceChildren(h("p", { class: "problem" }, error.message));
      if (error.told?.message == null && error.told?.reason) this.zoo.editor.tell(error);
    }
    this.body.setAttribute("aria-busy", "false");
    this.zoo.tabulate();
  }
}
