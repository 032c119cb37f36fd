// Runs models with onnxruntime-web in headless Chromium: with_chromium.mjs PROVIDER PACKAGES FOLDER NAME..., as
// with_openvino.py does. PROVIDER is `wasm` or `webgpu`; PACKAGES is the folder whose node_modules holds
// onnxruntime-web and playwright.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { launch, serve, SOFTWARE_GPU } from "./chromium.mjs";

const [provider, packages, folder, ...names] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const dist = join(packages, "node_modules", "onnxruntime-web", "dist");
writeFileSync(join(folder, "index.html"), "<!doctype html><title>models</title>");
const { server, base } = await serve({ "": folder, ort: dist, program: here });
const browser = await launch(packages, provider === "webgpu" ? SOFTWARE_GPU : []);
const LONGEST = 120_000; // milliseconds for one model; the device of software is slow

async function opened() {
  const page = await browser.newPage();
  page.setDefaultTimeout(LONGEST);
  await page.goto(`${base}/`);
  await page.evaluate(async (kind) => {
    const bundle = kind === "webgpu" ? "ort.webgpu.bundle.min.mjs" : "ort.wasm.bundle.min.mjs";
    globalThis.ort = await import(`/ort/${bundle}`);
    globalThis.results = (await import("/program/models_in_javascript.mjs")).results;
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = "/ort/";
    ort.env.logLevel = "fatal";
  }, provider);
  return page;
}

let page = await opened();
for (const name of names) {
  let wrong = "";
  try {
    const at = (ending) => join(folder, name + ending);
    let count = 0;
    while (existsSync(at(`.${count}.json`))) count += 1;
    const work = page.evaluate(
      async ({ provider, name, count }) => {
        const inputs = [];
        for (let turn = 0; turn < count; turn += 1) inputs.push(await (await fetch(`/${name}.${turn}.json`)).json());
        return globalThis.results(ort, provider, `/${name}.onnx`, inputs);
      },
      { provider, name, count },
    );
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("too slow")), LONGEST));
    (await Promise.race([work, late])).forEach((made, turn) => writeFileSync(at(`.${turn}.out.json`), JSON.stringify(made)));
  } catch (error) {
    wrong = String(error);
    await page.close();
    page = await opened(); // what a failure leaves behind is nobody's
  }
  console.log(JSON.stringify({ name, wrong }));
}
await browser.close();
server.close();
