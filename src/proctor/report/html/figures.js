// Charts: each is drawn when it comes into view; the first one unpacks Vega.
// Every chart also has a table; a chart that cannot be drawn leaves the table.

const AXIS = 60; // pixels beside a panel, for its axis
const NARROWEST = 150; // pixels of a panel in which bars are still distinct
const LETTER = 6.5; // average width of a letter in pixels

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
    for (const figure of document.querySelectorAll(".figure")) {
      if (!charts.specs[figure.dataset.chart]) continue;
      this.tools(figure);
      this.show(figure, figure.dataset.first);
      seen.observe(figure.querySelector(".chart"));
    }
  }

  tools(figure) {
    const tools = figure.querySelector(".tools");
    const choose = (what, word) => el("button", { type: "button", "data-show": what, on: { click: () => this.show(figure, what) } }, word);
    const save = (form) => el("button", { type: "button", class: "quiet", "data-save": form, "aria-label": `Save the chart as ${form.toUpperCase()}`, on: { click: () => this.save(figure, form) } }, form.toUpperCase());
    tools.replaceChildren(choose("chart", "Chart"), choose("table", "Table"), el("span", { class: "save" }, save("png"), save("svg")));
    tools.hidden = false;
  }

  show(figure, what) {
    figure.querySelector(".chart").hidden = what !== "chart";
    figure.querySelector(".plain").hidden = what !== "table";
    figure.querySelector(".save").hidden = what !== "chart";
    for (const button of figure.querySelectorAll("[data-show]")) {
      button.setAttribute("aria-pressed", String(button.dataset.show === what));
    }
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
    const name = figure.dataset.chart;
    try {
      await this.vega();
      const spec = structuredClone(this.charts.specs[name]);
      if (spec.facet) this.fitPanels(figure, spec);
      if (name === "heatmap") this.fitNames(figure, spec);
      spec.datasets = { [spec.data.name]: this.tables[spec.data.name] };
      this.views.get(name)?.finalize();
      const drawn = await window.vegaEmbed(figure.querySelector(".chart"), spec, {
        ast: true, // no code made from text: the page's policy forbids it
        renderer: "canvas",
        actions: false,
        defaultStyle: false,
        config: this.charts.themes[currentTheme()],
        tooltip: { disableDefaultStyle: true },
      });
      this.views.set(name, drawn);
      drawn.view.addEventListener("click", (event, item) => this.follow(item));
      figure.dataset.drawn = "yes";
    } catch (error) {
      console.error(`chart ${name}: ${error.message}`);
      this.show(figure, "table");
      figure.querySelector(".tools").hidden = true;
    }
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
    const axes = (spec.layer || [spec]).map((layer) => layer.encoding);
    const cases = Math.min(260, Math.floor(figure.clientWidth * 0.35));
    const arms = new Set(this.tables.cells.map((cell) => cell.arm));
    const band = (figure.clientWidth - cases) / Math.max(1, arms.size);
    const longest = Math.max(0, ...[...arms].map((arm) => arm.length));
    const level = Math.min(longest * LETTER, 180) <= band;
    for (const { x, y } of axes) {
      if (y && y.axis) y.axis.labelLimit = cases;
      if (x && x.axis) Object.assign(x.axis, level ? { labelAngle: 0, labelLimit: 180 } : { labelAngle: 40, labelAlign: "right", labelLimit: 120 });
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
    for (const name of this.views.keys()) {
      this.draw(document.querySelector(`.figure[data-chart="${name}"]`));
    }
  }

  async save(figure, form) {
    const name = figure.dataset.chart;
    if (!this.views.has(name)) await this.draw(figure);
    const address = await this.views.get(name).view.toImageURL(form, form === "png" ? 2 : 1);
    el("a", { href: address, download: `${name}.${form}` }).click();
  }
}
