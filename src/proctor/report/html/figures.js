// Charts: each is drawn when it comes into view; the first one unpacks Vega.
// Every chart also has a table; a chart that cannot be drawn leaves the table.

const AXIS = 60; // pixels beside a panel, for its axis
const NARROWEST = 150; // pixels of a panel in which bars are still distinct
const LETTER = 6.5; // average width of a letter in pixels
const LEGEND = 110; // pixels of axis and legend below a chart, about

class Figures {
  constructor(charts, trials, list) {
    this.charts = charts;
    this.tables = { trials };
    this.list = list;
    this.views = new Map();
    for (const [name, columns] of Object.entries(charts.tables)) this.tables[name] = rowsOf(columns);
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          seen.unobserve(entry.target);
          this.draw(entry.target.parentElement);
        }
      }
    }, { rootMargin: "400px" });
    this.figures = [...document.querySelectorAll(".figure")].filter((figure) => charts.specs[figure.dataset.chart]);
    for (const figure of this.figures) {
      this.tools(figure);
      this.show(figure, figure.dataset.first);
      seen.observe(figure.querySelector(".chart"));
    }
    this.keepPlace();
  }

  /** The chart that a figure shows, or would show in place of its table. */
  chartOf(figure) {
    return figure.dataset.other || figure.dataset.chart;
  }

  tools(figure) {
    const tools = figure.querySelector(".tools");
    const choose = (what, word) => el("button", { type: "button", "data-show": what, on: { click: () => this.show(figure, what) } }, word);
    const save = (form) => el("button", { type: "button", class: "quiet", "data-save": form, "aria-label": `Save the chart as ${form.toUpperCase()}`, on: { click: () => this.save(figure, form) } }, form.toUpperCase());
    const others = figure.dataset.others.split(",").filter(Boolean).map((text) => text.split(":")).filter(([name]) => this.charts.specs[name]);
    tools.replaceChildren(choose("chart", figure.dataset.word), ...others.map(([name, word]) => choose(name, word)), choose("table", "Table"), el("span", { class: "save" }, save("png"), save("svg")));
    tools.hidden = false;
  }

  show(figure, what) {
    if (what !== "table") {
      const before = this.chartOf(figure);
      figure.dataset.other = what === "chart" ? "" : what;
      this.reserve(figure);
      if (figure.dataset.drawn && before !== this.chartOf(figure)) this.draw(figure);
    }
    figure.querySelector(".chart").hidden = what === "table";
    figure.querySelector(".plain").hidden = what !== "table";
    figure.querySelector(".save").hidden = what === "table";
    for (const button of figure.querySelectorAll("[data-show]")) {
      button.setAttribute("aria-pressed", String(button.dataset.show === what));
    }
  }

  /** Keep the room that a chart will take, so that drawing it moves nothing below. */
  reserve(figure) {
    const spec = this.charts.specs[this.chartOf(figure)];
    figure.querySelector(".chart").style.minHeight = `${(spec.height || spec.spec.height) + LEGEND}px`;
  }

  /** A link to a section leads to its heading, also where charts above it are not drawn yet. */
  keepPlace() {
    const align = async () => {
      const target = /^#[\w-]+$/.test(location.hash) && document.querySelector(`section${location.hash}`);
      if (!target) return;
      let moved = false;
      const stop = () => { moved = true; };
      const moves = ["wheel", "touchmove", "keydown", "pointerdown"];
      for (const type of moves) addEventListener(type, stop, { once: true, passive: true });
      target.scrollIntoView({ behavior: "instant" });
      for (const figure of this.figures) {
        const above = figure.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING;
        if (above && !figure.dataset.drawn && !figure.querySelector(".chart").hidden) await this.draw(figure);
      }
      if (!moved) target.scrollIntoView({ behavior: "instant" });
      for (const type of moves) removeEventListener(type, stop);
      document.documentElement.dataset.placed = location.hash;
    };
    addEventListener("hashchange", align);
    align();
  }

  /** Vega runs only because the page's policy names the hash of exactly this code. */
  vega() {
    this.loading ??= unpack("vega").then((code) => {
      document.head.append(el("script", null, code));
      if (!window.vegaEmbed) throw new Error("Vega did not start");
    });
    return this.loading;
  }

  async draw(figure) {
    const name = this.chartOf(figure);
    try {
      await this.vega();
      const spec = structuredClone(this.charts.specs[name]);
      if (spec.facet) this.fitPanels(figure, spec);
      if (spec.usermeta) this.fitNames(figure, spec);
      spec.datasets = { [spec.data.name]: this.tables[spec.data.name] };
      this.views.get(figure)?.finalize();
      const drawn = await window.vegaEmbed(figure.querySelector(".chart"), spec, {
        ast: true, // no code made from text: the page's policy forbids it
        renderer: "canvas",
        actions: false,
        defaultStyle: false,
        config: this.legend(figure, spec),
        tooltip: { disableDefaultStyle: true },
        patch: wholeNames,
      });
      this.views.set(figure, drawn);
      drawn.view.addEventListener("click", (event, item) => this.follow(item));
      figure.dataset.drawn = name;
    } catch (error) {
      console.error(`chart ${name}: ${error.message}`);
      this.show(figure, "table");
      figure.querySelector(".tools").hidden = true;
    }
  }

  /** The theme, with as many entries of a legend side by side as fit: Vega does not break lines. */
  legend(figure, spec) {
    const theme = this.charts.themes[currentTheme()];
    const longest = Math.max(0, ...this.tables.arms.map(({ arm }) => arm.length));
    const room = figure.clientWidth * (spec.usermeta ? 0.65 : 1) - AXIS;
    const columns = Math.max(1, Math.floor(room / (Math.min(longest * LETTER, 160) + 30)));
    return { ...theme, legend: { ...theme.legend, columns } };
  }

  /** Panels side by side where there is room; a long name does not push its neighbour away. */
  fitPanels(figure, spec) {
    if (figure.clientWidth < 2 * (NARROWEST + AXIS)) spec.columns = 1;
    const each = figure.clientWidth / (spec.columns || 1) - AXIS;
    const width = Math.max(NARROWEST, Math.min(260, Math.floor(each)));
    spec.spec.width = width;
    spec.facet.header = { ...spec.facet.header, labelLimit: width };
  }

  /** Case names leave room for the squares; agent names are horizontal only where they fit. */
  fitNames(figure, spec) {
    const axes = [spec, ...spec.layer].map((layer) => layer.encoding || {});
    const cases = Math.min(260, Math.floor(figure.clientWidth * 0.35));
    const arms = new Set(this.tables.cells.map((cell) => cell.arm));
    const band = (figure.clientWidth - cases) / Math.max(1, arms.size);
    const longest = Math.max(0, ...[...arms].map((arm) => arm.length));
    const level = Math.min(longest * LETTER, 180) <= band;
    for (const { x, y } of axes) {
      if (y && y.axis) y.axis.labelLimit = cases;
      // Vega cuts labels at their ends, where names of cases differ.
      if (y && y.axis && cases < 250) y.axis.labelExpr = spec.usermeta.narrow_label;
      if (x && x.type === "nominal") Object.assign(x.axis, level ? { labelAngle: 0, labelLimit: 180 } : { labelAngle: 40, labelAlign: "right", labelLimit: 120 });
    }
  }

  /** A click on a trial opens it; a click on a cell lists its trials. */
  follow(item) {
    const datum = item && item.datum;
    if (!datum) return;
    if (datum.row !== undefined && datum.status) location.hash = `#trial-${datum.row}`;
    else if (datum.case && datum.arm) this.list.show({ case: datum.case, arm: datum.arm });
  }

  redraw() {
    for (const figure of this.views.keys()) this.draw(figure);
  }

  async save(figure, form) {
    if (!this.views.has(figure)) await this.draw(figure);
    const address = await this.views.get(figure).view.toImageURL(form, form === "png" ? 2 : 1);
    el("a", { href: address, download: `${this.chartOf(figure)}.${form}` }).click();
  }
}

/** Let the labels of names show the whole name under the pointer: Vega-Lite has no option for it. */
function wholeNames(vega) {
  for (const axis of vega.axes || []) {
    const scale = vega.scales.find((each) => each.name === axis.scale);
    if (axis.grid || !scale || scale.type !== "band") continue;
    axis.encode ??= {};
    axis.encode.labels ??= {};
    axis.encode.labels.interactive = true;
    axis.encode.labels.update = { ...axis.encode.labels.update, tooltip: { signal: "datum.value" } };
  }
  return vega;
}
