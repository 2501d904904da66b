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

function verdict(row) {
  if (!row.verdict) return make("span", {className: "soft"}, row.error ? "—" : "none yet");
  const word = make("span", {className: "verdict-word"}, row.verdict);
  word.style.setProperty("--colour", row.colour);
  return row.state === "finished" || row.is_open ? word : make("span", {}, make("span", {className: "soft"}, "so far "), word);
}

function progress(row) {
  const bar = make("progress", {max: row.planned, value: row.done});
  bar.setAttribute("aria-label", `${row.done} of ${row.planned} trials`);
  return bar;
}

// --- the list

function list() {
  byId("rows").replaceChildren(rows.length ? table() : make("p", {}, "No store is here yet. One that appears is shown: begin an audit with --store in this folder."));
}

function table() {
  const titles = ["audit", "verdict", "progress", "found", "predicted", "guaranteed", "last score"];
  const head = make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", {scope: "col"}, title))));
  return make("table", {className: "audit-list"}, head, make("tbody", {}, ...rows.map(line)));
}

function line(row) {
  const link = make("a", {href: `/audits?${new URLSearchParams({store: row.store})}`}, row.name);
  const what = make("th", {scope: "row"}, link, make("div", {className: "soft"}, row.error ?? row.data ?? STATES[row.state]));
  const done = row.planned ? make("span", {}, progress(row), ` ${count(row.done)} of ${count(row.planned)}, ${STATES[row.state]}`, row.left ? `, ${lasting(row.left)} left` : "") : STATES[row.state];
  const cell = (title, ...content) => make("td", {"data-title": title, className: ["found", "predicted", "guaranteed"].includes(title) ? "number" : ""}, ...content);
  const tr = make("tr", {}, what, cell("verdict", verdict(row)), cell("progress", done), cell("found", row.found ? `≥ ${row.found}` : "—", row.found_if ? make("div", {className: "soft"}, `if ${row.found_if}`) : null), cell("predicted", row.predicted ?? "—"), cell("guaranteed", row.guaranteed ?? "—"), cell("last score", since(row)));
  tr.dataset.store = row.store;
  tr.dataset.state = row.state;
  return tr;
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
  byId("title").textContent = row.data ?? row.name;
  document.title = `${row.data ?? row.name} · lastiterate`;
  byId("about-run").textContent = row.run ? `${row.run}. ${row.attack}` : "";
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
  for (const [id, html] of [["verdict", found.answer], ["tables", found.tables], ["about", found.about]]) {
    const place = byId(id);
    if (place.dataset.html !== html) { place.innerHTML = html; place.dataset.html = html; } // escaped by the server
  }
  for (const figure of [...byId("figures").children]) if (!found.figures.some((each) => `figure-${each.name}` === figure.id)) figure.remove();
  for (const [index, each] of found.figures.entries()) await draw(each, index);
  document.body.dataset.done = String(found.done);
}

async function draw(each, index) {
  const id = `figure-${each.name}`;
  const figure = byId(id) ?? make("figure", {id}, make("figcaption", {}, make("strong", {}, each.title), make("span", {className: "soft"})), make("div", {className: "chart", role: "img"}));
  if (byId("figures").children[index] !== figure) byId("figures").insertBefore(figure, byId("figures").children[index] ?? null);
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
addEventListener("popstate", one);
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(one, 200); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", one);
setInterval(() => { if (!chosen()) list(); else { const row = rows.find((each) => each.store === chosen()); if (row) head(row); } }, 5000);
one();
