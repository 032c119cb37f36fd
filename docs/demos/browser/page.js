// The page: what is drawn or typed goes to the models, what they say and where they look is shown.
import { ink, pixels, SIDE, softmax } from "./digits.js";
import { heatmap, shape } from "./heatmap.js";
import { looked, present, Unreadable, Writer } from "./writer.js";

let ort; // onnxruntime-web, once it is loaded
const OPTIONS = { executionProviders: ["wasm"], logSeverityLevel: 3 };
const find = (selector, inside = document) => inside.querySelector(selector);

// ---- Dark or light

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => (root.dataset.theme = dark.matches ? "dark" : "light");
follow();
dark.addEventListener("change", follow);
find("#theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});

// ---- Digits

function bars() {
  const list = find("#chances");
  return Array.from({ length: 10 }, (_, digit) => {
    const item = document.createElement("li");
    const name = document.createElement("span");
    const bar = document.createElement("span");
    const share = document.createElement("span");
    name.textContent = digit;
    bar.className = "bar";
    bar.append(document.createElement("i"));
    share.className = "share";
    item.append(name, bar, share);
    list.append(item);
    return item;
  });
}

function grid(place, values, side, kind, most = 1) {
  const square = SIDE / side;
  place.replaceChildren(
    ...Array.from(values, (value, at) =>
      shape("rect", {
        x: (at % side) * square,
        y: Math.floor(at / side) * square,
        width: square,
        height: square,
        class: kind,
        opacity: (value / most).toFixed(3),
      }),
    ),
  );
}

function small(name) {
  const figure = document.createElement("figure");
  const map = shape("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": `attention of ${name}` });
  const caption = document.createElement("figcaption");
  caption.textContent = name;
  figure.append(map, caption);
  find("#looks").append(figure);
  return map;
}

async function digits() {
  const model = await present("models/digits.onnx");
  const session = await ort.InferenceSession.create(new Uint8Array(await model.arrayBuffer()), OPTIONS);
  const layers = session.outputNames.filter((name) => name.endsWith(".weights"));
  const maps = layers.map((_, at) => small(`layer ${at + 1}`));
  const chances = bars();
  const paper = find("#paper");
  const pen = paper.getContext("2d", { willReadFrequently: true });

  function clear() {
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, paper.width, paper.height);
    show(null);
  }

  function show(said) {
    grid(find("#seen"), said ? said.shares : [], SIDE, "gray");
    const best = said ? said.chances.indexOf(Math.max(...said.chances)) : -1;
    chances.forEach((item, digit) => {
      const chance = said ? said.chances[digit] : 0;
      item.classList.toggle("best", digit === best);
      find("i", item).style.width = `${100 * chance}%`;
      find(".share", item).textContent = said ? `${(100 * chance).toFixed(chance < 0.0995 ? 1 : 0)} %` : "";
    });
    maps.forEach((map, at) => grid(map, said ? said.looks[at] : [], SIDE / 2, "look", said ? Math.max(...said.looks[at]) : 1));
    find("#digits").dataset.said = said ? best : "";
  }

  // One run after the other: while one is under way, only the newest picture waits.
  let waiting = null;
  let running = false;
  async function read() {
    waiting = ink(pen.getImageData(0, 0, paper.width, paper.height));
    if (running) return;
    running = true;
    while (waiting) {
      const shares = waiting;
      waiting = null;
      const made = await session.run({ pixel_values: new ort.Tensor("float32", pixels(shares), [1, 1, SIDE, SIDE]) });
      // row 0 of the attention is [CLS]'s; its first weight is the one on itself
      const looks = layers.map((name) => {
        const { dims, data } = made[name];
        const [, heads, rows, keys] = dims;
        return Array.from({ length: keys - 1 }, (_, key) => {
          let sum = 0;
          for (let head = 0; head < heads; head += 1) sum += data[head * rows * keys + key + 1];
          return sum / heads;
        });
      });
      show({ shares, looks, chances: softmax(made.logits.data) });
    }
    running = false;
  }

  const at = (event) => {
    const box = paper.getBoundingClientRect();
    const scale = paper.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  pen.lineCap = pen.lineJoin = "round";
  pen.lineWidth = paper.width / 9;
  pen.strokeStyle = "#fff";
  let last = null;
  paper.addEventListener("pointerdown", (event) => {
    paper.setPointerCapture(event.pointerId);
    last = at(event);
  });
  paper.addEventListener("pointermove", (event) => {
    if (!last) return;
    const next = at(event);
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...next);
    pen.stroke();
    last = next;
    read();
  });
  for (const end of ["pointerup", "pointercancel"]) paper.addEventListener(end, () => (last = null));
  find("#clear").addEventListener("click", clear);
  clear();
}

