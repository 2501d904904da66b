// Pinned runs beside the current one; rows in which they differ are marked.

import {ask, byId, make} from "/static/dom.js";

export class Comparison {
  constructor(form, changed) {
    this.form = form;
    this.changed = changed;
    this.pins = []; // texts of runs
    this.answers = new Map(); // by the text of the question
    this.current = null;
  }

  pin() {
    const texts = this.form.asked();
    if (!this.pins.some((pin) => same(pin, texts))) this.pins.push(texts);
    if (this.current) this.answers.set(key(texts), this.current);
    this.#show();
  }

  recall(pins) {
    this.pins = pins.slice(0, 6);
    for (const pin of this.pins)
      ask("/api/answer", pin).then((found) => this.answers.set(key(pin), found), (error) => this.answers.set(key(pin), {rows: [], error: this.form.inWords(error.message)})).then(() => this.#show());
  }

  update(found) {
    this.current = found;
    this.#show();
  }

  #show() {
    const place = byId("compared");
    place.hidden = !this.pins.length;
    if (!this.pins.length || !this.current) return;
    const runs = [{title: "now", texts: this.form.asked(), found: this.current}, ...this.pins.map((texts, i) => ({title: `pin ${i + 1}`, texts, found: this.answers.get(key(texts))}))];
    const head = runs.map((run, i) => make("th", {scope: "col"}, run.title, " ", i ? this.#remove(i - 1) : null));
    const names = this.form.fields.filter((field) => runs.some((run) => run.texts[field.name] !== undefined));
    const rows = names.map((field) => row(field.label, runs.map((run) => run.texts[field.name] ?? "—")));
    const analyses = [...new Map(runs.flatMap((run) => run.found?.rows ?? []).map((each) => [each.analysis, each])).values()];
    for (const analysis of analyses)
      rows.push(row(`epsilon: ${analysis.label}`, runs.map((run) => run.found?.error ?? run.found?.rows.find((each) => each.analysis === analysis.analysis)?.text ?? "—"), "number"));
    place.replaceChildren(make("table", {className: "compared"}, make("thead", {}, make("tr", {}, make("th", {scope: "col"}, "run"), ...head)), make("tbody", {}, ...rows)));
  }

  #remove(index) {
    const button = make("button", {type: "button", className: "quiet"}, "unpin");
    button.setAttribute("aria-label", `unpin ${index + 1}`);
    button.addEventListener("click", () => { this.pins.splice(index, 1); this.#show(); this.changed(); });
    return button;
  }
}

const key = (texts) => JSON.stringify(Object.entries(texts).sort());
const same = (one, other) => key(one) === key(other);

function row(title, texts, kind = "") {
  const differs = new Set(texts).size > 1;
  const marked = differs ? make("span", {className: "differs"}, "differs") : null;
  return make("tr", {className: `${kind} ${differs ? "different" : ""}`.trim()}, make("th", {scope: "row"}, title, " ", marked), ...texts.map((text) => make("td", {}, differs && text !== texts[0] ? make("mark", {}, text) : text)));
}
