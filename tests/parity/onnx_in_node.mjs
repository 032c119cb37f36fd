// Runs an ONNX model with onnxruntime-web in Node: onnx_in_node.mjs PACKAGES MODEL, inputs on stdin, results on stdout.
// PACKAGES is the folder whose node_modules holds onnxruntime-web. Inputs and results are JSON by name:
// {"type": "int64", "dims": [2, 3], "data": [1, 2, …]}.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [packages, path] = process.argv.slice(2);
const ort = createRequire(join(packages, "package.json"))("onnxruntime-web");
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(path)));

const feeds = {};
for (const [name, { type, dims, data }] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const values = type === "int64" ? BigInt64Array.from(data, BigInt) : data;
  feeds[name] = new ort.Tensor(type, type === "float32" ? Float32Array.from(data) : values, dims);
}
const results = {};
for (const [name, tensor] of Object.entries(await session.run(feeds))) {
  results[name] = { type: tensor.type, dims: tensor.dims, data: Array.from(tensor.data, Number) };
}
process.stdout.write(JSON.stringify(results));
