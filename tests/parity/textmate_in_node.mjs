// The scopes that VS Code's own library gives every word of some files: node textmate_in_node.mjs PACKAGES GRAMMAR FILE…
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const [, , packages, grammar, ...files] = process.argv;
const require = createRequire(join(packages, "node_modules", "x.js"));
const oniguruma = require("vscode-oniguruma");
const textmate = require("vscode-textmate");

const wasm = readFileSync(join(packages, "node_modules", "vscode-oniguruma", "release", "onig.wasm"));
await oniguruma.loadWASM(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.byteLength));
const registry = new textmate.Registry({
  onigLib: Promise.resolve({
    createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
    createOnigString: (text) => new oniguruma.OnigString(text),
  }),
  loadGrammar: async () => textmate.parseRawGrammar(readFileSync(grammar, "utf-8"), grammar),
});
const loaded = await registry.loadGrammar("source.specc");
const made = {};
for (const file of files) {
  const found = [];
  let state = textmate.INITIAL;
  for (const [number, line] of readFileSync(file, "utf-8").split("\n").entries()) {
    const { tokens, ruleStack } = loaded.tokenizeLine(line, state);
    for (const token of tokens) {
      found.push([number, line.slice(token.startIndex, token.endIndex), token.scopes.at(-1)]);
    }
    state = ruleStack;
  }
  made[file] = found;
}
console.log(JSON.stringify(made));
