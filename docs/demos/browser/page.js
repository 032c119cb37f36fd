// Connects the page with the models: inputs are drawings and texts, outputs are predictions and attention weights.
import { downsample, normalize, SIDE, softmax } from "./digits.js";
import { createSvgElement, drawHeatmap } from "./heatmap.js";
import { averageHeads, fetchFile, Generator, UnknownCharacterError } from "./writer.js";

let ort; // onnxruntime-web, once it is loaded
const OPTIONS = { executionProviders: ["wasm"], logSeverityLevel: 3 };
const find = (selector, inside = document) => inside.querySelector(selector);

// ---- Color theme

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const followSystemTheme = () => (root.dataset.theme = dark.matches ? "dark" : "light");
followSystemTheme();
dark.addEventListener("change", followSystemTheme);
find("#theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});

// ---- Digits

function createProbabilityBars() {
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

// Draw `side` × `side` cells whose opacity is the value relative to `maximum`.
function drawGrid(svg, values, side, kind, maximum = 1) {
  const cell = SIDE / side;
  svg.replaceChildren(
    ...Array.from(values, (value, index) =>
      createSvgElement("rect", {
        x: (index % side) * cell,
        y: Math.floor(index / side) * cell,
        width: cell,
        height: cell,
        class: kind,
        opacity: (value / maximum).toFixed(3),
      }),
    ),
  );
}

function addAttentionMap(name) {
  const figure = document.createElement("figure");
  const map = createSvgElement("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", "aria-label": `attention of ${name}` });
  const caption = document.createElement("figcaption");
  caption.textContent = name;
  figure.append(map, caption);
  find("#looks").append(figure);
  return map;
}

async function startDigits() {
  const model = await fetchFile("models/digits.onnx");
  const session = await ort.InferenceSession.create(new Uint8Array(await model.arrayBuffer()), OPTIONS);
  const layers = session.outputNames.filter((name) => name.endsWith(".weights"));
  const maps = layers.map((_, index) => addAttentionMap(`layer ${index + 1}`));
  const bars = createProbabilityBars();
  const canvas = find("#paper");
  const context = canvas.getContext("2d", { willReadFrequently: true });

  function clear() {
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    show(null);
  }

  // Show a result with `grayValues`, `attention` and `probabilities`, or clear the page if it is null.
  function show(result) {
    drawGrid(find("#seen"), result ? result.grayValues : [], SIDE, "gray");
    const best = result ? result.probabilities.indexOf(Math.max(...result.probabilities)) : -1;
    bars.forEach((item, digit) => {
      const probability = result ? result.probabilities[digit] : 0;
      item.classList.toggle("best", digit === best);
      find("i", item).style.width = `${100 * probability}%`;
      find(".share", item).textContent = result ? `${(100 * probability).toFixed(probability < 0.0995 ? 1 : 0)} %` : "";
    });
    maps.forEach((map, layer) => {
      const weights = result ? result.attention[layer] : [];
      drawGrid(map, weights, SIDE / 2, "look", Math.max(...weights));
    });
    find("#digits").dataset.said = result ? best : "";
  }

  // Runs of a session must not overlap. During a run, only the newest drawing is queued.
  let queued = null;
  let isRunning = false;
  async function classify() {
    queued = downsample(context.getImageData(0, 0, canvas.width, canvas.height));
    if (isRunning) return;
    isRunning = true;
    while (queued) {
      const grayValues = queued;
      queued = null;
      const outputs = await session.run({ pixel_values: new ort.Tensor("float32", normalize(grayValues), [1, 1, SIDE, SIDE]) });
      // query 0 is [CLS], and key 0 is [CLS] itself, which is not an image patch
      const attention = layers.map((name) => {
        const { dims, data } = outputs[name];
        const [, heads, queries, keys] = dims;
        return Array.from({ length: keys - 1 }, (_, key) => {
          let sum = 0;
          for (let head = 0; head < heads; head += 1) sum += data[head * queries * keys + key + 1];
          return sum / heads;
        });
      });
      show({ grayValues, attention, probabilities: softmax(outputs.logits.data) });
    }
    isRunning = false;
  }

  const toCanvasPoint = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = canvas.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  context.lineCap = context.lineJoin = "round";
  context.lineWidth = canvas.width / 9;
  context.strokeStyle = "#fff";
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = toCanvasPoint(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const next = toCanvasPoint(event);
    context.beginPath();
    context.moveTo(...last);
    context.lineTo(...next);
    context.stroke();
    last = next;
    classify();
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (last = null));
  find("#clear").addEventListener("click", clear);
  clear();
}

// ---- Text generation

// Generate while the user types, and start again after every change. `listAttentionOutputs` maps display names to outputs
// with attention weights.
async function startGeneration(id, maxTokens, listAttentionOutputs) {
  const generator = await Generator.open(ort, `models/${id}`, OPTIONS);
  const section = find(`#${id}`);
  const [input, answer, problem, map, select] = ["input", "output", ".problem", ".map", "select"].map((s) => find(s, section));
  const attentionOutputs = listAttentionOutputs(generator);
  const names = Object.keys(attentionOutputs);
  for (const name of select ? names : []) select.append(new Option(name, name));
  if (select) select.value = names.at(-1);
  let run = 0;
  let generated = [];

  function draw() {
    const output = attentionOutputs[select ? select.value : names[0]];
    const characters = [...input.value.trim().normalize("NFC"), "<end>"];
    const weights = generated.map(({ outputs }) => averageHeads(outputs[output]));
    const rows = generated.map(({ character }) => character);
    map.replaceChildren(...(rows.length ? [drawHeatmap(characters, rows, weights, `attention of ${id}`)] : []));
  }

  async function generate() {
    const current = (run += 1);
    const isCanceled = () => current !== run;
    generated = [];
    answer.textContent = problem.textContent = "";
    section.dataset.done = "";
    draw();
    const text = input.value.trim();
    if (!text) return;
    try {
      for await (const next of generator.generate(text, maxTokens, isCanceled)) {
        if (isCanceled()) return;
        generated.push(next);
        answer.textContent = generated.filter((g) => !g.isStop).map((g) => g.character).join("");
        draw();
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
      if (!generated.at(-1)?.isStop) problem.textContent = `The model generated no stop token within ${maxTokens} tokens.`;
    } catch (error) {
      if (!(error instanceof UnknownCharacterError)) throw error;
      problem.textContent = error.message;
    }
    section.dataset.done = text;
  }

  // Runs of a session must not overlap: a new run starts when the canceled run has returned.
  let queue = Promise.resolve();
  const start = () => {
    run += 1;
    queue = queue.then(generate).catch(showError);
  };
  input.addEventListener("input", start);
  select?.addEventListener("change", draw);
  const tries = find(".tries", section);
  for (const text of tries.dataset.tries.split("|")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      input.value = text;
      start();
    });
    tries.append(button);
  }
  start();
}

// ---- Startup

const status = find("#status");

function showError(error) {
  status.classList.add("wrong");
  status.textContent = `Something went wrong: ${error.message ?? error}`;
}

async function loadRuntime() {
  const runtime = await import("./ort/ort.wasm.min.mjs").catch(() => {
    throw new Error("the directory ort is missing: run make browser");
  });
  runtime.env.logLevel = "error"; // no warnings about dynamic shapes
  runtime.env.wasm.numThreads = 1; // several threads need headers that a simple file server does not send
  runtime.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;
  return runtime;
}

try {
  ort = await loadRuntime();
  await startDigits();
  await startGeneration("dates", 24, () => ({ alignment: "alignment" }));
  await startGeneration("numbers", 90, (generator) =>
    Object.fromEntries(
      generator.step.outputNames.filter((name) => name.endsWith(".weights")).map((name, index) => [`${index + 1}`, name]),
    ),
  );
  status.textContent = "Ready. Draw, or type.";
  status.dataset.ready = "yes";
} catch (error) {
  showError(error);
}
