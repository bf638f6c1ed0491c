// The view of one trial: its input and output, every check, and the trace step by step.
// The address names the trial (#trial-12), so that the view can be shared as a link.

class TrialView {
  constructor(trials, list) {
    this.trials = trials;
    this.list = list;
    this.dialog = document.getElementById("trial");
    this.dialog.addEventListener("close", () => this.closed());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    window.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  /** Open the trial that the address names; close the dialog when it names none. */
  follow() {
    const named = /^#trial-(\d+)$/.exec(location.hash);
    if (named && this.trials[Number(named[1])]) this.open(Number(named[1]));
    else if (this.dialog.open) this.dialog.close();
  }

  closed() {
    if (location.hash.startsWith("#trial-")) {
      history.replaceState(null, "", location.pathname + location.search);
    }
  }

  async open(at) {
    const trial = this.trials[at];
    this.at = at;
    const body = el("div", { class: "trial-body", tabindex: "0", role: "region", "aria-label": "Trial" });
    this.dialog.replaceChildren(this.head(trial), body);
    if (!this.dialog.open) this.dialog.showModal();
    const [cases, facts] = await Promise.all([this.cases(), this.details(trial)]);
    if (this.at !== at) return;
    body.append(...this.input(cases.get(trial.case)), ...this.results(facts));
  }

  async cases() {
    if (!this.known) {
      this.known = new Map(JSON.parse(await unpack("cases")).map((about) => [about.case, about]));
    }
    return this.known;
  }

  async details(trial) {
    if (trial.block === null || trial.block === undefined) return null;
    return JSON.parse(await unpack(`details-${trial.block}`))[trial.place];
  }

  head(trial) {
    const seed = trial.seed === null || trial.seed === undefined ? "" : ` · seed ${trial.seed}`;
    const facts = [
      `trial ${trial.repeat + 1}${seed}`,
      `score ${inScore(trial.score)}`,
      inTime(trial.latency_ms ?? trial.duration_ms),
      trial.cost_usd === null ? null : inMoney(trial.cost_usd, trial.unpriced),
      trial.tokens === null ? null : `${trial.tokens.toLocaleString("en")} tokens`,
    ];
    const order = this.list.found();
    const here = order.indexOf(trial.row);
    const go = (words, by) => {
      const next = here < 0 ? undefined : order[here + by];
      return el(
        "button",
        { type: "button", disabled: next === undefined, on: { click: () => this.move(next, by) } },
        words,
      );
    };
    const close = el("button", { type: "button", on: { click: () => this.dialog.close() } }, "Close");
    return el(
      "div",
      { class: "trial-head" },
      el(
        "div",
        null,
        el("h2", { id: "trial-title" }, el("span", { class: "free-text" }, trial.case), " × ", el("span", { class: "free-text" }, trial.arm)),
        el("p", { class: "note" }, statusWord(trial.status), " · ", facts.filter(Boolean).join(" · ")),
      ),
      el("div", { class: "moves" }, go("Previous", -1), go("Next", 1), close),
    );
  }

  move(next, by) {
    location.hash = `#trial-${next}`;
    const again = () => {
      const buttons = this.dialog.querySelectorAll(".moves button");
      const same = buttons[by < 0 ? 0 : 1];
      (same.disabled ? buttons[2] : same).focus();
    };
    window.addEventListener("hashchange", () => queueMicrotask(again), { once: true });
  }

  input(about) {
    if (!about) return [];
    const words = new Set([about.difficulty, about.type, ...(about.tags || [])].filter(Boolean));
    return [
      el("h3", null, "Input", ...[...words].flatMap((word) => [" ", el("span", { class: "chip" }, word)])),
      about.description ? el("p", { class: "note free-text" }, about.description) : null,
      el("pre", { class: "free-text", tabindex: "0" }, about.input),
    ].filter(Boolean);
  }

  results(facts) {
    if (!facts) {
      const where = "Output and trace are not in this file, to keep it small. They are in the run folder.";
      return [el("p", { class: "note" }, where)];
    }
    const parts = [];
    if (facts.error) parts.push(el("h3", null, "Error"), el("pre", { class: "free-text", tabindex: "0" }, facts.error));
    if (facts.answer !== undefined) parts.push(el("h3", null, "Output"), el("pre", { class: "free-text", tabindex: "0" }, facts.answer));
    if (facts.checks.length) parts.push(el("h3", null, "Checks"), this.checks(facts));
    if (facts.changes) parts.push(...this.changes(facts.changes));
    parts.push(el("h3", null, "Trace"));
    if (facts.spans) {
      const blamed = facts.checks.filter((check) => check.status === "fail" || check.status === "warn");
      const view = new SpanTree(facts.spans, blamed.flatMap((check) => check.spans || []));
      this.tree = view;
      parts.push(view.element);
    } else {
      parts.push(el("p", { class: "note" }, facts.trace_id ? "The trace is not in this file, to keep it small. It is in the run folder." : "This trial has no trace."));
    }
    for (const problem of facts.problems || []) parts.push(el("p", { class: "note" }, problem));
    const small = [
      ["Seed", facts.seed],
      ["Trace", facts.trace_id],
      ["Attempt", facts.attempt],
      ["Retries", facts.retries],
      ["Beside the agent's time", facts.times?.map(([name, ms]) => `${name} ${inTime(ms)}`).join(", ")],
    ].filter(([, value]) => value !== undefined);
    parts.push(el("h3", null, "Ids"), factList(small));
    return parts;
  }

  checks(facts) {
    const worse = { fail: 0, unscored: 1, not_judged: 2, warn: 3, pass: 4, metric: 5, skip: 6 };
    const tone = { fail: "bad", warn: "soft", pass: "good", unscored: "odd", not_judged: "odd", metric: "", skip: "" };
    const ordered = [...facts.checks].sort((a, b) => worse[a.status] - worse[b.status]);
    const lines = ordered.map((check) =>
      el(
        "tr",
        null,
        el("th", { scope: "row" }, el("code", null, check.id)),
        el("td", null, el("span", { class: `chip ${tone[check.status]}` }, check.status)),
        el("td", { class: "spare" }, check.layer),
        el("td", { class: "n spare" }, inScore(check.score)),
        el("td", { class: "free-text" }, check.reason, ...this.compared(check, facts.spans)),
      ),
    );
    const heads = ["Check", "Status", "Layer", "Score", "Reason"];
    const table = el("table", null, el("caption", { class: "sr" }, "Checks of this trial"), el("thead", null, el("tr", null, ...heads.map((head, at) => el("th", { scope: "col", class: { 2: "spare", 3: "n spare" }[at] }, head)))), el("tbody", null, ...lines));
    return el("div", null, el("div", { class: "scroll" }, table), tableTools(table));
  }

  /** The files that the agent changed, line by line. */
  changes({ paths, changed, added, removed, diff }) {
    const tones = { "+": "added", "-": "removed", "@": "place" };
    const lines = diff.split("\n").map((text) => el("span", { class: /^(\+\+\+|---) /.test(text) ? "file" : tones[text[0]] || null }, `${text}\n`));
    const more = changed - paths.length;
    return [
      el("h3", null, "Changed files"),
      el("p", { class: "note" }, `${changed} ${changed === 1 ? "file" : "files"}, ${added} lines added, ${removed} removed`),
      paths.length ? el("ul", { class: "paths" }, ...paths.map(([path, what]) => el("li", null, el("code", { class: "free-text" }, path), ` ${what}`))) : null,
      more > 0 ? el("p", { class: "note" }, `and ${more} more`) : null,
      diff ? el("pre", { class: "free-text diff", tabindex: "0", "aria-label": "Changes as a diff" }, ...lines) : null,
    ].filter(Boolean);
  }

  compared(check, spans) {
    const parts = [];
    for (const [word, value] of [["expected", check.expected], ["actual", check.actual]]) {
      if (value !== null && value !== undefined) {
        parts.push(el("div", { class: "check-values" }, `${word}: `, el("code", { class: "free-text" }, value)));
      }
    }
    const steps = (spans && check.spans) || [];
    const buttons = steps.slice(0, MAX_STEPS).map((at) =>
      el("button", { type: "button", title: "Show this step", on: { click: () => this.tree.select(at, true) } }, spans[at].name));
    if (steps.length > MAX_STEPS) buttons.push(el("small", null, `and ${steps.length - MAX_STEPS} more`));
    if (buttons.length) parts.push(el("div", { class: "steps" }, el("small", null, buttons.length > 1 ? "steps" : "step"), ...buttons));
    return parts;
  }
}

function factList(pairs) {
  return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [el("dt", null, name), el("dd", { class: "free-text mono" }, String(value))]));
}

