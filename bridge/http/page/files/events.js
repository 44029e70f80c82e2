// What happens to the messages of a queue, or to one, while somebody watches: the bridge records nothing before.

import { make, plain, put, span, table, text, whole } from "./parts.js";
import { ask, poll } from "./told.js";

const EVERY_MS = 1000;
const KEPT = 200;

export function events(left, path, id = "") {
  const told = make("p", { class: "dim", role: "status" });
  const list = table(id ? "The way of this message" : "Events", [
    text("Time", (item) => new Date(item.at).toLocaleTimeString([], { hour12: false }) + item.at.slice(19, 23)),
    text("After", (item) => (item.gap === null ? "" : span(item.gap))),
    text("What", (item) => plain(item.what)),
    ...(id ? [] : [text("Message", (item) => plain(item.id ?? "", 40))]),
    text("More", (item) => plain(item.detail ?? "", 200), { name: true }),
  ]);
  const element = make("details", {}, make("summary", {}, id ? "Follow this message" : "Watch what happens"), told, list.element);
  let found = [];
  let after = 0;
  let since = "";
  let timer = 0;
  const look = () =>
    poll("watching", async () => {
      if (left.aborted || !element.open || !element.isConnected) return;
      timer = setTimeout(look, EVERY_MS);
      const since_ = (number) => ask("GET", `${path}/events?${new URLSearchParams({ after: number, ...(id ? { id } : {}) })}`);
      let answer = await since_(after);
      if (answer.since !== since) {
        // Another watch, whose numbers begin at 1: the bridge was started again, or nobody had asked for two minutes.
        if (after) answer = await since_(0);
        [found, since] = [[], answer.since];
      }
      after = answer.last;
      found = [...found, ...answer.events].slice(-KEPT);
      // Since the event before of the same message, or of the queue.
      const last = new Map();
      const rows = found.map((item) => {
        const before = last.get(item.id);
        last.set(item.id, Date.parse(item.at));
        return [String(item.n), { ...item, gap: before === undefined ? null : Date.parse(item.at) - before }];
      });
      list.update(id ? rows : rows.reverse());
      const none = found.length ? "" : " Nothing has happened since.";
      put(told, `Watched since ${new Date(since).toLocaleTimeString([], { hour12: false })}; before, nothing was recorded.${none}${answer.dropped ? ` ${whole.format(answer.dropped)} older events are no longer kept.` : ""}`);
    });
  element.addEventListener("toggle", () => {
    clearTimeout(timer);
    if (element.open) look();
  });
  left.addEventListener("abort", () => clearTimeout(timer));
  return element;
}
