import { h } from "./dom.js";

// Which renderer, and with which tokenizer; a family without one is text alone.

export function exhibitKey(choice) {
  return `${choice.renderer}@${choice.tokenizer ?? ""}`;
}

export function exhibitPicker(session, label, chosen, changed, { raw = true, source = false } = {}) {
  const shown = session.exhibits.filter((exhibit) => raw || exhibit.renderer !== "raw");
  const renderer = h("select", { "aria-label": `${label}: format` }, shown.map((exhibit, at) => h("option", { value: at }, exhibit.title)));
  const tokenizer = h("select", { "aria-label": `${label}: tokenizer` },
    h("option", { value: "" }, "no tokenizer: text"), session.tokenizers.map((name) => h("option", { value: name }, name)));
  const own = h("textarea", { "aria-label": `${label}: a chat template of your own`, rows: 6, spellcheck: "false", class: "json", placeholder: "Jinja chat template; empty: the tokenizer's own" });
  const mine = h("details", { hidden: true }, h("summary", {}, "edit the template"), own);
  const found = shown.findIndex((exhibit) => exhibitKey(exhibit) === exhibitKey(chosen));
  renderer.value = Math.max(0, found >= 0 ? found : shown.findIndex((exhibit) => exhibit.renderer === chosen.renderer));
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
