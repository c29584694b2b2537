"""What an account can reach: every function, by its own names, foreign ones and missing ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from ops.relay.block import resolve_block
from penstock import accounts, database, log, subscriptions
from penstock.errors import (
    AlreadyExists,
    InvalidArgument,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.publishing import known_topics, recent_sends
from penstock.publishing.event_ids import uuid7
from penstock.publishing.recent_sends import Send
from penstock.subscriptions import (
    dead_letters,
    forwarding,
    labels,
    letter_moves,
    policies,
    queue,
    stream,
)
from penstock.subscriptions.scheduled import scheduled
from penstock.topics import rights
from tests.contract.accounts.kit import (
    Account,
    act_as,
    as_account,
    gateway,
    may_call_everything,
)
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants, as_login, tenants_of
from tests.contract.topics.test_walls import BY_NAMESPACE, BY_SUBSCRIPTION, BY_TOPIC
from tests.contract.wall_calls import IN_SQL, LISTS, Call
from tests.kit.proof import proves
from tests.postgres.topics.test_rights import ALLOWED

OPEN = "open/orders"


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """An open topic beside the accounts, which every login may use."""
    with tenants_of(db) as found:
        found.install()
        penstock.create_topic(found.owner, OPEN, create_namespaces=True)
        penstock.publish(found.owner, OPEN, b"open")
        stream.subscribe(found.owner, "open", [OPEN])
        log.sequence(found.owner)
        yield found


@pytest.fixture
def carrier(db: ContractDatabase, tenants: Tenants, shop: Account, bank: Account) -> str:
    """A login that only the account keeps from anything."""
    login = gateway(tenants)
    may_call_everything(db, tenants, login)
    return login


QUEUES: dict[str, Call] = {
    "receive": lambda own, name: database.call_events(
        own, "receive", subscription=name, max_events=1, visibility_seconds=None
    ),
    "peek": queue.peek,
    "purge": queue.purge,
    "queue_statistics": queue.statistics,
    "queue_pointers": queue.pointers,
    "queue_scheduled": scheduled,
    "describe_queue": queue.describe,
    "configure_queue": lambda own, name: queue.configure(own, name, max_failures=3),
    "label_queue": lambda own, name: labels.label(own, name, {}),
    "labels_of_queue": labels.labels_of,
    "start_letter_move": letter_moves.start,
    "letter_moves_of": letter_moves.moves,
    "cancel_letter_move": lambda own, name: letter_moves.cancel(own, name, 1),
    "acknowledge": lambda own, name: _settle(own, "acknowledge", name),
    "release_claims": lambda own, name: _settle(own, "release_claims", name),
    "reject": lambda own, name: _settle(own, "reject", name, reason="", delay_seconds=None),
    "extend": lambda own, name: _settle(
        own, "extend", name, visibility_seconds=1, body=None, keeps_receipts=False
    ),
}


#: Calls that name something of the caller's too: here that is the account's.
OURS: dict[str, Call] = {
    "publish_batch": lambda own, topic: penstock.publish_batch(
        own, [penstock.Message("shop/orders", b"x"), penstock.Message(topic, b"x")]
    ),
    "subscribe": lambda own, topic: stream.subscribe(own, "shop/x", ["shop/orders", topic]),
    "move under it": lambda own, path: penstock.move_namespace(own, "shop/eu", path),
    "move a topic into it": lambda own, path: penstock.move_topic(own, "shop/orders", path),
}
_MORE_BY_TOPIC: dict[str, Call] = {
    "claim_sends": lambda own, topic: recent_sends.claim(own, [Send(topic, "x", uuid7())], 60),
    "position": lambda own, topic: stream.position(own, "shop/stream", topic),
    "seek": lambda own, topic: stream.seek(own, "shop/stream", topic, 0, "earliest"),
    "reset": lambda own, topic: stream.reset(own, "shop/stream", "earliest", topic=topic),
    "join": lambda own, topic: stream.join(own, "shop/stream", "spy", topics=[topic]),
    "history_starts_of": lambda own, topic: database.call(
        own, "history_starts_of", topic=topic, history=1
    ),
    "resolve_block": lambda own, topic: resolve_block(own, "shop/stream", topic, 0, was_sent=True),
    "set_dead_letters_to": lambda own, topic: forwarding.set_dead_letters_to(
        own, "shop/stream", topic
    ),
}

#: What a gateway may call and no table above names, and what stands for it.
ELSEWHERE = {
    **dict.fromkeys(
        ("act_as", "check_gateway", "find_key", "note_uses", "current_history", "setting"),
        "asks for no right and tells of no tenant",
    ),
    **dict.fromkeys(("applied_migrations", "wake_sequencer"), "is about the installation"),
    **dict.fromkeys(("publish_columns", "publish_packed", "topic_lookup"), "publish_batch"),
    "publish_for_accounts": "test_shared_publishes.py",
    "release_sends": "on MySQL only, where it asks as claim_sends does",
    **dict.fromkeys(("pause_subscription", "resume_subscription"), "pause and resume"),
    **dict.fromkeys(
        (
            *("list_topics", "list_namespaces", "namespace_exists", "list_subscriptions"),
            *("subscription_consumers", "subscription_statistics", "subscription_lag"),
            *("dead_letters_of", "dead_letter_of", "dead_letter_counts"),
            *("held_leases", "heartbeats"),
        ),
        "test_lists_tell_nothing_of_others",
    ),
}


def _settle(own: Any, verb: str, name: str, **more: Any) -> object:
    one = "00000000-0000-0000-0000-000000000001"
    entry = {"claims": [1], "first_sequences": [1], "last_sequences": [1], "tokens": [one]}
    if verb != "extend":
        more["partly"] = False
    return database.call(own, verb, subscription=name, **entry, **more)


def _call(own: Any) -> str:
    return "SELECT * FROM {}" if database.dialect_of(own) == "postgres" else "CALL {}"


_BEATS: dict[str, Any] = {
    "subscriptions": ["bank/stream"],
    "consumers": ["x"],
    "sessions": ["00000000-0000-0000-0000-000000000001"],
}


def _refusal(
    tenants: Tenants, login: str, who: Account, call: Call, name: str
) -> tuple[type[Exception], str]:
    known_topics.clear()
    with pytest.raises(PenstockError) as refused, as_account(tenants, login, who) as own:
        call(own, name)
    return type(refused.value), str(refused.value)


#: What calls name: their table, foreign names, one that is not there, and how each is refused.
NAMES: dict[str, tuple[dict[str, Call], tuple[str, ...], str, type[Exception]]] = {
    "topics": (BY_TOPIC | _MORE_BY_TOPIC, ("bank/orders", OPEN), "nobody/orders", TopicNotFound),
    "namespaces": (BY_NAMESPACE, ("bank", "open"), "nobody", NamespaceNotFound),
    "subscriptions": (
        BY_SUBSCRIPTION | QUEUES,
        ("bank/orders", "bank/stream", "open"),
        "nobody/orders",
        SubscriptionNotFound,
    ),
}


@proves("D11 over HTTP", guard="the account in SQL, whatever the gateway does")
@proves("S22 of accounts")
@pytest.mark.parametrize("what", NAMES)
def test_a_foreign_name_is_as_one_that_is_not_there(
    tenants: Tenants, carrier: str, shop: Account, what: str
) -> None:
    """Of another account, and of an open namespace: for an account each one is closed."""
    calls, foreign, missing, kind = NAMES[what]
    penstock.create_namespace(tenants.owner, "shop/eu")
    with as_login(tenants, carrier) as own:
        for name, call in (calls | {each: OURS[each] for each in OURS.keys() & calls}).items():
            if name in IN_SQL:  # they begin a transaction of their own
                continue
            told = set()
            for each in (*foreign, missing):
                known_topics.clear()
                with pytest.raises(PenstockError) as refused:  # noqa: SIM117
                    with accounts.acting(own, shop.account_id, [shop.key_id]):
                        call(own, each)
                told.add((type(refused.value), str(refused.value).replace(each, "X")))
            assert len(told) == 1, (name, told)
            found, _ = told.pop()
            assert found is kind, name
    _nothing_happened(tenants)


def _nothing_happened(tenants: Tenants) -> None:
    log.sequence(tenants.owner)
    for topic in ("bank/orders", OPEN):
        payloads = [event.payload for event in log.fetch(tenants.owner, topic, 0, 1)]
        assert payloads == [b"open" if topic == OPEN else topic.encode()]
    assert {each.position for each in subscriptions.lag(tenants.owner, "bank/stream")} == {0}


def test_each_function_of_a_gateway_is_tried() -> None:
    """The grant matrix: a function that the role gets has to come into one of the tables."""
    gateways = {name for name, kinds in ALLOWED.items() if "g" in kinds}
    tried = set(BY_TOPIC | BY_NAMESPACE | BY_SUBSCRIPTION | QUEUES | _MORE_BY_TOPIC)
    assert gateways - tried == ELSEWHERE.keys()


@proves("S22 of accounts")
def test_lists_tell_nothing_of_others(tenants: Tenants, carrier: str, shop: Account) -> None:
    """Nor of open namespaces, nor figures of the whole log."""
    with as_account(tenants, carrier, shop) as own:
        answers: list[Any] = [
            penstock.list_topics(own),
            penstock.list_namespaces(own),
            subscriptions.lag(own),
            *(each(own) for each in LISTS),
            rights.grants_of(own),
            policies.list_policies(own),
            database.call(own, "retention_of"),
            dead_letters.dead_letters(own, "bank/stream"),
            dead_letters.dead_letter(own, "bank/stream", 1),
            database.call(own, "take_overs", subscription="bank/stream"),
            database.call(own, "dead_letter_counts", subscription=None),
            database.execute(own, _call(own).format("penstock.held_leases('bank/stream', 'x')")),
            database.call(own, "heartbeats", **_BEATS),
        ]
        assert [each for each in answers if "bank" in str(each) or "open" in str(each)] == []
        assert [each.path for each in penstock.list_namespaces(own)] == ["shop"]
        assert database.call(own, "namespace_exists", path="open") == [(False,)]
        assert {each.subscription for each in subscriptions.lag(own)} >= {"shop/stream"}


def test_an_account_works_with_what_is_its_own(tenants: Tenants, shop: Account) -> None:
    """With the role gateway alone: each verb of queues, streams and topics."""
    login = gateway(tenants)
    with as_account(tenants, login, shop) as own:
        penstock.create_topic(own, "shop/new")
        penstock.create_namespace(own, "shop/eu")
        penstock.create_topic(own, "shop/eu/new", if_not_exists=True)
        queue.subscribe(own, "shop/new", ["shop/new"])
        stream.subscribe(own, "shop/eu/stream", ["shop/eu/new"])
        penstock.publish(own, "shop/new", b"one")
        penstock.publish_batch(own, [penstock.Message("shop/new", b"two")])
    log.sequence(tenants.owner)
    with as_account(tenants, login, shop) as own:
        assert penstock.describe_topic(own, "shop/new").subscriptions == 1
        assert [event.payload for event in log.fetch(own, "shop/new", 0, 1)] == [b"one", b"two"]
        assert len(queue.peek(own, "shop/new")) == 2
        rows = QUEUES["receive"](own, "shop/new")
        assert rows
        queue.configure(own, "shop/new", max_failures=3)
        assert queue.statistics(own, "shop/new").in_flight == 1
        (lease,) = stream.check_in(own, stream.join(own, "shop/stream", "one"))
        assert lease.topic == "shop/orders"
        queue.purge(own, "shop/new")
        stream.unsubscribe(own, "shop/new")
        penstock.delete_topic(own, "shop/new")


@proves("S22 of accounts")
def test_at_the_top_level_it_can_do_nothing(tenants: Tenants, carrier: str, shop: Account) -> None:
    """Not even with its own namespace; and names are told from free ones by nothing."""
    calls: list[Call] = [
        lambda own, name: penstock.create_namespace(own, name),
        lambda own, name: penstock.rename_namespace(own, "shop", name),
        lambda own, _: penstock.move_namespace(own, "shop/eu", ""),
        lambda own, _: penstock.delete_namespace(own, "shop", with_topics=True),
    ]
    penstock.create_namespace(tenants.owner, "shop/eu")
    for call in calls:
        told = {_refusal(tenants, carrier, shop, call, name) for name in ("bank", "free")}
        assert len(told) == 1
        assert told.pop()[0] is InvalidArgument

    def below(own: Any, name: str) -> object:
        return penstock.create_topic(own, f"{name}/deep/x", create_namespaces=True)

    penstock.create_namespace(tenants.owner, "bank/deep")
    told = {
        (kind, words.replace(name, "X"))
        for name in ("bank", "free")
        for kind, words in [_refusal(tenants, carrier, shop, below, name)]
    }
    assert len(told) == 1


@proves("S22 of accounts")
def test_subscriptions_are_named_below_a_namespace_of_the_account(
    tenants: Tenants, carrier: str, shop: Account
) -> None:
    """Names of subscriptions are global: so an account cannot find out which are taken."""

    def named(own: Any, name: str) -> object:
        return stream.subscribe(own, name, ["shop/orders"])

    for name in ("bank/orders", "bank/free", "open", "free"):
        kind, words = _refusal(tenants, carrier, shop, named, name)
        assert (kind, words.replace(name, "X")) == (
            AlreadyExists,
            _refusal(tenants, carrier, shop, named, "x/y")[1].replace("x/y", "X"),
        )
    with as_account(tenants, carrier, shop) as own:
        named(own, "shop/more")
    login = tenants.login("consumer")
    with as_login(tenants, login) as other, pytest.raises(AlreadyExists):
        stream.subscribe(other, "shop/squatted", [OPEN])


@proves("S22 of accounts")
def test_a_subscription_without_topics_is_not_shown_to_others(
    tenants: Tenants, carrier: str, shop: Account
) -> None:
    """No right says whose it is, but its name does."""
    penstock.delete_topic(tenants.owner, "bank/orders", with_subscriptions=True)
    stream.subscribe(tenants.owner, "bank/stream", [OPEN])
    penstock.delete_topic(tenants.owner, OPEN, with_subscriptions=True)
    for name in ("bank/stream", "nobody/stream"):
        kind, _ = _refusal(tenants, carrier, shop, subscriptions.pause, name)
        assert kind is SubscriptionNotFound
    with as_account(tenants, carrier, shop) as own:
        assert "bank" not in str(subscriptions.list_subscriptions(own))


@proves("S22 of accounts")
def test_rights_reach_what_was_given_and_no_more(
    tenants: Tenants, carrier: str, shop: Account
) -> None:
    accounts.grant_account(tenants.owner, "shop", "bank", "read")
    with as_account(tenants, carrier, shop) as own:
        assert [event.payload for event in log.fetch(own, "bank/orders", 0, 1)]
    for call in (BY_TOPIC["publish"], BY_TOPIC["delete_topic"]):
        assert _refusal(tenants, carrier, shop, call, "bank/orders")[0] is TopicNotFound
    assert accounts.revoke_account(tenants.owner, "shop", "bank", "read")
    assert _refusal(tenants, carrier, shop, BY_TOPIC["fetch"], "bank/orders")[0] is TopicNotFound


@proves("S22 of accounts")
def test_a_login_named_as_an_account_is_none(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """By kind: a role whose name is the id of an account has none of its rights."""
    login = tenants.login("consumer publisher")
    db.run("UPDATE penstock.namespace_grants SET login = %(login)s", {"login": login})
    with as_login(tenants, login) as own:
        known_topics.clear()
        with pytest.raises(TopicNotFound):
            log.fetch(own, "shop/orders", 0, 1)


#: A shortcut that holds for logins, and what lets an account through without its second half.
SHORTCUTS = {
    "postgres": {
        "require_topic_for": ("NOT t.restricted AND (SELECT as_login()) OR", "NOT t.restricted OR"),
    },
    "mysql": {
        "require_topic_for": ("t.restricted OR @penstock_acting IS NOT NULL", "t.restricted"),
    },
}


@proves("S22 of accounts", guard="the second half of a shortcut")
def test_without_the_second_half_of_a_shortcut_an_account_reads_what_is_open(
    db: ContractDatabase, tenants: Tenants, carrier: str, shop: Account
) -> None:
    """Mutant."""
    dialect = "postgres" if db.engine == "postgres" else "mysql"
    for function, (old, new) in SHORTCUTS[dialect].items():
        db.without_guard(function, old, new)
    with as_account(tenants, carrier, shop) as own:
        assert [event.payload for event in log.fetch(own, OPEN, 0, 1)] == [b"open"]


@proves("S22 of accounts", guard="passes_walls")
def test_an_account_passes_no_wall_whatever_login_carries_it(
    db: ContractDatabase, tenants: Tenants, carrier: str, shop: Account
) -> None:
    """A login that became an operator in the middle of a transaction; the mutant asks the login."""
    guard = {
        "postgres": ("as_login() AND login_passes_walls", "login_passes_walls"),
        "mysql": ("@penstock_acting IS NULL AND login_passes_walls", "login_passes_walls"),
    }["postgres" if db.engine == "postgres" else "mysql"]

    def sets_for_all() -> None:
        with as_login(tenants, carrier) as own, accounts.acting(own, *_of(shop)):
            tenants.give_role("penstock_operator", carrier)
            try:
                policies.set_policy(own, "retry", {"max_attempts": 3}, scope="global", name="")
            finally:
                tenants.take_role("penstock_operator", carrier)

    with pytest.raises(InvalidArgument):
        sets_for_all()
    db.without_guard("passes_walls", *guard)
    sets_for_all()


def _of(who: Account) -> tuple[str, list[str]]:
    return who.account_id, [who.key_id]


@proves("S22 of accounts")
def test_two_accounts_share_nothing_by_their_login(
    tenants: Tenants, shop: Account, bank: Account
) -> None:
    """What is staged and claimed is the account's, not the login's; see principal()."""
    carrier = gateway(tenants)
    tenants.give(carrier, "stage_events claim_rows publish_staged")
    claim = {"writer": "w", "version": 1, "events": None, "digest": None}
    for who in (shop, bank):
        with as_account(tenants, carrier, who) as own:
            assert database.call(own, "claim_rows", **claim) == [(True,)]
    with as_login(tenants, carrier) as own, accounts.acting(own, *_of(shop)):
        act_as(own, shop)
        assert database.call(own, "claim_rows", **claim) == [(False,)]
