// The explorer: asks at every change, shows what comes, and never shows an older answer over a newer one.

import {Chart} from "/static/charts.js";
import {Comparison} from "/static/compare.js";
import {ask, bars, byId, isAborted, isDark, make, percentUp, spell, spellUp} from "/static/dom.js";
import {Form} from "/static/form.js";
import {overBatches, overNoise, overRates, overSteps} from "/static/pictures.js";

const PATIENCE = 250; // milliseconds after which a question that is out of date is given up
const SEARCHING = ["epsilon", "analysis", "batch_sizes"];

const description = await ask("/api/description");
const {looks} = description;
byId("views").hidden = !description.has_audits;

let version = 0; // of what is asked
let flying = null; // the quick question under way
const shown = {answer: 0, quick: 0, slow: 0, convex: 0};
let lines = {quick: null, slow: null, convex: null};
let baseline = 0.1; // chance of an attacker without the model
const ERROR = 1e-6; // above the largest numerical error of a risk
let current = null; // the newest answer
let spoken = null; // sentences on the run: one to quote, and those on risk at each baseline

const form = new Form(description, byId("fields"), byId("advanced-fields"), changed);
const comparison = new Comparison(form, () => { remember(); });
const charts = {
  steps: new Chart(byId("picture-steps"), (dark) => overSteps(looks, labels(), byId("delta").value)(dark)),
  errors: new Chart(byId("picture-errors"), (dark) => overRates(looks, labels())(dark)),
  noise: new Chart(byId("picture-noise"), (dark) => overNoise(looks, labels(), byId("delta").value)(dark)),
  planned: new Chart(byId("picture-planned"), (dark) => overBatches(looks, planned.labels, planned.sizes)(dark)),
};
let planned = {labels: [], sizes: [1]};

// --- asking

function changed() {
  version += 1;
  byId("preset").value = "";
  remember();
  update();
}

async function update() {
  if (flying) {
    if (performance.now() - flying.began > PATIENCE) flying.controller.abort();
    return; // it asks again when it is done
  }
  const asked = version;
  flying = {began: performance.now(), controller: new AbortController()};
  const late = setTimeout(() => version !== asked && flying?.controller.abort(), PATIENCE);
  try {
    const found = await ask("/api/answer", form.asked(), flying.controller.signal);
    if (asked > shown.answer) show(found, asked);
  } catch (error) {
    if (!isAborted(error) && asked > shown.answer) complain(error, asked);
  } finally {
    clearTimeout(late);
    flying = null;
  }
  if (asked !== version) update();
}

const others = {}; // questions that may take longer, by name: a new one takes the place of the old

async function askAlso(name, path, texts, use, refuse = () => {}) {
  others[name]?.abort();
  const controller = (others[name] = new AbortController());
  try {
    const found = await ask(path, texts, controller.signal);
    if (others[name] === controller) use(found);
  } catch (error) {
    if (!isAborted(error) && others[name] === controller) refuse(error);
  }
}

function askTheRest(asked) {
  const texts = form.asked();
  byId("slow").textContent = "";
  askAlso("quick", "/api/lines/quick", texts, (found) => { lines.quick = found; shown.quick = asked; risks(); draw(); });
  if (current.rows.some((row) => row.analysis === "convex" && row.epsilon !== null))
    askAlso("convex", "/api/lines/convex", texts, (found) => { lines.convex = found; shown.convex = asked; draw(); });
  const waiting = setTimeout(() => { byId("slow").textContent = "The guarantee's lines take a little longer…"; }, 400);
  askAlso("slow", "/api/lines/slow", texts, (found) => {
    lines.slow = found;
    shown.slow = asked;
    risks();
    draw();
  }, (error) => { byId("slow").textContent = error.message; }).finally(() => {
    clearTimeout(waiting);
    if (shown.slow === version) byId("slow").textContent = "";
  });
  byId("samplings").classList.add("stale");
  askAlso("sampling", "/api/lines/sampling", texts, samplings, (error) => byId("samplings").replaceChildren(make("p", {className: "soft"}, form.inWords(error.message))));
  searchNoise();
  searchPlan();
  const places = ["sentence", "risk-words", "members-words"].map(byId);
  for (const place of places) place.classList.add("stale");
  askAlso("sentence", "/api/sentence", texts, (found) => {
    spoken = found;
    byId("sentence").textContent = found.sentence;
    for (const place of places) place.classList.remove("stale");
    risks();
  }, (error) => { byId("sentence").textContent = form.inWords(error.message); });
}

