// Publishes and consumes with nothing but the package pg: see README.md beside this folder.
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";

const TOPIC = "shop/orders";
const SUBSCRIPTION = "node";
const LEASE_LOST = "PS010";

const client = new pg.Client(process.argv[2]);

async function query(sql, ...values) {
  return (await client.query(sql, values)).rows;
}

async function inTransaction(work) {
  await query("BEGIN");
  try {
    const done = await work();
    await query("COMMIT");
    return done;
  } catch (error) {
    await query("ROLLBACK");
    throw error;
  }
}

// The event exists if and only if the order does. Its key keeps the events of a customer in order.
async function place(customer) {
  await inTransaction(async () => {
    const [{ id }] = await query("INSERT INTO orders (customer) VALUES ($1) RETURNING id", customer);
    await query(
      "SELECT penstock.publish($1, $2, key => $3, type => 'order-placed', content_type => 'application/json')",
      TOPIC, Buffer.from(id), customer,
    );
  });
}

// Handles what follows the position of one partition, exactly once: bills and position are one transaction.
async function bill(consumer, lease) {
  return inTransaction(async () => {
    const events = await query(
      "SELECT sequence, key, payload"
      + " FROM penstock.poll($1, $2, ARRAY[$3::bigint], ARRAY[$4::bigint], ARRAY[$5::bigint], 100)",
      SUBSCRIPTION, consumer, lease.partition_id, lease.lease_epoch, lease.position,
    );
    if (events.length === 0) return 0;
    // The position first: who has lost the lease fails here, before anything is written.
    await query(
      "SELECT penstock.commit($1, $2, ARRAY[$3::bigint], ARRAY[$4::bigint], ARRAY[$5::bigint])",
      SUBSCRIPTION, consumer, lease.partition_id, lease.lease_epoch, events.at(-1).sequence,
    );
    for (const { sequence, key, payload } of events) {
      await query("INSERT INTO bills VALUES ($1, 'node')", payload.toString());
      console.log(`${lease.partition}:${sequence} ${key} order ${payload}`);
    }
    return events.length;
  }).catch((error) => {
    if (error.code === LEASE_LOST) return 0; // another consumer has the partition, and bills these orders
    throw error;
  });
}

async function consume(consumer, session) {
  await query("SELECT penstock.subscribe($1, ARRAY[$2])", SUBSCRIPTION, TOPIC);
  await query("SELECT penstock.join($1, $2, $3)", SUBSCRIPTION, consumer, session);
  for (let last = Date.now(); Date.now() - last < 2000; await pause(100)) {
    // Says that this consumer is alive, at least every 3 seconds, and returns the leases that it holds now.
    for (const lease of await query("SELECT * FROM penstock.check_in($1, $2, $3)", SUBSCRIPTION, consumer, session)) {
      if ((await bill(consumer, lease)) > 0) last = Date.now();
      if (lease.state === "RELEASING") { // somebody else is to have it
        await query(
          "SELECT penstock.release($1, $2, ARRAY[$3::bigint], ARRAY[$4::bigint])",
          SUBSCRIPTION, consumer, lease.partition_id, lease.lease_epoch,
        );
      }
    }
  }
  await query("SELECT penstock.leave($1, $2, $3)", SUBSCRIPTION, consumer, session);
}

await client.connect();
try {
  for (const customer of ["ann", "bob", "ann"]) await place(customer);
  await consume(`orders-${process.pid}`, randomUUID());
} finally {
  await client.end();
}
