"use strict";
{
  // Everything can be read without this: it sorts and filters the tables.
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const form = document.getElementById("filters"), count = document.getElementById("count");
  const views = all("[data-axes]").map((view) => [view, JSON.parse(view.dataset.axes)]);
  const rows = all("[data-axes] tbody tr").map((row) => {
    const [name, sampler = "-"] = row.querySelector("th").textContent.trim().replace(" (bound)", "").split(" / ");
    return { row, name, sampler, view: row.closest("[data-axes]") };
  });

  const words = (row, column) => row.cells[column].textContent.trim();
  const bare = (text) => text.replace(/^(\[|[<>]?=? ?)/, ""); // of "<1e-28", "<= 0.09" and "[0.1, 0.2]"
  const isNumber = (text) => /^([-+]?[\d.]|-?inf)/.test(bare(text));
  const value = (text) => parseFloat(bare(text).replace("inf", "Infinity"));

  function sort(header) {
    const body = header.closest("table").tBodies[0], column = header.cellIndex, rows = [...body.rows];
    const missing = (row) => ["-", "", "no", "never"].includes(words(row, column));
    const numbers = rows.every((row) => missing(row) || isNumber(words(row, column)));
    const order = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const inWords = new Intl.Collator("en", { numeric: true }).compare; // L2H0 before L10H0
    const compare = (a, b) => (numbers ? (a = value(a), b = value(b), a < b ? -1 : +(a > b)) : inWords(a, b));
    rows.sort((a, b) => missing(a) - missing(b) || order * compare(words(a, column), words(b, column)));
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
    body.append(...rows);
  }

  for (const header of all("[data-axes] th[scope=col]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(header));
    header.append(button);
  }

  function field(label, element) {
    const wrapper = document.createElement("label");
    wrapper.append(`${label} `, element);
    form.insertBefore(wrapper, form.querySelector("button"));
  }

  function choice(name, label, values) {
    const select = document.createElement("select"), unique = [...new Set(values)];
    select.name = name;
    select.append(new Option("all", ""), ...unique.map((text) => new Option(text, text)));
    if (unique.length > 1) field(label, select);
  }

  const search = document.createElement("input"), names = document.createElement("datalist");
  Object.assign(search, { type: "search", name: "estimator", placeholder: "all; commas for several" });
  search.setAttribute("list", names.id = "estimators");
  names.append(...[...new Set(rows.map((row) => row.name))].map((name) => new Option(name)));
  field("estimator", search);
  form.append(names);
  choice("sampler", "sampler", rows.map((row) => row.sampler).filter((sampler) => sampler !== "-").sort());
  const change = (row) => row.cells[0].textContent.trim();
  const compared = rows.filter(({ row }) => /^[-+~=x] /.test(change(row)));
  choice("change", "change", compared.map(({ row }) => change(row)));
  for (const axis of new Set(views.flatMap(([, axes]) => Object.keys(axes))))
    choice(axis, axis, views.flatMap(([, axes]) => (axis in axes ? [axes[axis]] : [])));

  function filter() {
    const { estimator, sampler, change: verdict, ...axes } = Object.fromEntries(new FormData(form));
    const words = (text) => text.toLowerCase().replace(/\s*\/\s*|\s+/g, " ").trim();
    const parts = (estimator.match(/(\([^)]*\)?|[^,(])+/g) || []).map(words).filter(Boolean);
    for (const item of rows)
      item.row.hidden = parts.length > 0 && !parts.some((part) => words(`${item.name} ${item.sampler}`).includes(part)) ||
        Boolean(sampler) && item.sampler !== sampler || Boolean(verdict) && change(item.row) !== verdict;
    for (const [view, cell] of views) {
      view.hidden = Object.keys(axes).some((axis) => axes[axis] && axis in cell && cell[axis] !== axes[axis]);
      if (view.tagName === "DETAILS" && axes.head) view.open = !view.hidden;
    }
    const left = rows.filter(({ row, view }) => !row.hidden && !view.hidden).length;
    count.textContent = `${left} of ${rows.length} rows`;
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
