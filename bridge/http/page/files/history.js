// What happened on a queue in the last minutes, hours or days, as the bridge kept it: bars, failures by class, marks.
// It is asked for when it is opened, and again once a step is over while it is in sight.

import { POISON } from "./buried.js";
import { count, hrefOf, make, number, perSecond, plain, put, span as lasted, table, text, whole } from "./parts.js";
import { draw } from "./plots.js";
import { ask, poll } from "./told.js";

const SPANS = { "5m": "5 minutes", "1h": "1 hour", "1d": "1 day", "7d": "7 days" };
const clock = (at, step) => new Date(at).toLocaleString([], step < 900 ? { timeStyle: step < 60 ? "medium" : "short" } : { dateStyle: "short", timeStyle: "short" });

export function history(left, queue, path) {
  const told = make("p", { class: "dim", role: "status" });
  const tabs = Object.entries(SPANS).map(([each, title]) => [each, make("button", { type: "button", "aria-pressed": "false", onclick: () => open(each) }, title)]);
  const mean = (row) => (row.started ? (row.waited_ms ?? 0) / row.started : 0);
  const charts = [
    bars("Handled each second", (row, step) => [(row.done ?? 0) / step, (row.failed ?? 0) / step], perSecond, ["done", "failed"]),
    bars("Put each second", (row, step) => [(row.put ?? 0) / step], perSecond, ["put"]),
    bars("Most messages that waited", (row) => [row.waiting ?? row.left ?? 0], (value) => whole.format(Math.round(value)), ["waiting"]),
    bars("From put to the first attempt", (row) => [mean(row)], lasted, ["on average"]),
  ];
  const failures = table("Failures", [
    {
      title: "Class",
      name: true,
      // To the dead letters whose reason has this class.
      begin: (cell, item) => cell.append(queue.endsWith(POISON) ? plain(item.failure, 64) : make("a", { class: "text", href: `${hrefOf(queue + POISON)}?${new URLSearchParams({ reason: item.failure })}` }, plain(item.failure, 64))),
    },
    count("Failed attempts", (item) => whole.format(item.count)),
    text("First, within 5 min from", (item) => clock(item.first, 300)),
    text("Last, within 5 min from", (item) => clock(item.last, 300)),
  ]);
  const failed = make("div", {}, make("h3", {}, "Failures by class"), failures.element);
  const marks = table("Marks", [
    text("When", (item) => new Date(item.at).toLocaleString([], { dateStyle: "short", timeStyle: "medium" })),
    text("What", (item) => plain(item.what, 80)),
    text("By", (item) => plain(item.by ?? "", 80)),
  ]);
  const rows = table("Steps", [
    text("From", (item) => clock(item.at, item.step)),
    ...["put", "done", "failed", "dead", "receives", "empty", "waiting"].map((name) => count(TITLES[name], (item) => whole.format(item[name] ?? 0))),
    count("Wait on average", (item) => (item.started ? lasted(mean(item)) : "")),
    count("Longest wait within", (item) => longest(item.longest_ms)),
  ], { none: "Nothing happened in this time." });
  const saved = make("p", { class: "dim" });
  const all = make("details", {}, make("summary", {}, "As a table"), rows.element);
  let shown = "1h";
  let timer = 0;
  let loads = 0;

  function open(each) {
    shown = each;
    for (const [name, tab] of tabs) tab.ariaPressed = String(name === each);
    load();
  }

  const load = () => {
    clearTimeout(timer);
    const mine = ++loads;
    return poll("showing the history", async () => {
      const past = await ask("GET", `${path}/history?span=${shown}`);
      if (mine !== loads || left.aborted) return; // a later one is on its way
      timer = setTimeout(again, 1000 * Math.max(5, past.step_s));
      const newest = Math.floor(Date.parse(past.now) / 1000 / past.step_s);
      for (const chart of charts) chart.update(past, newest);
      failed.hidden = !past.failures.length;
      failures.update(classes(past.failures, past.since).map((item) => [item.failure, item]));
      marks.element.hidden = !past.marks.length;
      marks.update(past.marks.map((item, i) => [`${item.at} ${i}`, item]).reverse());
      rows.update(past.rows.map((item) => [item.at, { ...item, step: past.step_s }]).reverse());
      put(told, !past.kept ? "No history is kept of this queue: nothing has happened, or 500 others are busier." : `Since ${clock(past.since, 900)}; before, nothing is known. Steps of ${lasted(1000 * past.step_s)}.`);
      const sum = (name) => past.rows.reduce((total, row) => total + (row[name] ?? 0), 0);
      const seconds = Math.max(0, Math.min((Date.parse(past.now) - Date.parse(past.since)) / 1000, SECONDS[shown]));
      put(saved, `${number(sum("receives"))} receives and wakes with messages, ${number(sum("empty"))} of them empty; one worker that asks every second would have made ${whole.format(Math.round(seconds))} (computed).`);
    });
  };
  const again = () => (document.hidden ? (timer = setTimeout(again, 5000)) : load());
  left.addEventListener("abort", () => clearTimeout(timer));
  return {
    element: make(
      "section", {}, make("h2", {}, "History"), make("div", { class: "tools" }, ...tabs.map(([, tab]) => tab)),
      make("div", { class: "plots" }, ...charts.map((chart) => chart.element)), saved,
      failed, marks.element, all, told,
    ),
    open: () => open(shown),
  };
}