// --- showing

function show(found, asked) {
  shown.answer = asked;
  current = found;
  form.relax();
  byId("trouble").hidden = true;
  byId("answer").classList.remove("stale");
  byId("words").textContent = found.words;
  byId("tiles").replaceChildren(...found.numbers.map((each) => tile(each, found)));
  byId("answer-title").textContent = `Epsilon at delta ${byId("delta").value.trim()}`;
  byId("advice").textContent = found.advice;
  byId("analyses-table").replaceChildren(analysesTable(found.rows));
  risks();
  byId("command").textContent = found.command;
  byId("python").textContent = found.python;
  byId("legend").replaceChildren(...found.rows.filter((row) => row.epsilon !== null).map((row) => make("li", {}, sample(row.label), row.label)));
  comparison.update(found);
  document.body.dataset.version = String(asked);
  if (asked === version) askTheRest(asked);
}

function complain(error, asked) {
  shown.answer = asked;
  byId("answer").classList.add("stale");
  const sentence = form.inWords(error.message);
  const beside = form.complain(error.field, sentence);
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = beside;
  document.body.dataset.version = String(asked);
}

const badge = (kind) => make("span", {className: `badge ${kind}`}, kind);
const TITLES = {guarantee: ["Guaranteed", "what you may promise"], prediction: ["Predicted", "what to expect"], found: ["Found", "what an attack showed"]};

function tile(each, found) {
  const [title, words] = TITLES[each.kind];
  const value = make("p", {className: "value", title: each.epsilon ?? ""}, each.text);
  if (each.kind !== "found") value.dataset.analysis = each.kind === "guarantee" ? found.guarantee : "last_iterate";
  return make("article", {className: `tile ${each.kind}`}, make("h3", {}, title, make("span", {}, ` ${words}`)), value, make("p", {className: "soft"}, each.words));
}

function analysesTable(rows) {
  const head = ["analysis", "epsilon", "kind", "what it assumes"].map((text) => make("th", {scope: "col"}, text));
  const body = rows.map((row) => make("tr", {}, make("th", {scope: "row"}, row.title), make("td", {title: row.epsilon ?? ""}, row.text), make("td", {}, badge(row.kind)), make("td", {}, row.words)));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

// --- risk: what an attacker gains, from the points of the baselines, which the server computes exactly

const rises = (part, analysis) => new Map((lines[part]?.risks ?? []).filter((each) => each.analysis === analysis).map((each) => [each.baseline, each.risk]));

function risks() {
  const predicted = rises("quick", "last_iterate"), guaranteed = shown.slow === shown.answer ? rises("slow", current.guarantee) : new Map();
  const stops = description.baselines;
  baseline = stops[Number(byId("baseline").value)];
  byId("baseline-text").textContent = percentUp(baseline);
  byId("baseline").setAttribute("aria-valuetext", percentUp(baseline));
  const waiting = shown.slow !== shown.answer ? "…" : "no guarantee";
  const most = (map, place) => `at most ${percentUp(Math.min(1, map.get(place) + ERROR))}`.replace("at most 100%", "no limit");
  const at = (map, place, words) => (map.has(place) ? most(map, place) : words);
  bars(byId("risks"), [
    {label: "without the model", kind: "baseline", part: baseline, text: percentUp(baseline)},
    {label: "guaranteed", kind: "guarantee", part: guaranteed.get(baseline) ?? 0, text: at(guaranteed, baseline, waiting)},
    {label: "predicted", kind: "prediction", part: predicted.get(baseline) ?? 0, text: at(predicted, baseline, "…")},
  ]);
  const [members, secret] = spoken?.risk[Number(byId("baseline").value)] ?? ["…", "…"];
  byId("risk-words").textContent = secret;
  byId("members-words").textContent = members;
}

// --- sampling: the same run with batches drawn in other ways

function samplings(found) {
  const place = byId("samplings");
  place.classList.remove("stale");
  const most = Math.max(...found.rows.flatMap((row) => row.numbers.map((each) => each.epsilon ?? 0)), 1e-9);
  place.replaceChildren(...found.rows.map((row) => {
    const own = make("div", {});
    bars(own, row.numbers.map((each) => ({label: each.kind === "guarantee" ? "guaranteed" : "predicted", kind: each.kind, part: (each.epsilon ?? 0) / most, text: each.text, title: each.epsilon ?? each.words})));
    return make("div", {className: "sampling"}, make("h3", {}, row.sampling, row.is_own ? make("span", {className: "soft"}, " (this run)") : null), own, make("p", {className: "soft"}, row.numbers.length ? `neighbours: ${row.words}` : form.inWords(row.words)));
  }));
}

function sample(label) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of Object.entries({x1: 0, x2: 28, y1: 6, y2: 6, "stroke-width": 2.5, stroke: looks[label][isDark() ? "dark" : "light"], "stroke-dasharray": looks[label].dash.join(" ").replace("1 0", "none")}))
    line.setAttribute(name, String(value));
  svg.setAttribute("viewBox", "0 0 28 12");
  svg.setAttribute("aria-hidden", "true");
  svg.append(line);
  return svg;
}

