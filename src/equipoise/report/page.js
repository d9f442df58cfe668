"use strict";
// The legend shows and hides a method in all of a suite's figures; resting on a method dims the others; pointing at a
// diagram reads its values. Pointer events, since a lifted finger ends them; mouse events would leave the others dim.

for (const section of document.querySelectorAll("section")) {
  const marks = (index) => section.querySelectorAll(`[data-m="${index}"]`);
  const focus = (index) => {
    for (const mark of section.querySelectorAll("[data-m]")) {
      mark.classList.toggle("dim", index !== null && mark.dataset.m !== index);
    }
  };
  for (const button of section.querySelectorAll("button[data-toggle]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(shown));
      for (const mark of marks(button.dataset.toggle)) mark.classList.toggle("off", !shown);
    });
    button.addEventListener("pointerenter", () => focus(button.dataset.toggle));
    button.addEventListener("pointerleave", () => focus(null));
  }
}

const readout = document.body.appendChild(document.createElement("div"));
readout.className = "readout";
readout.hidden = true;
const MOST = 12; // values shown at once: those nearest to the pointer

for (const svg of document.querySelectorAll("svg[data-x]")) {
  const scale = (text) => {
    const [start, end, low, high, log] = text.split(" ").map(Number);
    return (place) => {
      const value = low + ((place - start) / (end - start)) * (high - low);
      return log ? 10 ** value : value;
    };
  };
  const [toX, toY] = [scale(svg.dataset.x), scale(svg.dataset.y)];
  const lines = [...svg.querySelectorAll("path.line")].map((path) => ({
    path,
    points: [...path.getAttribute("d").matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map((match) => [+match[1], +match[2]]),
  }));
  const hair = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
  hair.setAttribute("class", "hair");

  const hide = () => {
    readout.hidden = true;
    hair.style.display = "none";
  };
  const read = (event) => {
    const box = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom];
    const shown = lines.filter((line) => line.points.length && !line.path.classList.contains("off"));
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    const found = shown.map((line) => ({ path: line.path, point: nearest(line.points) }));
    if (!found.length) return hide();
    const at = nearest(found.map((one) => one.point))[0];
    const rows = found.filter((one) => Math.abs(one.point[0] - at) < 1);
    rows.sort((a, b) => Math.abs(a.point[1] - y) - Math.abs(b.point[1] - y));
    const kept = rows.slice(0, MOST).sort((a, b) => a.point[1] - b.point[1]);
    readout.replaceChildren(head(`${svg.dataset.of} ${Math.round(toX(at))}`), ...kept.map(row));
    readout.hidden = false;
    const wide = readout.offsetWidth;
    const left = event.clientX + 14 + wide < document.documentElement.clientWidth ? event.clientX + 14 : event.clientX - 14 - wide;
    readout.style.left = `${Math.max(4, left)}px`;
    readout.style.top = `${Math.max(4, Math.min(event.clientY + 10, window.innerHeight - readout.offsetHeight - 4))}px`;
    for (const name of ["x1", "x2"]) hair.setAttribute(name, at);
    hair.setAttribute("y1", 8);
    hair.setAttribute("y2", svg.viewBox.baseVal.height - 32);
    hair.style.display = "";
  };
  const head = (text) => Object.assign(document.createElement("b"), { textContent: text });
  const row = ({ path, point }) => {
    const line = document.createElement("div");
    const dot = line.appendChild(document.createElement("i"));
    dot.style.background = getComputedStyle(path).getPropertyValue("--m");
    line.append(path.dataset.name, Object.assign(document.createElement("span"), { textContent: toY(point[1]).toPrecision(3) }));
    return line;
  };
  svg.addEventListener("pointermove", read);
  svg.addEventListener("pointerdown", read);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointercancel", hide);
}
