// The form of a run, made of the server's description: texts, sliders that write them, and errors beside them.

import {byId, make} from "/static/dom.js";

const NOTCHES = 400;

export class Form {
  constructor(description, place, advanced, changed) {
    this.fields = description.fields;
    this.changed = changed;
    for (const group of description.groups) {
      const own = this.fields.filter((field) => field.group === group.name);
      (group.is_advanced ? advanced : place).append(make("fieldset", {}, make("legend", {}, group.title), ...own.map((field) => this.#row(field))));
    }
    this.advanced = this.fields.filter((field) => description.groups.find((group) => group.name === field.group).is_advanced);
    this.fill({});
  }

  // A sentence of the command line, with the labels of the form in place of options.
  inWords(sentence) {
    let text = sentence;
    for (const {name, label} of this.fields) text = text.replaceAll(new RegExp(`--${name.replaceAll("_", "-")}\\b|\\b${name}\\b`, "g"), label);
    return text.replaceAll(/--([a-z-]+)/g, (_, name) => name.replaceAll("-", " "));
  }

  // All texts, also those that do not count at the moment: so the address keeps them.
  texts() {
    return Object.fromEntries(this.fields.map((field) => [field.name, byId(field.name).value.trim()]));
  }

  // The texts that count: of fields that are shown and not empty.
  asked() {
    const shown = this.fields.filter((field) => this.#counts(field) && byId(field.name).value.trim());
    return Object.fromEntries(shown.map((field) => [field.name, byId(field.name).value.trim()]));
  }

  // What differs from the usual.
  told() {
    const texts = this.texts();
    return Object.fromEntries(this.fields.filter((field) => texts[field.name] !== field.usual).map((field) => [field.name, texts[field.name]]));
  }

  fill(texts) {
    for (const field of this.fields) {
      byId(field.name).value = texts[field.name] ?? field.usual;
      this.#slide(field);
    }
    this.#unfold();
    if (this.advanced.some((field) => byId(field.name).value !== field.usual)) byId("advanced").open = true;
  }

  set(name, text) {
    byId(name).value = text;
    this.#slide(this.fields.find((field) => field.name === name));
  }

  complain(name, sentence) {
    this.relax();
    const known = name && byId(`${name}-error`);
    if (!known) return false;
    byId(name).setAttribute("aria-invalid", "true");
    if (this.advanced.some((field) => field.name === name)) byId("advanced").open = true;
    known.textContent = sentence;
    known.hidden = false;
    return true;
  }

  relax() {
    for (const field of this.fields) {
      byId(field.name).removeAttribute("aria-invalid");
      byId(`${field.name}-error`).hidden = true;
    }
  }

  #row(field) {
    const id = field.name;
    const input = field.choices.length ? make("select", {id}, ...field.choices.map((word) => make("option", {value: word}, word || field.unset)))
      : make("input", {id, inputMode: field.low === null ? "text" : "decimal", spellcheck: false, autocomplete: "off"});
    input.setAttribute("aria-describedby", `${id}-error ${id}-hint`);
    input.addEventListener("input", () => { this.#slide(field); this.#unfold(); this.changed(); });
    const row = make("div", {className: "field", id: `${id}-field`}, make("label", {htmlFor: id}, field.label), input);
    if (field.low !== null) row.append(this.#slider(field, input));
    row.append(make("span", {className: "hint", id: `${id}-hint`}, field.hint), make("p", {className: "error", id: `${id}-error`, hidden: true}));
    return row;
  }

  #slider(field, input) {
    const slider = make("input", {type: "range", id: `${field.name}-slider`, min: 0, max: NOTCHES, step: 1});
    slider.setAttribute("aria-label", `${field.label}, slider`);
    slider.addEventListener("input", () => {
      input.value = this.#written(field, this.#at(field, slider.value / NOTCHES));
      slider.setAttribute("aria-valuetext", input.value);
      this.changed();
    });
    return slider;
  }

  #at(field, part) {
    return field.is_log ? field.low * (field.high / field.low) ** part : field.low + (field.high - field.low) * part;
  }

  #written(field, value) {
    if (field.is_whole) return String(value < 1000 ? Math.round(value) : Number(value.toPrecision(3)));
    return value !== 0 && value < 1e-3 ? value.toExponential(1).replace(".0", "") : String(Number(value.toPrecision(3)));
  }

  #slide(field) {
    const slider = byId(`${field.name}-slider`);
    const value = Number(byId(field.name).value);
    if (!slider || !(value >= 0)) return;
    const part = field.is_log ? Math.log(value / field.low) / Math.log(field.high / field.low) : (value - field.low) / (field.high - field.low);
    slider.value = String(Math.round(NOTCHES * Math.min(1, Math.max(0, part))));
    slider.setAttribute("aria-valuetext", byId(field.name).value);
  }

  #counts(field) {
    if (!field.needs) return true;
    const [name, allowed] = field.needs, held = byId(name).value.trim();
    return allowed.length ? allowed.includes(held) : held !== "";
  }

  #unfold() {
    for (const field of this.fields) byId(`${field.name}-field`).hidden = !this.#counts(field);
  }
}
