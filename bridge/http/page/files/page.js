// The page of a bridge. It shows what the bridge tells once a second, and asks no other host for anything.
// No text becomes markup: everything is set as text, for names and bodies are strangers' (the policy forbids it too).

import { forget, offer, returned, who } from "./login.js";

const ROWS = 100;
const KEPT = 300; // points of a plot: five minutes
const main = document.getElementById("main");
const live = document.getElementById("live");
const said = document.getElementById("said");
const login = document.getElementById("login");
const changes = document.getElementById("changes");
const leave = document.getElementById("leave");

function make(tag, given = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

function put(place, text) {
  text = String(text);
  if (place.textContent !== text) place.textContent = text;
}

// Names and texts of strangers, shown as they are but for what would change how others are read: control characters
// and those that turn the direction of writing.
function plain(text, most = 2000) {
  const shown = String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
  );
  return shown.length > most ? shown.slice(0, most) + ` … (${shown.length - most} more)` : shown;
}

const whole = new Intl.NumberFormat("en");
const number = (value, atLeast) => (value === null || value === undefined ? "not known" : (atLeast ? "≥ " : "") + whole.format(value));

function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

// -- what is asked of the bridge ---------------------------------------------------------------------------------

const KEY = "queuebell-key";

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `the bridge answered ${status}`);
    this.status = status;
  }
}

async function ask(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, problem(text));
  return text ? JSON.parse(text) : null;
}

function problem(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

// One stream at a time. It comes again by itself, at first at once and later every ten seconds.
let stream = null;

function watch(path, tell) {
  stream?.abort();
  const mine = (stream = new AbortController());
  (async () => {
    let failed = 0;
    while (!mine.signal.aborted) {
      try {
        await follow(path, mine.signal, (view) => {
          failed = 0;
          status("live", "good");
          tell(view);
        });
      } catch (error) {
        if (mine.signal.aborted) return;
        if (error instanceof Refused && error.status === 401) return askForKey(error);
        if (error instanceof Refused && error.status < 500 && error.status !== 429) {
          status(`refused: ${error.message}`, "bad");
          main.replaceChildren(make("p", { class: "bad" }, error.message));
          return;
        }
      }
      if (mine.signal.aborted) return;
      failed += 1;
      status("not connected; trying again", "bad");
      const pause = Math.min(10000, 250 * 2 ** Math.min(failed, 6)) * (0.75 + Math.random() / 2);
      await new Promise((go) => setTimeout(go, pause));
    }
  })();
}

async function follow(path, signal, tell) {
  const answer = await fetch(path, { headers: headers(), signal, cache: "no-store" });
  if (!answer.ok) throw new Refused(answer.status, problem(await answer.text()));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    // Each event is a whole view: of several that came at once, the newest counts.
    const newest = events.filter((event) => event.startsWith("data: ")).pop();
    if (newest) tell(JSON.parse(newest.slice(6)));
  }
}

function status(text, kind) {
  put(live, text);
  live.className = kind;
}

let notSignedIn = "";

function askForKey(error) {
  const had = sessionStorage.getItem(KEY);
  const words = !had ? notSignedIn : who() ? `Your sign-in has ended: sign in again (${error.message}).` : error.message;
  sessionStorage.removeItem(KEY);
  forget();
  status("a key is asked for", "bad");
  put(document.getElementById("refused"), words);
  put(said, "");
  main.replaceChildren();
  login.hidden = false;
  leave.hidden = true;
  offer();
  document.getElementById("key").focus();
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("key");
  sessionStorage.setItem(KEY, field.value.trim());
  field.value = "";
  enter();
});

function enter() {
  login.hidden = true;
  leave.hidden = !sessionStorage.getItem(KEY);
  put(leave, who() ? `Sign out ${who()}` : "Forget the key");
  show();
}

// With all that the tab knows: it begins anew, without a key.
leave.addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  forget();
  location.reload();
});

