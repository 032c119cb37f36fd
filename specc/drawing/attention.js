// Attention page: sliders, thumbnails, the selected attention map with its labels, and the input image.
const HIDDEN = -Infinity;
const maps = data.maps.map((map) => {
  const bytes = Uint8Array.from(atob(map.weights), (c) => c.charCodeAt(0));
  return { ...map, values: new Float32Array(bytes.buffer) };
});
const state = { map: maps.length - 1, head: -1, row: null, kept: false, column: null, log: data.log };
const now = () => maps[state.map];
const axisOf = (which) => data.axes[now()[which]];

// Return the weights of one head, or the mean over all heads: f32[rows · columns].
function weightsOf(map, head) {
  const size = map.rows * map.columns;
  if (head >= 0) return map.values.subarray(head * size, (head + 1) * size);
  const count = map.heads.length;
  if (count === 1) return map.values;
  const mean = new Float32Array(size);
  for (let n = 0; n < size; n++) {
    let sum = 0, hidden = 0;
    for (let h = 0; h < count; h++) {
      const value = map.values[h * size + n];
      if (value === HIDDEN) hidden++; else sum += value;
    }
    mean[n] = hidden === count ? HIDDEN : sum / count;
  }
  return mean;
}

// The color scale: the thumbnails of a layer share one scale, and the selected map has its own scale.
let scale = null;
function scaleOf(values) {
  let low = 0, high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return { low, high: high > low ? high : low + 1 };
}
const leastOf = () => (state.log ? scale.high / 10 ** data.decades : scale.low);
function shareOf(value) {
  const least = leastOf();
  if (state.log) return Math.max(0, Math.log(Math.max(value, least) / least) / Math.log(scale.high / least));
  return Math.min(1, Math.max(0, (value - least) / (scale.high - least)));
}
function shade(value, hidden) {
  if (value === HIDDEN) return hidden;
  if (Number.isNaN(value)) return [128, 128, 128];
  const at = shareOf(value) * (data.colors.length - 1);
  const lower = Math.min(data.colors.length - 2, Math.floor(at));
  return data.colors[lower].map((c, n) => c + (data.colors[lower + 1][n] - c) * (at - lower));
}
function hiddenColor() {
  const hex = color("--hidden");
  return [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));
}

// Draw an attention map on a canvas with one pixel per cell.
function cellsOf(map, weights) {
  const made = document.createElement("canvas");
  made.width = map.columns;
  made.height = map.rows;
  const pen = made.getContext("2d");
  const image = pen.createImageData(map.columns, map.rows);
  const hidden = hiddenColor();
  weights.forEach((value, n) => image.data.set([...shade(value, hidden), 255], 4 * n));
  pen.putImageData(image, 0, 0);
  return made;
}

function number(value) {
  if (value === HIDDEN) return "masked";
  if (Number.isNaN(value)) return "no number";
  if (value === 0) return "0";
  return Math.abs(value) >= 1e-4 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

// Return the label of a pooled cell: a single label, or the first and the last of several labels.
function labelOf(axis, n) {
  const first = axis.labels[n * data.step];
  if (data.step === 1) return first;
  return `${first} … ${axis.labels[Math.min(axis.labels.length, (n + 1) * data.step) - 1]}`;
}

const LEFT = 10, FONT = '12px Inter, "Helvetica Neue", Arial, "Noto Sans", sans-serif';
let shape = null;

// Cells are as large as possible. If labels do not fit, only every n-th label is drawn, as the caption states.
function layout() {
  const map = now(), probe = byId("map").getContext("2d");
  probe.font = FONT;
  const widest = (axis) => Math.min(150, Math.max(...axis.labels.map((t) => probe.measureText(t).width)));
  const room = Math.max(260, Math.min(byId("figure").parentElement.clientWidth - 180, data.picture ? 560 : 860));
  const left = widest(axisOf("queries")) + LEFT;
  const cell = Math.max(0.25, Math.min(34, (room - left) / map.columns, Math.max(9, 640 / map.rows)));
  const upright = widest(axisOf("keys")) > cell - 4;
  const top = upright ? widest(axisOf("keys")) + LEFT : 24;
  return { left, top, cell, upright, every: Math.max(1, Math.ceil(13 / cell)), everyKey: Math.max(1, Math.ceil((upright ? 13 : 4) / cell)) };
}

function drawMap() {
  const map = now(), canvas = byId("map"), weights = weightsOf(map, state.head);
  scale = scaleOf(weights);
  shape = layout();
  const { left, top, cell, upright } = shape;
  const width = left + map.columns * cell + 2, height = top + map.rows * cell + 2;
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.style.flexShrink = 0;
  const pen = canvas.getContext("2d");
  pen.scale(density, density);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(cellsOf(map, weights), left, top, map.columns * cell, map.rows * cell);
  pen.font = FONT;
  const mark = (on) => { pen.fillStyle = color(on ? "--mark" : "--ink"); };
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let n = 0; n < map.rows; n++) {
    if (n % shape.every && n !== state.row) continue;
    mark(n === state.row);
    pen.fillText(axisOf("queries").labels[n * data.step], left - LEFT / 2, top + (n + 0.5) * cell, left - LEFT / 2);
  }
  for (let n = 0; n < map.columns; n++) {
    if (n % shape.everyKey && n !== state.column) continue;
    mark(n === state.column);
    pen.save();
    pen.translate(left + (n + 0.5) * cell, top - LEFT / 2);
    if (upright) pen.rotate(-Math.PI / 2);
    pen.textAlign = upright ? "left" : "center";
    pen.textBaseline = upright ? "middle" : "bottom";
    pen.fillText(axisOf("keys").labels[n * data.step], 0, 0, upright ? top - LEFT : 400);
    pen.restore();
  }
  pen.strokeStyle = color("--mark");
  pen.lineWidth = 1.5;
  if (state.row !== null) pen.strokeRect(left, top + state.row * cell, map.columns * cell, cell);
  if (state.column !== null) pen.strokeRect(left + state.column * cell, top, cell, map.rows * cell);
  drawBar(weights);
  const some = (every) => (every * data.step > 1 ? `; one label in ${every * data.step} has room, point to see the others` : "");
  byId("keys").textContent = `key: ${axisOf("keys").caption}${some(shape.everyKey)}`;
  byId("queries").textContent = `query: ${axisOf("queries").caption}${shape.every > 1 ? "; one label in " + shape.every * data.step : ""}`;
  canvas.setAttribute("aria-label", `${map.scope}, ${headName()}: ${axisOf("queries").caption} by ${axisOf("keys").caption}`);
}

