import { h } from "./dom.js";

// The keys of the page, in a dialog that "?" opens.

const KEYS = [
  ["?", "this help"],
  ["Tab", "from one part of the page to the next"],
  ["← →", "in tabs and choices: the one before and after; in tokens: the token before and after"],
  ["↑ ↓", "in tokens: the line above and below; in the list of rows: the row above and below"],
  ["Page up, Page down", "in tokens: 200 tokens back and on"],
  ["Home, End", "in tokens: the first and the last"],
  ["n p", "in tokens: the next and the previous run of trained tokens"],
  ["m M", "in tokens: the next and the previous message"],
  ["Alt ←", "back to the view or row before"],
  ["Esc", "close this help"],
];

export function helpDialog(button) {
  const dialog = h("dialog", { class: "help", "aria-label": "Keyboard help" }, h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([keys, meaning]) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, meaning)))),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  button.addEventListener("click", () => dialog.showModal());
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select");
    if (event.key !== "?" || typing || dialog.open) return;
    event.preventDefault();
    dialog.showModal();
  });
}
