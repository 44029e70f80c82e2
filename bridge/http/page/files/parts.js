// What a view is made of. No text becomes markup: everything is set as text, for names and bodies are strangers'
// (the policy forbids it too).

export function make(tag, given = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

export function put(place, text) {
  text = String(text);
  if (place.textContent !== text) place.textContent = text;
}

// Names and texts of strangers, shown as they are but for what would change how others are read, or is not seen at all:
// control characters, those that turn the direction of writing or have no width, and halves of characters.
export function plain(text, most = 2000) {
  text = String(text);
  const more = text.length > most ? ` … (${whole.format(text.length - most)} more)` : "";
  return text.slice(0, most).replace(/(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0")) + more;
}

export const whole = new Intl.NumberFormat("en");
export const number = (value, atLeast) => (value === null || value === undefined ? "not known" : (atLeast ? "≥ " : "") + whole.format(value));
export const perSecond = (value) => `${value < 10 ? value.toFixed(1) : whole.format(Math.round(value))}/s`;

export function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1) return ms > 0 ? `${ms.toFixed(1)} ms` : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

export const hrefOf = (queue) => `#/queue/${queue.split("/").map(encodeURIComponent).join("/")}`;

// A table whose rows stay the same elements while what they show changes, so that focus and selection stay too.
export function table(label, columns, { sortBy, none } = {}) {
  const heads = columns.map((column) => {
    const title = column.sort ? make("button", { type: "button", onclick: () => sortBy(column.sort) }, column.title) : column.title;
    return make("th", { scope: "col", class: kinds(column) }, title);
  });
  const body = make("tbody");
  const element = make("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
  const empty = none && make("p", { class: "dim", hidden: true }, none);
  if (none) element.append(empty);
  const rows = new Map();
  return {
    element,
    sorted(sort) {
      columns.forEach((column, i) => {
        heads[i].ariaSort = column.sort && column.sort === sort ? (sort === "name" ? "ascending" : "descending") : null;
      });
    },
    update(items) {
      const seen = new Set();
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      let place = body.firstChild;
      for (const [key, item] of items) {
        let row = rows.get(key);
        if (!row) {
          row = { tr: make("tr"), cells: [] };
          for (const column of columns) {
            const cell = make("td", { class: kinds(column) });
            row.cells.push(cell);
            row.tr.append(cell);
            column.begin?.(cell, item);
          }
          rows.set(key, row);
        }
        columns.forEach((column, i) => column.show?.(row.cells[i], item));
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
      if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true }); // it was moved
      if (none) empty.hidden = seen.size > 0;
    },
  };
}

const kinds = (column) => ["number", "name", "rest", "roomy"].filter((kind) => column[kind]).join(" ") || undefined;

export const text = (title, read, more = {}) => ({ title, show: (cell, item) => put(cell, read(item)), ...more });
export const count = (title, read, more = {}) => text(title, read, { number: true, ...more });

// A box in each row, and buttons for all rows whose box is ticked.
export function picker(changes, ...actions) {
  const picked = new Map();
  const buttons = actions.map(([words, kind, act]) => [words, make("button", { type: "button", class: kind, "data-change": true, onclick: () => act([...picked.values()]) })]);
  const element = make("span", { hidden: true }, ...buttons.flatMap(([, button]) => [button, " "]));
  const show = () => {
    element.hidden = !picked.size;
    for (const [words, button] of buttons) put(button, `${words} ${whole.format(picked.size)} selected`);
  };
  show();
  return {
    element,
    keep(items) {
      const here = new Set(items.map((item) => item.id));
      for (const id of [...picked.keys()]) if (!here.has(id)) picked.delete(id);
      show();
    },
    column: {
      title: "",
      begin(cell, item) {
        const box = make("input", { type: "checkbox", "aria-label": `Select ${plain(item.id, 60)}`, disabled: !changes.checked, "data-change": true });
        box.addEventListener("change", () => (box.checked ? picked.set(item.id, item) : picked.delete(item.id), show()));
        cell.append(box);
      },
    },
  };
}

// Names and values; those that are not sent any more are removed.
export function facts() {
  const list = make("dl", { class: "facts" });
  const places = new Map();
  return {
    element: list,
    update(pairs) {
      const told = new Set(pairs.map(([name]) => name));
      for (const [name, value, kind] of pairs) {
        let place = places.get(name);
        if (!place) {
          place = [make("dt", {}, name), make("dd")];
          list.append(...place);
          places.set(name, place);
        }
        put(place[1], value);
        place[1].className = kind || "";
      }
      for (const [name, place] of places) {
        if (!told.has(name)) {
          place.forEach((each) => each.remove());
          places.delete(name);
        }
      }
    },
  };
}

export function numbers(names) {
  const places = names.map(() => make("dd"));
  const list = make("dl", { class: "numbers" }, ...names.map((name, i) => make("div", {}, make("dt", {}, name), places[i])));
  return { element: list, update: (values) => values.forEach((value, i) => put(places[i], value)) };
}

export const ROWS = 100;

export function pager(first, go) {
  const back = make("button", { type: "button", onclick: () => go(Math.max(0, first() - ROWS)) }, "Previous");
  const on = make("button", { type: "button", onclick: () => go(first() + ROWS) }, "Next");
  const where = make("span", { class: "dim" });
  return {
    element: make("div", { class: "tools" }, back, on, where),
    update(told) {
      back.disabled = told.first === 0;
      on.disabled = told.first + told.rows.length >= told.found;
      const last = told.first + told.rows.length;
      put(where, told.found ? `${whole.format(told.rows.length ? told.first + 1 : 0)} to ${whole.format(last)} of ${whole.format(told.found)}` : "none");
    },
  };
}

export function finder(label, wanted, left, go) {
  const field = make("input", { type: "search", value: wanted.filter, maxlength: "200", spellcheck: "false" });
  field.addEventListener("input", later(left, () => go({ filter: field.value, first: 0 })));
  return make("label", {}, `${label} `, field);
}

// Once nothing more was typed for a moment. Who types and goes on at once must not have the next view disturbed.
export function later(left, act) {
  let timer = 0;
  left.addEventListener("abort", () => clearTimeout(timer));
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, 200);
  };
}

// Words for a screen reader, said again only when more than their numbers has changed.
export function announcer() {
  const element = make("p", { class: "unseen", role: "status" });
  let said = "";
  return {
    element,
    say(words) {
      const kept = words.replace(/[\d.,]+/g, "");
      if (kept !== said) element.textContent = words;
      said = kept;
    },
  };
}
