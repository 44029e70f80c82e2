// The page of a bridge: which view is shown, and the key that a bridge may ask for. See told.js for its data.

import { bridgeView } from "./bridge.js";
import { listenersView } from "./listeners.js";
import { forget, offer, returned, who } from "./login.js";
import { put } from "./parts.js";
import { queueView } from "./queue.js";
import { queuesView } from "./queues.js";
import { atTheDoor, changes, dropKey, holdsKey, keepKey, status, stopWatching } from "./told.js";

const main = document.getElementById("main");
const said = document.getElementById("said");
const login = document.getElementById("login");
const leave = document.getElementById("leave");
let notSignedIn = "";

function askForKey(error) {
  const had = dropKey();
  const words = !had ? notSignedIn : who() ? `Your sign-in has ended: sign in again (${error.message}).` : error.message;
  forget();
  status("a key is required", "bad");
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
  keepKey(field.value.trim());
  field.value = "";
  login.hidden = true;
  enter();
  show();
});

function enter() {
  leave.hidden = !holdsKey();
  put(leave, who() ? `Sign out ${who()}` : "Forget the key");
}

// Forgets all that the tab holds, and starts again without a key.
leave.addEventListener("click", () => {
  dropKey();
  forget();
  location.reload();
});

atTheDoor(askForKey, show);
document.getElementById("reload").addEventListener("click", () => location.reload());
changes.addEventListener("change", () => document.body.classList.toggle("changes", changes.checked));

let left = new AbortController(); // what a view listens to ends with it

function show() {
  left.abort();
  left = new AbortController();
  stopWatching();
  const [path, asked] = location.hash.replace(/^#\/?/, "").split("?");
  const where = path.split("/");
  put(said, "");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === (where[0] || "queues") || (where[0] === "queue" && link.dataset.view === "queues");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!login.hidden) return;
  status("connecting", "dim");
  if (where[0] === "queue" && where.length === 3) queueView(left.signal, where.slice(1).map(named).join("/"), new URLSearchParams(asked));
  else if (where[0] === "listeners") listenersView(left.signal);
  else if (where[0] === "bridge") bridgeView();
  else queuesView(left.signal, new URLSearchParams(asked));
}

// Whatever stands in the address, a link that somebody sent say.
function named(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

addEventListener("hashchange", () => {
  show();
  main.focus(); // a screen reader goes on from here, and the keyboard too
  scrollTo(0, 0);
});
try {
  const token = await returned();
  if (token) keepKey(token);
} catch (error) {
  notSignedIn = error.message;
}
enter();
show();
// A user who was signed in stays signed in: somebody's link signs nobody out.
put(said, notSignedIn);
