// Keeps a page of live traces up to date: polls for changes. A list is updated in place, unless
// the reader is using it; in that case, and for a single trace, a button offers the update.

(() => {
  const place = document.getElementById("found") || document.getElementById("grown");
  if (!place || !place.dataset.ask) return;
  const pause = 3000; // milliseconds
  const share = 20; // polling may take a twentieth of the time: a search in many traces is slow
  let waiting = null;

  const offer = () => {
    if (waiting) return;
    const words = place.dataset.words || (place.id === "found" ? "New traces have arrived. " : "This trace has new spans. ");
    const show = el("button", { type: "button", on: { click: () => (place.id === "found" ? exchange() : location.reload()) } }, "Show");
    waiting = el("p", { class: "arrived", role: "status" }, words, show);
    place.before(waiting);
  };

  const exchange = async () => {
    const reply = await fetch(location.href).catch(() => null);
    if (!reply || !reply.ok) return;
    const whole = new DOMParser().parseFromString(await reply.text(), "text/html");
    const made = whole.getElementById("found");
    if (!made) return;
    const facets = whole.getElementById("facets");
    if (facets && !facets.dataset.part) document.getElementById("facets")?.replaceChildren(...facets.childNodes);
    const open = place.querySelector("details")?.open;
    const chosen = [...place.querySelectorAll("input:checked")].map((box) => box.value);
    place.dataset.state = made.dataset.state;
    place.replaceChildren(...made.childNodes);
    if (open && place.querySelector("details")) place.querySelector("details").open = true;
    for (const box of place.querySelectorAll("input[type=checkbox]")) box.checked = chosen.includes(box.value);
    waiting?.remove();
    waiting = null;
  };

  const look = async () => {
    const began = performance.now();
    if (!document.hidden) {
      const reply = await fetch(place.dataset.ask).catch(() => null);
      const now = reply && reply.ok ? await reply.json() : null;
      if (now && now.state !== place.dataset.state) {
        if (place.id !== "found" || place.matches(":hover, :focus-within")) offer();
        else await exchange();
      }
    }
    setTimeout(look, Math.max(pause, share * (performance.now() - began)));
  };
  setTimeout(look, pause);
})();
