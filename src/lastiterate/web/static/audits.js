// Audits: the list and one of them, renewed when the server says that a store has changed.

import {embedSpec} from "/static/charts.js";
import {ask, byId, isAborted, make} from "/static/dom.js";

const STATES = {finished: "finished", running: "running", stopped: "stopped before its end", silent: "silent: slow, or killed", reading: "being read", unreadable: "cannot be read"};
let rows = [];
let shown = {store: null, key: null};
let asking = null;
let newest = null; // what the head shows: the list and the page of one audit are read apart, and either may be older

const chosen = () => new URLSearchParams(location.search).get("store");

// --- words

function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

function lasting(seconds) {
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toPrecision(2)} h`;
}

const since = (row) => ago(Date.now() / 1000 - row.changed);
const count = (number) => number.toLocaleString("en");

const dated = (text) => (text ? new Date(text).toLocaleDateString("en", {year: "numeric", month: "short", day: "numeric"}) : "—");
const titleOf = (row) => row.title || row.name.replace(/^.*\//, "").replace(/\.sqlite$/, "");
const number = (row, kind) => row.numbers?.find((each) => each.kind === kind);

function verdict(row) {
  if (!row.verdict) return make("span", {className: "soft"}, row.error ? "—" : row.state === "reading" || row.done >= row.planned ? "being read…" : "no verdict yet");
  const word = make("span", {className: "verdict-word", title: row.strength}, row.headline);
  if (["violation", "above heuristic"].includes(row.verdict)) word.style.setProperty("--colour", row.colour);
  const bar = make("span", {className: "bar small", role: "img", "aria-label": row.strength}, make("span", {}));
  bar.firstChild.style.width = `${100 * row.caught}%`;
  const words = row.state === "finished" || row.is_open ? word : make("span", {}, make("span", {className: "soft"}, "so far: "), word);
  return make("div", {}, words, bar, make("div", {className: "soft"}, row.caught ? `would have caught noise below ${Math.floor(100 * row.caught)}% of what is declared` : "would have caught nothing"));
}

function progress(row) {
  const bar = make("progress", {max: row.planned, value: row.done});
  bar.setAttribute("aria-label", `${row.done} of ${row.planned} trials`);
  return bar;
}

// --- the list: sorted and filtered here; a row is made anew only when it has changed, so that nothing flickers

const COLUMNS = [
  ["audit", (row) => titleOf(row).toLowerCase()], ["verdict", (row) => ["violation", "above heuristic", "inconclusive", "consistent"].indexOf(row.verdict)],
  ["strength", (row) => -(row.caught ?? -1)], ["guaranteed", (row) => -(number(row, "guarantee")?.epsilon ?? -1)], ["predicted", (row) => -(number(row, "prediction")?.epsilon ?? -1)],
  ["found", (row) => -(number(row, "found")?.epsilon ?? -1)], ["progress", (row) => (row.planned ? row.done / row.planned : 0)], ["date", (row) => -(Date.parse(row.created || 0) || 1000 * row.changed)],
];
const order = {by: "date", down: 1};
const made = new Map(); // rows on the page, by store

function sorted() {
  const key = COLUMNS.find(([name]) => name === order.by)[1], words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row) => [titleOf(row), row.name, row.owner, row.data, row.headline, row.verdict, STATES[row.state]].join(" ").toLowerCase();
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return rows.filter((row) => words.every((word) => text(row).includes(word))).sort((a, b) => order.down * compare(key(a), key(b)) || compare(a.name, b.name));
}

function list() {
  byId("tools").hidden = !rows.length;
  if (!rows.length) { made.clear(); byId("rows").replaceChildren(make("p", {}, "There is no store here yet. Begin an audit with --store in this folder: it will appear here.")); return; }
  const body = byId("rows").querySelector("tbody") ?? table();
  const shownRows = sorted();
  for (const [index, row] of shownRows.entries()) {
    const key = JSON.stringify({...row, read: 0, changed: 0, left: row.left && lasting(row.left)}), old = made.get(row.store);
    if (old?.key !== key) {
      const line = tr(row);
      old?.line.replaceWith(line);
      made.set(row.store, {key, line});
    }
    const {line} = made.get(row.store);
    if (body.children[index] !== line) body.insertBefore(line, body.children[index] ?? null);
    line.querySelector("time").textContent = since(row);
  }
  while (body.children.length > shownRows.length) body.lastChild.remove();
  byId("count").textContent = shownRows.length < rows.length ? `${shownRows.length} of ${rows.length}` : "";
}

function table() {
  const titles = COLUMNS.filter(([name]) => name !== "strength").map(([name]) => {
    const button = make("button", {type: "button", className: "quiet"}, name);
    button.addEventListener("click", () => sortBy(name, order.by === name ? -order.down : 1));
    const th = make("th", {scope: "col"}, button);
    th.dataset.column = name;
    return th;
  });
  made.clear();
  const body = make("tbody", {});
  byId("rows").replaceChildren(make("table", {className: "audit-list"}, make("thead", {}, make("tr", {}, ...titles)), body));
  mark();
  return body;
}

function sortBy(name, down = 1) {
  Object.assign(order, {by: name, down});
  byId("sort").value = name;
  mark();
  list();
}

function mark() {
  for (const th of byId("rows").querySelectorAll("th[data-column]")) {
    const rises = ["audit", "verdict", "progress"].includes(order.by) === order.down > 0; // numbers and dates begin with the largest
    if (th.dataset.column === order.by) th.setAttribute("aria-sort", rises ? "ascending" : "descending");
    else th.removeAttribute("aria-sort");
  }
}

function tr(row) {
  const link = make("a", {href: `/audits?${new URLSearchParams({store: row.store})}`}, titleOf(row));
  const about = [row.owner, row.error ?? row.data ?? STATES[row.state], row.name].filter(Boolean).join(" · ");
  const what = make("th", {scope: "row"}, link, make("div", {className: "soft"}, about));
  const state = row.left ? `${STATES[row.state]}, ${lasting(row.left)} left` : STATES[row.state];
  const done = row.planned ? make("div", {}, row.state === "finished" ? null : progress(row), make("div", {}, `${count(row.done)} of ${count(row.planned)}`), make("div", {className: "soft"}, state)) : STATES[row.state];
  const cell = (title, ...content) => { const td = make("td", {}, ...content); td.dataset.title = title; return td; };
  const numbers = ["guarantee", "prediction", "found"].map((kind) => {
    const each = number(row, kind), td = cell({guarantee: "guaranteed", prediction: "predicted", found: "found"}[kind], each?.text ?? "—");
    td.className = `number ${kind}`;
    if (each) td.title = each.epsilon === null ? each.words : `${each.epsilon}, ${each.words}`;
    return td;
  });
  const last = make("div", {className: "soft"}, "last score ", make("time", {}));
  const line = make("tr", {}, what, cell("verdict", verdict(row)), ...numbers, cell("progress", done), cell("date", dated(row.created), last));
  line.dataset.store = row.store;
  line.dataset.state = row.state;
  return line;
}

// --- one audit

const width = () => {
  const space = byId("audit").clientWidth || innerWidth - 32;
  const columns = Math.max(1, Math.floor((space + 16) / (27 * 16 + 16)));
  return Math.max(300, Math.min(1200, Math.floor((space - 16 * (columns - 1)) / columns) - 28));
};

async function one() {
  const store = chosen();
  byId("list").hidden = Boolean(store);
  byId("audit").hidden = !store;
  if (!store) { document.title = "Audits · lastiterate"; return; }
  const row = rows.find((each) => each.store === store);
  if (row) head(row);
  const key = JSON.stringify([store, row?.token, width(), matchMedia("(prefers-color-scheme: dark)").matches]);
  if (key === shown.key) return;
  if (asking) {
    if (asking.store === store) { asking.again = true; return; } // one question at a time: the newest state comes next
    asking.controller.abort();
  }
  if (shown.store !== store) byId("waits").replaceChildren(make("p", {className: "soft"}, "Reading the scores…"));
  const mine = (asking = {store, controller: new AbortController(), again: false});
  try {
    const found = await ask("/api/audits/one", {store, width: width()}, mine.controller.signal);
    if (asking === mine) { shown = {store, key}; await show(found); }
  } catch (error) {
    if (!isAborted(error) && asking === mine) { byId("title").textContent = store; byId("waits").replaceChildren(make("p", {className: "error"}, error.message)); }
  } finally {
    if (asking === mine) asking = null;
  }
  if (mine.again) one();
}

function head(read) {
  const row = newest?.store === read.store && newest.read > read.read ? newest : read;
  newest = row;
  byId("title").textContent = titleOf(row);
  document.title = `${titleOf(row)} · lastiterate`;
  byId("about-run").textContent = row.run ? [row.owner && `Owner: ${row.owner}`, `${row.data}: ${row.run}`, `Attack: ${row.attack}`].filter(Boolean).join("\n") : "";
  byId("notes").textContent = row.notes ? `Notes: ${row.notes}` : "";
  byId("notes").hidden = !row.notes;
  if (!row.planned) { byId("progress").replaceChildren(row.error ?? STATES[row.state]); return; }
  const left = row.left ? `about ${lasting(row.left)} left` : "";
  byId("progress").replaceChildren(progress(row), make("span", {}, `${count(row.done)} of ${count(row.planned)} trials`), make("span", {className: "soft", id: "state"}, [STATES[row.state], left, `last score ${since(row)}`].filter(Boolean).join(", ")));
  const summary = new URLSearchParams({store: row.store});
  if (row.verdict) byId("progress").append(make("a", {href: `/summary?${summary}`, id: "summary"}, "one-page summary"));
}

async function show(found) {
  head({...found, store: shown.store});
  byId("waits").replaceChildren(...(found.waits ? [make("p", {}, found.waits)] : []));
  byId("figures-section").hidden = !found.figures;
  if (!found.figures) return;
  for (const [id, html] of [["verdict", found.answer], ["quote-section", found.quote], ["more", found.more]]) {
    const place = byId(id);
    if (place.dataset.html === html) continue;
    const open = [...place.querySelectorAll("details")].map((each) => each.open);
    place.innerHTML = html; // escaped by the server
    place.dataset.html = html;
    for (const [index, each] of [...place.querySelectorAll("details")].entries()) each.open = Boolean(open[index]);
  }
  byId("others-section").hidden = !found.figures.some((each) => !each.is_first);
  for (const [id, isFirst] of [["figures", true], ["others", false]]) {
    const own = found.figures.filter((each) => each.is_first === isFirst);
    for (const figure of [...byId(id).children]) if (!own.some((each) => `figure-${each.name}` === figure.id)) figure.remove();
    for (const [index, each] of own.entries()) await draw(each, index, byId(id));
  }
  document.body.dataset.done = String(found.done);
}

async function draw(each, index, place) {
  const id = `figure-${each.name}`;
  const figure = byId(id) ?? make("figure", {id}, make("figcaption", {}, make("strong", {}, each.title), make("span", {className: "soft"})), make("div", {className: "chart", role: "img"}));
  if (place.children[index] !== figure) place.insertBefore(figure, place.children[index] ?? null);
  figure.querySelector("span").textContent = each.words;
  const drawn = make("div", {className: "chart", role: "img"}); // aside, so that the old picture stays until then
  drawn.setAttribute("aria-label", each.description);
  await embedSpec(drawn, each.spec);
  figure.querySelector(".chart").replaceWith(drawn);
}

// --- news

function hear(news) {
  rows = news.rows;
  byId("folder").textContent = `In ${news.folder}, and below it.`;
  byId("live").textContent = "live";
  list();
  one();
}

const stream = new EventSource("/api/audits/events");
stream.onmessage = (event) => hear(JSON.parse(event.data));
stream.addEventListener("refused", (event) => { byId("live").textContent = JSON.parse(event.data); stream.close(); });
stream.onerror = () => { byId("live").textContent = "not connected: the server has stopped, or is busy"; };
byId("sort").append(...COLUMNS.map(([name]) => make("option", {value: name}, name)));
byId("sort").value = order.by;
byId("sort").addEventListener("change", (event) => sortBy(event.target.value));
byId("filter").addEventListener("input", list);
addEventListener("popstate", one);
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(one, 200); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", one);
setInterval(() => { if (!chosen()) list(); else { const row = rows.find((each) => each.store === chosen()); if (row) head(row); } }, 5000);
one();
