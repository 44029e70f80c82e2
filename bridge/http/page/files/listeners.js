// Who listens: workers, scalers, event streams and webhooks.

import { count, finder, hrefOf, make, pager, plain, put, span, table, text, whole } from "./parts.js";
import { ask, changes, undoable, watch } from "./told.js";

const main = document.getElementById("main");
let wanted = { filter: "", sort: "trouble", first: 0 };

// Why a scaler starts no more workers.
const HELD = {
  starting: "no more until those are ready", maximum: "the maximum is reached", backoff: "no start for now, because of a failure",
  uncounted: "the store cannot be counted", elsewhere: "workers on other machines are enough", stopping: "none: it is stopping",
};

export function listenersView(left) {
  const list = table("Listeners", [
    text("Listener", (item) => plain(item.listener), { name: true, sort: "name" }),
    text("Kind", (item) => item.kind ?? "subscriber", { roomy: true }),
    text("Over", (item) => item.channel, { roomy: true }),
    { title: "Queues", show: (cell, item) => showQueues(cell, item.queues) },
    count("Free", (item) => free(item), { roomy: true }),
    count("Connected", (item) => (item.connected_s === undefined ? "" : span(1000 * item.connected_s)), { rest: true }),
    count("Last heartbeat", (item) => (item.silent_s === undefined ? "" : `${span(1000 * item.silent_s)} ago`), { roomy: true }),
    {
      title: "State",
      sort: "trouble",
      show(cell, item) {
        const [words, bad] = stateOf(item);
        put(cell, words);
        cell.className = bad ? "bad" : "";
      },
    },
    {
      title: "",
      begin(cell, item) {
        if (item.kind !== "listener" || !item.instance) return;
        const drain = () => undoable(`worker ${plain(item.listener, 60)} is asked to stop once its handlers end`, "draining a worker", () => ask("POST", `/v1/listeners/drain?instance=${encodeURIComponent(item.instance)}`));
        cell.append(make("button", { type: "button", disabled: !changes.checked, "data-change": true, onclick: drain }, "Drain"));
      },
    },
  ], { sortBy: (sort) => again({ sort, first: 0 }), none: "No listener or queue with this text." });
  const pages = pager(() => wanted.first, (first) => again({ first }));
  main.replaceChildren(make("h1", {}, "Listeners"), make("div", { class: "tools" }, finder("Find a listener or a queue", wanted, left, (next) => again(next))), list.element, pages.element);
  changes.addEventListener("change", () => {
    for (const each of list.element.querySelectorAll("[data-change]")) each.disabled = !changes.checked;
  }, { signal: left });
  function again(next) {
    wanted = { ...wanted, ...next };
    list.sorted(wanted.sort);
    watch(`/v1/watch/listeners?${new URLSearchParams(wanted)}`, (view) => {
      const names = new Map();
      list.update(
        view.rows.map((item) => {
          const name = item.instance || `${item.listener} ${item.channel}`;
          names.set(name, (names.get(name) ?? 0) + 1);
          return [`${name} ${names.get(name)}`, item];
        }),
      );
      pages.update(view);
    });
  }
  again({});
}

function showQueues(cell, queues) {
  const words = queues.map((each) => each.queue).join("\n");
  if (cell.dataset.of === words) return;
  cell.dataset.of = words;
  const links = queues.slice(0, 5).flatMap((each, i) => [i ? ", " : "", make("a", { class: "text", href: hrefOf(each.queue) }, plain(each.queue))]);
  cell.replaceChildren(...links, queues.length > 5 ? ` and ${whole.format(queues.length - 5)} more` : "");
}

function free(item) {
  const known = item.queues.filter((each) => each.capacity !== undefined);
  if (!known.length) return "";
  const sum = (name) => known.reduce((all, each) => all + each[name], 0);
  return `${whole.format(sum("free"))} of ${whole.format(sum("capacity"))}`;
}

// The state as text, and whether it is trouble.
function stateOf(item) {
  const failing = item.queues.find((each) => each.failing_s);
  if (failing) return [`receives fail for ${span(1000 * failing.failing_s)}`, true];
  const hung = item.queues.reduce((all, each) => all + (each.hung ?? 0), 0);
  if (hung) return [`${whole.format(hung)} ${hung === 1 ? "slot is" : "slots are"} held by timed-out handlers`, true];
  if (item.kind === "listener" && item.queues.length && item.queues.every((each) => each.capacity === 0)) return ["stopping once its handlers end", false];
  if (item.state && item.state !== "ok") return [plain(`${item.state}: ${item.detail ?? ""}`), true];
  const scaled = item.queues.map((each) => each.processes).find(Boolean);
  if (!scaled) return item.kind === "scaler" ? ["no report yet", false] : ["ok", false];
  const ending = Math.max(0, scaled.running - scaled.ready - scaled.starting);
  const workers = `${scaled.wanted} ${scaled.wanted === 1 ? "worker" : "workers"} wanted, ${scaled.ready} ready, ${scaled.starting} starting${ending ? `, ${ending} ending` : ""}`;
  const held = scaled.held ? `; ${HELD[scaled.held] ?? plain(scaled.held, 40)}` : "";
  return [workers + held + (scaled.failure ? `; failed: ${plain(scaled.failure)}` : ""), Boolean(scaled.failure)];
}
