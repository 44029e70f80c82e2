// The list of queues, and above it how all of them do.

import { count, finder, hrefOf, make, number, numbers, pager, perSecond, plain, put, ROWS, span, table, text, whole } from "./parts.js";
import { between, rates, spans, within } from "./plots.js";
import { watch } from "./told.js";

const main = document.getElementById("main");
let wanted = { filter: "", sort: "trouble", first: 0 };

const queueLink = {
  name: true,
  begin(cell, item) {
    cell.append(make("a", { class: "text", href: hrefOf(item.queue) }), make("div", { class: "bad" }));
  },
  show(cell, item) {
    put(cell.firstChild, plain(item.queue));
    put(cell.lastChild, item.trouble ? plain(item.trouble) : "");
  },
};

export function waiting(item) {
  const known = number(item.visible, item.at_least);
  return item.counted_ms !== null && item.visible !== null ? `${known} (${span(item.counted_ms)} ago)` : known;
}

// A poison queue has none of its own; of another one its number is not known, or not shown to who may not look there.
function buried(item) {
  if (item.buried !== null || item.untold.buried) return number(item.buried);
  return item.queue.endsWith("-poison") ? "" : "not shown";
}

export function queuesView(left) {
  const sums = numbers(["queues", "waiting", "leased", "dead letters", "in trouble", "listeners"]);
  const flow = rates("flow", "Each second", ["receives", "puts and triggers"]);
  const waits = spans("waits", "From trigger to wake");
  const starts = spans("starts", "From put to handler");
  const empties = rates("empties", "Empty receives", ["empty"]);
  const each = new Map(); // what happened in each second on the queues that are shown
  const withRate = (name, n) => (item) => {
    const now = each.get(item.queue)?.now?.[n];
    return whole.format(item[name]) + (now ? ` (${perSecond(now)})` : "");
  };
  const list = table(
    "Queues",
    [
      { title: "Queue", sort: "name", ...queueLink },
      count("Waiting", waiting, { sort: "waiting" }),
      count("For", (item) => span(item.waiting_ms)),
      count("Leased", (item) => number(item.leased, item.at_least), { sort: "leased" }),
      count("Longest handler", (item) => span(item.running_ms)),
      count("Dead letters", buried, { sort: "buried" }),
      count("Listeners", (item) => whole.format(item.listeners), { sort: "listeners" }),
      count("Triggers", withRate("triggers", 0), { sort: "triggers", rest: true }),
      count("Receives", withRate("receives", 1), { sort: "receives", rest: true }),
      count("Empty", (item) => whole.format(item.empty), { rest: true }),
      text("", (item) => (item.paused ? "paused" : "")),
    ],
    { sortBy: (sort) => again({ sort, first: 0 }), none: "No queues." },
  );
  const pages = pager(() => wanted.first, (first) => again({ first }));
  const sorted = (sort, words) => make("button", { type: "button", onclick: () => again({ sort, first: 0 }) }, words);
  main.replaceChildren(
    make("h1", {}, "Queues"), sums.element,
    make(
      "div", { class: "board" },
      make("div", {}, make("div", { class: "tools" }, finder("Find a queue", wanted, left, (next) => again(next)), sorted("trouble", "Trouble first"), sorted("buried", "Dead letters first")), list.element, pages.element),
      make("div", { class: "plots" }, flow.element, waits.element, starts.element, empties.element),
    ),
  );
  const rate = between();
  let before = null;

  function again(next) {
    wanted = { ...wanted, ...next };
    list.sorted(wanted.sort);
    watch(`/v1/watch?${new URLSearchParams(wanted)}`, (view) => {
      for (const row of view.rows) {
        const known = each.get(row.queue) ?? { rate: between() };
        known.now = known.rate([row.triggers, row.receives]);
        each.set(row.queue, known);
      }
      if (each.size > 10 * ROWS) each.clear();
      list.update(view.rows.map((item) => [item.queue, item]));
      pages.update(view);
      const all = view.totals;
      sums.update([number(all.queues), number(all.visible), number(all.leased), number(all.buried), number(all.troubled), view.bridge ? number(view.bridge.sessions) : "not shown"]);
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
