// The pictures of the explorer: what each shows, as a specification without its rows.

import {lookOf} from "/static/charts.js";

const HEIGHT = 250;
const q = (field, title, more = {}) => ({field, type: "quantitative", title, ...more});
const tooltip = (field, title, y, yTitle) => [
  {field: "analysis", title: "analysis"}, {field, title, format: ".4~g"}, {field: y, title: yTitle, format: ".4~g"}];
const LOG = {scale: {type: "log", nice: false}, axis: {format: "~r", tickCount: 5, labelOverlap: true, grid: false}};
const COUNT = {...LOG, axis: {...LOG.axis, format: "~s"}};
const line = {type: "line", strokeWidth: 2.2, interpolate: "monotone", clip: true};
const dots = {type: "point", size: 60, filled: true, opacity: 0, tooltip: true};

export function overSteps(looks, labels, delta) {
  return (dark) => ({
    height: HEIGHT,
    layer: [
      {data: {name: "released"}, mark: {type: "rule", opacity: 0.35, color: dark ? "#cfcfcf" : "#777"}, encoding: {x: q("steps", "steps taken (log scale)")}},
      {data: {name: "rows"}, mark: line, encoding: {x: q("steps", "steps taken (log scale)", COUNT), y: q("epsilon", `epsilon at delta ${delta}`, {scale: {zero: true}, axis: {tickCount: 5}}), ...lookOf(looks, labels, dark)}},
      {data: {name: "rows"}, mark: dots, encoding: {x: q("steps"), y: q("epsilon"), tooltip: tooltip("steps", "steps", "epsilon", "epsilon")}},
    ],
  });
}

export function overRates(looks, labels) {
  const unit = {scale: {domain: [0, 1]}, axis: {tickCount: 5, format: ".1f"}};
  return (dark) => ({
    height: HEIGHT,
    layer: [
      {data: {values: [{fpr: 0, fnr: 1}, {fpr: 1, fnr: 0}]}, mark: {type: "line", strokeWidth: 1, color: "#999"}, encoding: {x: q("fpr"), y: q("fnr")}},
      {data: {name: "rows"}, mark: {...line, interpolate: "linear"}, encoding: {x: q("fpr", "false positive rate (grey: guessing)", unit), y: q("fnr", "false negative rate", unit), order: {field: "fpr"}, ...lookOf(looks, labels, dark)}},
      {data: {name: "rows"}, mark: dots, encoding: {x: q("fpr"), y: q("fnr"), tooltip: tooltip("fpr", "false positives", "fnr", "false negatives")}},
    ],
  });
}

export function overNoise(looks, labels, delta) {
  return (dark) => ({
    height: HEIGHT,
    layer: [
      {data: {name: "here"}, mark: {type: "rule", strokeWidth: 1.2, color: dark ? "#cfcfcf" : "#555"}, encoding: {x: q("noise")}},
      {data: {name: "target"}, mark: {type: "rule", strokeWidth: 1.2, strokeDash: [4, 3], color: dark ? "#cfcfcf" : "#555"}, encoding: {y: q("epsilon")}},
      {data: {name: "target"}, mark: {type: "text", align: "left", baseline: "top", dy: 3, fontSize: 12}, encoding: {y: q("epsilon"), x: {value: 4}, text: {field: "text"}}},
      {data: {name: "rows"}, mark: line, encoding: {x: q("noise", "noise multiplier (log scale)", LOG), y: q("epsilon", `epsilon at delta ${delta} (log scale)`, LOG), ...lookOf(looks, labels, dark)}},
      {data: {name: "rows"}, mark: dots, encoding: {x: q("noise"), y: q("epsilon"), tooltip: tooltip("noise", "noise", "epsilon", "epsilon")}},
    ],
  });
}

export function overBatches(looks, labels, sizes) {
  const x = q("batch_size", "batch size (log scale)", {scale: {type: "log", nice: false, domain: [sizes[0] / 1.25, sizes.at(-1) * 1.25]}, axis: {values: sizes, format: ",d", labelOverlap: "greedy", grid: false}});
  return (dark) => ({
    height: HEIGHT,
    data: {name: "rows"},
    mark: {...line, interpolate: "linear", point: {size: 55, filled: true}},
    encoding: {x, y: q("noise_multiplier", "noise multiplier", {scale: {zero: true}, axis: {tickCount: 5}}), ...lookOf(looks, labels, dark),
      tooltip: [{field: "analysis", title: "reached by"}, {field: "batch_size", title: "batch size", format: ",d"}, {field: "noise_multiplier", title: "noise", format: ".4~g"}]},
  });
}
