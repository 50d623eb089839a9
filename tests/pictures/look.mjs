// Opens each page at two widths in two themes, and prints what it finds as JSON: node look.mjs CHROMIUM FOLDER PAGE...
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const [chromium, folder, ...pages] = process.argv.slice(2);
const axe = readFileSync(new URL("./node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

// The texts that are seen and lie on each other.
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

// axe does not judge what is no letter. Such signs of a terminal have the colours of the words beside them.
const isSign = (node) => node.any[0]?.data?.messageKey === "nonBmp";

// What axe finds, and what it leaves undecided in each part of what scrolls.
const judge = async (page) => {
  const violations = [];
  let undecided = null;
  for (let isDone = false; !isDone; ) {
    const found = await page.evaluate(() => window.axe.run());
    violations.push(...found.violations.map((each) => `${each.id}: ${each.nodes.map((n) => n.html.slice(0, 99))}`));
    const here = found.incomplete.flatMap((rule) => rule.nodes.filter((n) => !isSign(n)).map((n) => `${rule.id} ${n.target[0]}`));
    // What was hidden is seen once it is scrolled to.
    undecided = undecided === null ? here : undecided.filter((each) => here.includes(each));
    isDone = await page.evaluate(() =>
      [...document.querySelectorAll(".wide")].every((each) => {
        const before = each.scrollLeft;
        each.scrollLeft += each.clientWidth / 2;
        return each.scrollLeft === before;
      }),
    );
  }
  return { violations, undecided };
};

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
      const name = basename(path, ".html");
      await page.screenshot({ path: `${folder}/${name}-${width}-${theme}.png`, fullPage: true });
      const found = { page: name, width, theme, errors, asked: [...asked], overlaps: await page.evaluate(overlaps) };
      found.ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      found.too_wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      await page.evaluate(axe);
      Object.assign(found, await judge(page));
      findings.push(found);
      await page.close();
    }
await browser.close();
console.log(JSON.stringify(findings));