// ---- Texts

// A section with a text: it writes while one types, and begins anew with every change. `views` are the results that hold
// attention, by the name to show.
async function texts(id, most, views) {
  const writer = await Writer.open(ort, `models/${id}`, OPTIONS);
  const section = find(`#${id}`);
  const [input, answer, problem, map, select] = ["input", "output", ".problem", ".map", "select"].map((s) => find(s, section));
  const names = Object.keys(views(writer));
  const results = views(writer);
  for (const name of select ? names : []) select.append(new Option(name, name));
  if (select) select.value = names.at(-1);
  let turn = 0;
  let written = [];

  function draw() {
    const view = results[select ? select.value : names[0]];
    const letters = [...input.value.trim().normalize("NFC"), "<end>"];
    const weights = written.map(({ results: made }) => looked(made[view]));
    map.replaceChildren(...(written.length ? [heatmap(letters, written.map((w) => w.letter), weights, `attention of ${id}`)] : []));
  }

  async function write() {
    const mine = (turn += 1);
    const still = () => mine === turn;
    written = [];
    answer.textContent = problem.textContent = "";
    section.dataset.done = "";
    draw();
    const text = input.value.trim();
    if (!text) return;
    try {
      for await (const next of writer.write(text, most, still)) {
        if (!still()) return;
        written.push(next);
        answer.textContent = written.filter((w) => !w.ended).map((w) => w.letter).join("");
        draw();
        await new Promise((painted) => requestAnimationFrame(painted));
      }
      if (!written.at(-1)?.ended) problem.textContent = `The model did not find an end in ${most} letters.`;
    } catch (error) {
      if (!(error instanceof Unreadable)) throw error;
      problem.textContent = error.message;
    }
    section.dataset.done = text;
  }

  // Runs of one session must not overlap: the next begins when the last has seen that it is over.
  let line = Promise.resolve();
  const begin = () => {
    turn += 1;
    line = line.then(write).catch(failed);
  };
  input.addEventListener("input", begin);
  select?.addEventListener("change", draw);
  const tries = find(".tries", section);
  for (const text of tries.dataset.tries.split("|")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      input.value = text;
      begin();
    });
    tries.append(button);
  }
  begin();
}

// ---- Everything

const status = find("#status");

function failed(error) {
  status.classList.add("wrong");
  status.textContent = `Something went wrong: ${error.message ?? error}`;
}

async function runtime() {
  const made = await import("./ort/ort.wasm.min.mjs").catch(() => {
    throw new Error("the folder ort is not there: run make browser");
  });
  made.env.logLevel = "error"; // it warns of lengths that it could not know beforehand
  made.env.wasm.numThreads = 1; // more need headers that a plain server of files does not send
  made.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
  return made;
}

try {
  ort = await runtime();
  await digits();
  await texts("dates", 24, () => ({ alignment: "alignment" }));
  await texts("numbers", 90, (writer) =>
    Object.fromEntries(
      writer.step.outputNames.filter((name) => name.endsWith(".weights")).map((name, at) => [`${at + 1}`, name]),
    ),
  );
  status.textContent = "Ready. Draw, or type.";
  status.dataset.ready = "yes";
} catch (error) {
  failed(error);
}
