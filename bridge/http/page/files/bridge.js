// The bridge itself: its checks, and the cluster as it sees it.

import { count, facts, hrefOf, make, plain, put, span, table, text, whole } from "./parts.js";
import { watch } from "./told.js";

const main = document.getElementById("main");

export function bridgeView() {
  const state = facts();
  const checks = facts();
  const members = table("Members", [
    text("Bridge", (item) => plain(item.address ?? item.boot), { name: true }),
    text("", (item) => (item.me ? "this one" : item.leaving ? "leaving" : "")),
    count("Last message", (item) => (item.me ? "" : `${span(item.silent_ms)} ago`)),
    count("Queues with workers", (item) => whole.format(item.queues)),
    count("with free slots", (item) => whole.format(item.able)),
    text("Version", (item) => plain(item.version)),
    count("Departures", (item, went = item.went) => (went ? `${went} times` : "")),
  ]);
  const refused = table("Bridges that are not members", [
    text("Bridge", (item) => plain(item.address || item.boot), { name: true }),
    text("Why", (item) => plain(item.why)),
  ]);
  const deferred = table("Queues that wait for another bridge's check", [
    { title: "Queue", name: true, begin: (cell, item) => cell.append(make("a", { class: "text", href: hrefOf(item.queue) }, plain(item.queue))) },
    count("Checked here in", (item) => span(item.acts_in_ms)),
  ]);
  const more = make("p", { class: "dim" });
  const cluster = make("section", { hidden: true }, make("h2", {}, "Cluster"), members.element, refused.element, deferred.element, more);
  main.replaceChildren(make("h1", {}, "Bridge"), make("div", { class: "card" }, state.element), make("h2", {}, "Checks"), make("div", { class: "card" }, checks.element), cluster);
  watch("/v1/watch/bridge", (bridge) => {
    const { cluster: seen } = bridge;
    state.update([
      ["boot", bridge.boot],
      ["ready", bridge.ready ? "yes" : "no", bridge.ready ? "good" : "bad"],
      ["stopping", bridge.draining ? "yes" : "no", bridge.draining ? "bad" : ""],
      ["listeners here", whole.format(bridge.sessions)],
      ["cluster", seen.name ? plain(seen.name) + (seen.alone ? ", reaches no other bridge" : "") : "none", seen.name && seen.alone ? "bad" : ""],
    ]);
    checks.update(Object.entries(bridge.checks).map(([name, check]) => [plain(name), plain(check.detail), check.ok ? "good" : "bad"]));
    cluster.hidden = !seen.name;
    members.update(seen.members.map((item) => [item.boot, { ...item, went: seen.went[item.address ?? item.boot] }]));
    refused.element.hidden = !seen.refused.length;
    refused.update(seen.refused.map((item) => [item.boot, item]));
    deferred.element.hidden = !seen.deferred.length;
    deferred.update(seen.deferred.slice(0, 100).map((item) => [item.queue, item]));
    const beyond = Math.max(0, seen.deferred.length - 100) + seen.left_out;
    put(more, beyond ? `and ${whole.format(beyond)} more` : "");
  });
}