changes.addEventListener("change", () => {
  document.body.classList.toggle("changes", changes.checked);
  document.dispatchEvent(new Event("changes"));
});

async function change(what, doIt) {
  put(said, "");
  try {
    await doIt();
  } catch (error) {
    put(said, `${what} failed: ${error.message}`);
  }
}

// -- what a view is made of ----------------------------------------------------------------------------------------

// A table whose rows stay the same elements while what they show changes, so that focus and selection stay too.
function table(label, columns, { sort, sortBy } = {}) {
  const heads = columns.map((column) => {
    const title = column.sort ? make("button", { type: "button", onclick: () => sortBy(column.sort) }, column.title) : column.title;
    const sorted = column.sort && column.sort === sort ? (column.sort === "name" ? "ascending" : "descending") : undefined;
    return make("th", { scope: "col", class: column.number ? "number" : undefined, "aria-sort": sorted }, title);
  });
  const body = make("tbody");
  const element = make("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
  const rows = new Map();
  return {
    element,
    update(items) {
      const seen = new Set();
      let place = body.firstChild;
      for (const [key, item] of items) {
        let row = rows.get(key);
        if (!row) {
          row = { tr: make("tr"), cells: [] };
          for (const column of columns) {
            const cell = make("td", { class: [column.number && "number", column.name && "name"].filter(Boolean).join(" ") || undefined });
            row.cells.push(cell);
            row.tr.append(cell);
            column.begin?.(cell, item);
          }
          rows.set(key, row);
        }
        columns.forEach((column, i) => column.show(row.cells[i], item));
        if (row.tr !== place) body.insertBefore(row.tr, place);
        else place = place.nextSibling;
        seen.add(key);
      }
      for (const [key, row] of rows) {
        if (!seen.has(key)) {
          row.tr.remove();
          rows.delete(key);
        }
      }
    },
  };
}

const text = (title, read, more = {}) => ({ title, show: (cell, item) => put(cell, read(item)), ...more });
const count = (title, read, more = {}) => text(title, read, { number: true, ...more });

function facts() {
  const list = make("dl", { class: "facts" });
  const places = new Map();
  return {
    element: list,
    update(pairs) {
      for (const [name, value, kind] of pairs) {
        let place = places.get(name);
        if (!place) {
          place = make("dd");
          list.append(make("dt", {}, name), place);
          places.set(name, place);
        }
        put(place, value);
        place.className = kind || "";
      }
    },
  };
}

function numbers(names) {
  const places = names.map(() => make("dd"));
  const list = make("dl", { class: "numbers" }, ...names.map((name, i) => make("div", {}, make("dt", {}, name), places[i])));
  return { element: list, update: (values) => values.forEach((value, i) => put(places[i], value)) };
}

const SVG = "http://www.w3.org/2000/svg";

// Two lines over time; told in words too, for whoever does not see them.
function plot(title, unit, names) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${KEPT} 100`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const lines = ["one", "two"].slice(0, names.length).map((name) => {
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("class", name);
    drawing.append(line);
    return line;
  });
  const caption = make("figcaption");
  const points = [];
  return {
    element: make("figure", { class: "plot" }, make("figcaption", {}, title), drawing, caption),
    add(values) {
      points.push(values);
      if (points.length > KEPT) points.shift();
      const most = Math.max(1e-9, ...points.flat().filter((value) => value !== null));
      lines.forEach((line, which) => {
        let path = "";
        let pen = "M";
        points.forEach((point, i) => {
          if (point[which] === null) {
            pen = "M";
            return;
          }
          path += `${pen}${KEPT - points.length + i} ${(98 - (96 * point[which]) / most).toFixed(1)}`;
          pen = "L";
        });
        line.setAttribute("d", path);
      });
      put(caption, names.map((name, i) => `${name} ${values[i] === null ? "–" : unit(values[i])}`).join(" · ") + ` · highest ${unit(most > 1e-9 ? most : 0)}`);
    },
  };
}

const perSecond = (value) => `${value < 10 ? value.toFixed(1) : whole.format(Math.round(value))}/s`;

// The value below which a share of what came since the last view lies, from counts up to each bound.
function quantile(bounds, was, now, share) {
  const counts = now.map((value, i) => value - (was?.[i] ?? value));
  const all = counts[counts.length - 1];
  if (!(all > 0)) return null;
  const found = counts.findIndex((value) => value >= share * all);
  return 1000 * bounds[Math.min(found, bounds.length - 1)];
}

function pager(view, rows, go) {
  const back = make("button", { type: "button", onclick: () => go(Math.max(0, view.first - ROWS)) }, "Previous");
  const on = make("button", { type: "button", onclick: () => go(view.first + ROWS) }, "Next");
  const where = make("span", { class: "dim" });
  return {
    element: make("div", { class: "tools" }, back, on, where),
    update(told) {
      back.disabled = told.first === 0;
      on.disabled = told.first + told.rows.length >= told.found;
      const last = told.first + told.rows.length;
      put(where, told.found ? `${told.rows.length ? told.first + 1 : 0} to ${last} of ${whole.format(told.found)}` : "none");
    },
  };
}

function finder(label, wanted, go) {
  const field = make("input", { type: "search", value: wanted.filter, maxlength: "200", spellcheck: "false" });
  let later = 0;
  field.addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(() => go({ ...wanted, filter: field.value, first: 0 }), 200);
  });
  // Who types and goes on at once must not have the next view's stream replaced by this one's.
  left.signal.addEventListener("abort", () => clearTimeout(later));
  return make("label", {}, `${label} `, field);
}

// -- the views -----------------------------------------------------------------------------------------------------

const queueLink = {
  name: true,
  begin(cell, item) {
    cell.append(make("a", { class: "text" }), make("div", { class: "bad" }));
    cell.firstChild.href = `#/queue/${item.queue.split("/").map(encodeURIComponent).join("/")}`;
  },
  show(cell, item) {
    put(cell.firstChild, plain(item.queue));
    put(cell.lastChild, item.trouble ? plain(item.trouble) : "");
  },
};

