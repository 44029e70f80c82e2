// One queue: what is wrong, its way as a picture, who works on what, how it does, and its dead letters.

import { POISON, buried } from "./buried.js";
import { events } from "./events.js";
import { history } from "./history.js";
import { messages } from "./messages.js";
import { announcer, count, facts, make, number, plain, put, span, table, text, whole } from "./parts.js";
import { picture } from "./picture.js";
import { between, plot, rates, spans, within } from "./plots.js";
import { waiting } from "./queues.js";
import { ask, change, changes, watch } from "./told.js";

const main = document.getElementById("main");

// Why listeners received, as text.
const SOURCES = {
  trigger: "a put or a trigger", due: "a delay ended", lease: "a lease ended", resync: "a start, or a lost connection",
  more: "another listener left work", sweep: "sweep", deadman: "dead-man timer", poll: "poll without a bridge",
};
// The upper bounds of durations that workers count by, in seconds; the protocol fixes them.
const BOUNDS_S = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800];

export function queueView(left, queue, asked) {
  const path = `/v1/queues/${queue.split("/").map(encodeURIComponent).join("/")}`;
  const trouble = make("p", { class: "bad trouble" });
  const aloud = announcer();
  const summary = make("p");
  const way = picture();
  const state = facts();
  const sources = table("Wake sources", [
    text("Source", (item) => SOURCES[item[0]] ?? plain(item[0]), { name: true }),
    count("Found work", (item) => whole.format(item[1])),
  ]);
  const flow = rates(`${queue} flow`, "Each second", ["receives", "puts and triggers"]);
  const depth = plot(`${queue} depth`, "Messages", (value) => whole.format(Math.round(value)), ["waiting", "leased"]);
  const handling = spans(`${queue} handling`, "Time in the handler");
  const beforehand = spans(`${queue} beforehand`, "From put to the first attempt");
  const atWork = table("Long-running", [
    text("Listener", (item) => plain(item.listener), { name: true }),
    text("Message", (item) => plain(item.id), { roomy: true }),
    count("Attempt", (item) => whole.format(item.attempt)),
    count("Running for", (item) => span(item.ms)),
  ]);
  const running = make("div", { hidden: true }, make("h2", {}, "Long-running"), atWork.element);
  const jobs = table("Handlers", [
    text("Handler", (item) => plain(item.name), { name: true }),
    count("At work", (item) => whole.format(item.jobs.in_flight ?? 0), { roomy: true }),
    ...Object.entries({ done: "Done", retried: "Retried", failed: "Failed", buried: "Dead-lettered", lost: "Lost" }).map(([what, title]) => count(title, (item) => whole.format(item.jobs.outcomes?.[what] ?? 0), { roomy: what !== "done" && what !== "buried" })),
    count("Half within", (item) => span(within(BOUNDS_S, upTo(), upTo(item.jobs.handling))[0]), { roomy: true }),
    count("99 of 100", (item) => span(within(BOUNDS_S, upTo(), upTo(item.jobs.handling))[1]), { roomy: true }),
    text("Failures", (item) => Object.entries(item.jobs.failures ?? {}).map(([name, n]) => `${plain(name, 64)} ${whole.format(n)}`).join(", ")),
  ]);
  const sessions = table("Sessions", [
    text("Listener", (item) => plain(item.listener), { name: true }),
    text("Over", (item) => item.channel, { roomy: true }),
    count("Free", (item) => `${item.free} of ${item.capacity}`),
    text("Next wake", (item) => (item.gets ? "yes" : "no")),
    text("Why", (item) => item.detail, { name: true }),
  ], { none: "No listener at this bridge." });
  const others = table("Other subscribers", [
    text("Who", (item) => plain(item.listener), { name: true }),
    text("Over", (item) => item.channel, { roomy: true }),
    text("How", (item) => plain(item.detail), { name: true }),
  ]);
  const pause = make("button", { type: "button", disabled: true }, "Pause");
  const graves = buried(left, queue, path, asked);
  const past = history(left, queue, path);
  const held = queue.endsWith(POISON) ? [] : [messages(left, queue, path).element];
  const plots = make("div", { class: "plots" }, flow.element, depth.element, handling.element, beforehand.element);
  const handlers = make("div", {}, make("h2", {}, "Outcomes"), jobs.element);
  const known = make(
    "div", { hidden: true }, way.element, make("div", { class: "tools" }, pause), ...held, graves.element,
    events(left, path), running, past.element,
    make("h2", {}, "Activity"), plots, make("div", { class: "pair" }, make("div", { class: "card" }, state.element), make("div", { class: "card" }, sources.element)),
    handlers, make("h2", {}, "Listeners"), sessions.element, others.element,
  );
  main.replaceChildren(make("h1", { class: "text" }, plain(queue)), trouble, aloud.element, summary, known);
  const rate = between();
  let paused, before;
  const arm = () => (pause.disabled = !changes.checked || paused === undefined);
  changes.addEventListener("change", arm, { signal: left });
  pause.addEventListener("click", () =>
    change(paused ? "resuming" : "pausing", async () => {
      await ask("POST", `${path}/${paused ? "resume" : "pause"}`);
      past.open();
    }),
  );
  watch(`${path}/watch`, (view) => {
    const { row, state: stood, explained } = view;
    if (!row) {
      put(summary, "No put, trigger or listener of this queue since the bridge started.");
      return;
    }
    if (known.hidden) past.open();
    known.hidden = false;
    put(trouble, row.trouble ? plain(row.trouble) : "");
    aloud.say(row.trouble ? plain(row.trouble) : "");
    // Dead letters wait for a person: without a supervisor there is nothing to say of workers.
    const alone = queue.endsWith(POISON) && !explained.sessions.length;
    way.element.hidden = alone;
    put(summary, alone ? "" : plain(explained.summary));
    way.update(view);
    paused = row.paused;
    put(pause, paused ? "Resume" : "Pause");
    arm();
    running.hidden = !view.running.length;
    atWork.update(view.running.map((item) => [item.instance, item]));
    const words = Object.entries(stood.wakes).map(([name, n]) => `${SOURCES[name] ?? plain(name)} ${whole.format(n)}`);
    const unannounced = stood.unannounced ?? 0;
    state.update([
      ["waiting", waiting(row)],
      ["oldest pending work", row.waiting_ms === null ? (row.paused ? "not while it is paused" : "none") : span(row.waiting_ms)],
      ...(stood.oldest_ms === null || stood.oldest_ms === undefined ? [] : [["oldest message", span(stood.oldest_ms)]]),
      ...(stood.delayed === null || stood.delayed === undefined ? [] : [["due later", number(stood.delayed)]]),
      ["paused", row.paused ? "yes" : "no", row.paused ? "bad" : ""],
      ["receives", `${whole.format(row.receives)}, ${whole.format(row.empty)} of them empty`],
      ["wakes sent", words.join(", ") || "none"],
      ["found without a trigger", unannounced ? `${whole.format(unannounced)} times: a publish was lost, or never sent` : "never", unannounced ? "bad" : ""],
      ["generation", String(stood.gen)],
    ]);
    sources.update(Object.entries(stood.wake_sources).sort((one, other) => other[1] - one[1]).map((item) => [item[0], item]));
    sessions.update(explained.sessions.map((item) => [item.instance + item.listener, item]));
    others.element.hidden = !explained.subscribers?.length;
    others.update((explained.subscribers ?? []).map((item, i) => [`${item.listener} ${item.channel} ${item.topic ?? ""} ${i}`, item]));
    const now = rate([row.receives, row.triggers]);
    if (now) flow.add(now);
    depth.element.hidden = row.visible === null;
    if (row.visible !== null) depth.add([row.visible, row.leased]);
    const told = Object.entries(stood.jobs ?? {});
    handlers.hidden = handling.element.hidden = beforehand.element.hidden = !told.length;
    if (told.length) {
      jobs.update(told.map(([name, each]) => [name, { name, jobs: each }]));
      const all = { handling: sum(told.map(([, each]) => upTo(each.handling))), waiting: sum(told.map(([, each]) => upTo(each.waiting))) };
      handling.add(within(BOUNDS_S, before?.handling, all.handling));
      beforehand.add(within(BOUNDS_S, before?.waiting, all.waiting));
      before = all;
    }
    graves.update(row, view.run);
  });
}

// How many durations lie up to each bound, and how many there are at last.
function upTo(spread) {
  let all = 0;
  return [...BOUNDS_S, Infinity].map((_, i) => (all += spread?.counts?.[i] ?? 0));
}

const sum = (lists) => lists.reduce((all, list) => all.map((value, i) => value + list[i]), upTo());
