// One trial: its views (conversation, spans, files), keys, copies, and the step to start with.

(() => {
  const views = document.querySelectorAll('[role="tabpanel"]');
  const tab = (name) => document.getElementById(`tab-${name}`);
  const turns = () => [...document.querySelectorAll(".turn:not([hidden])")];

  /** Show one view; the spans are drawn once they have a size. */
  const show = (name) => {
    if (!tab(name)) return;
    for (const view of views) {
      const chosen = view.id === name;
      view.hidden = !chosen;
      tab(view.id).setAttribute("aria-selected", String(chosen));
      tab(view.id).tabIndex = chosen ? 0 : -1;
    }
    if (name === "spans" && window.traceView) window.traceView.choose(window.traceView.chosen, { quiet: true });
  };
  const shown = () => [...views].find((view) => !view.hidden)?.id;
  const step = (by) => {
    const names = [...views].map((view) => view.id);
    return names[(names.indexOf(shown()) + by + names.length) % names.length];
  };
  for (const view of views) {
    tab(view.id).addEventListener("click", () => show(view.id));
    tab(view.id).addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const name = step(by);
      show(name);
      tab(name).focus();
    });
  }

  /** Show what the address names: a span or a turn. */
  const follow = () => {
    if (location.hash.startsWith("#span=")) show("spans");
    const turn = /^#turn-\d+$/.test(location.hash) && document.querySelector(location.hash);
    if (!turn) return;
    show("conversation");
    turn.hidden = false;
    turn.focus({ preventScroll: true });
    turn.scrollIntoView({ block: "start" });
  };
  window.addEventListener("hashchange", follow);
  follow();

  // A link to the address that is open changes nothing by itself.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) follow();
    if (event.target.closest?.("#findings button")) {
      show("spans");
      document.getElementById("tree")?.focus();
    }
  });

  const find = document.getElementById("find-turn");
  find?.addEventListener("input", () => {
    const wanted = find.value.trim().toLowerCase();
    for (const turn of document.querySelectorAll(".turn")) turn.hidden = wanted !== "" && !turn.textContent.toLowerCase().includes(wanted);
    const count = document.getElementById("turn-count");
    count.textContent = wanted ? `${turns().length} of ${count.dataset.count} turns` : `${count.dataset.count} turns`;
  });

  for (const link of document.querySelectorAll("[data-copy]")) {
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      const reply = await fetch(link.href).catch(() => null);
      const text = reply && reply.ok ? await reply.text() : null;
      const done = text !== null && (await copy(text));
      document.getElementById("copied").textContent = done ? `Copied ${link.textContent}.` : "Nothing was copied.";
    });
  }

  const move = (by) => {
    show("conversation");
    const all = turns();
    const at = all.indexOf(document.activeElement.closest?.(".turn"));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    if (!next) return;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
    history.replaceState(null, "", `#${next.id}`);
  };
  const keys = document.getElementById("keys");
  document.getElementById("keys-close").addEventListener("click", () => keys.close());
  const acts = {
    j: () => move(1),
    k: () => move(-1),
    v: () => show(step(1)),
    n: () => document.querySelector(".steps [rel=next]")?.click(),
    p: () => document.querySelector(".steps [rel=prev]")?.click(),
    s: () => document.querySelector("#cause a")?.click(),
    "/": () => document.getElementById(shown() === "spans" ? "find" : "find-turn")?.focus(),
    "?": () => keys.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.target.closest("input, select, textarea") || !(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });

  // The diagnosis is made while the page is read.
  document.addEventListener("outlined", ({ detail }) => {
    const marked = (id) => {
      const place = detail.turns[id];
      return place ? document.getElementById(`turn-${place[0]}`) : null;
    };
    for (const finding of detail.findings) marked(finding.location)?.classList.add("found");
    const cause = detail.decisive;
    if (!cause) return;
    const place = detail.turns[cause.location];
    const go = el("a", { href: place ? place[1] : `#span=${encodeURIComponent(cause.location)}` }, place ? `turn ${place[0]}` : "its span");
    const line = (name, text) => (text ? el("p", { class: "free-text" }, name ? el("strong", null, `${name} `) : null, text) : null);
    const section = document.getElementById("cause");
    section.append(
      ...[
        el("p", { class: "free-text" }, go, cause.agent ? ` (${cause.agent})` : "", `: ${cause.what}`),
        line("Why:", cause.why),
        ...cause.because.map((text) => line("Led by:", text)),
        line("Passing trials:", cause.instead),
        cause.evidence ? el("q", { class: "free-text" }, cause.evidence) : null,
        el("p", { class: "note" }, `Confidence ${Math.round(100 * cause.confidence)} %`),
      ].filter(Boolean),
    );
    section.hidden = false;
    const turn = marked(cause.location);
    if (turn) {
      turn.classList.add("decisive");
      turn.querySelector("header").append(el("span", { class: "chip bad" }, "start here"));
    }
  });
})();

/** Put a text on the clipboard; return whether that worked. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without HTTPS, browsers offer the clipboard for selected text only.
    const field = el("textarea", { "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
