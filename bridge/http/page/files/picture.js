// One queue as a picture: producers, the buses of its triggers, the bridge, and the workers. Pending work, and the worker
// that a wake would reach now, are highlighted. A list has the same for screen readers.

import { make, number, plain, put, span, whole } from "./parts.js";
import { draw } from "./plots.js";

const LISTENERS = 8;
const HIGH = 64; // of a box
const BUSES = { store: "puts here", http: "HTTP", nats: "NATS", mqtt: "MQTT", postgres: "NOTIFY", local: "in process" };
const WHY = {
  woken: "gets the next wake", hears: "counts and starts", owner: "is receiving", full: "full", failing: "receives fail",
  stuck: "shows no progress", deaf: "does not answer wakes", capacity_0: "takes nothing", draining: "", nothing: "idle",
};
const TROUBLE = new Set(["failing", "stuck", "deaf"]);

export function picture() {
  const drawing = draw("svg", { class: "way", "aria-hidden": "true" });
  const list = make("ol", { class: "unseen", "aria-label": "The way of a message" });
  const element = make("div", { class: "card picture" }, drawing, list);
  let drawn = "";
  let stages = [];
  const paint = () => {
    if (!stages.length) return; // nothing was received yet
    const width = Math.max(280, element.clientWidth - 26);
    const now = JSON.stringify([width, stages]);
    if (now === drawn) return;
    drawn = now;
    drawing.replaceChildren(...(width > 640 ? across(width, stages) : down(width, stages)));
    const [wide, high] = drawing.lastChild.dataset.size.split(" ");
    drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    drawing.setAttribute("height", high);
  };
  new ResizeObserver(paint).observe(element);
  return {
    element,
    update(view) {
      stages = stagesOf(view);
      paint();
      const words = stages.map((stage) => stage.map((box) => [box.title, ...box.lines, box.lit ? "lit" : ""].filter(Boolean).join(", ")).join("; "));
      while (list.children.length < words.length) list.append(make("li"));
      words.forEach((each, i) => put(list.children[i], each));
    },
  };
}

function stagesOf({ row, explained, buses, triggered_ms: ago }) {
  const came = Object.entries(buses).sort((one, other) => other[1] - one[1]);
  const own = explained.exists && explained.depth_age_ms === null;
  const where = own ? "Embedded queue" : "Queue in an external store";
  const gets = explained.sessions.filter((each) => each.gets || each.owns).length;
  const shown = explained.sessions.slice(0, LISTENERS).map((each) => ({
    title: plain(each.listener, 40),
    lines: [each.capacity ? `${each.free} of ${each.capacity} free` : "", WHY[each.why] ?? "waits for its turn"].filter(Boolean),
    lit: each.gets || each.owns,
    bad: TROUBLE.has(each.why) || each.failing_s !== null,
  }));
  const left = explained.sessions.length - shown.length + (row.listeners > explained.sessions.length ? row.listeners - explained.sessions.length : 0);
  if (left > 0) shown.push({ title: `${whole.format(left)} more`, lines: ["in the table below"] });
  for (const each of (explained.subscribers ?? []).slice(0, 3)) shown.push({ title: plain(each.listener, 40), lines: [each.channel, each.hears ? "is notified" : ""].filter(Boolean), bad: !each.hears && explained.outcome !== "paused" });
  if (!shown.length) shown.push({ title: "No listener", lines: ["at this bridge"], bad: row.trouble !== null });
  return [
    [{ title: "Producers", lines: [row.triggers === 1 ? "1 put or trigger" : `${whole.format(row.triggers)} puts and triggers`, ago === null ? "none yet" : `last ${span(ago)} ago`] }],
    came.length ? came.map(([bus, n]) => ({ title: plain(BUSES[bus] ?? bus, 30), lines: [whole.format(n)] })) : [{ title: "No trigger yet", lines: ["by any bus"] }],
    [
      { title: where, lines: [`${number(row.visible, row.at_least)} waiting, ${number(row.leased, row.at_least)} leased`, row.paused ? "paused" : ""].filter(Boolean), lit: row.visible > 0, bad: row.paused },
      { title: "Bridge", lines: [row.dirty ? `work pending for ${span(row.waiting_ms)}` : "nothing pending", gets ? `to ${whole.format(gets)} of ${whole.format(row.listeners)}` : ""].filter(Boolean), lit: row.dirty },
    ],
    shown,
  ];
}

// Four columns, where there is room for them.
function across(width, stages) {
  const gap = 52;
  const wide = (width - 3 * gap) / 4;
  const high = Math.max(...stages.map((stage) => stage.length)) * (HIGH + 10) - 10;
  const places = stages.map((stage, i) => stage.map((box, k) => ({ box, x: i * (wide + gap), y: (high - stage.length * (HIGH + 10) + 10) / 2 + k * (HIGH + 10) })));
  const ways = [];
  places.slice(1).forEach((stage, i) => {
    const [begin, end] = [i === 2 ? places[i].slice(-1) : places[i], i === 1 ? stage.slice(-1) : stage];
    for (const from of begin) {
      for (const to of end) {
        const [a, b, c, d] = [from.x + wide, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
        ways.push(way(`M${a} ${b}C${a + gap / 2} ${b} ${c - gap / 2} ${d} ${c - 7} ${d}`, `M${c} ${d}l-8 -4v8z`, i === 2 ? to.box : i === 1 ? end[0].box : {}));
      }
    }
  });
  return [...ways, ...places.flat().map(({ box, x, y }) => boxAt(box, x, y, wide)), size(width, high)];
}

// One below the other, along a line at the edge.
function down(width, stages) {
  const flat = stages.flatMap((stage, i) => stage.map((box) => ({ box, stage: i })));
  const step = HIGH + 8;
  const middle = (k) => k * step + HIGH / 2;
  const bridge = flat.findLastIndex((each) => each.stage === 2);
  const ways = flat.map(({ box, stage }, k) => {
    if (k === 0 || k === bridge - 1) return null;
    const from = stage === 1 ? 0 : stage === 2 ? k - 2 : bridge;
    return way(`M26 ${middle(from)}H8V${middle(k)}H20`, `M26 ${middle(k)}l-8 -4v8z`, stage > 1 ? box : {});
  });
  return [...ways.filter(Boolean), ...flat.map(({ box }, k) => boxAt(box, 26, k * step, width - 26)), size(width, flat.length * step - 8)];
}

const state = (box) => (box.bad ? " bad" : "") + (box.lit ? " lit" : "");
const way = (line, head, box) => draw("g", { class: `edge${state(box)}` }, draw("path", { d: line }), draw("path", { class: "head", d: head }));

function boxAt(box, x, y, wide) {
  const most = Math.floor((wide - 20) / 7.2);
  const cut = (words) => (words.length > most ? words.slice(0, most - 1) + "…" : words);
  return draw(
    "g", { class: `box${state(box)}` },
    draw("rect", { x: x + 1, y: y + 1, width: wide - 2, height: HIGH - 2, rx: 6 }),
    draw("text", { class: "title", x: x + 10, y: y + 20 }, cut(box.title)),
    ...box.lines.slice(0, 2).map((line, i) => draw("text", { x: x + 10, y: y + 38 + 16 * i }, cut(line))),
  );
}

const size = (wide, high) => draw("g", { "data-size": `${Math.round(wide)} ${Math.round(high)}` });
