import { h, number } from "./dom.js";

// Histograms as SVG; the numbers are beside them as text.

const SVG = "http://www.w3.org/2000/svg";

function s(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function histogram(title, held, shown, none) {
  if (!held) return h("figure", { class: "chart" }, h("figcaption", {}, title), h("p", { class: "note" }, none));
  const most = Math.max(1, ...held.counts), wide = 320, high = 64, step = wide / held.counts.length;
  const bars = held.counts.map((count, at) => {
    const tall = count ? Math.max(1.5, (high * count) / most) : 0;
    const upto = at + 1 === held.counts.length ? held.most : held.edges[at + 1];
    return s("rect", { x: at * step + 0.5, y: high - tall, width: step - 1, height: tall }, s("title", {}, `${shown(held.edges[at])} to ${shown(upto)}: ${number(count)} rows`));
  });
  const [low, middle, top] = held.quantiles;
  const at = (value) => Math.min(wide, Math.max(0, ((value - held.edges[0]) / (held.edges.at(-1) - held.edges[0])) * wide));
  const mark = s("path", { class: "median", d: `M${at(middle)} 0V${high}` });
  const summary = `median ${shown(middle)}, 5 % below ${shown(low)}, 5 % above ${shown(top)}, longest ${shown(held.most)}`.replace(title.startsWith("Length") ? "" : /, longest .*/, "");
  const beyond = held.most > held.edges.at(-1) ? `${shown(held.edges.at(-1))} … ${shown(held.most)}` : shown(held.edges.at(-1));
  return h("figure", { class: "chart" }, h("figcaption", {}, title),
    s("svg", { viewBox: `0 0 ${wide} ${high + 16}`, role: "img", "aria-label": `${title}: ${summary}` }, ...bars, mark,
      s("text", { x: 0, y: high + 13 }, shown(held.edges[0])), s("text", { x: wide, y: high + 13, "text-anchor": "end" }, beyond)),
    h("p", { class: "note" }, summary));
}
