// Runs models with onnxruntime-web in Node: with_node.mjs PACKAGES FOLDER NAME..., as with_openvino.py does.
// PACKAGES is the folder whose node_modules holds onnxruntime-web.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { results } from "./models_in_javascript.mjs";

const [packages, folder, ...names] = process.argv.slice(2);
const ort = createRequire(join(packages, "package.json"))("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "fatal";

for (const name of names) {
  let wrong = "";
  try {
    const at = (ending) => join(folder, name + ending);
    const inputs = [];
    while (existsSync(at(`.${inputs.length}.json`)))
      inputs.push(JSON.parse(readFileSync(at(`.${inputs.length}.json`), "utf8")));
    const every = await results(ort, "wasm", new Uint8Array(readFileSync(at(".onnx"))), inputs);
    every.forEach((made, turn) => writeFileSync(at(`.${turn}.out.json`), JSON.stringify(made)));
  } catch (error) {
    wrong = String(error);
  }
  console.log(JSON.stringify({ name, wrong }));
}
