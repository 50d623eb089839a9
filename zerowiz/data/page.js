"use strict";
// Shows the answer and the pictures of another plan. Nothing is computed here: zerowiz has worked out every plan.
(() => {
  const { pieces, plans } = JSON.parse(document.getElementById("plans").textContent);
  const form = document.getElementById("sliders");
  const batch = document.getElementById("micro-batch");
  const length = document.getElementById("length");
  const shown = [document.getElementById("answer"), document.getElementById("drawn")];
  let at = batch.value * length.dataset.stops.split(" ").length + Number(length.value);

  const show = () => {
    for (const slider of [batch, length]) {
      const stop = slider.dataset.stops.split(" ")[slider.value];
      slider.setAttribute("aria-valuetext", stop);
      slider.nextElementSibling.textContent = stop;
    }
    const plan = batch.value * length.dataset.stops.split(" ").length + Number(length.value);
    // What did not change is not announced again.
    if (plan === at) return;
    at = plan;
    const isOpen = document.querySelector("details")?.open;
    plans[plan].forEach((places, part) => {
      shown[part].innerHTML = places.map((place) => pieces[place]).join("");
    });
    const details = document.querySelector("details");
    if (details && isOpen) details.open = true;
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
