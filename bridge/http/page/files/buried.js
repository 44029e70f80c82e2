// Dead letters. A queue shows how much there is; its poison queue what it is, 32 at a time, and what can be done.

import { facts, later, make, picker, plain, put, span, table, text, count, whole, hrefOf } from "./parts.js";
import { ask, change, changes } from "./told.js";

export const POISON = "-poison";
const PAGE = 32;
const PLAIN_MAX = 4096; // bytes of a body that are shown in whole

export function buried(left, queue, path, asked) {
  const { reason: wanted, id: only } = Object.fromEntries(asked);
  if (!queue.endsWith(POISON)) {
    const link = make("a", { href: hrefOf(queue + POISON) });
    return { element: make("p", {}, link), update: (row) => put(link, row.buried ? `${whole.format(row.buried)} dead letters: why, and what to do` : "") };
  }
  const told = make("p", { role: "status" });
  const reason = make("input", { type: "search", maxlength: "1000", spellcheck: "false", value: wanted ?? "" });
  const name = make("input", { type: "search", maxlength: "128", spellcheck: "false", value: only ?? "" });
  const order = make("select", {}, make("option", { value: "false" }, "oldest first"), make("option", { value: "true" }, "newest first"));
  const all = make("button", { type: "button" }, "Replay");
  const away = make("button", { type: "button", class: "danger" }, "Discard");
  const look = make("button", { type: "button" }, "Reload");
  const sure = make("p", { hidden: true, class: "card" });
  const back = make("button", { type: "button" }, "Previous");
  const on = make("button", { type: "button" }, "Next");
  const where = make("span", { class: "dim", role: "status" });
  const ids = (items) => ({ ids: items.map((item) => item.id) });
  const picks = picker(changes, ["Replay", "", (items) => begin("replay", ids(items))], ["Discard", "danger", (items) => ifSure("discard", `${whole.format(items.length)} messages`, ids(items))]);
  const list = table("Dead letters", [
    picks.column,
    text("Message", (item) => plain(item.id), { roomy: true }),
    {
      title: "Reason",
      name: true,
      begin(cell, item) {
        const why = item.burial ? plain(item.burial.reason, 500) : "no reason recorded";
        const more = make("details", {}, make("summary", { class: "text" }, why));
        more.addEventListener("toggle", () => more.open && more.children.length === 1 && more.append(...whatFailed(item), ...edited(item)));
        cell.append(more);
      },
    },
    count("Attempts", (item) => whole.format(item.burial ? item.burial.attempts : item.dequeue_count), { roomy: true }),
    count("Times dead-lettered", (item) => whole.format(item.burial?.burials ?? 1), { rest: true }),
    count("Dead-lettered", (item) => `${span(item.age_ms)} ago`, { roomy: true }),
    {
      title: "",
      begin: (cell, item) =>
        cell.append(
          make("button", { type: "button", disabled: !changes.checked, "data-change": true, onclick: () => begin("replay", { ids: [item.id] }) }, "Replay this"),
          " ",
          make("button", { type: "button", class: "danger", disabled: !changes.checked, "data-change": true, onclick: () => ifSure("discard", "this message", { ids: [item.id] }) }, "Discard this"),
        ),
    },
  ]);

  const nowhere = make("p", { role: "status" });
  const here = make(
    "div", {},
    make("div", { class: "tools" }, make("label", {}, "Only with this text in the reason ", reason), make("label", {}, "Id or put id ", name), make("label", {}, "Order ", order), all, away, look),
    sure, picks.element, list.element, make("div", { class: "tools" }, back, on, where),
  );
  let places = [""]; // of this page and those before it
  let following = null;
  let loads = 0;
  const begin = (what, choice) => change(what === "replay" ? "replaying" : "discarding", () => ask("POST", `${path}/${what}`, choice));
  const chosen = () => (reason.value ? { reason: reason.value } : {});
  const which = () => (reason.value ? `all messages with “${plain(reason.value, 80)}” in their reason` : `all ${whole.format(there)} messages`);

  const load = () =>
    change("loading dead letters", async () => {
      const mine = ++loads;
      const query = new URLSearchParams({ after: places.at(-1), reason: reason.value, newest: order.value, ...(name.value.trim() ? { id: name.value.trim() } : {}) });
      if (order.value === "false") query.delete("newest");
      const answer = await ask("GET", `${path}/buried?${query}`).catch((error) => {
        if (error.status !== 404) throw error;
        put(nowhere, error.message);
        return null;
      });
      if (here.hidden && answer !== null) put(nowhere, "");
      here.hidden = answer === null;
      if (answer === null || mine !== loads || left.aborted) return; // a later one is on its way
      following = answer.next;
      picks.keep(answer.messages);
      list.update(answer.messages.map((item) => [item.id, item]));
      back.disabled = places.length === 1;
      on.disabled = following === null;
      put(on, (reason.value || name.value) && answer.messages.length < PAGE ? "Search further" : "Next");
      const first = (places.length - 1) * PAGE;
      const page = answer.messages.length ? `${whole.format(first + 1)} to ${whole.format(first + answer.messages.length)}` : "none";
      const searched = `${whole.format(answer.messages.length)} found in ${whole.format(answer.looked)}${following === null ? ", which are all" : ""}`;
      put(where, (reason.value || name.value ? searched : page) + (answer.whole ? "" : ". Only the first are shown; actions apply to all"));
    });
  const restart = () => {
    places = [""];
    put(nowhere, "");
    return load();
  };
  back.addEventListener("click", () => (places.length > 1 && places.pop(), load()));
  // The second of two quick clicks comes before the page that tells what follows it.
  on.addEventListener("click", () => (following === null || places.push(following), (following = null), load()));
  reason.addEventListener("input", later(left, restart));
  name.addEventListener("input", later(left, restart));
  order.addEventListener("change", restart);
  look.addEventListener("click", load);
  all.addEventListener("click", () => ifSure("replay", which(), chosen()));
  away.addEventListener("click", () => ifSure("discard", which(), chosen()));

  // Put to the queue where it failed under its own put id, so that it is there once even if it is put again after a failure.
  function edited(item) {
    if (!item.burial || item.size > PLAIN_MAX || item.body.includes("\ufffd")) return [];
    const text = make("textarea", { "aria-label": "Body, to be edited", spellcheck: "false" });
    text.value = item.body;
    const go = make("button", { type: "button", disabled: !changes.checked, "data-change": true }, "Edit and return");
    go.addEventListener("click", () =>
      change("returning a message", async () => {
        const where = `/v1/queues/${item.burial.queue.split("/").map(encodeURIComponent).join("/")}/messages/edited.${encodeURIComponent(item.id)}`;
        await ask("PUT", `${where}?create=false`, { body: text.value, headers: item.headers ?? {} }, "application/vnd.queuebell.message+json");
        await ask("DELETE", `${path}/messages/${encodeURIComponent(item.id)}?by=id`);
        await load();
        put(nowhere, `Message ${item.id} was returned to ${plain(item.burial.queue)} with this body.`);
      }),
    );
    return [make("h3", {}, "Change the body, and put it back; its attempts start at 1"), text, go];
  }

  function ifSure(what, words, choice) {
    const end = () => (sure.hidden = true);
    const [does, does_it] = what === "replay" ? ["puts back", "Put them back"] : ["deletes", "Discard for good"];
    const yes = make("button", { type: "button", class: what === "replay" ? "" : "danger", onclick: () => (end(), begin(what, choice)) }, does_it);
    const no = make("button", { type: "button", onclick: end }, "Keep");
    sure.replaceChildren(`This ${does} ${words}. `, yes, " ", no);
    sure.hidden = false;
    no.focus();
  }

  const arm = () => {
    all.disabled = away.disabled = !changes.checked;
    for (const each of here.querySelectorAll("[data-change]")) each.disabled = !changes.checked;
  };
  changes.addEventListener("change", arm, { signal: left });
  arm();
  let there = 0;
  let shown, ran;
  return {
    element: make("section", {}, make("h2", {}, "Dead letters"), told, nowhere, here),
    update(row, run) {
      const present = (row.visible ?? 0) + (row.leased ?? 0);
      put(told, run ? runSays(run) : "");
      there = present;
      const runs = JSON.stringify(run); // a quick one is over before it is seen to run
      if (shown !== present || ran !== runs) load();
      shown = present;
      ran = runs;
    },
  };
}