const MAX_STEPS = 6; // buttons to the steps of one check; the tree has all
const MAX_INDENT = 12; // levels: deeper ones would leave no room for names

/** The steps of a trace as a tree for the arrow keys, and the details of the selected step.
    Opens at a step that a failed check names, else where the first error started. */
class SpanTree {
  constructor(spans, blamed) {
    this.spans = spans;
    this.blamed = new Set(blamed);
    this.depth = [];
    this.children = spans.map(() => []);
    const roots = [];
    spans.forEach((span, at) => (span.parent === undefined ? roots : this.children[span.parent]).push(at));
    const ends = spans.map((span) => (span.start || 0) + (span.ms || 0));
    this.whole = Math.max(...ends, 0.001);
    this.order = [];
    const stack = roots.reverse().map((at) => [at, 1]);
    while (stack.length) {
      const [at, depth] = stack.pop();
      this.order.push(at);
      this.depth[at] = depth;
      for (const child of [...this.children[at]].reverse()) stack.push([child, depth + 1]);
    }
    this.lines = spans.map((span, at) => this.line(span, at));
    this.detail = el("div", { class: "span-detail", "aria-live": "polite" });
    const tree = el("ul", { class: "spans", role: "tree", "aria-label": "Steps", on: { keydown: (event) => this.key(event) } }, ...this.order.map((at) => this.lines[at]));
    this.element = el("div", { class: "trace" }, tree, this.detail);
    const failed = this.order.filter((at) => spans[at].status);
    const source = failed.find((at) => !this.children[at].some((child) => spans[child].status));
    const first = this.order.find((at) => this.blamed.has(at)) ?? source ?? this.order[0];
    this.select(first, false);
    requestAnimationFrame(() => {
      const [list, line] = [tree, this.lines[first]].map((it) => it && it.getBoundingClientRect());
      if (line && line.bottom > list.bottom) tree.scrollTop += line.top - list.top - list.height / 2;
    });
  }

