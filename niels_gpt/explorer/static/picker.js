import { h } from "./dom.js";

// Choose a renderer and its tokenizer. A family without a tokenizer is shown as text.

export function rendererKey(choice) {
  return `${choice.renderer}@${choice.tokenizer ?? ""}`;
}

export function rendererPicker(session, label, chosen, changed, { raw = true, source = false } = {}) {
  const shown = session.renderers.filter((entry) => raw || entry.renderer !== "raw");
  const renderer = h("select", { "aria-label": `${label}: format` }, shown.map((entry, at) => h("option", { value: at }, entry.title)));
  const tokenizer = h("select", { "aria-label": `${label}: tokenizer` },
    h("option", { value: "" }, "no tokenizer: text"), session.tokenizers.map((name) => h("option", { value: name }, name)));
  const own = h("textarea", { "aria-label": `${label}: a chat template of your own`, rows: 6, spellcheck: "false", class: "json", placeholder: "Jinja chat template; empty: the tokenizer's own" });
  const mine = h("details", { hidden: true }, h("summary", {}, "edit the template"), own);
  const found = shown.findIndex((entry) => rendererKey(entry) === rendererKey(chosen));
  renderer.value = Math.max(0, found >= 0 ? found : shown.findIndex((entry) => entry.renderer === chosen.renderer));
  tokenizer.value = chosen.tokenizer ?? "";
  const value = () => {
    const { renderer: name } = shown[renderer.value];
    const choice = { renderer: name, tokenizer: tokenizer.value };
    return name === "template" && own.value.trim() ? { ...choice, source: own.value } : choice;
  };
  const show = () => { mine.hidden = !(source && shown[renderer.value].renderer === "template"); };
  renderer.addEventListener("change", () => { tokenizer.value = shown[renderer.value].tokenizer; show(); changed(); });
  tokenizer.addEventListener("change", changed);
  own.addEventListener("change", changed);
  show();
  return { element: h("div", { class: "picker", role: "group", "aria-label": label }, renderer, session.tokenizers.length ? tokenizer : null, mine), value };
}
