"use strict";
{
  // Everything can be read without this: it sorts, filters, and shows values and lines under the pointer at once.
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { estimators, cells } = JSON.parse(document.getElementById("names").textContent);
  const form = document.getElementById("filters"), count = document.getElementById("count");
  const tip = document.getElementById("tip");

  const words = (row, column) => row.cells[column].textContent;
  const isNumber = (text) => /^(<?[-+]?[\d.]|inf)/.test(text);
  const value = (text) => (text.startsWith("inf") ? Infinity : parseFloat(text.replace("<", "")));

  function sort(header) {
    const body = header.closest("table").tBodies[0], column = header.cellIndex, rows = [...body.rows];
    const missing = (row) => ["-", ""].includes(words(row, column));
    const numbers = header.classList.contains("n") &&
      rows.every((row) => missing(row) || isNumber(words(row, column)));
    const order = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const compare = (a, b) => (numbers ? (a = value(a), b = value(b), a < b ? -1 : +(a > b)) : a.localeCompare(b));
    rows.sort((a, b) => missing(a) - missing(b) || order * compare(words(a, column), words(b, column)));
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
    body.append(...rows);
  }

  for (const header of all("[data-c] th[scope=col]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(header));
    header.append(button);
  }

  for (const title of all("svg title")) {  // the browser's own box comes late, and not on touch
    const mark = title.parentNode, text = title.textContent, dot = mark.tagName === "circle";
    const one = estimators[mark.closest("[data-e]").dataset.e];
    mark.dataset.t = dot ? `${one.filter((name) => name !== "-").join(" / ")}, ${text}` : text;
    if (dot) mark.dataset.h = text.slice(0, text.lastIndexOf(": "));
    title.remove();
  }

  function filter() {
    const { map, sampler, ...axes } = Object.fromEntries(new FormData(form));
    const parts = (map || "").toLowerCase().split(",").map((part) => part.trim()).filter(Boolean);
    const shown = estimators.map(([name, its]) =>
      (!parts.length || parts.some((part) => name.toLowerCase().includes(part))) && (!sampler || its === sampler));
    for (const one of all("[data-e]")) one.toggleAttribute("hidden", !shown[one.dataset.e]);
    for (const view of all("[data-c]")) {
      const cell = cells[view.dataset.c];
      view.hidden = Object.keys(axes).some((axis) => axes[axis] && axis in cell && cell[axis] !== axes[axis]);
      if (view.tagName === "DETAILS" && axes.head) view.open = !view.hidden;
    }
    for (const picture of all("svg:has([data-h])")) picture.classList.toggle("pick", Boolean(axes.head));
    for (const dot of all("[data-h]"))
      if (dot.classList.toggle("on", dot.dataset.h === axes.head)) dot.parentNode.append(dot);  // above the others
    const rows = all("[data-c] tbody tr");
    const left = rows.filter((row) => !row.hidden && !row.closest("[data-c]").hidden).length;
    count.textContent = `${left} of ${rows.length} rows`;
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();

  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest("[data-t]"), one = event.target.closest("[data-e]");
    tip.hidden = !mark;
    if (mark) {
      tip.textContent = mark.dataset.t;
      const box = mark.getBoundingClientRect(), flat = box.width > 60;
      const left = flat ? event.clientX : box.right;
      tip.style.left = `${Math.max(4, Math.min(left + 8, innerWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(4, box.top - tip.offsetHeight - 6)}px`;
    }
    for (const hot of all(".hot")) hot.classList.remove("hot");
    for (const on of all("g.on")) on.classList.remove("on");
    if (!one) return;
    for (const group of all(`g[data-e="${one.dataset.e}"]`, one.closest("[data-c]"))) {
      group.classList.add("on");
      group.ownerSVGElement.classList.add("hot");
    }
  });
}
