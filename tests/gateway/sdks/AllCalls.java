import java.net.URI;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.*;

/** Every operation of SQS by the AWS SDK for Java, version 2. Prints what each was answered. */
public final class AllCalls {
  private static final Map<String, String> outcomes = new TreeMap<>();
  private static final Map<String, Object> seen = new TreeMap<>();

  private static <T> T call(String name, Supplier<T> work) {
    try {
      T answer = work.get();
      outcomes.putIfAbsent(name, "ok");
      return answer;
    } catch (SqsException error) {
      String code = error.awsErrorDetails().errorCode();
      outcomes.put(name, code.substring(code.lastIndexOf('.') + 1));
      return null;
    }
  }

  private static MessageAttributeValue text(String value) {
    return MessageAttributeValue.builder().dataType("String").stringValue(value).build();
  }

  public static void main(String[] given) {
    SqsClient sqs = SqsClient.builder()
        .endpointOverride(URI.create(given[0])).region(Region.EU_WEST_1)
        .credentialsProvider(
            StaticCredentialsProvider.create(AwsBasicCredentials.create(given[1], given[2])))
        .httpClientBuilder(UrlConnectionHttpClient.builder()).build();
    String url = call("CreateQueue", () -> sqs.createQueue(q -> q.queueName("mails"))).queueUrl();
    String dead = call("CreateQueue", () -> sqs.createQueue(q -> q.queueName("dead"))).queueUrl();
    seen.put("url", call("GetQueueUrl", () -> sqs.getQueueUrl(q -> q.queueName("mails")))
        .queueUrl().equals(url));
    seen.put("listed", call("ListQueues", () -> sqs.listQueues()).queueUrls().size());
    String arn = call("GetQueueAttributes", () -> sqs.getQueueAttributes(
        q -> q.queueUrl(dead).attributeNames(QueueAttributeName.ALL)))
        .attributes().get(QueueAttributeName.QUEUE_ARN);
    String policy = "{\"deadLetterTargetArn\": \"" + arn + "\", \"maxReceiveCount\": 5}";
    call("SetQueueAttributes", () -> sqs.setQueueAttributes(q -> q.queueUrl(url)
        .attributes(Map.of(QueueAttributeName.REDRIVE_POLICY, policy))));
    seen.put("sources", call("ListDeadLetterSourceQueues",
        () -> sqs.listDeadLetterSourceQueues(q -> q.queueUrl(dead))).queueUrls().size());
    call("TagQueue", () -> sqs.tagQueue(q -> q.queueUrl(url).tags(Map.of("a", "1", "b", "2"))));
    call("UntagQueue", () -> sqs.untagQueue(q -> q.queueUrl(url).tagKeys("a")));
    seen.put("tags", call("ListQueueTags", () -> sqs.listQueueTags(q -> q.queueUrl(url))).tags());
    messages(sqs, url);
    call("AddPermission", () -> sqs.addPermission(q -> q.queueUrl(url).label("x")
        .awsAccountIds("111111111111").actions("SendMessage")));
    call("RemovePermission", () -> sqs.removePermission(q -> q.queueUrl(url).label("x")));
    call("StartMessageMoveTask", () -> sqs.startMessageMoveTask(q -> q.sourceArn(arn)));
    call("ListMessageMoveTasks", () -> sqs.listMessageMoveTasks(q -> q.sourceArn(arn)));
    call("CancelMessageMoveTask", () -> sqs.cancelMessageMoveTask(q -> q.taskHandle("x")));
    call("PurgeQueue", () -> sqs.purgeQueue(q -> q.queueUrl(url)));
    call("DeleteQueue", () -> sqs.deleteQueue(q -> q.queueUrl(url)));
    try {
      sqs.getQueueUrl(q -> q.queueName("mails"));
    } catch (QueueDoesNotExistException error) {
      seen.put("missing", true);
    }
    System.out.println("{\"outcomes\": " + json(outcomes) + ", \"seen\": " + json(seen) + "}");
  }

  private static void messages(SqsClient sqs, String url) {
    MessageAttributeValue bytes = MessageAttributeValue.builder().dataType("Binary")
        .binaryValue(SdkBytes.fromByteArray(new byte[] {0, -1})).build();
    call("SendMessage", () -> sqs.sendMessage(q -> q.queueUrl(url).messageBody("one ä")
        .messageAttributes(Map.of("text", text("blue"), "bytes", bytes))));
    call("SendMessageBatch", () -> sqs.sendMessageBatch(q -> q.queueUrl(url).entries(
        SendMessageBatchRequestEntry.builder().id("0").messageBody("two").build(),
        SendMessageBatchRequestEntry.builder().id("1").messageBody("three").build())));
    List<Message> found = new ArrayList<>();
    while (found.size() < 3) {
      found.addAll(call("ReceiveMessage", () -> sqs.receiveMessage(q -> q.queueUrl(url)
          .maxNumberOfMessages(10).waitTimeSeconds(20).messageAttributeNames("All")
          .messageSystemAttributeNames(MessageSystemAttributeName.ALL))).messages());
    }
    found.sort(Comparator.comparing(Message::body));
    seen.put("bodies", found.stream().map(Message::body).toList());
    seen.put("text", found.get(0).messageAttributes().get("text").stringValue());
    seen.put("bytes", HexFormat.of().formatHex(
        found.get(0).messageAttributes().get("bytes").binaryValue().asByteArray()));
    String first = found.get(0).receiptHandle();
    String second = found.get(1).receiptHandle();
    String third = found.get(2).receiptHandle();
    call("ChangeMessageVisibility", () -> sqs.changeMessageVisibility(
        q -> q.queueUrl(url).receiptHandle(first).visibilityTimeout(60)));
    call("ChangeMessageVisibilityBatch", () -> sqs.changeMessageVisibilityBatch(
        q -> q.queueUrl(url).entries(
            e -> e.id("1").receiptHandle(second).visibilityTimeout(60),
            e -> e.id("2").receiptHandle(third).visibilityTimeout(60))));
    call("DeleteMessage", () -> sqs.deleteMessage(q -> q.queueUrl(url).receiptHandle(first)));
    seen.put("deleted", call("DeleteMessageBatch", () -> sqs.deleteMessageBatch(
        q -> q.queueUrl(url).entries(
            e -> e.id("1").receiptHandle(second), e -> e.id("2").receiptHandle(third))))
        .successful().size());
  }

  private static String json(Object value) {
    if (value instanceof Map<?, ?> map) {
      List<String> pairs = new ArrayList<>();
      map.forEach((name, inner) -> pairs.add("\"" + name + "\": " + json(inner)));
      return "{" + String.join(", ", pairs) + "}";
    }
    if (value instanceof List<?> list) {
      return "[" + String.join(", ", list.stream().map(AllCalls::json).toList()) + "]";
    }
    return value instanceof String ? "\"" + value + "\"" : String.valueOf(value);
  }
}
