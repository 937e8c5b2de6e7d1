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
  table.tBodies[0].append(...known.map(({ row }) => row));
}

function toolsOf(table, heads) {
  const input = made("input", { type: "search", placeholder: "Show rows with these words", ariaLabel: "Filter the rows" });
  const count = made("span", { role: "status" }), choice = made("details", {}, made("summary", {}, "Columns"));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [...table.tBodies[0].rows];
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
  for (const [at, head] of heads.entries()) {
    const box = made("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => [...table.rows].forEach((row) => (row.cells[at].hidden = !box.checked)));
    if (head.classList.contains("optional")) choice.append(made("label", {}, box, ` ${head.textContent}`));
  }
  return made("div", { className: "tools" }, input, count, ...(choice.children.length > 1 ? [choice] : []));
}

for (const table of document.querySelectorAll("table.table")) {
  const heads = [...table.tHead.rows[0].cells];
  if (table.dataset.filter !== undefined) table.closest(".scroll").before(toolsOf(table, heads));
  for (const [at, head] of heads.entries()) {
    const button = made("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort"), descending = before ? before === "ascending" : head.classList.contains("number");
      sortBy(table, at, descending);
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    });
  }
}
