import { ask, h, latest, saved } from "./dom.js";
import { unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";
import { rendererPicker } from "./picker.js";

// From ids or rendered text back to the conversation, with what cannot be recovered.

export class InversionView {
  constructor({ session, editor, inspect, state, goto }) {
    Object.assign(this, { session, editor, inspect, state, goto, current: latest() });
    this.picker = rendererPicker(session, "Written by", session.first, () => this.given.value && this.refresh(), { raw: false, source: true });
    this.given = h("textarea", { rows: 8, class: "json", spellcheck: "false", "aria-label": "Ids or rendered text", placeholder: "151644, 872, 198, …   or   <|im_start|>user …" });
    this.place = h("div", { class: "content" }, h("p", { class: "note" }, "Paste ids (with commas or spaces), or the text of a rendering. The conversation is read from it, and rendered again as the proof."));
    this.element = h("div", { class: "with-editor inversion" },
      h("form", { class: "side", onsubmit: (event) => { event.preventDefault(); this.refresh(); } }, this.picker.element, h("label", { class: "field" }, h("span", {}, "ids or rendered text"), this.given),
        h("div", { class: "bar" }, h("button", {}, "Read"), h("button", { type: "button", onclick: () => this.example() }, "Ids of the editor's conversation"))),
      this.place);
  }

  enter(place) {
    place.append(this.element);
  }

  async example() {
    const mine = this.current();
    const before = this.given.value;
    try {
      const table = await ask("/api/render", { ...this.editor.asked(), choice: this.picker.value() });
      if (!mine() || this.given.value !== before) return; // something else was asked or typed meanwhile
      this.given.value = (table.ids ?? table.texts).join(table.ids ? ", " : "");
      await this.refresh();
    } catch (error) {
      if (mine()) this.place.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  async refresh() {
    const mine = this.current();
    this.place.setAttribute("aria-busy", "true");
    try {
      const answer = await ask("/api/inversion", { given: this.given.value, choice: this.picker.value() });
      if (mine()) this.show(answer);
    } catch (error) {
      if (mine()) this.place.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    if (mine()) this.place.setAttribute("aria-busy", "false");
  }

  show(answer) {
    const { table, again, drift, conversation } = answer;
    const views = [{ ...unpacked(table), differs: drift?.left }, ...(again ? [{ ...unpacked(again), differs: drift.right }] : [])];
    for (const panel of this.panels ?? []) panel.tokens.drop();
    this.panels = views.map((view, at) => tokenPanel(view, this.state.mode, { inspect: this.inspect, compact: views.length > 1, label: ["the given tokens", "rendered again"][at], heading: views.length > 1 ? ["As given", "Rendered again"][at] : "", picked: (name) => { this.state.mode = name; } }));
    this.place.replaceChildren(
      h("p", { class: `verdict ${answer.state === "differs" ? "differ" : "same"}`, role: "status" }, `${answer.verdict} Given: ${answer.read_as}.`),
      answer.note ? h("p", { class: "note" }, answer.note) : "",
      h("section", { class: "lost", "aria-label": "What cannot be recovered" }, h("h2", {}, "Cannot be recovered"),
        h("p", { class: "note" }, answer.lost.length ? "Each of these was tried: the conversation was changed so, and gave the same ids." : "No change that was tried gave the same ids."), h("ul", {}, answer.lost.map((said) => h("li", {}, said)))),
      h("div", { class: "bar" }, h("h2", {}, "Conversation"),
        h("button", { type: "button", onclick: () => { this.editor.load(structuredClone(conversation)); this.goto("mask"); } }, "Open in the mask view"),
        h("button", { type: "button", class: "action", onclick: async () => saved("recovered.html", await ask("/api/export", { kind: again ? "drift" : "mask", title: "read from ids", mode: this.state.mode, tables: again ? [table, again] : [table], drift: again ? { ...drift, verdict: answer.verdict } : null })) }, "Export as HTML")),
      h("div", { class: "recovered", tabindex: "0", role: "region", "aria-label": "The conversation" }, conversation.messages.map(shownMessage), conversation.tools ? h("details", {}, h("summary", {}, `${conversation.tools.length} declared tools`), h("pre", { class: "json" }, JSON.stringify(conversation.tools, null, 2))) : null),
      h("div", { class: views.length > 1 ? "pair" : "single" }, this.panels.map((panel) => panel.element)));
  }
}

function shownMessage(message, index) {
  const part = (name, text) => (text ? h("div", {}, h("dt", {}, name), h("dd", {}, h("pre", { class: "json" }, text))) : null);
  return h("article", { class: `message role-${message.role}` }, h("h3", {}, h("span", { class: "index" }, String(index)), ` ${message.role}`, message.name ? h("small", {}, message.name) : null),
    h("dl", {}, part("reasoning", message.reasoning_content), part("content", message.content), part("tool calls", message.tool_calls && JSON.stringify(message.tool_calls, null, 2))));
}
