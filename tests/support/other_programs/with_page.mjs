// Uses the page of docs/demos/browser in headless Chromium: with_page.mjs PACKAGES FOLDER [PICTURES].
// Reads JSON: {"strokes": [[[x, y], …], …], "dates": [text, …], "numbers": [text, …]}, strokes in shares of the paper.
// Prints what the page shows of each, all that the browser complained of, and every address outside the folder that
// was asked for. PICTURES is a folder for screenshots, dark and light.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { launch, serve } from "./chromium.mjs";

const [packages, folder, pictures] = process.argv.slice(2);
const asked = JSON.parse(readFileSync(0, "utf8"));
const { server, base } = await serve({ "": folder, models: join(folder, "models"), ort: join(folder, "ort") });
const browser = await launch(packages);
const page = await browser.newPage({ viewport: { width: 1100, height: 1000 }, colorScheme: "light" });
page.setDefaultTimeout(120_000);
const complaints = [];
const outside = [];
page.on("console", (said) => ["error", "warning"].includes(said.type()) && complaints.push(said.text()));
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("request", (request) => request.url().startsWith(base) || request.url().startsWith("blob:") || outside.push(request.url()));
await page.goto(`${base}/`);
await page.waitForSelector("#status[data-ready], #status.wrong");

async function drawn(strokes) {
  await page.click("#clear");
  const box = await page.locator("#paper").boundingBox();
  const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
  for (const stroke of strokes) {
    await page.mouse.move(...at(stroke[0]));
    await page.mouse.down();
    for (const point of stroke.slice(1)) await page.mouse.move(...at(point), { steps: 6 });
    await page.mouse.up();
  }
  await page.waitForFunction(() => document.querySelector("#digits").dataset.said);
  await page.waitForTimeout(300);
  return page.locator("#digits").evaluate((section) => ({
    said: section.dataset.said,
    seen: section.querySelectorAll("#seen rect").length,
    looks: section.querySelectorAll("#looks rect").length,
  }));
}

async function written(id, text) {
  const section = page.locator(`#${id}`);
  await section.locator("input").fill(text);
  await page.waitForFunction(([id, text]) => document.querySelector(`#${id}`).dataset.done === text.trim(), [id, text]);
  return section.evaluate((one) => ({
    answer: one.querySelector("output").textContent,
    problem: one.querySelector(".problem").textContent,
    cells: [...one.querySelectorAll(".map .cell")].map((cell) => Number(cell.getAttribute("opacity"))),
    letters: [...one.querySelectorAll(".map text")].map((letter) => letter.textContent),
  }));
}

const shown = { status: await page.textContent("#status"), digits: [], dates: [], numbers: [] };
for (const strokes of asked.strokes ?? []) shown.digits.push(await drawn(strokes));
for (const id of ["dates", "numbers"]) for (const text of asked[id] ?? []) shown[id].push(await written(id, text));
const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
shown.themes = [await theme()];
if (pictures) await page.screenshot({ path: join(pictures, "light.png"), fullPage: true });
await page.click("#theme");
shown.themes.push(await theme());
if (pictures) await page.screenshot({ path: join(pictures, "dark.png"), fullPage: true });
if (pictures) {
  await page.setViewportSize({ width: 390, height: 800 });
  await page.screenshot({ path: join(pictures, "narrow.png"), fullPage: true });
}
console.log(JSON.stringify({ ...shown, complaints, outside }));
await browser.close();
server.close();
