import { h } from "./dom.js";
import { BODY, CONTROL, HALF, PADDING, SAMPLED, oneLine, roleOf, trainedIn, visible } from "./token_table.js";

// The tokens of a table as running text. Only tokens near the visible part are in the page: a chunk of some hundred
// tokens is empty until it comes near, and retains its height when it is emptied. Arrow keys move a cursor over all tokens.

export const HINT = "Hover a token, or focus the tokens and use the arrow keys (↑ ↓: messages, n p: trained runs).";

const CHUNK = 240, MOST_IN_CHUNK = 640, ALL_AT_ONCE = 1500, PAGE = 200;
let made = 0;

export class TokenView {
  constructor(view, mode, { inspect = () => {}, label = "Tokens" } = {}) {
    this.view = view;
    this.inspect = inspect;
    this.id = `tokens${++made}`;
    this.cursor = -1;
    this.hovered = -1;
    this.chunks = cutIntoChunks(view);
    this.element = h("div", {
      class: "tokens", tabindex: "0", role: "listbox", "aria-label": label,
      onkeydown: (event) => this.pressed(event),
      onmouseover: (event) => this.over(event),
      onmouseleave: () => this.over(null),
      onclick: (event) => this.clicked(event),
      onfocus: () => this.cursor < 0 && view.n && this.moveTo(this.firstShown(), false),
    });
    this.build();
    this.setMode(mode);
    // The column of labels is as wide as the longest of them.
    const longest = Math.max(...this.chunks.map((chunk) => (chunk.role === "episode" ? chunk.label : `${chunk.label} ${chunk.role === "none" ? chunk.name : chunk.role}`).length), 0);
    this.element.style.setProperty("--labels", `${Math.min(longest, 24)}ch`);
  }

  build() {
    const lazy = this.view.n > ALL_AT_ONCE;
    this.watcher = lazy ? new IntersectionObserver((seen) => this.seen(seen), { rootMargin: "900px 0px" }) : null;
    for (const chunk of this.chunks) {
      chunk.body = h("div", { class: "chunk-tokens" });
      chunk.element = h("div", { class: `chunk role-${chunk.role}${chunk.odd ? " odd" : ""}`, "data-chunk": chunk.number, role: "group", "aria-label": chunk.name },
        h("div", { class: "who", "aria-hidden": "true", title: chunk.name }, chunk.first ? whoIs(chunk) : ""), chunk.body);
      if (chunk.first) chunk.element.classList.add("first");
      if (lazy) chunk.body.style.minHeight = `${chunk.lines * 1.62}em`;
      this.element.append(chunk.element);
    }
    if (lazy) this.chunks.forEach((chunk) => this.watcher.observe(chunk.element));
  }

  setMode(name) {
    const { mode, flags } = trainedIn(this.view, name);
    this.mode = mode;
    this.trained = flags;
    for (const chunk of this.chunks) {
      if (chunk.full || !this.watcher) this.fill(chunk);
    }
    if (this.cursor >= 0) this.show(this.cursor);
  }

  seen(entries) {
    for (const entry of entries) {
      const chunk = this.chunks[Number(entry.target.dataset.chunk)];
      if (entry.isIntersecting && !chunk.full) this.fill(chunk);
      else if (!entry.isIntersecting && chunk.full) {
        chunk.body.style.minHeight = `${chunk.body.offsetHeight}px`;
        chunk.body.replaceChildren();
        chunk.full = false;
      }
    }
  }

  fill(chunk) {
    const spans = [];
    for (let at = chunk.start; at < chunk.stop; at++) spans.push(this.span(at, at + 1 === chunk.stop));
    chunk.body.replaceChildren(...spans);
    chunk.body.style.minHeight = "";
    chunk.full = true;
  }

  span(at, last) {
    const { view } = this, facts = view.facts[at];
    const kinds = ["t"];
    if (facts & PADDING) kinds.push("padding");
    else if (facts & BODY) kinds.push("body");
    else kinds.push("scaffold");
    if (facts & CONTROL) kinds.push("control");
    if (facts & HALF) kinds.push("half");
    if (this.trained[at]) kinds.push("trained");
    else if (facts & SAMPLED) kinds.push("sampled");
    if (view.marked.has(at)) kinds.push("marked");
    if (view.differs && differsAt(view.differs, at)) kinds.push("differs");
    if (at === this.cursor) kinds.push("cursor");
    const span = document.createElement("span");
    span.className = kinds.join(" ");
    span.id = `${this.id}-${at}`;
    span.dataset.at = at;
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", String(at === this.cursor));
    const shown = visible(view.texts[at]) || "∅";
    span.textContent = last && shown.endsWith("\n") ? shown.slice(0, -1) : shown; // the block ends the line
    return span;
  }

  at(index) {
    return document.getElementById(`${this.id}-${index}`);
  }

  over(event) {
    const found = event?.target.closest?.(".t");
    const at = found ? Number(found.dataset.at) : -1;
    if (at === this.hovered) return;
    this.hovered = at;
    this.show(at >= 0 ? at : this.cursor);
  }

  clicked(event) {
    const found = event.target.closest(".t");
    if (found) this.moveTo(Number(found.dataset.at), false);
  }

  show(at) {
    this.element.querySelector(".target")?.classList.remove("target");
    if (at < 0) return;
    this.at(at + 1)?.classList.add("target");
    this.inspect(this, at);
  }

