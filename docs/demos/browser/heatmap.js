// Attention as squares in an SVG: text is set as text, so that no letter can become markup.

const SVG = "http://www.w3.org/2000/svg";
const SIDE = 20; // pixels a square
const GAP = 2;

export function shape(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A space is shown as what can be seen; the end of a text has a sign of its own.
const shown = (letter) => (letter === " " ? "␣" : letter === "<end>" ? "⏎" : letter);

// A map of `rows` (the answer's letters) by `columns` (the question's); `weights[r][c]` are from 0 to 1.
export function heatmap(columns, rows, weights, label) {
  const left = SIDE + 6;
  const width = left + columns.length * SIDE;
  const height = left + rows.length * SIDE;
  const map = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const middle = (at) => left + at * SIDE + SIDE / 2;
  columns.forEach((letter, c) => {
    map.append(shape("text", { x: middle(c), y: SIDE - 4, "text-anchor": "middle" }, shown(letter)));
  });
  rows.forEach((letter, r) => {
    map.append(shape("text", { x: SIDE - 6, y: middle(r) + 5, "text-anchor": "end" }, shown(letter)));
    weights[r].forEach((weight, c) => {
      const at = { x: left + c * SIDE, y: left + r * SIDE, width: SIDE - GAP, height: SIDE - GAP, rx: 3 };
      map.append(shape("rect", { ...at, class: "ground" }));
      const cell = shape("rect", { ...at, class: "cell", opacity: weight.toFixed(3) });
      cell.append(shape("title", {}, `${shown(letter)} ← ${shown(columns[c])}: ${(100 * weight).toFixed(1)} %`));
      map.append(cell);
    });
  });
  return map;
}
