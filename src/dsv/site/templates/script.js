"use strict";
// Tables are complete without this: it adds sorting, filtering and the choice of columns.
const byValue = new Intl.Collator("en", { numeric: true });
const made = (name, fields, ...content) => {
  const element = Object.assign(document.createElement(name), fields);
  element.append(...content);
  return element;
};

function sortBy(table, at, descending) {
  const known = [...table.tBodies[0].rows].map((row) => {
    const { sort } = row.cells[at].dataset, text = row.cells[at].textContent.trim();
    return { row, value: sort === undefined ? text : Number(sort), lacks: text === "–" || (text === "" && sort === undefined) };
  });
  known.sort((one, other) => {
    if (one.lacks || other.lacks) return one.lacks - other.lacks; // last in both directions
    const numbers = typeof one.value === "number" && typeof other.value === "number";
    const order = numbers ? one.value - other.value : byValue.compare(one.value, other.value);
    return descending ? -order : order;
  });
  table.tBodies[0].append(...known.map((each) => each.row));
  [...table.tHead.rows[0].cells].forEach((head, other) => {
    if (other === at) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = made("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      sortBy(table, at, before ? before === "ascending" : head.classList.contains("number"));
    });
  });
}

function filterOf(table) {
  const input = made("input", { type: "search", placeholder: "Filter: words that a row has", ariaLabel: "Filter the rows" });
  const count = made("span", { role: "status" });
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
  return [input, count];
}

function choiceOf(table) {
  const labels = [...table.tHead.rows[0].cells].flatMap((head, at) => {
    if (head.dataset.optional === undefined) return [];
    const box = made("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => [...table.rows].forEach((row) => (row.cells[at].hidden = !box.checked)));
    return [made("label", {}, box, ` ${head.textContent}`)];
  });
  return labels.length ? [made("details", {}, made("summary", {}, "Columns"), ...labels)] : [];
}

for (const table of document.querySelectorAll("table.table")) {
  if (table.dataset.filter !== undefined) {
    table.closest(".scroll").before(made("div", { className: "tools" }, ...filterOf(table), ...choiceOf(table)));
  }
  makeSortable(table);
}
