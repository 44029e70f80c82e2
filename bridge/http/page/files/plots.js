// Lines over the last five minutes. Values are kept while the page is open, also of views that were left.

import { make, put, span, perSecond } from "./parts.js";

const KEPT_S = 300;
const GAP_S = 20; // a longer gap breaks the line
const SERIES = 60; // the series that are kept, those used last
const SVG = "http://www.w3.org/2000/svg";
const series = new Map();

export function draw(tag, given = {}, ...inside) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

function kept(key) {
  const points = series.get(key) ?? [];
  series.delete(key);
  series.set(key, points);
  if (series.size > SERIES) series.delete(series.keys().next().value);
  return points;
}

// What lies between two lines, run by run.
function band(points, x, y) {
  const runs = [[]];
  for (const point of points.filter(({ values }) => values[1] !== null)) {
    if (point.at - (runs.at(-1).at(-1)?.at ?? point.at) >= GAP_S) runs.push([]);
    runs.at(-1).push(point);
  }
  const side = (run, which) => run.map((point) => `${x(point)} ${y(point.values[which])}`);
  return runs.filter((run) => run.length).map((run) => `M${[...side(run, 1), ...side(run, 0).reverse()].join("L")}Z`).join("");
}

// One or two lines, with a text for screen readers. `key` names what is plotted, across views. With `share` values are
// scaled by it, and what is between the lines is filled.
export function plot(key, title, unit, names, share = null) {
  const lines = names.map((_, i) => draw("path", { class: `line ${["one", "two"][i]}` }));
  const under = draw("path", { class: "under" });
  const grid = draw("path", { class: "grid", d: "M0 2H300M0 50H300M0 98H300" });
  const drawing = draw("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", "aria-hidden": "true" }, grid, under, ...lines);
  const top = make("span");
  const values = names.map(() => make("b"));
  const legend = names.map((name, i) => make("span", { class: ["one", "two"][i] }, `${name} `, values[i]));
  const most = make("span", { class: "dim" });
  const points = kept(key);
  const element = make(
    "figure", { class: "plot", "aria-label": title },
    make("figcaption", {}, title),
    make("div", { class: "scale", "aria-hidden": "true" }, top),
    drawing,
    make("div", { class: "scale", "aria-hidden": "true" }, make("span", {}, "5 min ago"), make("span", {}, "now")),
    make("p", { class: "legend" }, ...legend, most),
  );
  function show() {
    const now = performance.now() / 1000;
    while (points.length && now - points[0].at > KEPT_S) points.shift();
    const highest = Math.max(0, ...points.flatMap((point) => point.values.filter((value) => value !== null)));
    const x = (point) => (KEPT_S - (now - point.at)).toFixed(1);
    const y = (value) => (highest > 0 ? 98 - 96 * (share ? share(value, highest) : value / highest) : 98).toFixed(1);
    lines.forEach((line, which) => {
      let path = "", area = "", last = null;
      for (const point of points) {
        if (point.values[which] === null) continue;
        const joined = last && point.at - last.at < GAP_S;
        if (!joined && last) area += "V98";
        path += `${joined ? "L" : "M"}${x(point)} ${y(point.values[which])}${joined ? "" : "h.1"}`;
        area += joined ? `L${x(point)} ${y(point.values[which])}` : `M${x(point)} 98V${y(point.values[which])}`;
        last = point;
      }
      line.setAttribute("d", path);
      if (which === 0) under.setAttribute("d", share ? band(points, x, y) : last ? `${area}V98` : "");
    });
    put(top, highest > 0 ? unit(highest) + (share ? " (log scale)" : "") : "");
    const newest = points.at(-1);
    values.forEach((place, i) => put(place, newest && newest.values[i] !== null ? unit(newest.values[i]) : "–"));
    put(most, highest > 0 ? `highest ${unit(highest)}` : "nothing yet");
  }
  show();
  return {
    element,
    add(values) {
      points.push({ at: performance.now() / 1000, values });
      show();
    },
  };
}

export const rates = (key, title, names) => plot(key, title, perSecond, names);
// Spans differ by powers of ten: from 0.1 ms on each takes as much of the height.
const power = (ms) => Math.log10(Math.max(0.1, ms)) + 1;
export const spans = (key, title) => plot(key, title, span, ["half within", "99 of 100 within"], (value, highest) => power(value) / Math.max(1e-9, power(highest)));

// The bound below which shares of what came since the last view lie, in ms; from counts up to each bound, in seconds.
export function within(bounds, was, now) {
  const counts = now.map((value, i) => value - (was?.[i] ?? value));
  const all = counts.at(-1);
  return [0.5, 0.99].map((share) => (all > 0 ? 1000 * bounds[Math.min(counts.findIndex((value) => value >= share * all), bounds.length - 1)] : null));
}

// What happened in each second between two views, of counters that only grow; null where a bridge restarted, and for
// views that follow each other at once. With `over` it is that of so many seconds: workers tell what they did seldom.
export function between(over = 0.5) {
  let seen = [];
  return (counters) => {
    const at = performance.now() / 1000;
    if (seen.length && counters.some((value, i) => value < seen.at(-1).counters[i])) seen = [];
    const was = seen.findLast((each) => at - each.at >= over) ?? seen[0];
    if (!seen.length || at - seen.at(-1).at >= 0.5) seen.push({ at, counters });
    while (seen.length > 2 && at - seen[1].at > over) seen.shift();
    if (!was || at - was.at < 0.5) return null;
    return counters.map((value, i) => (value - was.counters[i]) / (at - was.at));
  };
}
