// The list of queues, and above it how all of them do.

import { count, finder, hrefOf, make, number, numbers, pager, perSecond, plain, put, ROWS, span, table, text, whole } from "./parts.js";
import { between, rates, spans, within } from "./plots.js";
import { watch } from "./told.js";

const main = document.getElementById("main");
const CHIPS = { all: "All", trouble: "In trouble", buried: "Dead letters", paused: "Paused" };
const SORTS = ["trouble", "name", "waiting", "leased", "buried", "listeners", "triggers", "receives"];
const TOLD_S = 30; // workers tell what they did every 10 s
const FIRST = { filter: "", only: "all", sort: "trouble", first: "0", more: "" };

const queueLink = {
  name: true,
  begin(cell, item) {
    cell.append(make("a", { class: "text", href: hrefOf(item.queue) }), make("div", { class: "bad" }));
  },
  show(cell, item) {
    put(cell.firstChild, plain(item.queue) + (item.paused ? " (paused)" : ""));
    put(cell.lastChild, item.trouble ? plain(item.trouble) : "");
  },
};

export function waiting(item) {
  const known = number(item.visible, item.at_least);
  return item.counted_ms !== null && item.visible !== null ? `${known} (${span(item.counted_ms)} ago)` : known;
}

const some = (text) => (text === "0" ? "" : text); // what is not there is not shown

// A poison queue has none of its own; of another one its number is not known, or not shown to who may not look there.
function dead(cell, item) {
  const known = item.buried !== null || item.untold.buried;
  const words = known ? some(number(item.buried)) : item.queue.endsWith("-poison") ? "" : "not shown";
  if (cell.dataset.of === words) return;
  cell.dataset.of = words;
  cell.replaceChildren(item.buried ? make("a", { href: hrefOf(`${item.queue}-poison`) }, words) : words);
}

export function queuesView(left, asked) {
  const can = { filter: (text) => text.length <= 200, only: (text) => text in CHIPS, sort: (text) => SORTS.includes(text), first: (text) => /^\d{1,7}$/.test(text), more: (text) => text === "1" };
  let wanted = { ...FIRST, ...Object.fromEntries([...asked].filter(([name, value]) => can[name]?.(value))) };
  const sums = numbers(["in trouble", "waiting", "oldest", "running", "failed (5 min)", "dead letters", "workers"]);
  const flow = rates("flow", "Each second", ["receives", "puts and triggers"]);
  const waits = spans("waits", "From trigger to wake");
  const starts = spans("starts", "From put to handler");
  const empties = rates("empties", "Empty receives", ["empty"]);
  const each = new Map(); // what happened in each second on the queues that are shown
  const rateOf = (item, n) => each.get(item.queue)?.now?.[n];
  const withRate = (name, n) => (item) => some(whole.format(item[name])) + (rateOf(item, n) ? ` (${perSecond(rateOf(item, n))})` : "");
  const list = table(
    "Queues",
    [
      { title: "Queue", sort: "name", ...queueLink },
      count("Waiting", (item) => [some(waiting(item)), item.delayed ? `${whole.format(item.delayed)} later` : ""].filter(Boolean).join(", "), { sort: "waiting" }),
      count("Oldest", (item) => span(item.waiting_ms)),
      count("Running", (item) => some(number(item.leased, item.at_least)), { sort: "leased", roomy: true }),
      count("Longest handler", (item) => span(item.running_ms), { rest: true }),
      count("Done each second", (item) => (each.get(item.queue)?.done?.[0] ? perSecond(each.get(item.queue).done[0]) : ""), { roomy: true }),
      count("Failed (5 min)", (item) => some(whole.format(item.failed_5m ?? 0)), { roomy: true }),
      { title: "Dead letters", number: true, sort: "buried", show: dead },
      count("Workers", (item) => some(whole.format(item.listeners)), { sort: "listeners", roomy: true }),
      count("Triggers", withRate("triggers", 0), { sort: "triggers", rest: true }),
      count("Receives", withRate("receives", 1), { sort: "receives", rest: true }),
      count("Empty", (item) => some(whole.format(item.empty)), { rest: true }),
    ],
    { sortBy: (sort) => again({ sort, first: 0 }), none: "No queues." },
  );
  const pages = pager(() => Number(wanted.first), (first) => again({ first }));
  const chips = Object.entries(CHIPS).map(([only, title]) => [only, make("button", { type: "button", onclick: () => again({ only, first: 0 }) }, title)]);
  const first = make("button", { type: "button", onclick: () => again({ sort: "trouble", first: 0 }) }, "Trouble first");
  const columns = make("input", { type: "checkbox", onchange: () => again({ more: columns.checked ? "1" : "" }) });
  main.replaceChildren(
    make("h1", {}, "Queues"), sums.element,
    make("div", { class: "tools" }, ...chips.map(([, chip]) => chip), finder("Find a queue", wanted, left, (next) => again(next)), first, make("label", {}, columns, " More columns")),
    list.element, pages.element,
    make("div", { class: "plots" }, flow.element, waits.element, starts.element, empties.element),
  );
  const rate = between();
  let before = null;

  function again(next) {
    wanted = { ...wanted, ...next };
    list.sorted(wanted.sort);
    columns.checked = list.element.classList.toggle("more", wanted.more !== "");
    for (const [only, chip] of chips) chip.ariaPressed = String(only === wanted.only);
    // In the address is what differs from the first view, for a reload and for somebody else.
    const differs = Object.entries(wanted).filter(([name, value]) => String(value) !== FIRST[name]);
    const to = differs.length ? `?${new URLSearchParams(differs)}` : "";
    if (to || location.hash.includes("?")) history.replaceState(null, "", `#/${to}`);
    const { more, ...query } = wanted;
    watch(`/v1/watch?${new URLSearchParams(query)}`, (view) => {
      for (const row of view.rows) {
        const known = each.get(row.queue) ?? { rate: between(), rated: between(TOLD_S) };
        known.now = known.rate([row.triggers, row.receives]);
        known.done = known.rated([row.handled - row.failed]);
        each.set(row.queue, known);
      }
      if (each.size > 10 * ROWS) each.clear();
      list.update(view.rows.map((item) => [item.queue, item]));
      pages.update(view);
      const all = view.totals;
      const [failed, workers] = view.bridge ? [number(view.bridge.failed_5m), number(view.bridge.sessions)] : ["not shown", "not shown"];
      sums.update([number(all.troubled), number(all.visible), all.oldest_ms ? span(all.oldest_ms) : "none", number(all.leased), failed, number(all.buried), workers]);
      const now = rate([all.receives, all.triggers, all.empty]);
      const latency = view.bridge?.latency;
      waits.element.hidden = starts.element.hidden = !latency;
      if (now) {
        flow.add(now.slice(0, 2));
        empties.add(now.slice(2));
        if (latency) {
          waits.add(within(view.bridge.bounds, before?.wake, latency.wake));
          starts.add(within(view.bridge.bounds, before?.start, latency.start));
        }
      }
      before = latency;
    });
  }
  again({});
}