const labels = () => (current ? current.rows.map((row) => row.label) : Object.keys(looks));

function draw() {
  const later = ["slow", "convex"].filter((part) => shown[part] === version);
  const rank = (row) => (row.analysis.startsWith("last iterate (") ? 2 : row.analysis.startsWith("full batch") ? 0 : 1); // the prediction is drawn last: nothing hides it
  const of = (picture) => [...(lines.quick?.[picture] ?? []), ...later.flatMap((part) => lines[part][picture])].sort((a, b) => rank(a) - rank(b));
  const key = JSON.stringify([labels(), current?.delta]);
  const target = Number(byId("epsilon").value);
  const inSight = of("noise").some((row) => row.epsilon <= target) && of("noise").some((row) => row.epsilon >= target);
  charts.steps.show({rows: of("steps"), released: (lines.quick?.released ?? []).map((steps) => ({steps}))}, key);
  charts.errors.show({rows: of("errors")}, key);
  charts.noise.show({rows: of("noise").filter((row) => row.epsilon > 0), here: [{noise: lines.quick?.at ?? 1}],
    target: inSight ? [{epsilon: target, text: `target ${target}`}] : []}, key);
  for (const [name, words] of Object.entries(PICTURE_WORDS)) byId(`picture-${name}`).setAttribute("aria-label", words());
}

const PICTURE_WORDS = {
  steps: () => `Epsilon over steps. At the end: ${current.rows.map((row) => `${row.label} ${row.text}`).join(", ")}.`,
  errors: () => `False negatives over false positives of the best attack. ${byId("members-words").textContent}`,
  noise: () => `Epsilon over noise, with a line at noise ${spell(lines.quick?.at)}.`,
};

// --- how much noise, and which batch size

function searchNoise() {
  const place = byId("needed");
  askAlso("noise", "/api/noise", {...form.asked(), ...searching()}, (found) => {
    mark("epsilon", null);
    place.replaceChildren(...found.rows.map(needed));
  }, (error) => { if (!mark(error.field, form.inWords(error.message))) place.replaceChildren(make("p", {className: "soft"}, form.inWords(error.message))); });
}

function needed(row) {
  if (row.noise_multiplier === null) return make("p", {}, badge(row.kind), ` ${row.label}: ${row.noise_multiplier_reason}`);
  const use = make("button", {type: "button", className: "quiet"}, "use it");
  use.addEventListener("click", () => { form.set("noise_multiplier", row.text); changed(); });
  use.setAttribute("aria-label", `use noise ${row.text}`);
  const but = row.kind === "guarantee" ? "" : row.guaranteed === null ? " Nothing is guaranteed with it." : ` With it the guarantee is epsilon ${spellUp(row.guaranteed, 3)}.`;
  const value = make("strong", {}, row.text);
  value.dataset.needed = row.analysis;
  return make("p", {}, badge(row.kind), " noise ", value, ` by ${row.title}.${but} `, use);
}

function searchPlan() {
  if (!byId("plan").open) return;
  const place = byId("plan-table");
  place.classList.add("stale");
  askAlso("plan", "/api/plan", {...form.asked(), ...searching(), batch_sizes: byId("batch_sizes").value}, (found) => {
    mark("batch_sizes", null);
    const rows = found.rows.filter((row) => row.noise_multiplier !== null);
    planned = {labels: [...new Set(found.rows.map((row) => row.label))], sizes: [...new Set(rows.map((row) => row.batch_size))].sort((a, b) => a - b)};
    charts.planned.show({rows: rows.map((row) => ({...row, analysis: row.label}))}, JSON.stringify(planned));
    byId("plan-title").textContent = `Noise that each batch size needs for epsilon ${spell(found.epsilon)}, in ${spell(found.epochs)} epochs`;
    place.replaceChildren(planTable(found.rows));
    place.classList.remove("stale");
  }, (error) => { if (!mark(error.field, form.inWords(error.message))) place.replaceChildren(make("p", {className: "soft"}, form.inWords(error.message))); });
}

