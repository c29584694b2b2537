"""The tests' ElasticMQ, and the SQS sink on it over its crash."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.kit.sinks import Alone
from tests.relay.aws_server import Queue
from tests.relay.blocks import block
from tests.relay.conformance.only_take import OnElastic
from tools.servers import catalogue
from tools.servers.elasticmq import ElasticServer

pytestmark = pytest.mark.long


def test_it_is_found_again_and_fetched_once(elastic: ElasticServer) -> None:
    assert elastic.start() is False
    other = catalogue.in_folder(elastic.directory / "server.json")
    assert isinstance(other, ElasticServer)
    assert other.url() == elastic.url()
    assert catalogue.fetched("elasticmq")
    assert catalogue.fetch("elasticmq").count(".") == 2


@pytest.mark.usefixtures("aws_login")
def test_what_was_confirmed_outlives_a_crash(elastic: ElasticServer) -> None:
    """A standard queue, in which nothing is dropped that is sent again."""
    queue = Queue(elastic.url())
    under_test = OnElastic(elastic.url())
    with closing(Alone(under_test.sink())) as relay:
        relay.send_block(block(1, 40, topic="bank/crash"))
        elastic.restart()
        relay.send_block(block(41, 60, topic="bank/crash"))
    found = under_test.stored("bank/crash", "bank/crash", 0)
    assert [sequence for sequence, _ in found] == list(range(1, 61))
    assert queue.sequences() == []
