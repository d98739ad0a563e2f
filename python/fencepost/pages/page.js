"use strict";
// Sorts tables by a column, copies commands, and shows what a mark of a chart stands for.
const status = document.getElementById("status");

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.v ?? cell.textContent;
  const number = Number(text.replaceAll(",", ""));
  return text === "–" || text === "" ? null : Number.isNaN(number) ? text : number;
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("thead button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const head = button.parentElement;
      const isUp = head.getAttribute("aria-sort") === "descending";
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
      const [full, empty] = [rows.filter(([it]) => it !== null), rows.filter(([it]) => it === null)];
      full.sort(([one], [other]) => (isUp ? compare(one, other) : compare(other, one)));
      body.append(...[...full, ...empty].map(([, row]) => row));
      status.textContent = `Sorted by ${button.textContent}, ${isUp ? "ascending" : "descending"}`;
    });
  });
}

for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (!document.execCommand("copy")) return;
    }
    button.textContent = "Copied";
    status.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);

function showTip(event) {
  const mark = event.target.closest("svg [aria-label]");
  tip.hidden = !mark || mark.tagName === "svg";
  if (tip.hidden) return;
  tip.textContent = mark.getAttribute("aria-label").replaceAll("; ", "\n");
  const space = 12;
  const left = Math.min(event.clientX + space, innerWidth - tip.offsetWidth - space);
  const isLow = event.clientY + space + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(space, left)}px`;
  tip.style.top = `${isLow ? event.clientY - space - tip.offsetHeight : event.clientY + space}px`;
}

for (const figure of document.querySelectorAll("figure")) {
  figure.addEventListener("pointermove", showTip);
  figure.addEventListener("pointerleave", () => (tip.hidden = true));
}
