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

function startHeatmap(list) {
  const table = document.querySelector("table.heat");
  if (!table) return;
  const arms = [...table.querySelectorAll("thead button")].map((button) => button.dataset.arm);
  table.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) list.show({ case: button.dataset.case, arm: button.dataset.arm });
    const cell = event.target.closest("td[data-column]");
    if (cell) {
      const row = cell.parentElement.querySelector("button");
      list.show({ case: row.dataset.case, arm: arms[Number(cell.dataset.column)] });
    }
  });
}

function start() {
  let figures = null;
  startThemes(() => figures && figures.redraw());
  const trials = rowsOf(block("trials"));
  const list = new TrialList(trials, document.getElementById("trial-list"));
  startHeatmap(list);
  new TrialView(trials, list);
  const charts = block("charts");
  if (charts) figures = new Figures(charts, trials, list);
  document.documentElement.dataset.ready = "yes";
}

start();
