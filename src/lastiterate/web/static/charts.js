// Pictures by Vega-Lite, whose expressions are interpreted: the page's policy allows no script but the server's own.

import {isDark} from "/static/dom.js";

let loading = null;

function vega() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/static/vega.js";
    script.onload = () => done(window.vegaEmbed);
    script.onerror = () => failed(new Error("the pictures could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

// What specifications of Python say in dark colours, in the colours of a dark page.
const IN_THE_DARK = {
  "#0072b2": "#56b4e9", "#aa3377": "#f07fa8", "#222222": "#e4e4e4", "#222": "#e4e4e4", "#b24502": "#f08a48", "#8c8c8c": "#8c8c8c",
  "#000": "#f0f0f0", "#333333": "#cfcfcf", "#333": "#cfcfcf", "#444": "#b5b5b5", "#4b5866": "#aab4c0",
  "#777": "#a0a0a0", "#777777": "#a0a0a0", "#e6e6e6": "#383838", "#bbb": "#505050", "white": "#1d1f22", "#fff": "#1d1f22",
};

function darkened(value) {
  if (typeof value === "string") return IN_THE_DARK[value.toLowerCase()] ?? value;
  if (Array.isArray(value)) return value.map(darkened);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, darkened(each)]));
  return value;
}

const FONT = 'Helvetica, Arial, "Liberation Sans", "DejaVu Sans", sans-serif';

function theme() {
  const [ink, soft, line] = isDark() ? ["#e4e4e4", "#b0b0b0", "#3a3d41"] : ["#1c1c1c", "#555", "#e6e6e6"];
  return {
    aria: false, background: null, font: FONT,
    axis: {labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line,
      labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: "normal", titlePadding: 6, labelFlush: false},
    view: {stroke: line}, text: {color: ink}, legend: {labelColor: ink, titleColor: ink, labelFontSize: 12.5},
    title: {color: ink, subtitleColor: soft},
  };
}

const OPTIONS = {mode: "vega-lite", ast: true, renderer: "svg", actions: false, defaultStyle: false,
  tooltip: {disableDefaultStyle: true}, logLevel: 1};

// The place of a picture has words for those who do not see it; its parts have none.
const silence = (place) => place.querySelector("svg")?.setAttribute("aria-hidden", "true");

// A picture that is made once and whose rows are then replaced, which is quicker than to draw it anew.
export class Chart {
  constructor(place, specify) {
    this.place = place;
    this.specify = specify;
    this.data = {};
    this.view = null;
    this.key = null;
    this.busy = Promise.resolve();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show(this.data, this.key, true));
  }

  // Show this data, by name; another `key` means that the specification is another one, too.
  show(data, key = null, anew = false) {
    this.data = data;
    const changed = anew || key !== this.key || !this.view;
    this.key = key;
    this.busy = this.busy.then(() => this.#draw(changed)).catch(() => { this.view = null; });
    return this.busy;
  }

  async #draw(changed) {
    const data = this.data;
    if (changed) {
      const embed = await vega();
      this.view?.finalize();
      const spec = {$schema: "https://vega.github.io/schema/vega-lite/v6.json", config: theme(), width: "container",
        autosize: {type: "fit", contains: "padding", resize: true}, background: null, ...this.specify(isDark())};
      this.view = (await embed(this.place, spec, OPTIONS)).view;
      silence(this.place);
    }
    for (const [name, rows] of Object.entries(data)) this.view.data(name, rows);
    await this.view.runAsync();
    this.place.dataset.drawn = String(Number(this.place.dataset.drawn ?? 0) + 1);
  }
}

// A picture whose specification comes from the server, ready to be drawn.
export async function embedSpec(place, spec) {
  const embed = await vega();
  const {config, ...rest} = isDark() ? darkened(spec) : spec;
  const themed = {...rest, background: null, title: undefined, config: {...config, ...theme()}};
  await embed(place, themed, OPTIONS);
  silence(place);
  place.dataset.drawn = String(Number(place.dataset.drawn ?? 0) + 1);
}

// The scales by which each analysis has its colour and its dash.
export function lookOf(looks, labels, dark) {
  return {
    color: {field: "analysis", type: "nominal", legend: null,
      scale: {domain: labels, range: labels.map((label) => looks[label][dark ? "dark" : "light"])}},
    strokeDash: {field: "analysis", type: "nominal", legend: null,
      scale: {domain: labels, range: labels.map((label) => looks[label].dash)}},
  };
}
