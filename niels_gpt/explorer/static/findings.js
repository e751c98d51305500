import { address, h, number } from "./dom.js";
import { visible } from "./token_table.js";

// The findings of the doctor: all of them with their counts and their first examples. A row opens in the dataset view.

export class FindingsView {
  constructor({ session, open }) {
    const report = session.findings;
    this.rows = session.dataset !== null;
    this.splits = session.dataset?.splits ?? [];
    this.element = h("div", { class: "findings" }, report ? this.report(report, open) : h("p", { class: "note" }, "No report is open. Write one with niels-gpt doctor chats.jsonl --json --out report.json, and start the explorer with --findings report.json."));
  }

  report(report, open) {
    const head = h("p", { class: "lead" }, report.findings.length
      ? `${number(report.findings.length)} ${report.findings.length === 1 ? "finding" : "findings"} in ${number(report.rows)} rows.`
      : `Nothing found in ${number(report.rows)} rows.`);
    return [head, this.notJudged(report), report.findings.length > 1 ? this.overview(report.findings) : null, ...report.findings.map((finding, at) => this.finding(finding, at, open))];
  }

  // Without them, nothing found does not mean nothing wrong.
  notJudged(report) {
    const rules = Object.keys(report.skipped);
    if (!rules.length) return null;
    const reasons = [...new Set(Object.values(report.skipped))].join("; ");
    return h("details", { class: "not-judged" }, h("summary", {}, `Not judged: ${number(rules.length)} of ${number(rules.length + report.judged)} rules: ${reasons}`), h("p", { class: "note" }, rules.join(", ")));
  }

  overview(findings) {
    const line = (finding, at) => h("tr", {}, h("td", {}, h("span", { class: `severity severity-${levelOf(finding)}` }, finding.severity)),
      h("td", {}, h("button", { type: "button", class: "row", onclick: () => this.element.querySelector(`#finding-${at}`).scrollIntoView({ block: "start" }) }, finding.title)),
      h("td", {}, number(finding.count)), h("td", {}, finding.rows ? number(finding.rows) : "–"), h("td", {}, this.filter(finding, at)));
    return h("div", { class: "overview", tabindex: "0", role: "region", "aria-label": "All findings" }, h("table", { class: "figures" },
      h("thead", {}, h("tr", {}, ["severity", "finding", "places", "rows", "rows named"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, findings.map(line))));
  }

  // The report names the first few places of a finding, so the filter shows their rows.
  filter(finding, at) {
    const named = new Set(finding.evidence.map((place) => place.row).filter((row) => row >= 0)).size;
    return this.rows && named ? h("a", { href: address("dataset", { split: this.splitOf(finding), finding: at }) }, `show ${named === 1 ? "its row" : `${number(named)} rows`}`) : null;
  }

  finding(finding, at, open) {
    const fact = (name, value) => (value ? h("div", {}, h("dt", {}, name), h("dd", {}, value)) : null);
    const example = finding.evidence.find((place) => place.window.length);
    return h("article", { class: `finding severity-${levelOf(finding)}`, id: `finding-${at}` },
      h("h2", {}, h("span", { class: "severity" }, finding.severity), " ", finding.title, h("small", {}, `${finding.rule} · ${number(finding.count)}×${finding.rows ? ` in ${number(finding.rows)} ${finding.rows === 1 ? "row" : "rows"}` : ""}`)),
      finding.summary ? h("p", {}, finding.summary) : null,
      h("dl", {}, fact("cause", finding.cause), fact("fix", finding.fix), fact("known from", finding.thread && finding.thread !== "none known" && linked(finding.thread))),
      example ? exampleOf(example) : null,
      h("ul", { class: "evidence" }, finding.evidence.map((place) => h("li", {},
        h("a", { class: "row", href: address("dataset", { split: this.splitOf(finding, place), row: place.row }), onclick: (event) => { event.preventDefault(); open(place); } }, `${this.splitOf(finding, place) ?? ""} row ${number(place.row)}`.trim()),
        place.message != null ? h("span", {}, `message ${place.message}`) : null,
        place.token != null ? h("span", {}, `token ${number(place.token)}`) : null,
        h("span", { class: "where" }, place.where), h("span", {}, place.note)))),
      this.filter(finding, at));
  }

  // The split of a place, by default of the first one with a row; null where the dataset has only one.
  splitOf(finding, place = finding.evidence.find((one) => one.row >= 0)) {
    return this.splits.length > 1 ? place?.split || null : null;
  }

  enter(place) {
    place.append(this.element);
  }
}

function levelOf(finding) {
  return ["error", "warning"].includes(finding.severity) ? finding.severity : "info";
}

// The tokens around a place, in the colours of the other views.
function exampleOf(place) {
  const token = (one, at) => {
    const loss = one.trained === null ? "" : one.trained ? " trained" : "";
    const marked = at === place.mark ? " marked" : "";
    return h("span", { class: `t role-${one.role ?? "none"} ${one.role === null ? "scaffold" : "body"}${loss}${marked}`, title: [`id ${one.id}`, one.role, one.trained === null ? null : one.trained ? "trained" : "not trained"].filter(Boolean).join(", ") }, visible(one.text) || "∅");
  };
  return h("figure", { class: "example" }, h("figcaption", { class: "note" }, `row ${number(place.row)}`), h("div", { class: "window" }, place.window.map(token)));
}

// Threads are named as OWNER/REPOSITORY#NUMBER or by their address; a text of another form stays a text.
function linked(thread) {
  const issue = /^([\w.-]+\/[\w.-]+)#(\d+)$/.exec(thread);
  const place = issue ? `https://github.com/${issue[1]}/issues/${issue[2]}` : /^https:\/\/\S+$/.test(thread) ? thread : null;
  return place ? h("a", { href: place, target: "_blank", rel: "noreferrer" }, thread) : thread;
}
