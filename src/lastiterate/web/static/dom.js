// Small helpers: elements, numbers as people read them, and questions to the server.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function spell(value, digits = 4) {
  if (value === null || value === undefined) return "none";
  const text = Number(value).toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// A guarantee, rounded up so that the claim stays true.
export function spellUp(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(Number(value)) || Number(value) <= 0) return spell(value, digits);
  const unit = 10 ** (Math.floor(Math.log10(Number(value))) + 1 - digits);
  const rounded = Number(Number(value).toPrecision(digits));
  return spell(rounded < Number(value) ? rounded + unit : rounded, digits);
}

// A chance in per cent, rounded up.
export const percentUp = (value) => `${spellUp(100 * value, 3)}%`;

// Bars in rows: a label, a bar from 0 to 1, and a number, each in its own column.
export function bars(place, rows) {
  place.replaceChildren(...rows.map((row) => {
    const bar = make("div", {className: `bar ${row.kind}`, role: "img", "aria-label": `${row.label} ${row.text}`}, make("div", {}));
    bar.firstChild.style.width = `${Math.min(100, 100 * row.part)}%`;
    return make("div", {className: "bar-row", title: row.title ?? ""}, make("span", {className: "label"}, row.label), bar, make("span", {className: "amount"}, row.text));
  }));
}

export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// An answer, or an error with the server's sentence and the field that it names.
export async function ask(path, texts, signal) {
  const query = texts ? `?${new URLSearchParams(texts)}` : "";
  const response = await fetch(path + query, {signal});
  const found = await response.json().catch(() => ({error: response.status === 403 ? "the server was started again: open the address that it printed" : `the server answered with status ${response.status}`}));
  if (response.ok) return found;
  const error = new Error(found.error ?? "the server could not answer");
  error.field = found.field ?? null;
  error.status = response.status;
  throw error;
}

export const isAborted = (error) => error.name === "AbortError";
