// The list of trials: filtered, paged, failing trials first.

const PAGE = 50; // rows at a time: enough to scan, few enough to stay quick
const many = (number) => number.toLocaleString("en");
const HARM = { hard_fail: 0, failed: 1, infra_error: 2, not_judged: 3, cancelled: 4, passed: 5 };

class TrialList {
  constructor(trials, place) {
    this.trials = trials;
    this.place = place;
    this.wanted = { arm: "", status: "", case: "" };
    this.page = 0;
    this.order = trials
      .map((trial) => trial.row)
      .sort((a, b) => HARM[trials[a].status] - HARM[trials[b].status] || a - b);
    this.controls = {};
    this.body = el("tbody");
    this.pager = el("div", { class: "pager" });
    const table = this.table();
    const whole = () => this.found().map((at) => this.line(this.trials[at]));
    place.append(this.filters(), table, this.pager, tableTools(table.querySelector("table"), whole));
    this.draw();
  }

  filters() {
    const arms = [...new Set(this.trials.map((trial) => trial.arm))].sort();
    const seen = new Set(this.trials.map((trial) => trial.status));
    const statuses = Object.keys(HARM).filter((status) => seen.has(status));
    const words = statuses.map((status) => [status, STATUS_WORDS[status]]);
    return el(
      "form",
      { class: "filters", role: "search", "aria-label": "Filter the trials", on: { submit: (event) => event.preventDefault() } },
      this.choice("Agent", "arm", [["", "all agents"], ...arms.map((arm) => [arm, arm])]),
      this.choice("Status", "status", [["", "any status"], ["!passed", "all but passed"], ...words]),
      this.search(),
    );
  }

  choice(label, name, options) {
    const select = el(
      "select",
      { on: { change: () => this.filter(name, select.value) } },
      ...options.map(([value, word]) => el("option", { value }, word)),
    );
    this.controls[name] = select;
    return el("label", null, label, select);
  }

  search() {
    const input = el("input", { type: "search", autocomplete: "off", on: { input: () => this.filter("case", input.value) } });
    this.controls.case = input;
    return el("label", null, "Case contains", input);
  }

  filter(name, value) {
    this.wanted[name] = value;
    this.exact = false;
    this.page = 0;
    this.draw();
  }

  /** Set the filters as if the reader had, and scroll to the list. */
  show(wanted) {
    for (const name of Object.keys(this.wanted)) {
      this.wanted[name] = wanted[name] || "";
      this.controls[name].value = this.wanted[name];
    }
    this.exact = true; // this case, not also those whose ids contain its id
    this.page = 0;
    this.draw();
    document.getElementById("trials").scrollIntoView();
    this.controls.arm.focus({ preventScroll: true });
  }

  fits(trial) {
    const { arm, status, case: part } = this.wanted;
    if (arm && trial.arm !== arm) return false;
    if (status === "!passed" ? trial.status === "passed" : status && trial.status !== status) return false;
    if (part && this.exact) return trial.case === part;
    return !part || trial.case.toLowerCase().includes(part.toLowerCase());
  }

  /** Matching rows in the order shown; Previous and Next in a trial follow the same order. */
  found() {
    return this.order.filter((at) => this.fits(this.trials[at]));
  }

  table() {
    const heads = ["Case", "Agent", "Trial", "Status", "Score", "What broke", "Time", "Cost"];
    const right = new Set([2, 4, 6, 7]);
    return el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: Trials" },
      el(
        "table",
        null,
        el("caption", { class: "sr" }, "Trials"),
        el("thead", null, el("tr", null, ...heads.map((head, at) => el("th", { scope: "col", class: right.has(at) ? "n" : null }, head)))),
        this.body,
      ),
    );
  }

  draw() {
    const found = this.found();
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    const shown = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.body.replaceChildren(...shown.map((at) => this.line(this.trials[at])));
    const turn = (words, by) =>
      el("button", { type: "button", disabled: this.page + by < 0 || this.page + by >= pages, on: { click: () => this.turn(by) } }, words);
    const words = found.length
      ? `${many(this.page * PAGE + 1)}–${many(this.page * PAGE + shown.length)} of ${many(found.length)}`
      : "no matching trial";
    this.pager.replaceChildren(turn("Previous", -1), el("span", null, words), turn("Next", 1));
    say(`Trials: ${words}`);
  }

  turn(by) {
    this.page += by;
    this.draw();
    const buttons = this.pager.querySelectorAll("button");
    const same = buttons[by < 0 ? 0 : 1];
    (same.disabled ? buttons[by < 0 ? 1 : 0] : same).focus();
  }

  line(trial) {
    const seed = trial.seed === null || trial.seed === undefined ? "" : ` · seed ${trial.seed}`;
    return el(
      "tr",
      null,
      el("th", { scope: "row" }, el("a", { href: `#trial-${trial.row}`, class: "free-text" }, trial.case)),
      el("td", null, trial.arm),
      el("td", { class: "n" }, `${trial.repeat + 1}${seed}`),
      el("td", null, statusWord(trial.status)),
      el("td", { class: "n" }, inScore(trial.score)),
      el("td", { class: "free-text" }, trial.broken || ""),
      el("td", { class: "n" }, inTime(trial.latency_ms ?? trial.duration_ms)),
      el("td", { class: "n" }, inMoney(trial.cost_usd, trial.unpriced)),
    );
  }
}
