import { Refused, address, ask, choices, h, later, latest, number, oneStop, percent, saved } from "./dom.js";
import { oneLine, unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";
import { rendererPicker } from "./picker.js";
import { histogram } from "./charts.js";
import { TrainingView } from "./training.js";

// A file, cache or episodes dataset: pages of rows, a search that asks again until its page is full, and one row token
// by token.

const LIMIT = 50, POLL = 600, TURNS = 10;

export class DatasetView {
  constructor(context) {
    Object.assign(this, context, { current: latest(), opened: latest() });
    const about = context.session.dataset;
    if (!about) {
      this.element = h("p", { class: "note" }, "No dataset is open. Start with: niels-gpt explore FILE, a cache, or an episodes directory.");
      return;
    }
    this.about = about;
    this.split = about.splits[0];
    this.start = 0;
    this.row = null;
    this.build();
  }

  build() {
    const { about, session } = this, chats = about.kind === "chats";
    const trained = !chats && about.kind !== "pretrain"; // a cache of text has windows, which "Rows" shows
    this.picker = rendererPicker(session, "Format of the rows", session.first, () => { this.stats(); if (this.row !== null) this.open(this.row, {}, this.completion); }, { raw: false });
    this.facts = h("p", { class: "facts", role: "status" });
    this.charts = h("div", { class: "charts" });
    this.steps = h("div", { class: "steps" });
    this.table = h("div");
    this.list = h("div", { class: "rows" });
    this.detail = h("div", { class: "detail" }, h("p", { class: "note" }, "Choose a row."));
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.training = new TrainingView(this);
    const parts = choices("Part of the dataset view", [{ name: "rows", title: "Rows" }, { name: "training", title: "As trained" }], "rows", (name) => this.part(name));
    this.browse = h("div", { class: "browse" }, h("div", { class: "browse-list" }, this.controls(chats), this.problem, this.list), this.detail);
    this.element = h("div", { class: "dataset" },
      h("div", { class: "bar" }, trained ? parts : null, chats ? this.picker.element : null, about.splits.length > 1 ? this.splits() : null, this.facts),
      this.charts, this.browse, this.training.element);
    this.training.element.hidden = true;
  }

  splits() {
    this.splitChoice = choices("Split", this.about.splits.map((name) => ({ name, title: name })), this.split, (name) => {
      this.split = name;
      this.start = 0;
      this.load();
      this.stats();
      this.training.refresh();
    });
    return this.splitChoice;
  }

  // What the address names: the split, if there are several, and the row.
  shown() {
    if (!this.about) return {};
    return { split: this.about.splits.length > 1 && this.row !== null ? this.split : null, finding: this.finding?.value || null, row: this.row };
  }

  // Show what the address names.
  async follow(query) {
    if (!this.about) return;
    const split = query.get("split") ?? this.split, finding = query.get("finding") ?? "";
    // A link from another dataset or report: what it names is not here, and something else must not be shown as it.
    const known = this.session.findings?.findings.length ?? 0;
    const strange = !this.about.splits.includes(split) ? `the split "${split}"; there is ${this.about.splits.join(", ")}` : finding && !(Number(finding) < known) ? `the finding ${finding}; ${known ? `the report has ${known}, counted from 0` : "no report is open"}` : "";
    if (strange) { this.complain("row", new Error(`The address names ${strange}. Is it the address of another dataset?`)); return; }
    // Another row of the list that is shown, such as the one before: the list and its filters stay.
    const same = split === this.split && finding === (this.finding?.value ?? "");
    if (split !== this.split) { this.splitChoice.querySelector(`[data-name="${CSS.escape(split)}"]`).click(); this.row = null; }
    if (this.finding && this.finding.value !== finding) { this.finding.value = finding; this.start = 0; this.load(); }
    if (!query.has("row")) { this.leaveRow(); return; }
    const row = Number(query.get("row")), evidence = this.next ?? {};
    this.next = null;
    if (row !== this.row || Object.keys(evidence).length) await (this.finding?.value || same && this.line(row) ? this.open(row, evidence) : this.goTo(row, evidence));
  }

  line(row) {
    return this.list.querySelector(`tr[data-row="${row}"]`);
  }

  leaveRow() {
    if (this.row === null) return;
    this.opened(); // an answer that is still on its way is not shown
    this.detail.setAttribute("aria-busy", "false");
    this.line(this.row)?.removeAttribute("aria-current");
    this.row = null;
    this.panel?.tokens.drop();
    this.detail.replaceChildren(h("p", { class: "note" }, "Choose a row."));
    this.forget();
  }

  part(name) {
    this.browse.hidden = name !== "rows";
    this.training.element.hidden = name === "rows";
    if (name === "training") this.training.refresh();
  }

  controls(chats) {
    const again = later(250, () => { this.start = 0; this.load(); });
    this.text = h("input", { type: "search", placeholder: chats ? "text in a message" : "text in a row", "aria-label": "Search", oninput: again });
    this.unusable = chats ? h("input", { type: "checkbox", onchange: again }) : null;
    const findings = this.session.findings?.findings ?? [];
    this.finding = findings.length ? h("select", { class: "of-finding", "aria-label": "Rows of a finding", onchange: () => { history.replaceState(null, "", address("dataset", this.shown())); again(); } }, h("option", { value: "" }, "any finding"), findings.map((finding, at) => h("option", { value: at }, `${finding.title} (${number(finding.count)})`))) : null;
    this.min = h("input", { type: "number", min: 0, placeholder: "from", "aria-label": `At least so many ${this.about.unit}`, oninput: again });
    this.max = h("input", { type: "number", min: 0, placeholder: "to", "aria-label": `At most so many ${this.about.unit}`, oninput: again });
    this.go = h("input", { type: "number", min: 0, placeholder: "row", "aria-label": "Go to row" });
    this.jump = h("form", { class: "go", onsubmit: (event) => { event.preventDefault(); if (this.go.value !== "") this.goTo(Number(this.go.value)); } }, this.go, h("button", {}, "Go"));
    // The form stays where it is when a list arrives: a click on a button that is taken out of the page is lost.
    this.list.append(h("div", { class: "pager" }, this.steps, this.jump), this.table);
    return h("div", { class: "bar controls" }, this.text, chats ? h("label", {}, this.unusable, " cannot be used") : null, this.finding, h("span", { class: "range" }, this.min, "–", this.max, this.about.unit));
  }

  enter(place) {
    place.append(this.element);
    if (!this.about || this.entered) return;
    this.entered = true;
    this.load();
    this.stats();
  }

  filter() {
    const size = (field) => (field.value === "" ? null : Number(field.value));
    const wanted = { text: this.text.value, unusable: this.unusable?.checked ?? false, min_size: size(this.min), max_size: size(this.max) };
    return { wanted, finding: this.finding?.value ? Number(this.finding.value) : null };
  }

  filtered() {
    const { wanted, finding } = this.filter();
    return finding !== null || Object.values(wanted).some((value) => value !== null && value !== "" && value !== false);
  }

  async load() {
    const mine = this.current();
    this.list.setAttribute("aria-busy", "true");
    const found = [];
    let next = this.start;
    try {
      while (next !== null && found.length < LIMIT) {
        const answer = await ask("/api/rows", { split: this.split, start: next, limit: LIMIT - found.length, ...this.filter() });
        if (!mine()) return;
        found.push(...answer.page.rows);
        const ended = answer.page.next === next; // so far: the file is still read
        next = answer.page.next;
        this.tellAbout(answer.about);
        this.show(found, next, answer.page.scanned);
        if (ended) await new Promise((wake) => setTimeout(wake, POLL));
      }
      this.settled("list");
    } catch (error) {
      if (!mine()) return;
      this.complain("list", error);
    }
    this.list.setAttribute("aria-busy", "false");
    if (this.about.share < 1) setTimeout(() => mine() && this.load(), POLL);
  }

  complain(part, error) {
    this.complaining = part;
    this.problem.textContent = error.message;
    this.problem.hidden = false;
  }

  // A list that arrives late must not hide an error about a row that was requested in the meantime.
  settled(part) {
    if (this.complaining === part) this.problem.hidden = true;
  }

  tellAbout(about) {
    this.about = about;
    const facts = Object.entries(about.facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : value}`);
    const far = about.share < 1 ? ` so far, ${percent(about.share, 1)} looked through` : "";
    this.facts.textContent = [`${number(about.rows)} rows${far}`, about.kind, ...facts].join(" · ");
    if (about.problem) this.facts.textContent += ` · ${about.problem}`;
  }

  show(found, next, scanned) {
    const chats = this.about.kind === "chats";
    const columns = chats ? ["row", "turns", "characters", "begins"] : ["row", "tokens", "trained", "begins"];
    const line = (row) => h("tr", { "aria-current": row.row === this.row ? "true" : null, "data-row": row.row },
      h("td", {}, h("button", { type: "button", class: "row", onclick: () => this.open(row.row), "aria-label": `row ${row.row}` }, number(row.row))),
      chats ? h("td", {}, row.problem ? "–" : h("span", { class: "turns", title: row.roles.join(", ") }, row.roles.slice(0, row.roles.length > TURNS ? TURNS - 2 : TURNS).map((role) => h("i", { class: `role-${role}` }, role[0])), row.roles.length > TURNS ? ` +${number(row.roles.length - TURNS + 2)}` : null)) : h("td", {}, number(row.size)),
      h("td", {}, chats ? number(row.size) : percent(row.trained, row.size)),
      h("td", { class: row.problem ? "preview problem" : "preview", title: row.where }, row.problem || oneLine(row.preview).replaceAll("·", " ")));
    const table = h("table", { class: "figures rows-table" }, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, found.map(line)));
    oneStop(table, "button.row");
    const stop = table.querySelector("tr[aria-current] button.row") ?? table.querySelector("button.row");
    for (const button of table.querySelectorAll("button.row")) button.tabIndex = button === stop ? 0 : -1;
    table.addEventListener("click", (event) => { if (!event.target.closest("button")) event.target.closest("tr[data-row]")?.querySelector("button").click(); });
    const done = next === null;
    const status = this.filtered()
      ? `${number(found.length)} found${done ? "" : ` in rows ${number(this.start)} to ${number(scanned)}`} of ${number(this.about.rows)}`
      : `rows ${number(this.start)} to ${number(Math.max(this.start, this.start + found.length - 1))} of ${number(this.about.rows)}`;
    this.steps.replaceChildren(
      h("button", { type: "button", disabled: this.start === 0, onclick: () => { this.start = this.filtered() ? 0 : Math.max(0, this.start - LIMIT); this.load(); } }, this.filtered() ? "First" : "Earlier"),
      h("span", { role: "status" }, status),
      h("button", { type: "button", disabled: done, onclick: () => { this.start = next; this.load(); } }, "Later"));
    this.table.replaceChildren(table);
  }

  async goTo(row, evidence = {}) {
    if (!await this.open(row, evidence)) return;
    this.start = Math.max(0, Math.floor(row / LIMIT) * LIMIT);
    if (this.filtered()) { this.text.value = this.min.value = this.max.value = ""; if (this.unusable) this.unusable.checked = false; if (this.finding) this.finding.value = ""; }
    await this.load();
  }

  async open(row, evidence = {}, completion = 0) {
    const mine = this.opened();
    this.detail.setAttribute("aria-busy", "true");
    if (this.row === null) this.detail.replaceChildren(h("p", { class: "note", role: "status" }, `Loading row ${number(row)}, and its tokenizer if it is not loaded yet …`));
    try {
      const answer = await ask("/api/row", { row, split: this.split, choice: this.picker.value(), completion });
      if (!mine()) return false;
      [this.row, this.completion] = [row, completion];
      this.settled("row");
      this.forget();
      if (location.hash.startsWith("#dataset") || !location.hash) {
        const place = address("dataset", this.shown());
        if (location.hash !== place) history.pushState(null, "", place);
      }
      for (const line of this.list.querySelectorAll("tr[data-row]")) line.toggleAttribute("aria-current", Number(line.dataset.row) === row);
      this.showRow(answer, evidence);
    } catch (error) {
      if (!mine()) return false;
      this.complain("row", error);
      if (this.row === null) this.detail.replaceChildren(h("p", { class: "note" }, "Choose a row."));
    }
    this.detail.setAttribute("aria-busy", "false");
    return this.problem.hidden || this.complaining !== "row";
  }

  showRow(answer, evidence) {
    const edit = answer.conversation ? h("button", { type: "button", onclick: () => { this.editor.load(structuredClone(answer.conversation)); this.goto("mask"); } }, "Open in the mask view") : null;
    const save = answer.table ? h("button", { type: "button", class: "action", onclick: async () => saved(`row-${answer.row}.html`, await ask("/api/export", { kind: "row", title: [`row ${answer.row}`, answer.where.split("/").at(-1), answer.table.renderer, answer.table.tokenizer].filter(Boolean).join(" · "), mode: this.state.mode, tables: [answer.table] })) }, "Export as HTML") : null;
    const head = h("div", { class: "bar" }, h("h2", {}, `Row ${number(answer.row)}`, h("small", { title: answer.where }, answer.where.split("/").at(-1))), edit, save);
    const parts = [head];
    if (evidence.note) parts.push(h("p", { class: "verdict differ" }, evidence.note));
    const named = this.findingsOf(answer.row);
    if (named.length) parts.push(h("p", { class: "note" }, "The doctor names this row: ", named.flatMap((link, at) => (at ? [", ", link] : [link]))));
    if (answer.completions?.length) parts.push(this.completions(answer));
    const shown = images(answer);
    if (shown.length) parts.push(h("div", { class: "images" }, shown));
    if (answer.problem) parts.push(h("p", { class: "problem" }, answer.problem));
    if (answer.table) {
      const view = unpacked(answer.table);
      const at = placeOf(view, evidence);
      if (at >= 0) view.marked.add(at);
      this.panel?.tokens.drop();
      this.panel = tokenPanel(view, this.state.mode, { inspect: this.inspect, label: `row ${answer.row}, token by token`, picked: (name) => { this.state.mode = name; } });
      parts.push(this.panel.element);
      this.detail.replaceChildren(...parts);
      if (at >= 0) this.panel.tokens.moveTo(at, true, "center");
    } else this.detail.replaceChildren(...parts, answer.conversation ? h("pre", { class: "json" }, JSON.stringify(answer.conversation, shortened, 2)) : answer.source ? h("pre", { class: "json" }, answer.source) : "");
    // Where the row is above the list, not beside it, its beginning is shown.
    if (matchMedia("(max-width: 900px)").matches && !(evidence.token ?? evidence.message)) this.detail.scrollIntoView({ block: "start" });
  }

  // All completions of a row of preferences; the tokens below are those of the pressed one.
  completions(answer) {
    return h("div", { class: "completions", role: "group", "aria-label": "Completions" }, answer.completions.map((one, at) =>
      h("button", { type: "button", class: "completion", "aria-pressed": String(at === answer.completion), onclick: () => this.open(answer.row, {}, at) },
        h("b", {}, one.name), h("small", {}, one.facts),
        h("span", { class: "text" }, one.text, one.size > one.text.length ? `… (${number(one.size)} characters)` : ""))));
  }

  findingsOf(row) {
    const findings = this.session.findings?.findings ?? [];
    return findings.flatMap((finding, at) => (finding.evidence.some((place) => place.row === row && (!place.split || place.split === this.split)) ? [h("a", { href: address("dataset", { ...this.shown(), finding: at, row }) }, finding.title)] : []));
  }

  async stats() {
    const own = this.sampled = {};
    while (this.about.share < 1) await new Promise((wake) => setTimeout(wake, POLL)); // the rows are still being found
    if (own !== this.sampled) return;
    this.charts.replaceChildren(h("p", { class: "note progress", role: "status" }, "Reading a sample of rows …"));
    try {
      const answer = await ask("/api/stats", { split: this.split, choice: this.picker.value() });
      if (own === this.sampled) this.showStats(answer);
    } catch (error) {
      if (own === this.sampled) this.charts.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  showStats(answer) {
    const share = (value) => `${Math.round(value * 100)} %`;
    const from = answer.rows === answer.total ? `all ${number(answer.rows)} rows` : `a sample of ${number(answer.rows)} rows of ${number(answer.total)}`;
    const status = `From ${from}.${answer.outside ? ` ${number(answer.outside)} of them cannot be rendered.` : ""}`, none = "no row can be rendered";
    this.charts.replaceChildren(histogram(`Length, ${answer.unit}`, answer.lengths, number, none), histogram("Loss share", answer.shares, share, none), h("p", { class: "note progress", role: "status" }, status));
  }
}

// The place of a piece of evidence: a token, or the first token of a message.
function placeOf(view, evidence) {
  if (evidence.token != null && evidence.token >= 0 && evidence.token < view.n) return evidence.token;
  if (evidence.message != null) return view.group.indexOf(evidence.message);
  return -1;
}

// The images of a conversation, in order; the server reads them from beside the file.
function images({ row, conversation, completion }) {
  const kinds = ["image", "image_url", "input_image"];
  return (conversation?.messages ?? []).flatMap((message, at) => (Array.isArray(message.content) ? message.content : []).flatMap((part, number) =>
    kinds.includes(part?.type) || part?.image || part?.image_url
      ? [h("figure", {}, image(`/api/image?${new URLSearchParams({ row, message: at, part: number, completion })}`, `image ${number} of message ${at}`), h("figcaption", { class: "note" }, `message ${at}`))] : []));
}

// An image, or the reason why it is not shown.
function image(src, alt) {
  const shown = h("img", { src, alt, loading: "lazy", onerror: async () => {
    let reason = "the browser cannot show it";
    try {
      await ask(src);
    } catch (error) {
      if (error instanceof Refused) reason = error.message;
    }
    shown.replaceWith(h("p", { class: "problem" }, `${alt}: ${reason}`));
  } });
  return shown;
}

// Strings of a conversation as JSON: an image in the row itself would fill the page.
function shortened(_, value) {
  const most = typeof value === "string" && value.startsWith("data:") ? 60 : 20_000;
  return typeof value === "string" && value.length > most ? `${value.slice(0, most)}… (${number(value.length)} characters)` : value;
}
