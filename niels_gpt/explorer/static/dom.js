// Elements, requests and numbers. All text enters the page through `h`, as text nodes and never as HTML.

export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export class Refused extends Error {
  constructor(answer) {
    super(answer.error);
    this.answer = answer;
  }
}

export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused({ error: "The server does not answer. Is the command still running?", kind: "Gone" });
  }
  if (!answer.ok) throw new Refused(await answer.json());
  return answer.headers.get("content-type").startsWith("text/html") ? answer.text() : answer.json();
}

// The address of a view and of what it shows: `#dataset?split=train&row=7`.
export function address(view, shown = {}) {
  const named = new URLSearchParams(Object.entries(shown).filter(([, value]) => value !== null && value !== undefined));
  return `#${view}${named.size ? `?${named}` : ""}`;
}

export const number = (value) => Math.round(value).toLocaleString("en-US");
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

// Only the response to the latest request is used: responses may arrive out of order.
export function latest() {
  let asked = 0;
  return () => {
    const own = ++asked;
    return () => own === asked;
  };
}

export function later(wait, action) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
}

// A row of buttons of which one is chosen; arrow keys move the choice, as in a radio group.
export function choices(label, options, chosen, pick, role = "radio") {
  const group = h("div", { role: role === "tab" ? "tablist" : "radiogroup", "aria-label": label, class: "choices" });
  const checked = role === "tab" ? "aria-selected" : "aria-checked";
  const buttons = options.map((option) => h("button", {
    type: "button", role, title: option.hint, "data-name": option.name,
    onclick: () => set(option.name, true),
  }, option.title, option.extra ? h("small", {}, option.extra) : null));
  function set(name, tell) {
    options.forEach((option, at) => {
      buttons[at].setAttribute(checked, String(option.name === name));
      buttons[at].tabIndex = option.name === name ? 0 : -1;
    });
    if (tell) pick(name);
  }
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = (at + step + buttons.length) % buttons.length;
    set(options[next].name, true);
    group.querySelector(`[data-name="${CSS.escape(options[next].name)}"]`)?.focus();
  });
  group.append(...buttons);
  set(chosen, false);
  group.choose = (name) => set(name, false);
  return group;
}

// One stop of the Tab key for a list of many buttons; the arrow keys move between them.
export function oneStop(place, selector) {
  const buttons = () => [...place.querySelectorAll(selector)];
  place.addEventListener("focusin", ({ target }) => {
    if (target.matches(selector)) for (const button of buttons()) button.tabIndex = button === target ? 0 : -1;
  });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = buttons(), at = all.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, at + step))].focus();
  });
}

export function saved(name, text) {
  const place = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  const link = h("a", { href: place, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(place), 10000);
}
