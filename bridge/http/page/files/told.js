// What is asked of the bridge, and what it tells once a second. No other host is asked for anything.

import { make, put } from "./parts.js";

const KEY = "queuebell-key";
const RELOADED = "queuebell-reloaded"; // when this tab last reloaded itself
const main = document.getElementById("main");
const live = document.getElementById("live");
const said = document.getElementById("said");
const upgraded = document.getElementById("upgraded");
export const changes = document.getElementById("changes");

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

export const holdsKey = () => sessionStorage.getItem(KEY) !== null;
export const keepKey = (key) => sessionStorage.setItem(KEY, key);

export function dropKey() {
  const had = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  return had;
}

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `the bridge answered ${status}`);
    this.status = status;
  }
}

export async function ask(method, path, body, type = "application/json") {
  const answer = await fetch(path, {
    method,
    headers: headers(body === undefined ? {} : { "Content-Type": type }),
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

// Does what was asked for, and says what failed.
export async function change(what, doIt) {
  put(said, "");
  try {
    await doIt();
  } catch (error) {
    put(said, `${what} failed: ${error.message}`);
  }
}

// As `change`, but for what asks by itself: what failed before stays to be read.
export async function poll(what, doIt) {
  try {
    await doIt();
  } catch (error) {
    put(said, `${what} failed: ${error.message}`);
  }
}

// What cannot be taken back is done 8 s later, on whatever view, and not at all when the tab is closed, or changes are
// not allowed any more.
const UNDO_MS = 8000;
const undoing = document.getElementById("undoing");
const pending = new Set(); // the words of what can still be undone

export function undoable(words, what, doIt) {
  if (pending.has(words)) return; // the second of two quick clicks
  pending.add(words);
  const timer = setTimeout(() => {
    stop();
    if (changes.checked) change(what, doIt);
  }, UNDO_MS);
  const stop = () => {
    clearTimeout(timer);
    pending.delete(words);
    line.remove();
  };
  const line = make("span", {}, `In ${UNDO_MS / 1000} seconds ${words}. `, make("button", { type: "button", onclick: stop }, "Undo"));
  undoing.append(line);
}

// One stream at a time. It comes again by itself, at first at once and later every ten seconds.
let stream = null;
let whenAsked = () => {};
let whenGranted = () => {};

// What to do where a key is asked for, and where what was refused is granted again.
export function atTheDoor(asked, granted) {
  whenAsked = asked;
  whenGranted = granted;
}

export function watch(path, tell) {
  stream?.abort();
  const mine = (stream = new AbortController());
  (async () => {
    let failed = 0;
    let refused = false;
    while (!mine.signal.aborted) {
      try {
        await follow(path, mine.signal, (view) => {
          failed = 0;
          if (refused) return whenGranted();
          status("live", "good");
          tell(view);
        });
      } catch (error) {
        if (mine.signal.aborted) return;
        if (error instanceof Refused && error.status === 401) return whenAsked(error);
        refused = error instanceof Refused && error.status < 500 && error.status !== 429;
        if (refused) main.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
      }
      if (mine.signal.aborted) return;
      failed += 1;
      status(refused ? "refused; trying again" : "not connected; trying again", "bad");
      const pause = refused ? 5000 : Math.min(10000, 250 * 2 ** Math.min(failed, 6)) * (0.75 + Math.random() / 2);
      await new Promise((go) => setTimeout(go, pause));
    }
  })();
}

export const stopWatching = () => stream?.abort();

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
    const newest = events.map((event) => /^(?:id: (.*)\n)?data: (.*)$/.exec(event)).filter(Boolean).pop();
    if (!newest) continue;
    if (isOf(newest[1] ?? "")) tell(JSON.parse(newest[2]));
  }
}

let edition = null;

// Whether the views are for this edition of the page. After an upgrade it reloads itself, unless somebody is in the
// middle of something, or it did so just now: two bridges of different versions may answer by turns.
function isOf(told) {
  edition ??= told;
  if (edition === told) return true;
  const busy = changes.checked || document.activeElement?.matches("input, select");
  if (!busy && Date.now() - Number(sessionStorage.getItem(RELOADED)) > 60000) {
    sessionStorage.setItem(RELOADED, Date.now());
    location.reload();
    return false;
  }
  upgraded.hidden = false;
  return true;
}

export function status(text, kind) {
  put(live, text);
  live.className = kind;
}
