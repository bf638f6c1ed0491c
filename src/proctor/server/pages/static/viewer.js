// On every page: remember the reader's theme.

(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("proctor-theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  const button = document.getElementById("theme");
  // An address to save or send on names only what filters.
  document.addEventListener("formdata", (event) => {
    if (event.target.getAttribute("role") !== "search") return;
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
  if (!button) return;
  const dark = () =>
    root.dataset.theme === "dark" ||
    (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("proctor-theme", root.dataset.theme);
    name();
  });
  name();
})();
