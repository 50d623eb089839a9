// What can be read of a page, by its pixels: axe leaves undecided what it cannot see, and takes the wrong colour for texts
// of drawings (`color`, where they have `fill`).

// Marks what is measured: every text of a drawing, and what axe left undecided.
const mark = (targets) => {
  const texts = [...document.querySelectorAll("svg text")].filter((text) => text.textContent.trim());
  const undecided = targets.map((target) => document.querySelector(target));
  for (const each of new Set([...texts, ...undecided])) if (each.checkVisibility()) each.dataset.measured = "";
};

// The texts that contrast with something behind them by less than 4.5 (WCAG 2.2, 1.4.3), and the areas of bars that contrast
// with what they touch by less than 3 (1.4.11). The screenshot is without the measured texts.
const measure = async (screenshot) => {
  const image = new Image();
  image.src = `data:image/png;base64,${screenshot}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  const luminance = (colour) =>
    [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
      const part = colour[i] / 255;
      return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    }, 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const pixels = (left, top, width, height) => {
    const corner = [Math.round(left + scrollX), Math.round(top + scrollY)];
    const { data } = pen.getImageData(...corner, Math.max(1, Math.floor(width)), Math.max(1, Math.floor(height)));
    return Array.from({ length: data.length / 4 }, (_, i) => [...data.subarray(4 * i, 4 * i + 3)]);
  };

  const texts = [];
  for (const element of document.querySelectorAll("[data-measured]")) {
    const style = getComputedStyle(element);
    const ink = (element.closest("svg") ? style.fill : style.color).match(/[\d.]+/g).map(Number);
    const box = element.getBoundingClientRect();
    // A line of text has room above and below its letters.
    const behind = pixels(box.left, box.top + 3, box.width, box.height - 6);
    const least = Math.min(...behind.map((colour) => contrast(ink, colour)));
    texts.push({ text: element.textContent.trim(), least: Math.round(100 * least) / 100 });
  }

  const touching = [];
  for (const bar of document.querySelectorAll(".bar")) {
    const box = bar.getBoundingClientRect();
    const row = pixels(box.left, box.top + 5, box.width, 1);
    for (let i = 1; i < row.length; i++)
      if (row[i].join() !== row[i - 1].join() && contrast(row[i], row[i - 1]) < 3)
        touching.push([i, row[i - 1].join(), row[i].join()]);
  }
  return { texts, touching };
};

const HIDDEN = "[data-measured]{fill:transparent!important;color:transparent!important}";

// What axe finds and what it leaves undecided, with wide tables scrolled to each of their parts.
const runAxe = async (page) => {
  const violations = [];
  let undecided = null;
  for (let isDone = false; !isDone; ) {
    const found = await page.evaluate(() => window.axe.run());
    violations.push(...found.violations.map((each) => `${each.id}: ${each.nodes.map((n) => n.html.slice(0, 99))}`));
    const here = found.incomplete.flatMap((rule) => rule.nodes.map((node) => `${rule.id} ${node.target[0]}`));
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

const RULE = "color-contrast ";

export const judge = async (page) => {
  const { violations, undecided } = await runAxe(page);
  const contrasts = undecided.filter((each) => each.startsWith(RULE));
  await page.evaluate(mark, contrasts.map((each) => each.slice(RULE.length)));
  const style = await page.addStyleTag({ content: HIDDEN });
  const screenshot = await page.screenshot({ fullPage: true, encoding: "base64" });
  await style.evaluate((element) => element.remove());
  const { texts, touching } = await page.evaluate(measure, screenshot);
  return {
    violations,
    unexplained: undecided.filter((each) => !contrasts.includes(each)),
    undecided: contrasts.length,
    measured: texts.length,
    faint: texts.filter((each) => each.least < 4.5),
    touching,
  };
};