function runSays(run) {
  const did = `${whole.format(run.moved)} ${run.what}`;
  const stay = run.stay ? `, ${whole.format(run.stay)} stay: ${plain(run.why)}` : "";
  const twice = run.twice ? `, ${whole.format(run.twice)} may be handled twice` : "";
  return `${run.running ? "under way: " : ""}${did}${stay}${twice}${run.error ? `; error: ${plain(run.error)}` : ""}`;
}

function whatFailed(item) {
  const { burial } = item;
  const inside = [];
  const pre = (title, said) => inside.push(make("h3", {}, title), make("pre", { tabindex: "0" }, plain(said, 8000)));
  if (burial) {
    const list = facts();
    list.update([
      ["failed in", plain(burial.queue)],
      ["as message", plain(burial.id)],
      ...(burial.key ? [["put under the id", plain(burial.key)]] : []),
      ["because", `${plain(burial.failure ?? "exhausted")}${burial.error ? `: ${plain(burial.error)}` : ""}`],
      ["by listener", plain(burial.listener ?? "unknown")],
      ["at", plain(burial.buried_at)],
      ["put at", plain(burial.inserted_at)],
      ["times dead-lettered", whole.format(burial.burials ?? 1)],
      ...(burial.traceparent ? [["trace", plain(burial.traceparent)]] : []),
    ]);
    inside.push(list.element);
    if (burial.trace) pre("Where", burial.trace);
    if (burial.history?.length) pre("Attempts", burial.history.map((each) => `${each.attempt}  ${each.at}  ${each.reason}`).join("\n"));
    if (burial.earlier?.length) pre("Earlier", burial.earlier.map((each) => `${each.buried_at}  after ${each.attempts} attempts in ${each.queue}: ${each.reason}`).join("\n"));
  }
  const named = Object.entries(item.headers ?? {});
  if (named.length) pre("Headers", named.map(([name, value]) => `${name}: ${value}`).join("\n"));
  pre(`Body, ${whole.format(item.size)} bytes`, item.body);
  return inside;
}
