// The table of cases and agents: find, order, failures only, and which agents are shown.

(() => {
  const table = document.getElementById("matrix");
  const tools = document.querySelector(".matrix-tools");
  if (!table || !tools) return;
  tools.hidden = false;
  const body = table.tBodies[0];
  const worst = [...body.rows];
  const name = (row) => row.cells[0].title || row.cells[0].textContent;
  const byName = [...worst].sort((a, b) => name(a).localeCompare(name(b), "en", { numeric: true }));
  const find = document.getElementById("find-case");
  const order = document.getElementById("sort-case");
  const failures = document.getElementById("only-failures");
  const columns = [...tools.querySelectorAll("[data-column]")];

  const show = () => {
    const wanted = find.value.trim().toLowerCase();
    const hidden = new Set(columns.filter((box) => !box.checked).map((box) => Number(box.dataset.column)));
    let count = 0;
    for (const row of worst) {
      const bad = [...row.cells].some((cell, at) => cell.hasAttribute("data-bad") && !hidden.has(at));
      row.hidden = (wanted && !name(row).toLowerCase().includes(wanted)) || (failures.checked && !bad);
      count += Number(!row.hidden);
    }
    for (const row of table.rows) for (const at of columns.map((box) => Number(box.dataset.column))) row.cells[at].hidden = hidden.has(at);
    document.getElementById("case-count").textContent = `${count.toLocaleString("en")} of ${worst.length.toLocaleString("en")} cases`;
  };
  order.addEventListener("change", () => body.append(...(order.value === "name" ? byName : worst)));
  for (const tool of [find, failures, ...columns]) tool.addEventListener("input", show);
  show();
})();