function waiting(item) {
  const known = number(item.visible, item.at_least);
  return item.counted_ms !== null && item.visible !== null ? `${known} (${span(item.counted_ms)} ago)` : known;
}

let wantedQueues = { filter: "", sort: "trouble", first: 0 };

function queuesView() {
  const sums = numbers(["queues", "waiting", "leased", "buried", "in trouble", "listeners"]);
  const rates = plot("Each second", perSecond, ["receives", "puts and triggers"]);
  const waits = plot("From trigger to wake", (ms) => span(ms), ["half within", "99 of 100 within"]);
  const empties = plot("Receives that found nothing", perSecond, ["empty"]);
  const place = make("div");
  main.replaceChildren(make("h1", {}, "Queues"), sums.element, make("div", { class: "plots" }, rates.element, waits.element, empties.element), make("div", { class: "tools" }, finder("Find", wantedQueues, (next) => again(next))), place);
  let list, pages, before;

  function again(next) {
    wantedQueues = next;
    list = table(
      "Queues",
      [
        { title: "Queue", sort: "name", ...queueLink },
        count("Waiting", waiting, { sort: "waiting" }),
        count("For", (item) => span(item.waiting_ms)),
        count("Leased", (item) => number(item.leased, item.at_least), { sort: "leased" }),
        count("Buried", (item) => (item.buried === null && !item.untold.buried ? "" : number(item.buried)), { sort: "buried" }),
        count("Listeners", (item) => whole.format(item.listeners), { sort: "listeners" }),
        count("Triggers", (item) => whole.format(item.triggers), { sort: "triggers" }),
        count("Receives", (item) => whole.format(item.receives), { sort: "receives" }),
        count("Empty", (item) => whole.format(item.empty)),
        text("", (item) => (item.paused ? "paused" : "")),
      ],
      { sort: next.sort, sortBy: (sort) => again({ ...wantedQueues, sort, first: 0 }) },
    );
    pages = pager(wantedQueues, ROWS, (first) => again({ ...wantedQueues, first }));
    const troubled = make("button", { type: "button", onclick: () => again({ ...wantedQueues, sort: "trouble", first: 0 }) }, "Trouble first");
    place.replaceChildren(make("div", { class: "tools" }, troubled), list.element, pages.element);
    watch(`/v1/watch?${new URLSearchParams(next)}`, (view) => {
      list.update(view.rows.map((item) => [item.queue, item]));
      pages.update(view);
      const all = view.totals;
      sums.update([number(all.queues), number(all.visible), number(all.leased), number(all.buried), number(all.troubled), view.bridge ? number(view.bridge.sessions) : "not shown"]);
      const now = { at: performance.now(), all, latency: view.bridge?.latency };
      if (before && now.at > before.at && all.receives >= before.all.receives) {
        const s = (now.at - before.at) / 1000;
        const rate = (name) => Math.max(0, (all[name] - before.all[name]) / s);
        rates.add([rate("receives"), rate("triggers")]);
        empties.add([rate("empty")]);
        if (view.bridge) waits.add([0.5, 0.99].map((share) => quantile(view.bridge.bounds, before.latency?.wake, now.latency.wake, share)));
      }
      before = now;
    });
  }
  again(wantedQueues);
}

