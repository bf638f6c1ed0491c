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

/** Announce a change to screen readers. */
function say(words) {
  document.getElementById("live").textContent = words;
}