const TITLES = { put: "Put", done: "Done", failed: "Failed", dead: "Dead letters", receives: "Receives", empty: "Empty", waiting: "Waiting" };
const SECONDS = { "5m": 300, "1h": 3600, "1d": 86400, "7d": 604800 };
const longest = (ms) => (ms === -1 ? "over 30 min" : ms ? lasted(ms) : "");

// Each class once: how often, and when it was first and last seen.
function classes(rows, since) {
  const found = new Map();
  for (const { failure, at: step, count: more } of rows) {
    const at = step < since ? since : step; // a step begins before what happens in it
    const known = found.get(failure) ?? { failure, count: 0, first: at };
    found.set(failure, { ...known, count: known.count + more, last: at });
  }
  return [...found.values()].sort((one, other) => other.count - one.count);
}

// What was left at the end of a step waited until the next one with an event.
function filled(past, newest, steps) {
  const found = new Map(past.rows.map((row) => [Math.floor(Date.parse(row.at) / 1000 / past.step_s), row]));
  const rows = [];
  let left = 0;
  for (let slot = newest - steps + 1; slot <= newest; slot += 1) {
    const row = found.get(slot) ?? (left ? { at: new Date(1000 * slot * past.step_s).toISOString(), waiting: left } : null);
    if (row) rows.push(row);
    left = found.has(slot) ? (found.get(slot).left ?? 0) : left;
  }
  return rows;
}

// One bar for each step, two values on top of each other; a line where something was done to the queue or the bridge.
function bars(title, read, unit, names) {
  const drawing = draw("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  const top = make("span");
  const from = make("span");
  const most = make("span", { class: "dim" });
  return {
    element: make(
      "figure", { class: "plot bars", "aria-label": title },
      make("figcaption", {}, title), make("div", { class: "scale", "aria-hidden": "true" }, top), drawing,
      make("div", { class: "scale", "aria-hidden": "true" }, from, make("span", {}, "now")),
      make("p", { class: "legend" }, ...names.map((name, i) => make("span", { class: ["one", "two"][i] }, name)), most),
    ),
    update(past, newest) {
      const steps = SECONDS[past.span] / past.step_s;
      const width = 300 / steps;
      const place = (at) => (Date.parse(at) / 1000 / past.step_s - newest + steps - 1) * width;
      const shown = names[0] === "waiting" ? filled(past, newest, steps) : past.rows;
      const values = shown.map((row) => read(row, past.step_s));
      const highest = Math.max(0, ...values.map((each) => each.reduce((sum, value) => sum + value, 0)));
      const parts = [draw("path", { class: "grid", d: "M0 2H300M0 50H300M0 98H300" })];
      shown.forEach((row, i) => {
        let y = 98;
        values[i].forEach((value, which) => {
          const height = highest > 0 ? (96 * value) / highest : 0;
          y -= height;
          if (height) parts.push(draw("rect", { class: `bar ${["one", "two"][which]}`, x: place(row.at).toFixed(2), y: y.toFixed(2), width: (0.85 * width).toFixed(2), height: height.toFixed(2) }));
        });
      });
      for (const mark of past.marks) parts.push(draw("path", { class: "mark", d: `M${place(mark.at).toFixed(2)} 2V98` }));
      drawing.replaceChildren(...parts);
      put(top, highest > 0 ? unit(highest) : "");
      put(from, `${SPANS[past.span]} ago`);
      put(most, highest > 0 ? `highest ${unit(highest)}` : "nothing");
    },
  };
}
