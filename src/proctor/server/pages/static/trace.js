// One trace: a tree with a waterfall, in which only visible rows exist, and the details of the
// selected span. The address names the span (#span=…), so that the view can be shared as a link.

const ROW = 28; // pixels; viewer.css says the same
const SPARE = 12; // rows beyond the visible ones, so that scrolling shows no gaps

class TraceView {
  constructor(outline, base) {
    this.spans = outline;
    this.base = base;
    this.tree = document.getElementById("tree");
    this.room = this.tree.querySelector(".tree-room");
    this.detail = document.getElementById("detail");
    this.count = outline.id.length;
    // In milliseconds; a millionth, or a trace without any duration would divide by zero.
    this.total = outline.start.reduce((most, at, i) => Math.max(most, at + (outline.ms[i] || 0)), 1e-6);
    this.depth = [];
    this.children = new Array(this.count).fill(0);
    this.among = []; // which child of its parent a span is, from 1
    let roots = 0;
    outline.parent.forEach((parent, i) => {
      this.depth[i] = parent < 0 ? 0 : this.depth[parent] + 1;
      this.among[i] = parent < 0 ? (roots += 1) : (this.children[parent] += 1);
    });
    this.roots = roots;
    this.bad = outline.id.map((_, i) => Boolean(outline.failed[i] || outline.found[i]));
    this.below = new Array(this.count).fill(0); // bad spans under a span, which closing it hides
    for (let i = this.count - 1; i >= 0; i -= 1) {
      if (outline.parent[i] >= 0) this.below[outline.parent[i]] += this.below[i] + Number(this.bad[i]);
    }
    this.closed = new Set();
    this.chosen = -1;
    this.rows = new Map();
    this.lay();
    this.listen();
    this.findings();
    document.getElementById("next-failed").disabled = !this.bad.includes(true);
    if (!this.follow()) this.choose(this.firstSuspect(), { quiet: true });
  }

