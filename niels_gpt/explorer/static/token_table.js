// A token table as arrays with one entry per token; the server writes it in niels_gpt/explorer/token_columns.py.

export const SAMPLED = 1, BODY = 2, CONTROL = 4, PADDING = 8, HALF = 16;

export function unpacked(table) {
  const n = table.texts.length;
  const group = new Int32Array(n), facts = new Uint8Array(n);
  let at = 0;
  for (const [stop, owner, held] of table.runs) {
    group.fill(owner, at, stop);
    facts.fill(held, at, stop);
    at = stop;
  }
  return { ...table, n, group, facts, marked: new Set() };
}

export function trainedIn(view, name) {
  const mode = view.modes.find((each) => each.name === name) ?? view.modes[0];
  const flags = new Uint8Array(view.n);
  for (let at = 0; at < mode.trained.length; at += 2) flags.fill(1, mode.trained[at], mode.trained[at + 1]);
  return { mode, flags };
}

// Text in the data must not change how the page looks: invisible characters are written as codes.
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
export function visible(text) {
  const spelled = text.replace(HIDDEN, (character) => {
    if (character === "\n") return "\n";
    if (character === "\t") return "⇥";
    const code = character.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
  return spelled.replaceAll(" ", "·\u200b").replaceAll("\n", "⏎\n");
}

export function oneLine(text) {
  return visible(text).replaceAll("\u200b", "").replaceAll("\n", "");
}

export function roleOf(view, at) {
  return view.group[at] >= 0 ? view.groups[view.group[at]].role : "none";
}
