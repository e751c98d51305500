import { h, later, latest } from "./dom.js";
import { SAMPLES } from "./samples.js";

// The conversation of the formats, mask and drift views, edited as fields or as JSON.

const ROLES = ["system", "user", "assistant", "tool"];
const WAIT = 220;

export class Editor {
  constructor(changed) {
    this.chat = structuredClone(Object.values(SAMPLES)[0]);
    this.prompt = false;
    this.asJson = false;
    this.wrong = new Map(); // fields that hold no JSON: nothing is asked while there are any
    this.changed = later(WAIT, () => this.wrong.size || changed());
    this.list = h("div", { class: "messages" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.element = h("section", { class: "editor", "aria-label": "The conversation" }, this.head(), this.problem, this.list);
    this.draw();
  }

  head() {
    const sample = h("select", { "aria-label": "Begin with a sample", onchange: () => this.load(structuredClone(SAMPLES[sample.value])) },
      Object.keys(SAMPLES).map((name) => h("option", {}, name)));
    this.sample = sample;
    const json = h("input", { type: "checkbox", id: "as-json", onchange: () => { this.asJson = json.checked; this.draw(); } });
    const prompt = h("input", { type: "checkbox", id: "prompt", onchange: () => { this.prompt = prompt.checked; this.changed(); } });
    return h("div", { class: "editor-head" }, h("h2", {}, "Conversation"), sample,
      h("div", {}, h("label", { title: "Edit the whole conversation as JSON" }, json, " as JSON"), h("label", { title: "Add what serving writes after the last message" }, prompt, " with generation prompt")));
  }

  load(chat) {
    this.chat = { messages: chat.messages, tools: chat.tools ?? null };
    this.draw();
    this.changed();
  }

  draw() {
    this.wrong.clear();
    this.list.replaceChildren(...(this.asJson ? [this.wholeAsJson()] : [...this.messageFields(), this.more()]));
    this.tell(null);
  }

  wholeAsJson() {
    return this.jsonField("conversation", this.chat, (value) => {
      if (value === null || typeof value !== "object" || !("messages" in value)) throw new Error('expected an object with "messages"');
      this.chat = { messages: value.messages, tools: value.tools ?? null };
    }, 24);
  }

  messageFields() {
    const messages = Array.isArray(this.chat.messages) ? this.chat.messages : [];
    return messages.map((message, at) => this.message(message ?? {}, at));
  }

  message(message, at) {
    const role = h("select", { "aria-label": `role of message ${at}`, value: message.role, onchange: () => { message.role = role.value; this.draw(); this.changed(); } },
      [...new Set([...ROLES, String(message.role)])].map((name) => h("option", {}, name)));
    role.value = message.role;
    const extras = [];
    if (message.role === "assistant") {
      extras.push(this.text(message, "reasoning_content", `reasoning of message ${at}`, "reasoning", 1));
      extras.push(this.jsonField(`tool calls of message ${at}`, message.tool_calls, (value) => { put(message, "tool_calls", value); }, 1, "tool calls"));
    }
    if (message.role === "tool") extras.push(this.text(message, "tool_call_id", `call id of message ${at}`, "call id", 1), this.text(message, "name", `name of message ${at}`, "tool name", 1));
    return h("fieldset", { class: `message role-${message.role}`, "data-message": at },
      h("legend", {}, h("span", { class: "index" }, at), role,
        h("button", { type: "button", class: "quiet", "aria-label": `remove message ${at}`, onclick: () => { this.chat.messages.splice(at, 1); this.draw(); this.changed(); } }, "×")),
      typeof message.content === "string" || message.content == null
        ? this.text(message, "content", `content of message ${at}`, "content", 2)
        : this.jsonField(`content of message ${at}`, message.content, (value) => { message.content = value; }, 3, "content, JSON"),
      extras.length ? h("details", { open: extras.some((field) => field.filled) }, h("summary", {}, message.role === "tool" ? "answers" : "reasoning, tool calls"), extras) : null,
      h("p", { class: "problem", role: "alert", hidden: true }));
  }

  text(message, key, label, shown, rows) {
    const area = h("textarea", { "aria-label": label, rows, spellcheck: "false", dir: "auto", oninput: () => {
      if (area.value || key === "content") message[key] = area.value;
      else delete message[key];
      this.changed();
    } });
    area.value = message[key] ?? "";
    const field = h("label", { class: "field" }, key === "content" ? null : h("span", {}, shown), area);
    field.filled = key !== "name" && Boolean(message[key]);
    return field;
  }

  jsonField(label, value, set, rows, shown = label) {
    const wrong = h("p", { class: "problem", role: "alert", hidden: true });
    const area = h("textarea", { "aria-label": label, rows, spellcheck: "false", class: "json", oninput: () => {
      try {
        set(area.value.trim() ? JSON.parse(area.value) : null);
        this.wrong.delete(label);
        wrong.hidden = true;
      } catch (error) {
        this.wrong.set(label, true);
        wrong.textContent = `Not usable yet: ${error.message}`;
        wrong.hidden = false;
      }
      this.changed();
    } });
    area.value = value == null ? "" : JSON.stringify(value, null, 2);
    const field = h("label", { class: "field" }, h("span", {}, shown), area, wrong);
    field.filled = value != null;
    return field;
  }

  more() {
    const add = () => {
      const last = this.chat.messages.at(-1)?.role;
      this.chat.messages.push({ role: last === "user" ? "assistant" : "user", content: "" });
      this.draw();
      this.list.querySelector("fieldset:last-of-type textarea").focus();
      this.changed();
    };
    return h("div", { class: "more" }, h("button", { type: "button", onclick: add }, "+ message"),
      h("details", { open: Boolean(this.chat.tools) }, h("summary", {}, "tools offered"),
        this.jsonField("tools", this.chat.tools, (value) => { this.chat.tools = value; }, 4, "JSON, as the OpenAI chat format has them")));
  }

  // Show an error beside the message that it names, else on top. `null` clears all errors.
  tell(error) {
    for (const shown of this.element.querySelectorAll("fieldset > .problem")) shown.hidden = true;
    this.problem.hidden = true;
    if (!error) return;
    const own = error.answer?.message == null ? null : this.list.querySelector(`[data-message="${error.answer.message}"] > .problem`);
    const place = own ?? this.problem;
    place.textContent = error.message;
    place.hidden = false;
  }

  asked() {
    return { messages: this.chat.messages, tools: this.chat.tools, prompt: this.prompt };
  }
}

function put(message, key, value) {
  if (value === null) delete message[key];
  else message[key] = value;
}

// A view beside the editor, which is one for all of them: it is taken along from view to view.
export class EditedView {
  constructor({ session, editor, inspect, state }) {
    Object.assign(this, { session, editor, inspect, state, current: latest() });
  }

  lay(...content) {
    this.side = h("div", { class: "side" });
    this.element = h("div", { class: "with-editor" }, this.side, h("div", { class: "content" }, content));
  }

  enter(place) {
    this.side.append(this.editor.element);
    place.append(this.element);
    this.refresh();
  }
}