function planTable(rows) {
  const head = ["batch size", "reached by", "steps", "noise", "guaranteed"].map((text) => make("th", {scope: "col"}, text));
  const body = rows.map((row) => make("tr", {}, make("th", {scope: "row"}, row.batch_size.toLocaleString("en")),
    make("td", {}, badge(row.kind), ` ${row.label}`), make("td", {}, row.steps.toLocaleString("en")), make("td", {}, row.text ?? "none"), make("td", {title: row.guaranteed ?? ""}, spellUp(row.guaranteed, 3))));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

function searching() {
  const texts = Object.fromEntries(SEARCHING.map((name) => [name, byId(name).value.trim()]));
  return Object.fromEntries(Object.entries(texts).filter(([, text]) => text));
}

function mark(name, sentence) {
  const place = name && byId(`${name}-error`);
  if (!place || !SEARCHING.includes(name)) return false;
  place.textContent = sentence ?? "";
  place.hidden = !sentence;
  byId(name).toggleAttribute("aria-invalid", Boolean(sentence));
  return true;
}

function usualSizes() {
  const size = Number(byId("dataset_size").value) || 50000;
  const sizes = [64, 128, 256, 512, 1024, 2048, 4096, 8192].filter((each) => each <= size / 2);
  return (sizes.length ? sizes.slice(-6) : [1, 2, 4].filter((each) => each <= size)).join(",");
}

// --- the address, which holds all of it

function remember() {
  const told = {...form.told(), ...(byId("epsilon").value !== "8" ? {epsilon: byId("epsilon").value} : {}), ...(byId("analysis").value ? {analysis: byId("analysis").value} : {}), ...(byId("baseline").value !== "6" ? {baseline: byId("baseline").value} : {})};
  const query = new URLSearchParams(told);
  for (const pin of comparison.pins) query.append("pin", new URLSearchParams(pin).toString());
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  byId("link").textContent = location.origin + location.pathname + (query.size ? `?${query}` : ""); // never a token
}

function recall() {
  const query = new URLSearchParams(location.search);
  form.fill(Object.fromEntries(query));
  byId("epsilon").value = query.get("epsilon") ?? "8";
  byId("analysis").value = query.get("analysis") ?? "";
  byId("baseline").value = query.get("baseline") ?? "6";
  comparison.recall(query.getAll("pin").map((pin) => Object.fromEntries(new URLSearchParams(pin))));
}

// --- what people press

for (const [index, preset] of description.presets.entries()) byId("preset").append(make("option", {value: String(index)}, preset.title));
for (const name of ["composition", "no-amplification", "convex", "last-iterate", "full-batch"]) byId("analysis").append(make("option", {value: name}, name.replace("-", " ")));
byId("preset").addEventListener("change", (event) => {
  const chosen = event.target.value;
  if (chosen === "") return;
  form.fill(description.presets[Number(chosen)].texts);
  changed();
  event.target.value = chosen;
});
byId("run").addEventListener("submit", (event) => event.preventDefault());
for (const name of ["epsilon", "analysis"]) byId(name).addEventListener("input", () => { remember(); searchNoise(); searchPlan(); if (current) draw(); });
byId("baseline").addEventListener("input", () => { remember(); if (current) risks(); });
byId("batch_sizes").addEventListener("input", searchPlan);
byId("plan").addEventListener("toggle", () => { byId("batch_sizes").value ||= usualSizes(); searchPlan(); });
byId("pin").addEventListener("click", () => { comparison.pin(); remember(); });
for (const button of document.querySelectorAll("[data-copies]"))
  button.addEventListener("click", async () => {
    const text = byId(button.dataset.copies).textContent;
    try {
      await navigator.clipboard.writeText(text);
      byId("copied").textContent = `Copied the ${button.dataset.copies}.`;
    } catch {
      getSelection().selectAllChildren(byId(button.dataset.copies));
      byId("copied").textContent = "Selected: copy it with your keyboard.";
    }
  });
addEventListener("popstate", () => { recall(); version += 1; update(); });

recall();
remember();
version += 1;
update();
