// A headless Chromium and a small server of files, for the tests.
// PACKAGES is the folder whose node_modules holds playwright; the browser is the one that SPECC_CHROMIUM names,
// the system's, or playwright's own.
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize, resolve } from "node:path";

const KINDS = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
  ".json": "application/json",
  ".onnx": "application/octet-stream",
};

// Files of `folders`, by the first part of their path: {"": "/page", "ort": "/packages/ort"}.
export async function serve(folders) {
  const server = createServer((request, answer) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname)).slice(1);
    const [first, ...rest] = path.split("/");
    const file = first in folders && rest.length ? join(folders[first], ...rest) : join(folders[""], path || "index.html");
    if (file.includes("..") || !existsSync(file)) {
      answer.writeHead(404).end();
      return;
    }
    answer.writeHead(200, { "content-type": KINDS[extname(file)] ?? "application/octet-stream" });
    answer.end(readFileSync(file));
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return { server, base: `http://127.0.0.1:${server.address().port}` };
}

const SYSTEM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch(packages, args = []) {
  const { chromium } = createRequire(resolve(packages, "package.json"))("playwright");
  const executablePath = process.env.SPECC_CHROMIUM || SYSTEM.find(existsSync);
  return chromium.launch({ executablePath, headless: true, args: ["--no-sandbox", ...args] });
}

// WebGPU on a device of software, where there is no other.
export const SOFTWARE_GPU = [
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  "--enable-features=Vulkan",
  "--use-vulkan=swiftshader",
];
