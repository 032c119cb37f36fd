// Run by Node in a folder that has @huggingface/transformers: prints the tokens written as JSON.
// node with_transformers_js.mjs NODE_MODULES PARENT NAME PROMPTS MAX
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, parent, name, prompts, most] = process.argv.slice(2);
const found = createRequire(pathToFileURL(`${modules}/`)).resolve("@huggingface/transformers");
const { AutoModelForCausalLM, Tensor, env } = await import(pathToFileURL(found));
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = parent;

const rows = JSON.parse(prompts);
const ids = new Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
const mask = new Tensor("int64", new BigInt64Array(ids.data.length).fill(1n), ids.dims);
const model = await AutoModelForCausalLM.from_pretrained(name, { dtype: "fp32", device: "cpu" });
const made = await model.generate({
  inputs: ids, attention_mask: mask, max_new_tokens: Number(most), do_sample: false,
});
console.log(JSON.stringify(made.tolist().map((row) => row.slice(rows[0].length).map(Number))));
