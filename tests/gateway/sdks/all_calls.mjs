// Every operation of SQS by the AWS SDK for JavaScript, version 3. Prints what each was answered.
import * as sqs from "@aws-sdk/client-sqs";

const [endpoint, accessKeyId, secretAccessKey] = process.argv.slice(2);
const client = new sqs.SQSClient({
  endpoint, region: "eu-west-1", credentials: { accessKeyId, secretAccessKey },
});
const outcomes = {}, seen = {};

async function call(name, input) {
  try {
    const answer = await client.send(new sqs[`${name}Command`](input));
    outcomes[name] ??= "ok";
    return answer;
  } catch (error) {
    outcomes[name] = error.name;
    return {};
  }
}

const QueueUrl = (await call("CreateQueue", { QueueName: "mails" })).QueueUrl;
const dead = (await call("CreateQueue", { QueueName: "dead" })).QueueUrl;
seen.url = (await call("GetQueueUrl", { QueueName: "mails" })).QueueUrl === QueueUrl;
seen.listed = (await call("ListQueues", {})).QueueUrls.length;
const { Attributes: { QueueArn: arn } } =
  await call("GetQueueAttributes", { QueueUrl: dead, AttributeNames: ["All"] });
const policy = JSON.stringify({ deadLetterTargetArn: arn, maxReceiveCount: 5 });
await call("SetQueueAttributes", { QueueUrl, Attributes: { RedrivePolicy: policy } });
seen.sources = (await call("ListDeadLetterSourceQueues", { QueueUrl: dead })).queueUrls.length;
await call("TagQueue", { QueueUrl, Tags: { a: "1", b: "2" } });
await call("UntagQueue", { QueueUrl, TagKeys: ["a"] });
seen.tags = (await call("ListQueueTags", { QueueUrl })).Tags;
await call("SendMessage", { QueueUrl, MessageBody: "one ä", MessageAttributes: {
  text: { DataType: "String", StringValue: "blue" },
  bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255) },
} });
await call("SendMessageBatch", { QueueUrl, Entries: ["two", "three"].map(
  (MessageBody, number) => ({ Id: `${number}`, MessageBody })) });
const found = [];
while (found.length < 3) {
  const { Messages = [] } = await call("ReceiveMessage", {
    QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
  });
  found.push(...Messages);
}
found.sort((a, b) => (a.Body < b.Body ? -1 : 1));
seen.bodies = found.map((each) => each.Body);
seen.text = found[0].MessageAttributes.text.StringValue;
seen.bytes = Buffer.from(found[0].MessageAttributes.bytes.BinaryValue).toString("hex");
const [first, ...others] = found.map((each, number) => (
  { Id: `${number}`, ReceiptHandle: each.ReceiptHandle }));
const longer = others.map((each) => ({ ...each, VisibilityTimeout: 60 }));
const handle = { QueueUrl, ReceiptHandle: first.ReceiptHandle };
await call("ChangeMessageVisibility", { ...handle, VisibilityTimeout: 60 });
await call("ChangeMessageVisibilityBatch", { QueueUrl, Entries: longer });
await call("DeleteMessage", handle);
const gone = await call("DeleteMessageBatch", { QueueUrl, Entries: others });
seen.deleted = gone.Successful.length;
await call("AddPermission", {
  QueueUrl, Label: "x", AWSAccountIds: ["111111111111"], Actions: ["SendMessage"],
});
await call("RemovePermission", { QueueUrl, Label: "x" });
await call("StartMessageMoveTask", { SourceArn: arn });
await call("ListMessageMoveTasks", { SourceArn: arn });
await call("CancelMessageMoveTask", { TaskHandle: "x" });
await call("PurgeQueue", { QueueUrl });
await call("DeleteQueue", { QueueUrl });
try {
  await client.send(new sqs.GetQueueUrlCommand({ QueueName: "mails" }));
} catch (error) {
  seen.missing = error instanceof sqs.QueueDoesNotExist;
}
seen.operations = Object.keys(sqs).filter((each) => each.endsWith("Command") && each !== "$Command")
  .map((each) => each.slice(0, -"Command".length)).sort();
console.log(JSON.stringify({ outcomes, seen }));
