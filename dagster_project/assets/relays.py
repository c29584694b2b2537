"""One asset for each relay of the policy file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_project import common, duties
from dagster_project.catalogue import Catalogue
from dagster_project.common import of_database, table
from ops.duties import verbs
from ops.duties.setup import Setup
from ops.duties.units import LEFT, MAIN, DutyOutcome
from ops.policies.policy import FOLLOWS_ANOTHER, follows, is_subscribed
from ops.policies.relay_groups import ensure_subscribed
from ops.policies.settings import RelayPolicy
from ops.sinks.address import promise_of
from penstock import subscriptions
from penstock.errors import SinkError
from penstock.spark.options import DatabaseAddress
from penstock.subscriptions import Lag, queue
from penstock.subscriptions.dead_letters import dead_letters
from resources.database import DatabaseResource
from resources.sinks import SinkResource
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

MAX_SECONDS = 60
#: What Dagster does not take in a kind, and how long one may be.
_NO_KIND, _LONGEST_KIND = re.compile(r"[^a-z0-9_.-]"), 50


def relay_config() -> dict[str, dg.Field]:
    """The run config of a relay."""
    return duties.config(
        max_seconds=dg.Field(
            int,
            default_value=MAX_SECONDS,
            description="after these, at least 1, the next run goes on",
        )
    )


def build(catalogue: Catalogue) -> list[dg.AssetsDefinition]:
    """The relays."""
    return [_relay(relay, catalogue) for relay in catalogue.relays()]


def _relay(relay: RelayPolicy, catalogue: Catalogue) -> dg.AssetsDefinition:
    options = catalogue.options(relay.topic, _relay)
    # A reference to the environment is shown as it is written, never what it stands for.
    kind = relay.sink.partition(":")[0] if ":" in relay.sink else "sink"

    @dg.asset(
        key=catalogue.relay_key(relay.name),
        deps=[catalogue.key(each, "sequenced") for each in catalogue.topics if each == relay.topic],
        retry_policy=common.RETRY,
        output_required=False,
        config_schema=relay_config(),
        kinds={_NO_KIND.sub("_", kind.partition("+")[0])[:_LONGEST_KIND]},
        group_name=options["group_name"],
        owners=options["owners"],
        metadata={**options["metadata"], "penstock/relay": relay.name},
        description=f"Carries {relay.topic} to `{kind}` as subscription "
        f"`{relay.subscription}`, {_way(relay)}",
    )
    @of_database(catalogue.database)
    def run(
        context: dg.AssetExecutionContext,
        database: DatabaseResource,
        sinks: SinkResource,
        spark: SparkResource,
        targets: ArchiveTargetResource,
    ) -> Iterator[dg.MaterializeResult[None]]:
        step = context.op_execution_context
        seconds = _seconds(step.op_config)
        with database.connect() as connection:
            if not follows(connection, database.policies()):
                context.log.warning("%s: nothing is sent", FOLLOWS_ANOTHER)
                yield common.no_event()
                return
            if common.exists(connection, relay.topic):
                ensure_subscribed(connection, relay, database.policies().relay_groups)
            elif is_subscribed(connection, relay):
                context.log.warning("%s is not there: it may have another name", relay.topic)
            else:
                context.log.info("%s does not exist yet", relay.topic)
                yield common.no_event()
                return
        place = (MAIN, relay.subscription)
        setup = Setup(
            {MAIN: DatabaseAddress(database.url())},
            tuple(targets.every()),
            {place: sinks.address(relay)},
            {place: relay.max_attempts} if relay.max_attempts else {},
            seconds,
        )
        engine = step.op_config["engine"]
        done = verbs.relay(setup, [place], engine=engine, spark=spark.session)
        duties.require(duties.told(step, done))
        if any(each.state == LEFT and each.error for each in done):
            raise SinkError(
                f"the relay {relay.name} stopped: {'; '.join(e.error for e in done if e.error)}",
                hint="nothing is lost: the next run sends again what is not finished",
            )
        with database.connect() as connection:
            lags = subscriptions.lag(connection, relay.subscription)
            dead = dead_letters(connection, relay.subscription, max_rows=20)
            promise = promise_of(setup.sinks[place])
            found = _metadata(done, lags, dead, promise)
            if relay.order:
                found["states"] = _states(connection, relay.subscription, found["events"])
        yield dg.MaterializeResult(metadata=found)

    return run


def _way(relay: RelayPolicy) -> str:
    if not relay.order:
        return "in recorded blocks. While a daemon holds the leases this finds nothing to do."
    return (
        "event by event: each is pending, in flight, sent or failed. What waits for its next "
        "attempt is left for the next run, or for a daemon."
    )


def _states(connection: Any, subscription: str, sent: int) -> Any:
    """What has become of the events of a queue."""
    now = queue.statistics(connection, subscription)
    rows = [
        ("pending", now.ready + now.delayed),
        ("in flight", now.in_flight),
        ("sent by this run", sent),
        ("failed", now.dead),
    ]
    return table(("state", "events"), rows)


def _seconds(config: Mapping[str, Any]) -> int:
    """How long a run may take; a run of no time would send nothing and succeed."""
    seconds = int(config["max_seconds"])
    if seconds < 1:
        raise duties.refused(
            f"a relay cannot run for {seconds} seconds", "max_seconds is at least 1"
        )
    return seconds


def _metadata(
    done: Sequence[DutyOutcome], lags: list[Lag], dead: list[Any], promise: str
) -> dict[str, Any]:
    positions = [(each.partition, each.position, each.lag_events) for each in lags]
    results = [each.result for each in done]
    events = sum(each.events for each in results)
    seconds = max((each.seconds for each in done), default=0.0)
    found: dict[str, Any] = {
        "promise": promise,
        "events": events,
        "events a second": round(events / seconds, 1) if seconds else 0.0,
        "blocks": sum(each.blocks for each in results),
        "failures": sum(each.failures for each in results),
        "dead letters": sum(each.dead_letters for each in results),
        "drained": all(each.drained for each in results),
        **duties.metadata(done),
        "positions": table(("partition", "position", "lag (events)"), positions),
    }
    if dead:
        rows = [(each.partition, each.sequence, each.reason, each.died_at) for each in dead]
        found["newest dead letters"] = table(("partition", "sequence", "reason", "at"), rows)
    return found
