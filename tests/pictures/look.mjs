// Opens each page at two widths in two themes, uses it by keyboard, and prints what it finds as JSON:
// node look.mjs CHROMIUM FOLDER PAGE...
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";
import { judge } from "./contrast.mjs";

const [chromium, folder, ...pages] = process.argv.slice(2);
const axe = readFileSync(new URL("./node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

// The texts that are seen and lie on each other, and what the page is wider than its window.
const overlaps = () => {
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !node.parentElement.checkVisibility()) continue;
    const clip = node.parentElement.closest(".wide")?.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (!clip || (box.left < clip.right && box.right > clip.left)) boxes.push([box, node.data.trim()]);
  }
  const found = [];
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length; j++) {
      const [one, other] = [boxes[i][0], boxes[j][0]];
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      // The boxes of lines have room above and below their letters.
      if (wide > 1 && high > 5) found.push([boxes[i][1], boxes[j][1]]);
    }
  return found;
};

const state = () => ({
  answer: document.getElementById("answer").textContent,
  micro_batch: document.getElementById("micro-batch").getAttribute("aria-valuetext"),
  length: document.getElementById("length").getAttribute("aria-valuetext"),
  widths: [...document.querySelectorAll(".bar rect")].map((rect) => rect.getAttribute("width")).join(),
  ground: getComputedStyle(document.body).backgroundColor,
});

const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox"] });
const findings = [];
for (const path of pages)
  for (const width of [400, 1400])
    for (const theme of ["light", "dark"]) {
      const page = await browser.newPage();
      const errors = [];
      const asked = [];
      page.on("pageerror", (error) => errors.push(String(error)));
      page.on("console", (message) => errors.push(message.text()));
      page.on("request", (request) => asked.push(request.url()));
      await page.setViewport({ width, height: 900 });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
      await page.goto(pathToFileURL(path).href);
      const look = async (name) => {
        const shot = `${folder}/${basename(path, ".html")}-${width}-${theme}-${name}.png`;
        await page.screenshot({ path: shot, fullPage: true });
        return page.evaluate(overlaps);
      };
      const found = { page: basename(path, ".html"), width, theme, errors, asked };
      found.before = await page.evaluate(state);
      found.overlaps = await look("before");
      // By keyboard alone: from the start of the page to each slider, and to its ends.
      const reached = [];
      const to = async (id) => {
        for (let presses = 0; presses < 20; presses++) {
          const here = await page.evaluate(() => document.activeElement.id);
          if (here === id) return reached.push(id);
          await page.keyboard.press("Tab");
        }
      };
      await to("micro-batch");
      await page.keyboard.press("ArrowRight");
      found.larger = await page.evaluate(state);
      await to("length");
      await page.keyboard.press("End");
      found.largest = await page.evaluate(state);
      found.overlaps.push(...(await look("largest")));
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await new Promise((resolve) => setTimeout(resolve, 50));
      found.reset = await page.evaluate(state);
      found.reached = reached;
      await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
      found.too_wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      // Later requests are those of the judge.
      found.asked = [...asked];
      await page.evaluate(axe);
      found.judged = await judge(page);
      await page.click("#theme");
      found.toggled = await page.evaluate(state);
      found.pressed = await page.evaluate(() => document.getElementById("theme").getAttribute("aria-pressed"));
      if (width === 1400 && theme === "dark") await page.pdf({ path: `${folder}/${basename(path, ".html")}.pdf` });
      findings.push(found);
      await page.close();
    }
await browser.close();
console.log(JSON.stringify(findings));
