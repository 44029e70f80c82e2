// The messages of a queue, 32 at a time: those that wait, are delayed, or are at a worker; or one by its id. The bridge
// is asked only when somebody asks: an open page costs a queue nothing.

import { count, make, plain, put, span, table, text, whole } from "./parts.js";
import { ask, change } from "./told.js";

const STATES = { waiting: "Waiting", later: "Later", running: "Running" };
const NONE = { waiting: "No message waits.", later: "No message is delayed.", running: "No message is at a worker." };

export function messages(left, path) {
  const tabs = Object.entries(STATES).map(([state, title]) => [state, make("button", { type: "button", "aria-pressed": "false", onclick: () => open(state) }, title)]);
  const id = make("input", { type: "search", maxlength: "128", spellcheck: "false" });
  const find = make("button", { type: "button" }, "Find");
  const on = make("button", { type: "button", hidden: true, onclick: () => (following === null || places.push(following), (following = null), load()) }, "Next");
  const back = make("button", { type: "button", hidden: true, onclick: () => (places.length > 1 && places.pop(), load()) }, "Previous");
  const told = make("span", { class: "dim", role: "status" });
  const list = table("Messages", [
    {
      title: "Message",
      name: true,
      begin(cell, item) {
        const more = make("details", {}, make("summary", { class: "text" }, plain(item.key ?? item.id, 128)));
        more.addEventListener("toggle", () => more.open && more.children.length === 1 && more.append(...inside(item)));
        cell.append(more);
      },
    },
    text("State", (item) => STATES[item.state] ?? plain(item.state)),
    count("For another", (item) => span(item.visible_in_ms), { rest: true }),
    count("Received", (item) => `${whole.format(item.dequeue_count)} times`),
    text("Put at", (item) => plain(item.inserted_at), { rest: true }),
    text("Body", (item) => plain(item.body ?? "bytes", 60), { name: true }),
  ]);
  list.element.hidden = true;
  let shown = null;
  let places = [""];
  let following = null;
  let loads = 0;

  function open(state) {
    [shown, places] = [state, [""]];
    for (const [each, tab] of tabs) tab.ariaPressed = String(each === state);
    load();
  }

  const load = () =>
    change("showing messages", async () => {
      const mine = ++loads;
      const query = new URLSearchParams({ state: shown, after: places.at(-1) });
      const answer = await ask("GET", `${path}/peek?${query}`).catch(refused);
      if (mine !== loads || left.aborted) return; // a later one is on its way
      following = answer.next ?? null;
      on.hidden = following === null;
      back.hidden = places.length === 1;
      // A page may be empty although others follow: the bridge looks at some messages of either state at a time.
      const none = following === null ? NONE[shown] : "None here so far: go on with Next.";
      say(answer.messages, answer.why ?? (answer.messages.length ? "" : none));
    });

  id.addEventListener("keydown", (event) => event.key === "Enter" && find.click());
  find.addEventListener("click", () => {
    if (!id.value.trim()) return;
    const mine = ++loads;
    for (const [, tab] of tabs) tab.ariaPressed = "false";
    change("finding a message", async () => {
      const found = await ask("GET", `${path}/messages/${encodeURIComponent(id.value.trim())}`).catch(refused);
      if (mine !== loads || left.aborted) return;
      on.hidden = back.hidden = true;
      say(found.why ? [] : [found], found.why ?? "");
    });
  });

  function say(items, why) {
    list.element.hidden = !items.length;
    list.update([]); // a message that was moved since has another row
    list.update(items.map((item) => [item.id, item]));
    put(told, `${why} As of ${new Date().toLocaleTimeString()}.`.trim());
  }

  return { element: make("section", {}, make("h2", {}, "Messages"), make("div", { class: "tools" }, ...tabs.map(([, tab]) => tab), make("label", {}, "Id ", id), find), list.element, make("div", { class: "tools" }, back, on, told)) };
}

// What a store cannot show, or what is not there, is said where the messages would be.
function refused(error) {
  if (error.status !== 404 && error.status !== 501) throw error;
  return { messages: [], why: `${plain(error.message)}.` };
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
