import { ask, h, number } from "./dom.js";
import { visible } from "./token_table.js";

// What a running server makes of the same conversations, as `niels-gpt doctor serving` reports it.

export class Serving {
  constructor({ session }) {
    this.address = session.serving;
    this.element = h("section", { class: "serving", hidden: !this.address, "aria-label": "The running server" });
  }

  async enter() {
    if (!this.address || this.asked) return;
    this.asked = true;
    this.element.append(h("p", { class: "note", role: "status" }, `Asking ${this.address} …`));
    try {
      this.show(await ask("/api/serving", {}));
    } catch (error) {
      this.element.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  show(report) {
    const count = (status) => report.results.filter((one) => one.status === status).length;
    const counts = ["equal", "differs", "refused", "not compared"].filter(count).map((status) => `${number(count(status))} ${status}`);
    const stops = Object.entries(report.stops).filter(([, ends]) => ends === false).map(([stop]) => stop);
    const missing = stops.length ? ` It does not end an answer at ${stops.join(", ")}.` : "";
    const others = report.results.filter((one) => one.status !== "equal");
    const table = h("table", { class: "figures" },
      h("thead", {}, h("tr", {}, ["prompt", "result", "trained", "served"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, others.map((one) => this.line(one, report.causes))));
    this.element.replaceChildren(
      h("p", { class: `verdict ${report.passed ? "same" : "differ"}`, role: "status" },
        `${report.server} at ${report.url} serves ${report.model}: of the prompts ${counts.join(", ")}, compared by ${report.by}.${missing}`),
      others.length ? h("div", { class: "overview", tabindex: "0", role: "region", "aria-label": "Prompts that are not equal" }, table) : "");
  }

  line(one, causes) {
    const found = one.difference;
    const why = found ? [h("b", {}, found.cause), h("p", { class: "note" }, causes[found.cause] ?? "")] : one.detail || "another number of tokens";
    const text = (shown, tokens) => h("td", {}, found ? h("code", {}, visible(shown)) : tokens ? `${number(tokens)} tokens` : "–");
    return h("tr", {}, h("td", {}, one.name), h("td", {}, one.status === "differs" ? why : [h("b", {}, one.status), " ", one.detail].filter(Boolean)),
      text(found?.trained, one.trained), text(found?.served, one.served));
  }
}
