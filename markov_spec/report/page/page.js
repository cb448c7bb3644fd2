"use strict";
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const spec = JSON.parse(document.getElementById(figure.dataset.chart).textContent);
  vegaEmbed(figure.querySelector(".plot"), spec, {actions: false, renderer: "svg", ast: true});
}
for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const missing = key => key === "" || key === "-";
    const compared = (a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const [x, y] = [Number(a), Number(b)];
      const by = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
      return order === "ascending" ? by : -by;
    };
    body.append(...[...body.rows].sort((a, b) => compared(key(a), key(b))));
  });
}
const told = document.getElementById("told");
for (const text of document.querySelectorAll(".trace")) {
  for (const kind of ["pointerover", "click"]) text.addEventListener(kind, event => {
    const token = event.target.closest("i");
    if (!token) return;
    const read = name => (100 * token.style.getPropertyValue(name)).toFixed(0) + " %";
    told.textContent = `${JSON.stringify(token.textContent)}: from the drafter ${read("--a")}, a round starts here ${read("--s")}`;
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(own => own.open = true));
