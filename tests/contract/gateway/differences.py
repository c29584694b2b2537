"""How the SQS door differs from its look-alikes: by reason, each call and place.

What AWS does is known from the descriptions that its SDKs are made of, and from public records of
its answers.  Where nothing else is said, the door does as AWS does.
"""

from __future__ import annotations

MOTO: dict[str, tuple[str, ...]] = {
    "it takes names, values and counts of attributes that AWS refuses": (
        "attribute, dots",
        "attribute, empty",
        "attribute, no number",
        "attribute, of AWS",
        "attributes, eleven",
    ),
    "it takes attributes of queues that AWS refuses": (
        "change, bad",
        "create, bad attribute",
        "create, bad value: error",
        "list: QueueUrls.3",
    ),
    "nothing is encrypted here, so it is not told": (
        "attributes: Attributes.SqsManagedSseEnabled",
    ),
    "it answers empty lists and maps, where AWS leaves them out": (
        "change a batch: Failed",
        "delete a batch: Failed",
        "send a batch: Failed",
        "tags, none: ",
        "tags, none: Tags",
    ),
    "queues are listed by name here, and AWS promises no order": (
        "list, a page: QueueUrls.0",
        "list, a page: QueueUrls.1",
        "list: QueueUrls.0",
        "list: QueueUrls.1",
    ),
    "AWS's description of the error says 404": (
        "no handle, change: status",
        "no handle, delete: status",
    ),
    "rights are those of the account here": (
        "permission",
        "no permission",
    ),
    "its old handle is good for ever": ("old handle, change",),
    "it takes a policy that is no JSON, and fails": (
        "policy, no JSON: error",
        "policy, no JSON: status",
    ),
    "a letter is an event of its own here": (
        "receive a letter: 0.Attributes.ApproximateReceiveCount",
    ),
    "it answers as if the queue itself were missing": ("policy, no queue: error",),
    "it does not tell the source of a letter": (
        "receive a letter: 0.Attributes.DeadLetterQueueSourceArn",
    ),
    "it takes bodies that XML cannot hold, and empty ones": (
        "send NUL",
        "send nothing",
        "send, in part: Failed.0.Code",
        "send, in part: Failed.0.Id",
        "send, in part: Failed.1.Code",
        "send, in part: Failed.1.Id",
        "send, in part: Failed.1.SenderFault",
        "send, in part: Successful.0.Id",
        "send, in part: Successful.0.MD5OfMessageBody",
        "send, in part: Successful.1.Id",
        "send, in part: Successful.1.MD5OfMessageBody",
        "send, in part: Successful.1.MessageId",
    ),
    "it makes no digest of system attributes": ("send a trace: MD5OfMessageSystemAttributes",),
}

ELASTICMQ: dict[str, tuple[str, ...]] = {
    "it takes names of attributes that AWS refuses": (
        "attribute, dots",
        "attribute, of AWS",
    ),
    "it has other names for errors of values": (
        "attribute, empty: error",
        "attribute, no number: error",
        "attributes, eleven: error",
        "create, bad name: error",
        "create, long name: error",
        "receive, eleven: error",
        "receive, none: error",
        "receive, wait: error",
        "send NUL: error",
        "send nothing: error",
        "send, in part: Failed.0.Code",
        "policy, no JSON: error",
        "policy, no count: error",
        "policy, no queue: error",
    ),
    "it does not send the older names of errors, which SDKs show": (
        "attributes, no queue: error",
        "batch, eleven: error",
        "batch, twice: error",
        "create, differing: error",
        "delete batch, no queue: error",
        "delete, no queue: error",
        "deleted, send: error",
        "deleted, url: error",
        "receive, no queue: error",
        "send, no queue: error",
        "url, none: error",
    ),
    "it answers nothing for attributes that there are not": ("attributes, bad",),
    "it does not know these attributes of a queue": (
        "attributes, changed: Attributes.MaximumMessageSize",
        "attributes: Attributes.MaximumMessageSize",
        "attributes: Attributes.MessageRetentionPeriod",
        "attributes: Attributes.SqsManagedSseEnabled",
        "send too much",
    ),
    "it takes attributes of queues that AWS refuses": (
        "change, bad",
        "create, bad attribute",
        "create, bad value: error",
        "list: QueueUrls.2",
        "list: QueueUrls.3",
    ),
    "it answers empty lists and maps, where AWS leaves them out": (
        "attributes, none: ",
        "attributes, none: Attributes",
        "list, nothing: ",
        "list, nothing: QueueUrls",
        "receive after the purge: ",
        "receive after the purge: Messages",
        "receive nothing yet: ",
        "receive nothing yet: Messages",
        "receive nothing: ",
        "receive nothing: Messages",
        "receive, dead: ",
        "receive, dead: Messages",
        "tags, none: ",
        "tags, none: Tags",
    ),
    "it takes ids of entries, and batches without any, that AWS refuses": (
        "batch, bad id",
        "batch, long id",
        "batch, none",
    ),
    "it does not look at how long a message is hidden": (
        "change, in part: Failed.0.Code",
        "change, in part: Failed.0.Id",
        "change, in part: Failed.1.Code",
        "change, in part: Failed.1.Id",
        "change, in part: Failed.1.SenderFault",
        "change, in part: Successful.0.Id",
        "change, in part: Successful.1.Id",
        "change, in part: Successful.2.Id",
        "change, in part: Successful.3.Id",
        "receive, visibility",
    ),
    "a handle that is good no longer is one that never was": (
        "change too long: error",
        "delete again",
        "old handle, change: error",
        "old handle, delete",
    ),
    "it lists all queues at once, and in no order": (
        "list, a page: NextToken",
        "list, a page: QueueUrls.0",
        "list, a page: QueueUrls.1",
        "list, a page: QueueUrls.2",
        "list, a page: QueueUrls.3",
        "list: QueueUrls.0",
        "list: QueueUrls.1",
    ),
    "AWS's description of the error says 404": (
        "no handle, change: status",
        "no handle, delete: status",
    ),
    "rights are those of the account here": (
        "no permission",
        "permission",
    ),
    "it lets a queue be purged again and again": ("purge again",),
    "a letter is an event of its own here": (
        "receive a letter: 0.Attributes.ApproximateReceiveCount",
    ),
    "it does not know a name with a star": (
        "receive attributes, prefix: 0.MD5OfMessageAttributes",
        "receive attributes, prefix: 0.MessageAttributes.number.DataType",
        "receive attributes, prefix: 0.MessageAttributes.number.StringValue",
    ),
    "it makes no digest of system attributes": ("send a trace: MD5OfMessageSystemAttributes",),
    "it lists no sources": (
        "sources: queueUrls",
        "sources: queueUrls.0",
    ),
}
