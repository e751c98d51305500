import { ask, h, number, saved } from "./dom.js";
import { EditedView } from "./editor.js";
import { oneLine, unpacked } from "./token_table.js";
import { tokenPanel } from "./panel.js";
import { rendererPicker } from "./picker.js";
import { Serving } from "./serving.js";

// One conversation in two formats: every difference is marked, and the first is described.

export class DriftView extends EditedView {
  constructor(context) {
    super(context);
    const { session } = context, { first } = session;
    const other = session.renderers.find((entry) => entry.renderer === (first.renderer === "template" ? "file" : "template") && entry.tokenizer === first.tokenizer)
      ?? session.renderers.find((entry) => entry.renderer === (first.renderer === "qwen3" ? "chatml" : "qwen3"));
    this.left = rendererPicker(session, "Left", first, () => this.refresh(), { source: true });
    this.right = rendererPicker(session, "Right", other, () => this.refresh(), { source: true });
    this.verdict = h("p", { class: "verdict", role: "status" });
    this.place = h("div", { class: "pair" });
    this.jump = h("button", { type: "button", onclick: () => this.toDifference() }, "Next difference");
    this.serving = new Serving({ session });
    this.lay(this.serving.element, h("div", { class: "pair" }, this.left.element, this.right.element),
      h("div", { class: "bar" }, this.verdict, this.jump, h("button", { type: "button", class: "action", onclick: () => this.save() }, "Export as HTML")),
      this.place);
  }

  enter(place) {
    super.enter(place);
    this.serving.enter();
  }

  async refresh() {
    const mine = this.current();
    const slow = setTimeout(() => { this.verdict.className = "verdict"; this.verdict.textContent = "Loading tokenizers …"; }, 400);
    try {
      const answer = await ask("/api/drift", { ...this.editor.asked(), left: this.left.value(), right: this.right.value() });
      if (!mine()) return;
      this.editor.tell(null);
      this.answer = answer;
      this.show(answer);
    } catch (error) {
      if (!mine()) return;
      this.answer = null;
      this.editor.tell(error);
      this.verdict.textContent = "";
      this.jump.disabled = true;
      this.place.replaceChildren(h("p", { class: "problem" }, error.message));
    } finally {
      clearTimeout(slow);
    }
  }

  show({ left, right, drift }) {
    const views = [{ ...unpacked(left), differs: drift.left }, { ...unpacked(right), differs: drift.right }];
    if (drift.mask_at >= 0) views.forEach((view) => view.marked.add(drift.mask_at));
    this.shown = -1;
    this.panels = views.map((view, at) => tokenPanel(view, this.state.mode, {
      inspect: this.inspect, compact: true, label: ["left", "right"][at], heading: `${view.title}${view.tokenizer ? ` · ${view.tokenizer}` : ""}`,
    }));
    this.place.replaceChildren(...this.panels.map((panel) => panel.element));
    this.verdict.textContent = verdictOf(views, drift);
    this.verdict.className = `verdict ${drift.same && drift.mask_at < 0 ? "same" : "differ"}`;
    this.jump.disabled = drift.same && drift.mask_at < 0;
  }

  toDifference() {
    const { drift } = this.answer;
    if (drift.mask_at >= 0) this.panels.forEach((panel) => panel.tokens.moveTo(drift.mask_at, true, "center"));
    else {
      this.shown = ((this.shown ?? -1) + 1) % drift.left.length;
      [drift.left, drift.right].forEach((spans, side) => this.panels[side].tokens.moveTo(spans[this.shown][0], true, "center"));
    }
    this.panels[0].tokens.element.focus({ preventScroll: true });
  }

  async save() {
    if (!this.answer) return;
    const { left, right, drift } = this.answer;
    saved("drift.html", await ask("/api/export", { kind: "drift", title: "two formats", mode: this.state.mode, tables: [left, right], drift: { ...drift, verdict: this.verdict.textContent } }));
  }
}

function verdictOf([left, right], drift) {
  const unit = left.unit === "token" ? "token" : "piece";
  if (drift.same) {
    if (drift.mask_at >= 0) return `≠ The same ${drift.by}, but the masks differ, first at ${unit} ${number(drift.mask_at)}.`;
    return drift.by === "ids" ? "= The same ids, and the same mask." : "= The same text. The tokenizers differ, so the ids are not compared.";
  }
  const side = (view, [start, stop]) => (start < stop ? `${stop - start === 1 ? unit : `${number(stop - start)} ${unit}s`} ${quoted(view, start)}` : "nothing");
  const places = drift.left.length === 1 ? "one place differs" : `${number(drift.left.length)} places differ`;
  return `≠ By ${drift.by}, ${places}. First difference at ${unit} ${number(drift.left[0][0])}: left ${side(left, drift.left[0])}, right ${side(right, drift.right[0])}.`;
}

function quoted(view, at) {
  const text = oneLine(view.texts[at] ?? "");
  return `“${text.length > 30 ? `${text.slice(0, 30)}…` : text}”`;
}
