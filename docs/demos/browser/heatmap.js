// Attention heat maps in SVG. Characters are inserted as text nodes, so they cannot be parsed as markup.

const SVG = "http://www.w3.org/2000/svg";
const CELL = 20; // pixels per cell
const GAP = 2;

export function createSvgElement(kind, attributes, text) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Return a visible label of a character: spaces and the end token have symbols of their own.
const formatLabel = (character) => (character === " " ? "␣" : character === "<end>" ? "⏎" : character);

// Draw a heat map with one row per generated character and one column per input character; `weights[row][column]` is
// from 0 to 1.
export function drawHeatmap(columns, rows, weights, label) {
  const left = CELL + 6;
  const width = left + columns.length * CELL;
  const height = left + rows.length * CELL;
  const svg = createSvgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const center = (index) => left + index * CELL + CELL / 2;
  columns.forEach((character, c) => {
    svg.append(createSvgElement("text", { x: center(c), y: CELL - 4, "text-anchor": "middle" }, formatLabel(character)));
  });
  rows.forEach((character, r) => {
    svg.append(createSvgElement("text", { x: CELL - 6, y: center(r) + 5, "text-anchor": "end" }, formatLabel(character)));
    weights[r].forEach((weight, c) => {
      const box = { x: left + c * CELL, y: left + r * CELL, width: CELL - GAP, height: CELL - GAP, rx: 3 };
      svg.append(createSvgElement("rect", { ...box, class: "background" }));
      const cell = createSvgElement("rect", { ...box, class: "cell", opacity: weight.toFixed(3) });
      const tooltip = `${formatLabel(character)} ← ${formatLabel(columns[c])}: ${(100 * weight).toFixed(1)} %`;
      cell.append(createSvgElement("title", {}, tooltip));
      svg.append(cell);
    });
  });
  return svg;
}