function drawBar() {
  const pen = byId("bar").getContext("2d");
  for (let y = 0; y < 160; y++) {
    const share = 1 - y / 159, least = leastOf();
    const value = state.log ? least * (scale.high / least) ** share : least + (scale.high - least) * share;
    pen.fillStyle = `rgb(${shade(value).map(Math.round).join(",")})`;
    pen.fillRect(0, y, 14, 1);
  }
  const least = leastOf();
  const text = (value) => String(Number(value.toPrecision(2)));
  byId("high").textContent = text(scale.high);
  byId("middle").textContent = text(state.log ? Math.sqrt(least * scale.high) : (least + scale.high) / 2);
  byId("low").textContent = (state.log ? "≤ " : "") + text(least);
  byId("masked").hidden = !now().values.includes(HIDDEN);
}

function drawPicture() {
  const picture = data.picture, grid = axisOf("keys").grid;
  byId("over").hidden = !picture || !grid;
  if (byId("over").hidden) return;
  const canvas = byId("picture"), queries = axisOf("queries");
  const row = state.row === null ? 0 : state.row;
  const weights = weightsOf(now(), state.head).subarray(row * now().columns, (row + 1) * now().columns);
  const zoom = Math.max(1, Math.round(420 / Math.max(picture.rows, picture.columns)));
  canvas.width = picture.columns * zoom;
  canvas.height = picture.rows * zoom;
  const pixels = Uint8Array.from(atob(picture.pixels), (c) => c.charCodeAt(0));
  const pen = canvas.getContext("2d"), image = pen.createImageData(canvas.width, canvas.height);
  for (let y = 0; y < canvas.height; y++) for (let x = 0; x < canvas.width; x++) {
    const from = 3 * (Math.floor(y / zoom) * picture.columns + Math.floor(x / zoom));
    const gray = (pixels[from] + pixels[from + 1] + pixels[from + 2]) / 3;
    const patch = grid[2] + Math.floor((y * grid[0]) / canvas.height) * grid[1] + Math.floor((x * grid[1]) / canvas.width);
    const value = weights[patch], over = shade(value, [128, 128, 128]);
    const cover = 0.3 + 0.5 * Math.sqrt(value === HIDDEN ? 0 : shareOf(value));
    image.data.set([...over.map((c) => c * cover + 0.8 * gray * (1 - cover)), 255], 4 * (y * canvas.width + x));
  }
  pen.putImageData(image, 0, 0);
  const own = queries.role === "image" && queries.grid ? row - queries.grid[2] : -1;
  if (own >= 0) {
    const [rows, columns] = queries.grid;
    pen.strokeStyle = color("--mark");
    pen.lineWidth = 3;
    pen.strokeRect(((own % columns) * canvas.width) / columns, (Math.floor(own / columns) * canvas.height) / rows, canvas.width / columns, canvas.height / rows);
  }
  const name = own >= 0 ? `patch ${queries.labels[row]}` : queries.labels[row];
  byId("who").textContent = `${name} attends to ${grid[0]} × ${grid[1]} patches; click on a patch to ask it`;
  canvas.setAttribute("aria-label", byId("who").textContent);
}

