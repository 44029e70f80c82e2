// The JavaScript SDK, unchanged, through every operation that it has. Run by test_javascript.py, which gives the
// connection string (or several, each tried in turn) as arguments; prints "done" for each.
"use strict";
const assert = require("node:assert/strict");
const {
  AccountSASPermissions,
  QueueClient,
  QueueSASPermissions,
  QueueServiceClient,
  StorageSharedKeyCredential,
  generateAccountSASQueryParameters,
} = require("@azure/storage-queue");

// One try: a second one would hide a fault.
const ONCE = { retryOptions: { maxTries: 1 } };
const HOUR_MS = 3_600_000;

async function names(pages) {
  const found = [];
  for await (const each of pages) found.push(each.name);
  return found;
}

async function refused(promise, status, code) {
  await assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.code ?? error.details?.errorCode], [status, code]);
    return true;
  });
}

async function messages(queue) {
  const sent = await queue.sendMessage("one & <two> \u{1F514}", { messageTimeToLive: -1 });
  assert.equal(sent.expiresOn.getUTCFullYear(), 9999);
  const [peeked] = (await queue.peekMessages({ numberOfMessages: 32 })).peekedMessageItems;
  assert.equal(peeked.messageText, "one & <two> \u{1F514}");
  assert.equal(peeked.dequeueCount, 0);
  const [held] = (await queue.receiveMessages({ visibilityTimeout: 60 })).receivedMessageItems;
  assert.equal(held.messageId, sent.messageId);
  assert.equal(held.dequeueCount, 1);
  assert.equal((await queue.receiveMessages()).receivedMessageItems.length, 0);
  const updated = await queue.updateMessage(held.messageId, held.popReceipt, "changed", 0);
  await refused(queue.deleteMessage(held.messageId, held.popReceipt), 400, "PopReceiptMismatch");
  assert.notEqual(updated.popReceipt, held.popReceipt);
  const [again] = (await queue.receiveMessages()).receivedMessageItems;
  assert.deepEqual([again.messageText, again.dequeueCount], ["changed", 2]);
  await queue.deleteMessage(again.messageId, again.popReceipt);
  await refused(queue.deleteMessage(again.messageId, again.popReceipt), 404, "MessageNotFound");
  await refused(queue.sendMessage("x".repeat(65_537)), 413, "RequestBodyTooLarge");
  for (let number = 0; number < 3; number += 1) await queue.sendMessage(`${number}`, { visibilityTimeout: number });
  assert.equal((await queue.getProperties()).approximateMessagesCount, 3);
  await queue.clearMessages();
  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
}

async function signatures(service, queue) {
  await queue.setAccessPolicy([
    { id: "reader", accessPolicy: { expiresOn: new Date(Date.now() + HOUR_MS), permissions: "r" } },
  ]);
  const { signedIdentifiers } = await queue.getAccessPolicy();
  assert.equal(signedIdentifiers[0].accessPolicy.permissions, "r");
  await queue.sendMessage("seen");
  const bySas = async (options) => new QueueClient(await queue.generateSasUrl(options), undefined, ONCE);
  const reader = await bySas({ identifier: "reader" });
  assert.equal((await reader.peekMessages()).peekedMessageItems[0].messageText, "seen");
  await refused(reader.sendMessage("no"), 403, "AuthorizationPermissionMismatch");
  const producer = await bySas({ expiresOn: new Date(Date.now() + HOUR_MS), permissions: QueueSASPermissions.parse("a") });
  await producer.sendMessage("by signature");
  await refused(producer.receiveMessages(), 403, "AuthorizationPermissionMismatch");
  const late = await bySas({ expiresOn: new Date(Date.now() - HOUR_MS), permissions: QueueSASPermissions.parse("raup") });
  await refused(late.peekMessages(), 403, "AuthenticationFailed");
  const token = generateAccountSASQueryParameters(
    {
      expiresOn: new Date(Date.now() + HOUR_MS),
      permissions: AccountSASPermissions.parse("rl"),
      resourceTypes: "sco",
      services: "q",
    },
    service.credential,
  );
  const lister = new QueueServiceClient(`${service.url}?${token}`, undefined, ONCE);
  assert.deepEqual(await names(lister.listQueues({ prefix: "js-" })), ["js-orders"]);
  await refused(lister.createQueue("js-more"), 403, "AuthorizationPermissionMismatch");
  await queue.setAccessPolicy([]);
  await refused(reader.peekMessages(), 403, "AuthenticationFailed");
}

async function account(service) {
  const found = await service.getProperties();
  found.cors = [
    { allowedOrigins: "http://a.example", allowedMethods: "GET", allowedHeaders: "*", exposedHeaders: "", maxAgeInSeconds: 5 },
  ];
  await service.setProperties({ cors: found.cors });
  assert.equal((await service.getProperties()).cors[0].allowedOrigins, "http://a.example");
  await service.setProperties({ cors: [] });
  const second = new QueueServiceClient(service.url.replace(/\/?$/, "-secondary"), service.credential, ONCE);
  assert.equal((await second.getStatistics()).geoReplication.status, "live");
  const wrong = new StorageSharedKeyCredential("devstoreaccount1", Buffer.from("wrong").toString("base64"));
  await refused(new QueueServiceClient(service.url, wrong, ONCE).getProperties(), 403, "AuthenticationFailed");
}

async function everything(connection) {
  const service = QueueServiceClient.fromConnectionString(connection, ONCE);
  const queue = service.getQueueClient("js-orders");
  await queue.create({ metadata: { Team: "billing", "a_b": "1", ab: "2" } });
  assert.deepEqual(await names(service.listQueues({ prefix: "js-", includeMetadata: true })), ["js-orders"]);
  await queue.setMetadata({ a_1: "x", a1: "y" });
  assert.deepEqual((await queue.getProperties()).metadata, { a_1: "x", a1: "y" });
  await messages(queue);
  await signatures(service, queue);
  await account(service);
  await queue.delete();
  assert.equal(await queue.exists(), false);
}

(async () => {
  for (const connection of process.argv.slice(2)) {
    await everything(connection);
    console.log("done");
  }
})().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
