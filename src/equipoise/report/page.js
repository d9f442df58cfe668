"use strict";
// The legend shows and hides a method in all of a suite's figures; resting on a method dims the others.
for (const section of document.querySelectorAll("section")) {
  const marks = (index) => section.querySelectorAll(`[data-m="${index}"]`);
  for (const button of section.querySelectorAll("button[data-toggle]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      for (const mark of marks(button.dataset.toggle)) mark.classList.toggle("off", !shown);
    });
    button.addEventListener("mouseenter", () => focus(button.dataset.toggle));
    button.addEventListener("mouseleave", () => focus(null));
  }
  for (const mark of section.querySelectorAll("path.line[data-m]")) {
    mark.addEventListener("mouseenter", () => focus(mark.dataset.m));
    mark.addEventListener("mouseleave", () => focus(null));
  }
  function focus(index) {
    for (const mark of section.querySelectorAll("[data-m]")) {
      mark.classList.toggle("dim", index !== null && mark.dataset.m !== index);
    }
  }
}