  /** Lay out the spans that match the search and are not inside a collapsed span. */
  lay() {
    const wanted = document.getElementById("find").value.trim().toLowerCase();
    const { name, kind, id, parent } = this.spans;
    this.shown = [];
    const hidden = new Set();
    for (let i = 0; i < this.count; i += 1) {
      const above = parent[i];
      if (!wanted && above >= 0 && (hidden.has(above) || this.closed.has(above))) {
        hidden.add(i);
        continue;
      }
      if (wanted && !`${name[i]} ${kind[i]} ${id[i]}`.toLowerCase().includes(wanted)) continue;
      this.shown.push(i);
    }
    this.at = new Map(this.shown.map((i, row) => [i, row]));
    this.room.style.height = `${this.shown.length * ROW}px`;
    const summary = document.getElementById("tree-count");
    const failed = this.spans.failed.reduce((sum, one) => sum + one, 0);
    const all = `${this.count.toLocaleString("en")} span${this.count === 1 ? "" : "s"}`;
    summary.textContent = wanted ? `${this.shown.length.toLocaleString("en")} of ${all}` : failed ? `${all}, ${failed.toLocaleString("en")} failed` : all;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.tree.scrollTop / ROW) - SPARE);
    const last = Math.min(this.shown.length, Math.ceil((this.tree.scrollTop + this.tree.clientHeight) / ROW) + SPARE);
    for (const [row, made] of this.rows) {
      if (row < first || row >= last) {
        made.remove();
        this.rows.delete(row);
      }
    }
    const added = document.createDocumentFragment();
    for (let row = first; row < last; row += 1) {
      if (!this.rows.has(row)) {
        const made = this.row(row);
        this.rows.set(row, made);
        added.append(made);
      }
    }
    this.room.append(added);
  }

  row(row) {
    const i = this.shown[row];
    const { id, parent, name, kind, failed, start, ms, found } = this.spans;
    const hidden = this.closed.has(i) ? this.below[i] : 0;
    const open = this.children[i] ? !this.closed.has(i) : null;
    const twig = open === null ? "" : open ? "▾" : "▸";
    const made = el(
      "div",
      {
        class: failed[i] ? "span failed" : "span",
        role: "treeitem",
        id: `span-${id[i]}`,
        "aria-level": this.depth[i] + 1,
        "aria-selected": String(i === this.chosen),
        "aria-expanded": open === null ? null : String(open),
        "aria-setsize": parent[i] < 0 ? this.roots : this.children[parent[i]],
        "aria-posinset": this.among[i],
        "data-kind": kind[i],
        on: {
          click: (event) => {
            if (event.target.classList.contains("twig")) this.toggle(i);
            else this.choose(i);
          },
        },
      },
      el(
        "span",
        { class: "what" },
        el("span", { class: "twig", "aria-hidden": "true" }, twig),
        el("span", { class: "kind" }, kind[i]),
        failed[i] ? el("span", { class: "mark", title: "failed" }, "✗", el("span", { class: "sr" }, " failed")) : null,
        found[i] ? el("span", { class: "mark", title: "a finding or a failed check" }, "⚑", el("span", { class: "sr" }, ` ${found[i]} finding${found[i] === 1 ? "" : "s"}`)) : null,
        el("span", { class: "free-text", title: name[i] }, name[i]),
        hidden ? el("span", { class: "mark", title: "failed spans and findings inside" }, `✗ ${hidden} inside`) : null,
      ),
      el("span", { class: "duration" }, ms[i] === null ? "open" : inTime(ms[i])),
      stretch((100 * start[i]) / this.total, (100 * (ms[i] || 0)) / this.total),
    );
    made.style.top = `${row * ROW}px`;
    made.style.setProperty("--depth", Math.min(this.depth[i], 20)); // deeper would leave no room for names
    return made;
  }

  listen() {
    this.tree.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.tree);
    this.tree.addEventListener("keydown", (event) => this.key(event));
    this.detail.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.tree.focus();
    });
    const find = document.getElementById("find");
    find.addEventListener("input", () => this.lay());
    find.addEventListener("keydown", (event) => {
      if ((event.key !== "Enter" && event.key !== "ArrowDown") || !this.shown.length) return;
      event.preventDefault();
      this.choose(this.shown[0]);
      this.tree.focus();
    });
    document.getElementById("next-failed").addEventListener("click", () => this.nextFailed());
    window.addEventListener("hashchange", () => this.follow());
  }

  key(event) {
    const row = this.at.has(this.chosen) ? this.at.get(this.chosen) : -1;
    const page = Math.max(1, Math.floor(this.tree.clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (event.key in moves) {
      const next = Math.min(this.shown.length - 1, Math.max(0, row + moves[event.key]));
      this.choose(this.shown[next]);
    } else if (event.key === "Home") this.choose(this.shown[0]);
    else if (event.key === "End") this.choose(this.shown[this.shown.length - 1]);
    else if (event.key === "ArrowLeft") {
      if (this.children[this.chosen] && !this.closed.has(this.chosen)) this.toggle(this.chosen);
      else if (this.spans.parent[this.chosen] >= 0) this.choose(this.spans.parent[this.chosen]);
    } else if (event.key === "ArrowRight") {
      if (this.closed.has(this.chosen)) this.toggle(this.chosen);
      else if (this.children[this.chosen]) this.choose(this.chosen + 1);
    } else if (event.key === "Enter") this.detail.focus();
    else return;
    event.preventDefault();
  }

  toggle(i) {
    if (!this.children[i]) return;
    if (!this.closed.delete(i)) this.closed.add(i);
    this.lay();
  }

  nextFailed() {
    for (let step = 1; step <= this.count; step += 1) {
      const i = (this.chosen + step) % this.count;
      if (this.bad[i]) {
        this.choose(i);
        this.tree.focus();
        return;
      }
    }
  }

  firstSuspect() {
    const { found, failed, parent } = this.spans;
    const marked = found.findIndex((n) => n > 0);
    if (marked >= 0) return marked;
    // An error often propagates to parents: its source has no failed child.
    const above = new Set(parent.filter((_, i) => failed[i]));
    const source = failed.findIndex((bad, i) => bad && !above.has(i));
    return source >= 0 ? source : 0;
  }

  /** Select the span that the address names; return whether it named one. */
  follow() {
    const named = /^#span=(.+)$/.exec(location.hash);
    const i = named ? this.spans.id.indexOf(decodeURIComponent(named[1])) : -1;
    if (i >= 0 && i !== this.chosen) this.choose(i, { quiet: true });
    return i >= 0;
  }

  choose(i, { quiet = false } = {}) {
    if (i === undefined || i < 0 || i >= this.count) return;
    for (let above = this.spans.parent[i]; above >= 0; above = this.spans.parent[above]) this.closed.delete(above);
    this.chosen = i;
    if (!this.at.has(i)) {
      document.getElementById("find").value = "";
      this.lay();
    }
    const row = this.at.get(i);
    const top = row * ROW;
    // The part of the tree that the window shows, but at least a few rows.
    const inWindow = window.innerHeight - this.tree.getBoundingClientRect().top;
    const sight = Math.min(this.tree.clientHeight, Math.max(4 * ROW, inWindow));
    const beyond = Math.max(this.tree.scrollTop - top, top + ROW - this.tree.scrollTop - sight);
    // A span just outside scrolls by its distance; one further away is centred.
    if (beyond > 2 * ROW) this.tree.scrollTop = Math.max(0, Math.round((top - sight / 2) / ROW) * ROW);
    else if (beyond > 0) this.tree.scrollTop = top < this.tree.scrollTop ? top : top + ROW - sight;
    this.draw();
    for (const [at, made] of this.rows) made.setAttribute("aria-selected", String(at === row));
    this.tree.setAttribute("aria-activedescendant", `span-${this.spans.id[i]}`);
    if (!quiet) history.replaceState(null, "", `#span=${encodeURIComponent(this.spans.id[i])}`);
    this.show(i);
  }

  async show(i) {
    const id = this.spans.id[i];
    const reply = await fetch(`${this.base}/spans/${encodeURIComponent(id)}`).catch(() => null);
    const span = reply && reply.ok ? await reply.json().catch(() => null) : null;
    if (this.chosen !== i) return;
    if (!span) {
      this.detail.replaceChildren(...unread(reply, "This span is no longer available.", () => this.show(i)));
      return;
    }
    this.detail.replaceChildren(...spanDetail(span, this.about(id)));
    this.detail.scrollTop = 0;
  }

  about(id) {
    return [...this.spans.checks, ...this.spans.findings].filter((finding) => finding.location === id);
  }

  /** Identical findings once, with the positions of all their spans. */
  alike() {
    const groups = new Map();
    for (const finding of this.spans.findings) {
      const key = `${finding.category}\n${finding.impact}\n${finding.description}`;
      if (!groups.has(key)) groups.set(key, [finding, []]);
      groups.get(key)[1].push(this.spans.id.indexOf(finding.location));
    }
    return [...groups.values()];
  }

  /** A button that selects these spans in turn. */
  way(places) {
    let next = 0;
    const go = () => {
      this.choose(places[next % places.length]);
      next += 1;
      this.tree.focus();
    };
    const name = places[0] >= 0 ? this.spans.name[places[0]] : "missing";
    const all = places.length > 1;
    return el("button", { type: "button", title: all ? "Show these spans in turn" : "Show this span", on: { click: go } }, all ? `${places.length} × ${name}` : name);
  }

  findings() {
    const place = document.getElementById("findings");
    if (!place || !this.spans.findings.length) return;
    place.hidden = false;
    place.replaceChildren(
      el("h2", null, `${this.spans.findings.length} finding${this.spans.findings.length === 1 ? "" : "s"}`),
      el("div", { class: "scroll-list", tabindex: "0", role: "region", "aria-label": "List of findings" }, ...this.alike().map(([finding, places]) => findingLine(finding, this.way(places)))),
    );
  }
}

const IMPACT = { HIGH: "bad", MEDIUM: "soft" };

/** A finding: one line with a button in the list, in full at its span. */
function findingLine(finding, go) {
  return el(
    "div",
    { class: go ? "finding brief" : "finding" },
    finding.impact ? el("span", { class: `chip ${IMPACT[finding.impact] || ""}` }, finding.impact.toLowerCase()) : null,
    el("strong", { class: "free-text" }, finding.category),
    go || null,
    el("span", { class: "free-text description", title: go ? finding.description : null }, finding.description),
    finding.evidence && !go ? el("q", { class: "free-text" }, finding.evidence) : null,
  );
}

/** An error message with a button to try again. */
function unread(reply, gone, again) {
  const message = reply && reply.status === 404 ? gone : "The server does not respond. Is it still running?";
  return [el("p", { class: "problem", role: "alert" }, message), el("button", { type: "button", on: { click: again } }, "Try again")];
}

function spanDetail(span, findings) {
  const facts = [
    ["kind", span.kind],
    ["status", span.status],
    ["duration", span.ms === undefined ? "still open" : inTime(span.ms)],
    ["model", span.model],
    ["tokens", span.tokens],
    ["cost", span.cost_usd === undefined ? null : inMoney(span.cost_usd)],
    ["tool", span.tool],
    ["agent", span.agent],
    ["hands off to", span.handoff_to],
    ["id", span.id],
  ].filter(([, value]) => value);
  const parts = [
    el("h2", { class: "free-text" }, span.name),
    el("dl", null, ...facts.flatMap(([name, value]) => [el("dt", null, name), el("dd", { class: "free-text" }, value)])),
    ...findings.map((finding) => findingLine(finding)),
  ];
  const part = (title, ...nodes) => parts.push(el("h3", null, title), ...nodes);
  const text = (value) => el("pre", { class: "free-text", tabindex: "0" }, value);
  if (span.error) part("Error", text(span.error));
  if (span.output_messages) part("Output messages", ...span.output_messages.map(messageBox));
  if (span.output) part("Output", text(span.output));
  if (span.input) part("Input", text(span.input));
  if (span.input_messages) part("Input messages", ...span.input_messages.map(messageBox));
  if (span.documents) {
    part("Documents", ...span.documents.map((d) =>
      el("div", { class: "message" }, el("div", { class: "role" }, `${d.id || "document"}${d.score === null ? "" : ` · score ${d.score}`}`), text(d.text || ""))));
  }
  if (span.events) part("Events", ...span.events.map((e) => el("div", { class: "message" }, el("div", { class: "role" }, e.name), e.attributes ? text(e.attributes) : null)));
  if (span.attributes) {
    const rows = Object.entries(span.attributes).flatMap(([name, value]) => [el("dt", null, name), el("dd", { class: "free-text mono" }, value)]);
    parts.push(el("details", null, el("summary", null, `${rows.length / 2} attributes`), el("dl", null, ...rows)));
  }
  return parts;
}

function messageBox(message) {
  return el(
    "div",
    { class: "message" },
    el("div", { class: "role" }, message.role),
    message.text ? el("pre", { class: "free-text", tabindex: "0" }, message.text) : null,
    ...message.calls.map((call) =>
      el("div", { class: "call" }, el("div", { class: "role" }, `calls ${call.name}`), call.arguments ? el("pre", { class: "free-text", tabindex: "0" }, call.arguments) : null)),
  );
}

async function openTrace(place) {
  const reply = await fetch(`${place.dataset.base}/outline`).catch(() => null);
  const outline = reply && reply.ok ? await reply.json().catch(() => null) : null;
  const detail = document.getElementById("detail");
  if (!outline) detail.replaceChildren(...unread(reply, "This trace is no longer available.", () => openTrace(place)));
  else if (!outline.id.length) detail.replaceChildren(el("p", { class: "note" }, "This trace has no spans."));
  else window.traceView = new TraceView(outline, place.dataset.base);
  if (outline) document.dispatchEvent(new CustomEvent("outlined", { detail: outline }));
}

const traceView = document.getElementById("trace-view");
if (traceView) openTrace(traceView);
