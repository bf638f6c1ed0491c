// Shared by the other scripts: building elements, reading data blocks, formatting figures.
// Text is only ever inserted as text, never as markup.

/** An element. Attributes by name; `on` holds listeners; children are nodes or text. */
function el(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") {
      for (const [type, listener] of Object.entries(value)) made.addEventListener(type, listener);
    } else {
      made.setAttribute(key, value === true ? "" : String(value));
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A bar from `from` to `from + width` percent; its figure is printed next to it. */
function stretch(from, width) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("viewBox", "0 0 100 8");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  const bar = document.createElementNS(space, "rect");
  bar.setAttribute("x", from.toFixed(2));
  bar.setAttribute("width", Math.max(width, 0.8).toFixed(2));
  bar.setAttribute("height", "8");
  picture.append(bar);
  return picture;
}

/** A block of plain JSON. */
function block(id) {
  const found = document.getElementById(`data-${id}`);
  return found ? JSON.parse(found.textContent) : null;
}

const unpacked = new Map();

/** The text of a packed block (deflated, in base64). Each is unpacked once. */
function unpack(id) {
  if (!unpacked.has(id)) unpacked.set(id, inflate(document.getElementById(`data-${id}`).textContent));
  return unpacked.get(id);
}

async function inflate(packed) {
  const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

/** Columns (see `columns` in page.py) as rows; `row` is the position of a row. */
function rowsOf(columns) {
  const names = Object.keys(columns);
  const read = names.map((name) => {
    const column = columns[name];
    return Array.isArray(column) ? (at) => column[at] : (at) => column.words[column.at[at]];
  });
  const first = columns[names[0]];
  const count = first === undefined ? 0 : Array.isArray(first) ? first.length : first.at.length;
  const rows = new Array(count);
  for (let at = 0; at < count; at += 1) {
    const row = { row: at };
    for (let column = 0; column < names.length; column += 1) row[names[column]] = read[column](at);
    rows[at] = row;
  }
  return rows;
}

const DASH = "–";
const STATUS_WORDS = {
  passed: "passed",
  failed: "failed",
  hard_fail: "hard fail",
  infra_error: "infra error",
  not_judged: "not judged",
  cancelled: "cancelled",
};

function statusWord(status) {
  return el("span", { class: `status ${status}` }, STATUS_WORDS[status] || status);
}

function inScore(value) {
  return value === null || value === undefined ? DASH : value.toFixed(2);
}

/** A duration, written as `duration_ms` of proctor/formatting.py does. */
function inTime(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms > 0 && ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms > 0 && ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 120e3) return `${(ms / 1e3).toFixed(1)} s`;
  return ms < 7200e3 ? `${(ms / 60e3).toFixed(1)} min` : `${(ms / 3600e3).toFixed(1)} h`;
}

/** A cost, written as `dollars` of proctor/formatting.py does; `≥` where calls have no known price. */
function inMoney(usd, unpriced = 0) {
  if (usd === null || usd === undefined) return DASH;
  const size = Math.abs(usd);
  let digits;
  if (size === 0 || !(size < 1)) {
    digits = size.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  } else if (size < 1e-6) {
    digits = String(Number(size.toPrecision(3)));
  } else {
    const [whole, part] = size.toFixed(2 - Math.floor(Math.log10(size))).split(".");
    digits = `${whole}.${part.replace(/0+$/, "").padEnd(2, "0")}`;
  }
  return `${unpriced ? "≥ " : ""}${usd < 0 ? "−" : ""}$${digits}`;
}

const TEX = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
  "–": "--", "−": "$-$", "±": "$\\pm$", "≥": "$\\geq$", "×": "$\\times$", "·": "$\\cdot$", "…": "\\ldots{}", "µ": "\\textmu{}",
};

/** Text for LaTeX, as `latex_text` of proctor/tables.py writes it. */
function inTex(text) {
  return text.replace(/[\\~^–−±≥×·…µ&%$#_{}]/g, (sign) => TEX[sign] || `\\${sign}`);
}

/** A cell for CSV: a spreadsheet must not take text of an agent for a formula. */
function inCsv(text) {
  const safe = /^[=+@\t\r]|^-(?![\d.])/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Buttons that save a table; `rows` gives its rows where the page shows only some of them. */
function tableTools(table, rows = () => [...table.tBodies[0].rows]) {
  const name = table.caption.textContent;
  const file = name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "table";
  const texts = (row) => [...row.cells].map((cell) => cell.textContent.replace(/\s+/g, " ").trim());
  const csv = (head, lines) => [head, ...lines].map((line) => line.map(inCsv).join(",")).join("\r\n") + "\r\n";
  const tex = (head, lines) => {
    const aligned = [...table.tHead.rows[0].cells].map((cell) => (cell.classList.contains("n") ? "r" : "l")).join("");
    const written = [head, ...lines].map((line) => `${line.map(inTex).join(" & ")} \\\\`);
    return [`\\begin{tabular}{${aligned}}`, "\\hline", written[0], "\\hline", ...written.slice(1), "\\hline", "\\end{tabular}", ""].join("\n");
  };
  const save = (word, suffix, form) => el("button", {
    type: "button",
    class: "quiet",
    "data-table": suffix,
    "aria-label": `Save the table ${name} as ${word}`,
    on: {
      click: () => {
        const content = new Blob([form(texts(table.tHead.rows[0]), rows().map(texts))], { type: "text/plain;charset=utf-8" });
        const address = URL.createObjectURL(content);
        el("a", { href: address, download: `${file}.${suffix}` }).click();
        setTimeout(() => URL.revokeObjectURL(address), 60e3); // a busy browser reads it late
      },
    },
  }, word);
  return el("div", { class: "table-tools" }, save("CSV", "csv", csv), save("LaTeX", "tex", tex));
}

/** Announce a change to screen readers. */
function say(words) {
  document.getElementById("live").textContent = words;
}
