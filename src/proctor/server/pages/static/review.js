// Review and promote: send forms with fetch, so that the server sees their origin; keys for labels;
// agreement and rates stay current while other raters label.

(() => {
  const form = document.getElementById("label");
  const trouble = document.getElementById("trouble");

  const send = async (verdict) => {
    const fields = new URLSearchParams(new FormData(form));
    fields.set("verdict", verdict);
    const headers = { accept: "application/json" };
    const reply = await fetch(form.action, { method: "POST", body: fields, headers }).catch(() => null);
    if (reply && reply.ok) return location.assign((await reply.json()).next);
    trouble.textContent = reply ? `Not stored: ${await reply.text()}` : "Not stored: the server does not answer.";
    trouble.hidden = false;
    return null;
  };

  // A rater types the name once.
  const rater = form && form.elements.rater;
  if (rater && !rater.value) rater.value = localStorage.getItem("proctor-rater") || "";
  if (rater && rater.type === "text") {
    rater.addEventListener("change", () => localStorage.setItem("proctor-rater", rater.value));
  }

  if (form && !form.querySelector("fieldset").disabled) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      // Enter in a field sends no verdict: a label must be chosen.
      if (event.submitter && document.activeElement === event.submitter) send(event.submitter.value);
    });
    const keys = { p: "pass", f: "fail", s: "skip" };
    document.addEventListener("keydown", (event) => {
      if (form.dataset.keys === undefined) return undefined;
      const field = event.target.closest("input, textarea, select");
      if (event.key === "Escape" && field) return field.blur();
      if (field || event.ctrlKey || event.metaKey || event.altKey) return undefined;
      if (keys[event.key]) {
        event.preventDefault();
        return send(keys[event.key]);
      }
      if (event.key === "c") {
        event.preventDefault();
        return form.elements.comment.focus();
      }
      if (event.key === "b") document.getElementById("back")?.click();
      return undefined;
    });
  }

  const place = document.getElementById("figures");
  if (!place) return;
  const follow = async () => {
    const reply = await fetch(place.dataset.address).catch(() => null);
    if (reply && reply.ok) {
      const now = await reply.json();
      for (const name of ["agreement", "rates"]) {
        const lines = now[name].length ? now[name] : null;
        const list = document.getElementById(name);
        if (lines) list.replaceChildren(...lines.map((text) => el("li", { class: "free-text" }, text)));
      }
    }
    setTimeout(follow, 5000);
  };
  setTimeout(follow, 5000);
})();