  moveTo(at, scroll = true, where = "nearest") {
    if (!this.view.n) return;
    const to = Math.max(0, Math.min(this.view.n - 1, at));
    const before = this.at(this.cursor);
    before?.classList.remove("cursor");
    before?.setAttribute("aria-selected", "false");
    this.cursor = to;
    const chunk = this.chunks[this.chunkOf(to)];
    if (!chunk.full) this.fill(chunk);
    const now = this.at(to);
    now.classList.add("cursor");
    now.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", now.id);
    if (scroll) now.scrollIntoView({ block: where });
    this.show(to);
  }

  chunkOf(at) {
    let low = 0, high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.chunks[middle].stop <= at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  firstShown() {
    const shown = this.chunks.find((chunk) => chunk.full && chunk.element.getBoundingClientRect().bottom > 0);
    return shown ? shown.start : 0;
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.cursor;
    const to = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => this.next((i) => this.view.group[i] !== this.view.group[i - 1], 1),
      ArrowUp: () => this.next((i) => this.view.group[i] !== this.view.group[i - 1], -1),
      PageDown: () => at + PAGE,
      PageUp: () => at - PAGE,
      Home: () => 0,
      End: () => this.view.n - 1,
      n: () => this.next((i) => this.trained[i] && !this.trained[i - 1], 1),
      p: () => this.next((i) => this.trained[i] && !this.trained[i - 1], -1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.moveTo(to());
  }

  next(wanted, step) {
    for (let at = this.cursor + step; at >= 0 && at < this.view.n; at += step) if (wanted(at)) return at;
    return this.cursor;
  }

  drop() {
    this.watcher?.disconnect();
    this.element.remove();
  }
}

// Binary search: spans are in order, so only the last one that begins at or before a token may contain it.
function differsAt(spans, at) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at < spans[low - 1][1];
}

function whoIs(chunk) {
  const label = h("span", { class: "index" }, chunk.label);
  return chunk.role === "episode" ? [label] : [label, h("span", { class: "role" }, chunk.role === "none" ? chunk.name : chunk.role)];
}

function unowned(view, at) {
  if (view.facts[at] & PADDING) return "padding";
  // Ids of a file have no owners: they are not all of the format.
  return view.facts_known ? "format" : "row";
}

// A chunk never spans two messages, and prefers to end where a line does.
function cutIntoChunks(view) {
  const chunks = [];
  let start = 0, turn = 0;
  for (let at = 0; at < view.n; at++) {
    const last = at + 1 === view.n;
    const leaves = last || view.group[at + 1] !== view.group[at];
    const size = at + 1 - start;
    if (!leaves && size < MOST_IN_CHUNK && !(size >= CHUNK && view.texts[at].includes("\n"))) continue;
    const first = start === 0 || view.group[start - 1] !== view.group[start];
    if (first && start) turn += 1;
    const role = roleOf(view, start), owner = view.groups[view.group[start]];
    let characters = 0, breaks = 0;
    for (let i = start; i <= at; i++) {
      characters += view.texts[i].length;
      breaks += view.texts[i].split("\n").length - 1;
    }
    chunks.push({
      number: chunks.length, start, stop: at + 1, role, first, odd: turn % 2 === 1,
      label: owner ? owner.label : "", name: owner ? `${owner.role} ${owner.label}` : unowned(view, start),
      lines: Math.max(1, Math.ceil(characters / 88) + breaks), full: false,
    });
    start = at + 1;
  }
  return chunks;
}

export function describe(tokens, at) {
  const { view, trained } = tokens;
  const facts = view.facts[at], owner = view.groups[view.group[at]];
  const pairs = [];
  const unit = view.unit === "token" ? "token" : "piece";
  pairs.push([unit, `${at.toLocaleString("en-US")} of ${view.n.toLocaleString("en-US")}`]);
  if (view.ids) pairs.push(["id", String(view.ids[at])]);
  pairs.push(["bytes", shortened(bytesShown(view, at), 48)]);
  pairs.push([owner?.role === "episode" ? "episode" : "message", owner ? (owner.role === "episode" ? owner.label : `${owner.label} ${owner.role}`) : "none"]);
  if (facts & PADDING) pairs.push(["is", "padding"]);
  else if (view.facts_known) pairs.push(["is", `${facts & BODY ? "content" : "scaffold"}${facts & CONTROL ? ", control token" : ""}${facts & SAMPLED ? ", sampled" : ""}`]);
  else if (facts & CONTROL) pairs.push(["is", "control token"]);
  const weight = owner && owner.weight !== 1 ? `, weight ${owner.weight}` : "";
  pairs.push(["in the loss", trained[at] ? `● trained${weight}` : "○ not trained"]);
  if (at + 1 < view.n) {
    const id = view.ids ? ` ${view.ids[at + 1]}` : "";
    pairs.push(["predicts", `${shortened(oneLine(view.texts[at + 1]), 24)}${id}, ${trained[at + 1] ? "● in the loss" : "○ not in the loss"}`]);
  } else pairs.push(["predicts", "nothing"]);
  return { text: shortened(oneLine(view.texts[at]), 40), role: roleOf(view, at), pairs };
}

function bytesShown(view, at) {
  const text = view.texts[at];
  const bytes = (part) => [...new TextEncoder().encode(part.slice(0, 64))].map((byte) => byte.toString(16).padStart(2, "0"));
  // A token that is not whole characters has its other bytes as \xe4: every second part is the digits of one.
  const parts = view.facts[at] & HALF ? text.split(/\\x([0-9a-f]{2})/) : [text];
  return parts.flatMap((part, number) => (number % 2 ? part : bytes(part))).join(" ");
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

export function inspectInto(bar) {
  return (tokens, at) => {
    const facts = describe(tokens, at);
    bar.replaceChildren(
      h("code", { class: `what role-${facts.role}` }, facts.text),
      h("dl", {}, facts.pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    );
  };
}
