import { address, h, number } from "./dom.js";

// The findings of the doctor. A piece of evidence opens its row.

export class FindingsView {
  constructor({ session, open }) {
    const report = session.findings;
    this.element = h("div", { class: "findings" }, report ? this.report(report, open) : h("p", { class: "note" }, "No report is open. Start with --findings report.json, as niels-gpt doctor --json writes it."));
  }

  report(report, open) {
    const head = h("p", { class: "lead" }, report.findings.length
      ? `${number(report.findings.length)} ${report.findings.length === 1 ? "finding" : "findings"} in ${number(report.rows)} rows.`
      : `Nothing found in ${number(report.rows)} rows.`);
    return [head, ...report.findings.map((finding) => this.finding(finding, open))];
  }

  finding(finding, open) {
    const fact = (name, value) => (value ? h("div", {}, h("dt", {}, name), h("dd", {}, value)) : null);
    return h("article", { class: `finding severity-${["error", "warning"].includes(finding.severity) ? finding.severity : "info"}` },
      h("h2", {}, h("span", { class: "severity" }, finding.severity), " ", finding.title, h("small", {}, `${finding.rule} · ${number(finding.count)}×`)),
      finding.summary ? h("p", {}, finding.summary) : null,
      h("dl", {}, fact("cause", finding.cause), fact("fix", finding.fix), fact("known from", finding.thread && linked(finding.thread))),
      h("ul", { class: "evidence" }, finding.evidence.map((place) => h("li", {},
        h("a", { class: "row", href: address("dataset", { row: place.row }), onclick: (event) => { event.preventDefault(); open(place); } }, `row ${number(place.row)}`),
        place.message != null ? h("span", {}, `message ${place.message}`) : null,
        place.token != null ? h("span", {}, `token ${number(place.token)}`) : null,
        h("span", { class: "where" }, place.where), h("span", {}, place.note)))));
  }

  enter(place) {
    place.append(this.element);
  }
}

// Threads are named as OWNER/REPOSITORY#NUMBER or by their address; a text of another form stays a text.
function linked(thread) {
  const issue = /^([\w.-]+\/[\w.-]+)#(\d+)$/.exec(thread);
  const place = issue ? `https://github.com/${issue[1]}/issues/${issue[2]}` : /^https:\/\/\S+$/.test(thread) ? thread : null;
  return place ? h("a", { href: place, target: "_blank", rel: "noreferrer" }, thread) : thread;
}