function queueView(queue) {
  const path = `/v1/queues/${queue.split("/").map(encodeURIComponent).join("/")}`;
  const title = make("h1", { class: "text" }, plain(queue));
  const trouble = make("p", { class: "bad", role: "status" });
  const summary = make("p");
  const way = make("ol", { class: "way", "aria-label": "The way of a message" });
  const steps = ["producers", "bus", "bridge", "listeners"].map((name) => {
    const head = make("b");
    const body = make("p", { class: "dim" });
    const step = make("li", { "data-step": name }, head, body);
    way.append(step);
    return { step, head, body };
  });
  const state = facts();
  const rates = plot("Each second", perSecond, ["receives", "puts and triggers"]);
  const sessions = table("Sessions", [
    text("Listener", (item) => plain(item.listener), { name: true }),
    text("Over", (item) => item.channel),
    count("Free", (item) => `${item.free} of ${item.capacity}`),
    text("A wake now", (item) => (item.gets ? "goes to it" : "does not")),
    text("Why", (item) => item.detail),
  ]);
  const others = table("Others that hear", [
    text("Who", (item) => plain(item.listener), { name: true }),
    text("Over", (item) => item.channel),
    text("How", (item) => plain(item.detail)),
  ]);
  const pause = make("button", { type: "button", disabled: true }, "Pause");
  const poison = graves(queue, path);
  main.replaceChildren(title, trouble, summary, way, make("div", { class: "tools" }, pause), poison.element, make("h2", {}, "How it does"), make("div", { class: "plots" }, rates.element, make("div", { class: "card" }, state.element)), make("h2", {}, "Who would be woken"), sessions.element, others.element);
  let before, paused;
  const arm = () => (pause.disabled = !changes.checked || paused === undefined);
  document.addEventListener("changes", arm, { signal: left.signal });
  pause.addEventListener("click", () => change(paused ? "resuming" : "pausing", () => ask("POST", `${path}/${paused ? "resume" : "pause"}`)));
  watch(`${path}/watch`, (view) => {
    if (!view.row) {
      put(summary, "Nobody has put to this queue, triggered it or listened to it since the bridge started.");
      return;
    }
    const { row, state: stood, explained } = view;
    put(trouble, row.trouble ? plain(row.trouble) : "");
    put(summary, plain(explained.summary));
    paused = row.paused;
    put(pause, paused ? "Resume" : "Pause");
    arm();
    const free = explained.sessions.filter((each) => each.free > 0).length;
    const sources = Object.entries(stood.wake_sources).map(([name, n]) => `${name} ${whole.format(n)}`);
    const wakes = Object.entries(stood.wakes).map(([name, n]) => `${name} ${whole.format(n)}`);
    const drawn = [
      ["Producers", `${whole.format(row.triggers)} puts and triggers since the start`, false],
      [explained.asked === "put" ? "The bridge's own queue" : "Triggers", `${waiting(row)} waiting, ${number(row.leased)} leased`, row.visible > 0],
      ["Bridge", row.dirty ? `owes a look for ${span(row.waiting_ms)}` : "owes nothing", row.dirty],
      ["Listeners", `${row.listeners} here, ${free} with room`, explained.sessions.some((each) => each.gets || each.owns)],
    ];
    steps.forEach(({ step, head, body }, i) => {
      put(head, drawn[i][0]);
      put(body, drawn[i][1]);
      step.classList.toggle("lit", drawn[i][2]);
    });
    state.update([
      ["work has waited for", row.waiting_ms === null ? "nothing waits" : span(row.waiting_ms)],
      ["paused", row.paused ? "yes" : "no", row.paused ? "bad" : ""],
      ["receives", `${whole.format(row.receives)}, of which ${whole.format(row.empty)} found nothing`],
      ["wakes sent", wakes.join(", ") || "none"],
      ["what made listeners look", sources.join(", ") || "nothing yet"],
      ["generation", String(stood.gen)],
    ]);
    sessions.update(explained.sessions.map((item) => [item.instance + item.listener, item]));
    others.element.hidden = !explained.subscribers?.length;
    others.update((explained.subscribers ?? []).map((item, i) => [`${item.listener} ${item.channel} ${item.topic ?? ""} ${i}`, item]));
    const now = { at: performance.now(), row };
    if (before && now.at > before.at) {
      const s = (now.at - before.at) / 1000;
      rates.add(["receives", "triggers"].map((name) => Math.max(0, (row[name] - before.row[name]) / s)));
    }
    before = now;
    poison.update(row, view.run);
  });
}

