// A client of the wire, written from docs/reference/clients.md alone: puts, receives and settles with a plain WebSocket library.
// node client.cjs http://HOST:PORT account/queue [KEY]
const WebSocket = require("ws");

const [, , url, queue, key] = process.argv;
const socket = new WebSocket(`${url.replace("http", "ws")}/v1/sessions`, "queuebell.v2", {
  headers: key ? { Authorization: `Bearer ${key}` } : {},
  perMessageDeflate: false,
});
const waiting = new Map();
let last = 0;

function call(method, path, body) {
  last += 1;
  const text = body === undefined ? "" : JSON.stringify(body);
  socket.send(Buffer.from(`${last} ${method} ${path}\n\n${text}`), { binary: true });
  return new Promise((resolve) => waiting.set(last, resolve));
}

async function work() {
  const path = `/v1/queues/${queue}`;
  const puts = await Promise.all([1, 2, 3].map((n) => call("POST", `${path}/messages`, { messages: [{ body: `order ${n}` }] })));
  const received = await call("POST", `${path}/receive`, { max: 32 });
  const claims = received.body.messages.map((each) => ({ id: each.id, pop_receipt: each.pop_receipt }));
  const settled = await call("POST", `${path}/settle`, { delete: claims });
  const state = await call("GET", path);
  const refused = await call("POST", `${path}/receive`, { max: 99 });
  console.log(
    JSON.stringify({
      puts: puts.map((each) => each.status),
      bodies: received.body.messages.map((each) => each.body).sort(),
      deleted: settled.body.delete.map((each) => each.ok),
      left: state.body.depth,
      refused: [refused.status, refused.body.code],
    }),
  );
  socket.close(1000);
}

socket.on("message", (data, binary) => {
  if (!binary) {
    if (JSON.parse(data).type === "ready") work();
    return;
  }
  const end = data.indexOf("\n\n");
  const [head] = data.subarray(0, end).toString().split("\n");
  const [n, status] = head.split(" ").map(Number);
  const body = data.subarray(end + 2).toString();
  waiting.get(n)({ status, body: body ? JSON.parse(body) : null });
  waiting.delete(n);
});
socket.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