function drawStrip() {
  const axis = axisOf("keys"), queries = axisOf("queries"), map = now();
  const row = state.row === null ? 0 : state.row;
  const weights = weightsOf(map, state.head).subarray(row * map.columns, (row + 1) * map.columns);
  const text = axis.role === "input" || axis.role === "generated";
  byId("strip").hidden = !text || data.step > 1;
  if (byId("strip").hidden) return;
  byId("stripname").textContent = `“${queries.labels[row]}” (${row}) attends to`;
  byId("tokens").replaceChildren(...axis.labels.map((label, n) => {
    const token = document.createElement("span");
    token.textContent = label;
    token.title = number(weights[n]);
    if (weights[n] === HIDDEN) token.className = "masked";
    else token.style.backgroundColor = `rgba(228, 87, 46, ${0.85 * shareOf(weights[n])})`;
    return token;
  }));
}

const headName = () => (state.head < 0 ? (now().heads.length > 1 ? "mean of all" : `${now().heads[0]}`) : `${now().heads[state.head]}`);

function tell() {
  const map = now(), { row, column } = state;
  if (row === null || column === null) return;
  const value = weightsOf(map, state.head)[row * map.columns + column];
  byId("told").textContent = `“${labelOf(axisOf("queries"), row)}” (${row * data.step}) attends to “${labelOf(axisOf("keys"), column)}” (${column * data.step}): ${number(value)}`;
}

function thumbnails() {
  const map = now();
  scale = scaleOf(map.values);
  byId("heads").hidden = map.heads.length < 2;
  byId("heads").replaceChildren(...[-1, ...map.heads.keys()].map((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(head === state.head));
    button.append(cellsOf(map, weightsOf(map, head)), head < 0 ? "mean" : String(map.heads[head]));
    button.addEventListener("click", () => { state.head = head; draw(); });
    return button;
  }));
}

function draw() {
  const map = now();
  if (state.head >= map.heads.length) state.head = -1;
  if (state.row !== null && state.row >= map.rows) state.row = null;
  if (state.column !== null && state.column >= map.columns) state.column = null;
  byId("which").max = maps.length - 1;
  byId("which").value = state.map;
  byId("scope").textContent = map.scope;
  byId("of").textContent = `${state.map + 1} of ${maps.length}`;
  byId("head").max = map.heads.length - 1;
  byId("head").value = state.head;
  byId("headname").textContent = headName();
  byId("ofheads").textContent = `${map.heads.length} ${map.heads.length === 1 ? "head" : "heads"}`;
  byId("log").checked = state.log;
  thumbnails();
  point();
}

// Update only the elements that depend on the pointer position.
function point() {
  drawMap();
  drawPicture();
  drawStrip();
  tell();
}

function at(event) {
  const box = byId("map").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - shape.left) / shape.cell);
  const row = Math.floor((event.clientY - box.top - shape.top) / shape.cell);
  const inside = row >= 0 && column >= 0 && row < now().rows && column < now().columns;
  return inside ? [row, column] : null;
}
byId("map").addEventListener("pointermove", (event) => {
  const place = at(event);
  if (!place || (place[0] === state.row && place[1] === state.column)) return;
  if (!state.kept) state.row = place[0];
  state.column = place[1];
  point();
});
byId("map").addEventListener("click", (event) => {
  const place = at(event);
  if (!place) return;
  state.kept = !(state.kept && place[0] === state.row);
  [state.row, state.column] = place;
  point();
});
byId("map").addEventListener("pointerleave", () => {
  state.column = null;
  if (!state.kept) state.row = null;
  point();
});
byId("map").addEventListener("keydown", (event) => {
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!move) return;
  event.preventDefault();
  state.kept = true;
  state.row = Math.min(now().rows - 1, Math.max(0, (state.row ?? 0) + move[0]));
  state.column = Math.min(now().columns - 1, Math.max(0, (state.column ?? 0) + move[1]));
  point();
});
byId("picture").addEventListener("click", (event) => {
  const grid = axisOf("queries").grid, box = byId("picture").getBoundingClientRect();
  if (!grid) return;
  const y = Math.floor(((event.clientY - box.top) / box.height) * grid[0]);
  const x = Math.floor(((event.clientX - box.left) / box.width) * grid[1]);
  state.row = grid[2] + y * grid[1] + x;
  state.kept = true;
  point();
});
byId("which").addEventListener("input", (event) => { state.map = Number(event.target.value); draw(); });
byId("head").addEventListener("input", (event) => { state.head = Number(event.target.value); draw(); });
byId("log").addEventListener("change", (event) => { state.log = event.target.checked; draw(); });
themeChanged.push(draw);
window.addEventListener("resize", draw);
draw();