const POISON = "-poison";

// What was buried. A queue shows how much there is, its poison queue what it is.
function graves(queue, path) {
  if (!queue.endsWith(POISON)) {
    const link = make("a", { href: `${location.hash}${POISON}` });
    return { element: make("p", {}, link), update: (row) => put(link, row.buried ? `${whole.format(row.buried)} buried: why, and what to do` : "") };
  }
  const told = make("p", { role: "status" });
  const reason = make("input", { type: "search", maxlength: "1000", spellcheck: "false" });
  const again = make("button", { type: "button" }, "Put back");
  const away = make("button", { type: "button", class: "danger" }, "Discard");
  const look = make("button", { type: "button" }, "Look again");
  const sure = make("p", { hidden: true });
  const list = table("Buried messages", [
    text("Message", (item) => plain(item.id)),
    {
      title: "Reason",
      name: true,
      begin(cell, item) {
        const why = item.burial ? plain(item.burial.reason, 500) : "says nothing of itself";
        const more = make("details", {}, make("summary", { class: "text" }, why));
        more.addEventListener("toggle", () => more.open && more.children.length === 1 && more.append(...whatFailed(item)));
        cell.append(more);
      },
      show() {},
    },
    count("Attempts", (item) => (item.burial ? whole.format(item.burial.attempts) : whole.format(item.dequeue_count))),
    count("Buried", (item) => `${span(item.age_ms)} ago`),
    {
      title: "",
      begin: (cell, item) => cell.append(make("button", { type: "button", disabled: !changes.checked, "data-change": true, onclick: () => begin("replay", { ids: [item.id] }) }, "Put this back")),
      show() {},
    },
  ]);
  const arm = () => {
    again.disabled = away.disabled = !changes.checked;
    for (const each of list.element.querySelectorAll("[data-change]")) each.disabled = !changes.checked;
  };
  let shown, running;
  const load = () => change("looking at what was buried", async () => list.update((await ask("GET", `${path}/buried`)).messages.map((item) => [item.id, item])));
  const begin = (what, choice) => change(what === "replay" ? "putting back" : "discarding", () => ask("POST", `${path}/${what}`, choice));
  const chosen = () => (reason.value ? { reason: reason.value } : {});
  const which = () => (reason.value ? `whose reason has “${plain(reason.value, 80)}” in it` : "that are there");
  again.addEventListener("click", () => begin("replay", chosen()));
  away.addEventListener("click", () => {
    const yes = make("button", { type: "button", class: "danger" }, "Discard them");
    const no = make("button", { type: "button" }, "Keep them");
    const end = () => (sure.hidden = true);
    yes.addEventListener("click", () => (end(), begin("discard", chosen())));
    no.addEventListener("click", end);
    sure.replaceChildren(`This deletes all messages ${which()}, for good. `, yes, " ", no);
    sure.hidden = false;
    no.focus();
  });
  look.addEventListener("click", load);
  document.addEventListener("changes", arm, { signal: left.signal });
  arm();
  return {
    element: make("section", {}, make("h2", {}, "Buried"), told, make("div", { class: "tools" }, make("label", {}, "Only those with this in their reason ", reason), again, away, look), sure, list.element, make("p", { class: "dim" }, "The first 32 are shown. What is done is done to all.")),
    update(row, run) {
      const count = (row.visible ?? 0) + (row.invisible ?? 0);
      const news = run ? `${run.running ? "under way: " : ""}${whole.format(run.moved)} ${run.what === "replayed" ? "put back" : run.what}${run.stay ? `, ${whole.format(run.stay)} stay: where they go is not known, or not granted` : ""}${run.twice ? `, ${whole.format(run.twice)} may be handled twice` : ""}${run.error ? `; it failed: ${plain(run.error)}` : ""}` : "";
      put(told, news);
      if (shown !== count || running !== run?.running) load();
      shown = count;
      running = run?.running;
    },
  };
}

