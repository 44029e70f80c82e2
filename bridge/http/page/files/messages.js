// The messages of a queue, 32 at a time: those that wait, are delayed, or are at a worker; or one by its id. The bridge
// is asked only when somebody asks: an open page costs a queue nothing. One is put, discarded, or all are.

import { POISON } from "./buried.js";
import { events } from "./events.js";
import { count, hrefOf, later, make, picker, plain, put, span, table, text, whole } from "./parts.js";
import { ask, change, changes, undoable } from "./told.js";

const STATES = { waiting: "Waiting", later: "Later", running: "Running" };
const EMPTY_PAGES = 16;
const NONE = { waiting: "No message waits.", later: "No message is delayed.", running: "No message is at a worker." };

export function messages(left, queue, path) {
  const tabs = Object.entries(STATES).map(([state, title]) => [state, make("button", { type: "button", "aria-pressed": "false", onclick: () => open(state) }, title)]);
  const id = make("input", { type: "search", maxlength: "128", spellcheck: "false" });
  const holds = make("input", { type: "search", maxlength: "200", spellcheck: "false" });
  const find = make("button", { type: "button" }, "Find");
  // The place is kept only once its page is there: after a failure the button asks for it again.
  const on = make("button", { type: "button", hidden: true, onclick: () => following !== null && load([...places, following]) }, "Next");
  const back = make("button", { type: "button", hidden: true, onclick: () => places.length > 1 && load(places.slice(0, -1)) }, "Previous");
  const told = make("span", { class: "dim", role: "status" });
  const did = make("p", { role: "status" });
  const picks = picker(changes, ["Discard", "danger", (items) => discard(items.filter((item) => item.state !== "running"))]);
  const list = table("Messages", [
    picks.column,
    {
      title: "Message",
      name: true,
      begin(cell, item) {
        const more = make("details", {}, make("summary", { class: "text" }, plain(item.key ?? item.id, 128)));
        more.addEventListener("toggle", () => more.open && more.children.length === 1 && more.append(...inside(item), events(left, path, item.id)));
        cell.append(more);
      },
    },
    text("State", (item) => STATES[item.state] ?? plain(item.state), { roomy: true }),
    count("Delay or lease left", (item) => span(item.visible_in_ms), { rest: true }),
    count("Attempts", (item) => whole.format(item.dequeue_count), { roomy: true }),
    text("Put at", (item) => new Date(item.inserted_at).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }), { rest: true }),
    text("Body", (item) => plain(item.body ?? "bytes", 60), { name: true }),
    {
      title: "",
      begin: (cell, item) => item.state !== "running" && cell.append(make("button", { type: "button", class: "danger", disabled: !changes.checked, "data-change": true, onclick: () => discard([item]) }, "Discard")),
    },
  ]);
  list.element.hidden = true;
  let shown = null;
  let places = [""];
  let following = null;
  let loads = 0;

  function open(state) {
    shown = state;
    for (const [each, tab] of tabs) tab.ariaPressed = String(each === state);
    load([""]);
  }

  const load = (to) =>
    change("showing messages", async () => {
      const mine = ++loads;
      let answer;
      let after = to.at(-1);
      // A page may be empty although others follow: the bridge looks at some messages of either state at a time.
      for (let pages = 0; pages < EMPTY_PAGES; pages += 1) {
        const query = new URLSearchParams({ state: shown, after, ...(holds.value ? { contains: holds.value } : {}) });
        answer = await ask("GET", `${path}/peek?${query}`).catch(refused);
        if (mine !== loads || left.aborted) return; // a later one is on its way
        if (answer.messages.length || !answer.next) break;
        after = answer.next;
      }
      [places, following] = [to, answer.next ?? null];
      on.hidden = following === null;
      back.hidden = places.length === 1;
      const none = following === null ? NONE[shown] : "None here so far: go on with Next.";
      say(answer.messages, answer.why ?? (answer.messages.length ? "" : none));
    });

  holds.addEventListener("input", later(left, () => (shown ? load([""]) : open("waiting"))));
  id.addEventListener("keydown", (event) => event.key === "Enter" && find.click());
  find.addEventListener("click", () => {
    if (!id.value.trim()) return;
    const mine = ++loads;
    for (const [, tab] of tabs) tab.ariaPressed = "false";
    list.element.hidden = true; // what was found before
    put(told, "");
    change("finding a message", async () => {
      let found = await ask("GET", `${path}/messages/${encodeURIComponent(id.value.trim())}`).catch(refused);
      const poison = queue + POISON;
      if (found.why && found.gone) {
        const letter = await buriedAs(poison, id.value.trim());
        if (letter) found = { why: "It is a dead letter.", link: make("a", { href: `${hrefOf(poison)}?${new URLSearchParams({ id: letter.id })}` }, "Why, and what to do") };
      }
      if (mine !== loads || left.aborted) return;
      on.hidden = back.hidden = true;
      say(found.why ? [] : [found], found.why ?? "");
      if (found.link) told.append(" ", found.link);
    });
  });

  function say(items, why) {
    list.element.hidden = !items.length;
    picks.keep([]);
    list.update([]); // a message that was moved since has another row
    list.update(items.map((item) => [item.id, item]));
    put(told, `${why} As of ${new Date().toLocaleTimeString()}.`.trim());
  }

  const discard = (items) => {
    const words = items.length === 1 ? `message ${plain(items[0].key ?? items[0].id, 60)} is` : `${whole.format(items.length)} messages are`;
    undoable(`${words} discarded`, "discarding messages", async () => {
      let done = 0;
      for (const item of items) {
        // Handled meanwhile, or at a worker: the others go all the same.
        const gone = await ask("DELETE", `${path}/messages/${encodeURIComponent(item.id)}?by=id`).catch((error) => {
          if (error.status !== 404 && error.status !== 409) throw error;
          return error;
        });
        done += gone === null;
      }
      put(did, `Discarded ${whole.format(done)} of ${whole.format(items.length)}; what was handled meanwhile, or is at a worker, is not among them.`);
      if (left.aborted) return;
      if (shown) load(places);
      else list.element.hidden = true;
    });
  };

  const body = make("textarea", { spellcheck: "false" });
  const named = make("input", { maxlength: "128", spellcheck: "false" });
  const wait = make("input", { type: "number", min: "0", max: "604800", value: "0" });
  const send = make("button", { "data-change": true }, "Put");
  const sent = make("span", { role: "status" });
  const form = make("form", {}, make("label", {}, "Body", body), make("div", { class: "tools" }, make("label", {}, "Id, if it must not be put twice ", named), make("label", {}, "Delay in seconds ", wait), send, sent));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send.disabled = true; // until it is answered: a second click puts nothing
    change("putting a message", async () => {
      put(sent, "");
      const message = { body: body.value, visible_after_ms: Math.round(1000 * wait.valueAsNumber || 0) };
      const answer = named.value.trim()
        ? await ask("PUT", `${path}/messages/${encodeURIComponent(named.value.trim())}`, message, "application/vnd.queuebell.message+json")
        : await ask("POST", `${path}/messages`, { messages: [message] });
      put(sent, answer ? `Put message ${answer.messages[0].id}.` : "This id was put before, and stays used for a while: nothing has changed.");
      if (!named.value.trim()) body.value = ""; // pressed again it would put a copy
      if (shown) load(places);
    }).finally(arm);
  });

  const sure = make("div", { class: "card", hidden: true });
  const empty = make("button", { type: "button", class: "danger", "data-change": true, onclick: () => change("counting the messages", ifSure) }, "Empty the queue");
  async function ifSure() {
    const { depth, oldest_ms } = await ask("GET", path);
    const again = make("input", { spellcheck: "false", autocomplete: "off" });
    const yes = make("button", { type: "button", class: "danger", disabled: true, onclick: () => change("emptying the queue", emptied) }, "Delete them for good");
    again.addEventListener("input", () => (yes.disabled = again.value !== queue || !changes.checked));
    const counted = depth ? `${whole.format(depth.visible)} messages that wait and ${whole.format(depth.invisible)} that are delayed or at a worker` : "all messages";
    const oldest = oldest_ms ? `; the oldest has waited for ${span(oldest_ms)}` : "";
    sure.replaceChildren(make("p", {}, `This deletes ${counted}${oldest}.`), make("label", {}, "Type the queue's name ", again), " ", yes, " ", make("button", { type: "button", onclick: () => (sure.hidden = true) }, "Keep"));
    sure.hidden = false;
    again.focus();
  }
  async function emptied() {
    await ask("DELETE", `${path}/messages`);
    sure.hidden = true;
    put(did, "The queue was emptied.");
    if (shown) load([""]);
  }

  const arm = () => {
    for (const each of element.querySelectorAll("[data-change]")) each.disabled = !changes.checked;
  };
  const element = make(
    "section", {}, make("h2", {}, "Messages"),
    make("div", { class: "tools" }, ...tabs.map(([, tab]) => tab), make("label", {}, "With this text ", holds), make("label", {}, "Id ", id), find, empty), sure, did,
    picks.element, list.element, make("div", { class: "tools" }, back, on, told), make("details", {}, make("summary", {}, "Put a message"), form),
  );
  changes.addEventListener("change", arm, { signal: left });
  arm();
  return { element };
}

// What a store cannot show, or what is not there, is said where the messages would be.
function refused(error) {
  if (error.status !== 404 && error.status !== 501) throw error;
  return { messages: [], why: `${plain(error.message)}.`, gone: error.status === 404 };
}

// The dead letter that a message became, by the id or the put id that it had; null if it is none, or not to be seen.
async function buriedAs(poison, name) {
  const path = `/v1/queues/${poison.split("/").map(encodeURIComponent).join("/")}/buried?${new URLSearchParams({ id: name })}`;
  return (await ask("GET", path).catch(() => null))?.messages[0] ?? null;
}

function inside(item) {
  const named = Object.entries(item.headers ?? {});
  const pre = (title, said) => [make("h3", {}, title), make("pre", { tabindex: "0" }, plain(said, 8000))];
  return [
    ...(item.key ? pre("Id", item.id) : []),
    ...(item.expires_at ? pre("Expires at", item.expires_at) : []),
    ...(named.length ? pre("Headers", named.map(([name, value]) => `${name}: ${value}`).join("\n")) : []),
    ...pre(item.body === undefined ? "Body, in base64" : "Body", item.body ?? item.body_base64 ?? ""),
  ];
}
