"""The door for SQS clients: AWS's JSON protocol over the same queues."""