function whatFailed(item) {
  const { burial } = item;
  const inside = [];
  const pre = (title, said) => inside.push(make("h3", {}, title), make("pre", {}, plain(said, 8000)));
  if (burial) {
    const list = facts();
    list.update([
      ["failed in", plain(burial.queue)],
      ["as message", plain(burial.id)],
      ["because", `${burial.failure ?? "exhausted"}${burial.error ? `: ${plain(burial.error)}` : ""}`],
      ["buried by", plain(burial.listener ?? "not said")],
      ["at", burial.buried_at],
      ["times buried", String(burial.burials ?? 1)],
    ]);
    inside.push(list.element);
    if (burial.trace) pre("Where", burial.trace);
    if (burial.history?.length) pre("Attempts", burial.history.map((each) => `${each.attempt}  ${each.at}  ${each.reason}`).join("\n"));
    if (burial.earlier?.length) pre("Buried before", burial.earlier.map((each) => `${each.buried_at}  ${each.reason}`).join("\n"));
  }
  pre(`Body, ${whole.format(item.size)} bytes`, item.body);
  return inside;
}

let wantedListeners = { filter: "", sort: "name", first: 0 };

function listenersView() {
  const place = make("div");
  main.replaceChildren(make("h1", {}, "Listeners"), make("div", { class: "tools" }, finder("Find a listener or a queue", wantedListeners, (next) => again(next))), place);
  function again(next) {
    wantedListeners = next;
    const list = table("Listeners", [
      text("Listener", (item) => plain(item.listener), { name: true }),
      text("Kind", (item) => item.kind ?? "subscriber"),
      text("Over", (item) => item.channel),
      text("Queues", (item) => item.queues.slice(0, 5).map((each) => plain(each.queue)).join(", ") + (item.queues.length > 5 ? ` and ${item.queues.length - 5} more` : "")),
      count("Free", (item) => free(item)),
      count("Connected", (item) => (item.connected_s === undefined ? "" : span(1000 * item.connected_s))),
      count("Heard", (item) => (item.silent_s === undefined ? "" : `${span(1000 * item.silent_s)} ago`)),
      text("State", (item) => listenerState(item)),
    ]);
    const pages = pager(next, ROWS, (first) => again({ ...wantedListeners, first }));
    place.replaceChildren(list.element, pages.element);
    watch(`/v1/watch/listeners?${new URLSearchParams(next)}`, (view) => {
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
  again(wantedListeners);
}

function free(item) {
  const known = item.queues.filter((each) => each.capacity !== undefined);
  if (!known.length) return "";
  const sum = (name) => known.reduce((all, each) => all + each[name], 0);
  return `${sum("free")} of ${sum("capacity")}`;
}

function listenerState(item) {
  const failing = item.queues.find((each) => each.failing_s);
  if (failing) return `receives fail for ${span(1000 * failing.failing_s)}`;
  if (item.state && item.state !== "ok") return plain(`${item.state}: ${item.detail ?? ""}`);
  const scaled = item.queues.map((each) => each.processes).find(Boolean);
  if (scaled) return `${scaled.ready} of ${scaled.wanted} workers${scaled.starting ? `, ${scaled.starting} starting` : ""}${scaled.failure ? `: ${plain(scaled.failure)}` : ""}`;
  return "ok";
}

function bridgeView() {
  const state = facts();
  const checks = facts();
  const members = table("Members", [
    text("Bridge", (item) => plain(item.address ?? item.boot), { name: true }),
    text("", (item) => (item.me ? "this one" : item.leaving ? "leaving" : "")),
    count("Heard", (item) => (item.me ? "" : `${span(item.silent_ms)} ago`)),
    count("Queues with listeners", (item) => whole.format(item.queues)),
    count("with room", (item) => whole.format(item.able)),
    text("Version", (item) => plain(item.version)),
  ]);
  main.replaceChildren(make("h1", {}, "Bridge"), make("div", { class: "card" }, state.element), make("h2", {}, "Checks"), make("div", { class: "card" }, checks.element), make("h2", {}, "Cluster"), members.element);
  watch("/v1/watch/bridge", (bridge) => {
    state.update([
      ["boot", bridge.boot],
      ["ready", bridge.ready ? "yes" : "no", bridge.ready ? "good" : "bad"],
      ["stopping", bridge.draining ? "yes" : "no"],
      ["sessions", whole.format(bridge.sessions)],
      ["cluster", bridge.cluster.name ? plain(bridge.cluster.name) + (bridge.cluster.alone ? ", hears no other bridge" : "") : "none"],
    ]);
    checks.update(Object.entries(bridge.checks).map(([name, check]) => [plain(name), plain(check.detail), check.ok ? "good" : "bad"]));
    members.update(bridge.cluster.members.map((item) => [item.boot, item]));
  });
}

// -- where one is --------------------------------------------------------------------------------------------------

let left = new AbortController(); // what a view listens to ends with it

function show() {
  left.abort();
  left = new AbortController();
  const where = location.hash.replace(/^#\/?/, "").split("/");
  put(said, "");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === (where[0] || "queues") || (where[0] === "queue" && link.dataset.view === "queues");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!login.hidden) return;
  status("connecting", "dim");
  if (where[0] === "queue" && where.length === 3) queueView(where.slice(1).map(decodeURIComponent).join("/"));
  else if (where[0] === "listeners") listenersView();
  else if (where[0] === "bridge") bridgeView();
  else queuesView();
}

addEventListener("hashchange", show);
try {
  const token = await returned();
  if (token) sessionStorage.setItem(KEY, token);
} catch (error) {
  notSignedIn = error.message;
}
enter();
// Whoever could see the page before, sees it still: somebody's link signs nobody out.
put(said, notSignedIn);
