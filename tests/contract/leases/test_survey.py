"""The survey that check-ins share: which partitions are active, and every consumer's share."""

from __future__ import annotations

from typing import Any

from penstock import database
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, check_in_rounds, end_lease, join, pass_time, without
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, holders, more

PARTITIONS = 8

NOTHING_AGAIN: Guard = {
    "postgres": ("find_active", "- floor(l.place) < find_active.share", "- floor(l.place) < 0"),
    "mysql": ("survey", "- FLOOR(l.random_key - turn) < share", "- FLOOR(l.random_key - turn) < 0"),
}
ONLY_A_PART: Guard = {
    "postgres": ("find_active", "WHERE NOT l.was_active OR", "WHERE"),
    "mysql": ("survey", "a.partition_id IS NULL OR l.state", "l.state"),
}
DEATH_CAN_WAIT: Guard = {
    "postgres": ("check_in", "WHEN gone > 0 THEN now", ""),
    "mysql": ("check_in", "IF(expired > 0, present,", "IF(FALSE, present,"),
}
NEWCOMERS_FOLLOW: Guard = {
    "postgres": ("follow_share", "c.joined_at <= v.made_at AS stood", "true AS stood"),
    "mysql": ("follow_share", "c.joined_at <= v.made_at,", "TRUE,"),
}


def _drained(db: ContractDatabase) -> tuple[Any, Membership]:
    """A member that holds all, has read all, and did so 40 s ago."""
    own = db.connect()
    filled(own, partitions=PARTITIONS)
    (member,) = join(own, 1)
    held = stream.check_in(own, member)
    stream.commit(own, member, [(lease, 10) for lease in held])
    pass_time(db, 40)
    stream.heartbeats(own, [member])
    return own, member


def _made(db: ContractDatabase, seconds: float) -> None:
    """The last survey was made so many seconds ago."""
    now, number = (
        ("clock_timestamp()", f"'{seconds}'")
        if db.engine == "postgres"
        else ("UTC_TIMESTAMP(6)", f"{seconds}")
    )
    db.run(f"UPDATE penstock.surveys SET made_at = {now} - INTERVAL {number} SECOND")


def _asked(db: ContractDatabase, seconds: float) -> int:
    own, member = _drained(db)
    _made(db, seconds)
    held = stream.check_in(own, member, fresh=False)
    return sum(lease.state == "RELEASING" for lease in held)


@proves("active and cold partitions")
def test_what_went_cold_is_found_within_ten_seconds(db: ContractDatabase) -> None:
    """Guard: the share of the circle that has passed since the last survey."""
    assert _asked(db, 10) == PARTITIONS


@proves("active and cold partitions", guard="what is looked at")
def test_without_it_a_cold_partition_is_held_for_ever(db: ContractDatabase) -> None:
    """Mutant: what was active is not looked at again."""
    without(db, NOTHING_AGAIN)
    assert _asked(db, 10) == 0


def _active_again(db: ContractDatabase) -> int:
    own = db.connect()
    topic(own, PARTITIONS, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    (member,) = join(own, 1)
    stream.check_in(own, member)
    more(own, partitions=PARTITIONS, events=1)
    db.run("UPDATE penstock.leases SET state = 'ACTIVE', holder = 'c000'")
    _made(db, 1.5)
    stream.check_in(own, member, fresh=False)
    ((found,),) = db.run("SELECT COUNT(*) FROM penstock.active_partitions")
    return int(found)


@proves("active and cold partitions")
def test_what_became_active_is_found_by_the_next_survey(db: ContractDatabase) -> None:
    """Guard: all that was not active is looked at, whatever part of the circle has its turn."""
    assert _active_again(db) == PARTITIONS


@proves("active and cold partitions", guard="what is looked at")
def test_without_it_some_wait_for_their_turn(db: ContractDatabase) -> None:
    """Mutant: a part of all, as of those that were active."""
    without(db, ONLY_A_PART)
    assert _active_again(db) < PARTITIONS


def _long_shared(db: ContractDatabase, consumers: int) -> tuple[Any, list[Membership]]:
    """Everybody has his share, and no survey is due for an hour."""
    own = db.connect()
    filled(own, partitions=PARTITIONS)
    members = join(own, consumers)
    check_in_rounds(own, members, 3)
    database.execute(own, "UPDATE penstock.subscriptions SET refresh_seconds = 3600")
    return own, members


def _held_after_a_death(db: ContractDatabase) -> int:
    own, (alive, dead) = _long_shared(db, 2)
    end_lease(db, dead.consumer)
    stream.check_in(own, alive, fresh=False)
    return len(holders(own))


@proves("D8 between two surveys")
def test_a_death_is_a_survey(db: ContractDatabase) -> None:
    """D8. Guard: who collects somebody looks anew, however young the last survey is."""
    assert _held_after_a_death(db) == PARTITIONS


@proves("D8 between two surveys", guard="the count of the dead")
def test_without_it_the_dead_wait_for_the_next_survey(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, DEATH_CAN_WAIT)
    assert _held_after_a_death(db) == PARTITIONS / 2


def _called_by_a_newcomer(db: ContractDatabase) -> list[bool]:
    own, members = _long_shared(db, 2)
    (newcomer,) = join(own, 1, first=2)
    stream.check_in(own, newcomer, fresh=False)
    return [beat.check_in_seconds == 0 for beat in stream.heartbeats(own, members)]


@proves("D8 between two surveys")
def test_who_joined_since_the_survey_calls_the_others(db: ContractDatabase) -> None:
    """Guard: the time of the survey; of a newcomer it says nothing."""
    assert _called_by_a_newcomer(db) == [True, True]


@proves("D8 between two surveys", guard="the time of the survey")
def test_without_it_a_newcomer_waits_for_the_next_survey(db: ContractDatabase) -> None:
    """Mutant: nothing is said of him, so nothing has to be done."""
    without(db, NEWCOMERS_FOLLOW)
    assert _called_by_a_newcomer(db) == [False, False]


@proves("D8 between two surveys")
def test_a_newcomer_gets_his_share_between_two_surveys(db: ContractDatabase) -> None:
    """Guard: the quotas that are written down; each who is called follows his own."""
    own, members = _long_shared(db, 2)
    members += join(own, 1, first=2)
    stream.check_in(own, members[-1], fresh=False)
    for _ in range(2):
        for member in members:
            held = stream.check_in(own, member, fresh=False)
            stream.release(own, member, [each for each in held if each.state == "RELEASING"])
    held_by = list(holders(own).values())
    assert sorted(held_by.count(member.consumer) for member in members) == [2, 3, 3]
