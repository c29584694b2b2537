// @ts-check
// Places three orders through an HTTP gateway, and bills each of them from a subscription.
//
//   PENSTOCK_GATEWAY_KEY=KEY_ID.SECRET node orders.mjs https://events.example.com/shop
//
// The types stand in comments, so node runs the file as it is, and `npx tsc` checks it.

/**
 * @typedef {{ specversion: string, id: string, type: string, data?: any, data_base64?: string }} CloudEvent
 * @typedef {{ consumer: string, topic: string, partition: number, lease_epoch: number,
 *             history: number, sequence: number, event: CloudEvent }} Heard
 * @typedef {{ kind: string, data: string }} ServerSentEvent
 */

const QUIET_MS = 2000;
const [, , url, ...rest] = process.argv;
const key = process.env.PENSTOCK_GATEWAY_KEY;
if (!url || !key || rest.length > 0) {
  console.error("usage: PENSTOCK_GATEWAY_KEY=KEY_ID.SECRET node orders.mjs https://HOST/ACCOUNT");
  process.exit(2);
}
const base = url.replace(/\/([^/]+)\/?$/, "/api/v1/accounts/$1");
const authorization = `Key ${key}`;

/**
 * A call, once more after an answer that was lost: only for calls that do the same twice as once.
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<Response>}
 */
async function call(method, path, body) {
  for (let left = 5; ; left--) {
    try {
      const reply = await fetch(base + path, {
        method,
        headers: { authorization, "content-type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (reply.ok || left === 0 || (reply.status !== 429 && reply.status < 500)) {
        return reply;
      }
    } catch (error) {
      if (left === 0) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 */
async function done(method, path, body) {
  const reply = await call(method, path, body);
  if (!reply.ok) {
    throw new Error(`${method} ${path}: ${reply.status} ${await reply.text()}`);
  }
}

/**
 * The server-sent events of an answer.
 * @param {Response} reply
 * @returns {AsyncGenerator<ServerSentEvent>}
 */
async function* events(reply) {
  if (!reply.ok || reply.body === null) {
    throw new Error(`the stream cannot begin: ${reply.status}`);
  }
  const decoder = new TextDecoder();
  let held = "";
  /** @type {ServerSentEvent} */
  let now = { kind: "message", data: "" };
  const reader = reply.body.getReader();
  for (;;) {
    const { value, done: isOver } = await reader.read();
    if (isOver) return;
    const lines = (held + decoder.decode(value, { stream: true })).split("\n");
    held = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("event: ")) now.kind = line.slice(7);
      else if (line.startsWith("data: ")) now.data += line.slice(6);
      else if (line === "") {
        if (now.data) yield now;
        now = { kind: "message", data: "" };
      }
    }
  }
}

await done("POST", "/topics", { topic: "orders", partitions: 2 });
await done("POST", "/subscriptions", { subscription: "billing", topics: ["orders"] });
for (const id of [1, 2, 3]) {
  // With a dedup key an event that is sent again is there once.
  await done("POST", `/topics/orders/events?key=${id}&type=order&dedup_key=order-${id}`, {
    id,
    total: 10 * id,
  });
}

const stop = new AbortController();
let quiet = setTimeout(() => stop.abort(), 10 * QUIET_MS);
/** What was billed, as a table with a unique key would keep it. @type {Set<string>} */
const billed = new Set();
try {
  const reply = await fetch(`${base}/subscriptions/billing/stream`, {
    headers: { authorization },
    signal: stop.signal,
  });
  for await (const each of events(reply)) {
    if (each.kind === "lost") continue; // another listener has that partition now
    if (each.kind === "end") throw new Error(`the stream has ended: ${each.data}`);
    /** @type {Heard} */
    const heard = JSON.parse(each.data);
    const { event, ...place } = heard;
    const { consumer, sequence, ...lease } = place;
    if (!billed.has(`${lease.topic}.${lease.partition}.${sequence}`)) {
      billed.add(`${lease.topic}.${lease.partition}.${sequence}`);
      console.log(`billed order ${event.data.id}: ${event.data.total}`);
    }
    const positions = [{ ...lease, sequence }];
    const commit = await call("POST", "/subscriptions/billing/commits", { consumer, positions });
    if (commit.status !== 204 && commit.status !== 409) {
      throw new Error(`commit: ${commit.status}`);
    }
    clearTimeout(quiet);
    quiet = setTimeout(() => stop.abort(), QUIET_MS);
  }
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
clearTimeout(quiet);
console.log(`billed ${billed.size} orders`);