  line(span, at) {
    const name = el("span", { class: "span-name" }, el("span", { class: "kind" }, span.kind), this.blamed.has(at) ? el("span", { class: "mark", title: "a failed check refers to this step" }, "⚑ ") : null, span.name, span.status ? ` (${span.status})` : "");
    name.style.paddingInlineStart = `${Math.min(this.depth[at] - 1, MAX_INDENT) * 0.9}rem`;
    return el(
      "li",
      {
        role: "treeitem",
        tabindex: "-1",
        "aria-level": this.depth[at],
        "aria-selected": "false",
        class: span.status ? "broken" : null,
        on: { click: () => this.select(at, true) },
      },
      name,
      stretch(((span.start || 0) / this.whole) * 100, ((span.ms || 0) / this.whole) * 100),
      el("span", { class: "duration" }, inTime(span.ms)),
    );
  }

  select(at, focus) {
    if (at === undefined || !this.lines[at]) return;
    for (const line of this.lines) {
      line.setAttribute("aria-selected", "false");
      line.tabIndex = -1;
    }
    const line = this.lines[at];
    line.setAttribute("aria-selected", "true");
    line.tabIndex = 0;
    this.chosen = at;
    if (focus) line.focus();
    this.detail.replaceChildren(...spanDetail(this.spans[at]));
  }

  key(event) {
    const here = this.order.indexOf(this.chosen);
    const to = {
      ArrowDown: () => this.order[here + 1],
      ArrowUp: () => this.order[here - 1],
      Home: () => this.order[0],
      End: () => this.order[this.order.length - 1],
      ArrowLeft: () => this.spans[this.chosen].parent,
      ArrowRight: () => this.children[this.chosen][0],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.select(to(), true);
  }
}

/** The input, output and other details of one step. */
function spanDetail(span) {
  const parts = [];
  const text = (title, value) => {
    if (value !== undefined) parts.push(el("h4", null, title), el("pre", { class: "free-text", tabindex: "0" }, value));
  };
  const facts = [
    ["Step", `${span.kind} ${span.name}`],
    ["Status", span.status],
    ["Duration", inTime(span.ms)],
    ["Model", span.model],
    ["Tokens", span.tokens],
    ["Cost", span.cost === undefined ? undefined : inMoney(span.cost)],
    ["Hands off to", span.handoff],
  ].filter(([, value]) => value !== undefined);
  parts.push(factList(facts));
  text("Error", span.error);
  text("Input", span.input);
  messages("Input messages", span.input_messages, parts);
  text("Output", span.output);
  messages("Output messages", span.output_messages, parts);
  for (const found of span.documents || []) {
    text(`Document ${found.id || ""}${found.score === null ? "" : ` · score ${found.score}`}`, found.text || DASH);
  }
  for (const event of span.events || []) {
    parts.push(el("h4", null, `Event ${event.name}`), factList(Object.entries(event.attributes)));
  }
  const attributes = Object.entries(span.attributes || {});
  if (attributes.length) {
    parts.push(el("h4", null, "Attributes"), factList(attributes));
  }
  return parts;
}

function messages(title, list, parts) {
  if (!list) return;
  parts.push(el("h4", null, title));
  for (const message of list) {
    parts.push(
      el(
        "div",
        { class: "message" },
        el("div", { class: "role" }, message.role),
        message.text === undefined ? null : el("pre", { class: "free-text", tabindex: "0" }, message.text),
        ...(message.calls || []).map((call) => el("pre", { class: "free-text", tabindex: "0" }, `${call.name}(${call.arguments ?? ""})`)),
        ...(message.other || []).map((other) => el("p", { class: "note" }, `[${other}]`)),
      ),
    );
  }
}
