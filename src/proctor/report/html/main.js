// Start: theme, list of trials, view of one trial, charts.

const THEMES = ["system", "light", "dark"];

function chosenTheme() {
  return document.documentElement.dataset.theme || "system";
}

/** The theme in force, chosen by the reader or by the system. */
function currentTheme() {
  const chosen = chosenTheme();
  if (chosen !== "system") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.documentElement.dataset.shown = currentTheme();
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("proctor-theme", theme);
  } catch {
    // A file opened from disk may have no storage; the choice then lasts as long as the page.
  }
}

function startThemes(changed) {
  const button = document.getElementById("theme");
  let kept = null;
  try {
    kept = localStorage.getItem("proctor-theme");
  } catch {
    kept = null;
  }
  setTheme(THEMES.includes(kept) ? kept : "system");
  button.hidden = false;
  button.addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
    say(button.textContent);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.documentElement.dataset.shown = currentTheme();
    changed();
  });
}

/** Names of cases and agents, and cells of the heatmap's table, lead to their trials. */
function startNames(list) {
  const arms = [...document.querySelectorAll("table.heat thead button")].map((button) => button.dataset.arm);
  document.getElementById("main").addEventListener("click", (event) => {
    const name = event.target.closest("[data-case], [data-arm]");
    const cell = event.target.closest("td[data-column]");
    if (name) list.show({ case: name.dataset.case, arm: name.dataset.arm });
    else if (cell) list.show({ case: cell.parentElement.querySelector("button").dataset.case, arm: arms[Number(cell.dataset.column)] });
    else return;
    event.preventDefault(); // the link's own target, for pages without scripts
  });
}

/** Buttons that save each table of the page. */
function startTables() {
  for (const table of document.querySelectorAll("main .scroll > table")) {
    if (!table.closest("#trial-list")) table.parentElement.after(tableTools(table));
  }
}

function start() {
  let figures = null;
  startThemes(() => figures && figures.redraw());
  const trials = rowsOf(block("trials"));
  const list = new TrialList(trials, document.getElementById("trial-list"));
  startNames(list);
  startTables();
  new TrialView(trials, list);
  const charts = block("charts");
  if (charts) figures = new Figures(charts, trials, list);
  document.documentElement.dataset.ready = "yes";
}

start();
