"use strict";
// Puts the values of another plan into their places. Nothing is computed here: zerowiz has worked out every plan.
(() => {
  const { texts, plans } = JSON.parse(document.getElementById("plans").textContent);
  const form = document.getElementById("sliders");
  const batch = document.getElementById("micro-batch");
  const length = document.getElementById("length");
  const places = [...document.querySelectorAll("[data-t]")];
  const shapes = [...document.querySelectorAll("[data-a]")].map((element) => [
    element,
    element.dataset.a.split(" ").map((pair) => pair.split(":")),
  ]);

  const show = () => {
    for (const slider of [batch, length]) {
      const stop = slider.dataset.stops.split(" ")[slider.value];
      slider.setAttribute("aria-valuetext", stop);
      slider.nextElementSibling.textContent = stop;
    }
    const lengths = length.dataset.stops.split(" ").length;
    const values = plans[batch.value * lengths + Number(length.value)];
    for (const element of places) {
      const text = texts[values[element.dataset.t]];
      // What did not change is not announced again.
      if (element.textContent !== text) element.textContent = text;
    }
    for (const [element, names] of shapes)
      for (const [name, place] of names) element.setAttribute(name, texts[values[place]]);
  };

  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());

  const theme = document.getElementById("theme");
  const root = document.documentElement;
  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const mark = () => theme.setAttribute("aria-pressed", isDark());
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    mark();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", mark);
  mark();
})();
