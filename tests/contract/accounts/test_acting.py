"""A transaction acts for an account, and for no longer than it lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import penstock
from penstock import accounts, database, log
from penstock.errors import (
    AccountNotFound,
    ActsForNobody,
    InvalidArgument,
    PenstockError,
    TornTransaction,
)
from penstock.subscriptions import stream
from tests.contract.accounts.kit import (
    MASTERS,
    Account,
    account,
    act_as,
    as_account,
    gateway,
    open_transaction,
)
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.pages.blocks import blocks_of, run
from tests.contract.tenants import Tenants, as_login, tenants_of
from tests.kit.proof import proves


@pytest.fixture
def carrier(tenants: Tenants) -> str:
    """A gateway's login."""
    return gateway(tenants)


def _reads(own: Any, name: str = "shop") -> list[bytes]:
    return [bytes(event.payload) for event in log.fetch(own, f"{name}/orders", 0, 1)]


def _dialect(db: ContractDatabase) -> str:
    return "postgres" if db.engine == "postgres" else "mysql"


def test_the_code_of_the_page(tenants: Tenants, shop: Account, carrier: str) -> None:
    blocks = blocks_of("docs/reference/accounts.md")
    names = {"account_id": shop.account_id, "key_id": shop.key_id}
    with as_login(tenants, carrier) as own:
        run("docs/reference/accounts.md", *blocks, connection=own, penstock=penstock, **names)
    log.sequence(tenants.owner)
    assert _reads(tenants.owner)[-1] == b"..."


@proves("an account lasts for one transaction")
def test_it_lasts_for_one_transaction(tenants: Tenants, shop: Account, carrier: str) -> None:
    """COMMIT and ROLLBACK end it, also on a connection that goes back to a pool."""
    with as_login(tenants, carrier) as own:
        for end in ("COMMIT", "ROLLBACK"):
            database.execute(own, "BEGIN")
            act_as(own, shop)
            assert _reads(own) == [b"shop/orders"]
            database.execute(own, end)
            with open_transaction(own), pytest.raises(ActsForNobody):
                _reads(own)
        with pytest.raises(ActsForNobody):
            _reads(own)


@proves("an account lasts for one transaction")
def test_a_gateway_that_names_no_account_does_nothing(tenants: Tenants, carrier: str) -> None:
    """Not even what is open to every login."""
    penstock.create_topic(tenants.owner, "open/orders", create_namespaces=True)
    calls: list[Callable[[Any], object]] = [
        lambda own: penstock.publish(own, "open/orders", b"x"),
        lambda own: log.fetch(own, "open/orders", 0, 1),
        lambda own: penstock.create_namespace(own, "mine"),
        lambda own: stream.subscribe(own, "mine", ["open/orders"]),
        penstock.list_topics,
    ]
    with as_login(tenants, carrier) as own:
        for call in calls:
            with pytest.raises(ActsForNobody):
                call(own)
        accounts.check_gateway(own)
        assert database.call(own, "setting", name="kept_share") == [(0.05,)]


@proves("an account lasts for one transaction", guard="a second account")
def test_a_second_account_in_one_transaction_is_refused(
    db: ContractDatabase, tenants: Tenants, shop: Account, bank: Account, carrier: str
) -> None:
    """The same one again is not; the mutant lets it change."""
    with as_login(tenants, carrier) as own:
        with open_transaction(own):
            act_as(own, shop)
            act_as(own, shop)
            assert _reads(own)
            with pytest.raises(ActsForNobody):
                act_as(own, bank)
        old, new = {
            "postgres": ("AND NOT acts_for_another(a.id)", ""),
            "mysql": ("IF is_bound AND NOT (before_it", "IF FALSE AND NOT (before_it"),
        }[_dialect(db)]
        db.without_guard("act_as", old, new)
        with open_transaction(own):
            act_as(own, shop)
            act_as(own, bank)
            assert _reads(own, "bank")


@proves("an account lasts for one transaction")
def test_keys_that_are_not_good_are_refused(
    tenants: Tenants, shop: Account, bank: Account, carrier: str
) -> None:
    """Another account's, an unknown one, none, one that has ended or begins later: in one way."""
    now = datetime.now(UTC)
    early = accounts.create_key(
        tenants.owner, "shop", MASTERS, starts_at=now + timedelta(days=1)
    ).key_id
    for keys in ([bank.key_id], ["x" * 24], [], [early], [shop.key_id, early]):
        with (
            as_login(tenants, carrier) as own,
            pytest.raises(AccountNotFound),
            accounts.acting(own, shop.account_id, keys),
        ):
            pass
    with (
        as_login(tenants, carrier) as own,
        pytest.raises(AccountNotFound),
        accounts.acting(own, "0" * 32, [shop.key_id]),
    ):
        pass
    accounts.revoke_key(tenants.owner, "shop", early)
    late = accounts.create_key(
        tenants.owner,
        "shop",
        MASTERS,
        starts_at=now - timedelta(days=2),
        ends_at=now - timedelta(days=1),
    )
    with (
        as_login(tenants, carrier) as own,
        pytest.raises(AccountNotFound),
        accounts.acting(own, shop.account_id, [late.key_id]),
    ):
        pass


@proves("an account lasts for one transaction", guard="a revoked key")
def test_a_revoked_key_is_refused_in_the_next_transaction(
    db: ContractDatabase, tenants: Tenants, shop: Account, carrier: str
) -> None:
    """Mutant: act_as that does not ask whether it was revoked."""
    with as_account(tenants, carrier, shop) as own:
        assert _reads(own)
    assert accounts.revoke_key(tenants.owner, "shop", shop.key_id)
    with pytest.raises(AccountNotFound), as_account(tenants, carrier, shop):
        pass
    function = {"postgres": "good_keys", "mysql": "act_as"}[_dialect(db)]
    db.without_guard(function, " AND k.revoked_at IS NULL", "")
    with as_account(tenants, carrier, shop) as own:
        assert _reads(own)


@proves("an account lasts for one transaction")
def test_only_a_recorded_login_without_other_rights_acts(
    tenants: Tenants, shop: Account, carrier: str
) -> None:
    """Its owner, an operator, a login of the role that is not recorded, one in a second role."""
    plain = tenants.login("gateway")
    database.call(tenants.owner, "forget_gateway", login=plain)
    operator = tenants.login("operator")
    tenants.give(operator, "act_as")
    tenants.give_role("penstock_consumer", carrier)
    for login in (plain, operator, carrier):
        with (
            as_login(tenants, login) as own,
            open_transaction(own),
            pytest.raises(ActsForNobody),
        ):
            act_as(own, shop)
    with as_login(tenants, carrier) as own, pytest.raises(ActsForNobody):
        accounts.check_gateway(own)
    with open_transaction(tenants.owner), pytest.raises(ActsForNobody):
        act_as(tenants.owner, shop)
    with pytest.raises(InvalidArgument):
        database.call(tenants.owner, "record_gateway", login=operator)
    tenants.take_role("penstock_consumer", carrier)
    with as_account(tenants, carrier, shop) as own:
        assert _reads(own)


def test_what_an_account_writes_is_recorded_as_its_own(
    tenants: Tenants, shop: Account, carrier: str
) -> None:
    """And not as the login's: that carries many."""
    with as_account(tenants, carrier, shop) as own:
        stream.subscribe(own, "shop/paused", ["shop/orders"])
        penstock.subscriptions.pause(own, "shop/paused")
    found = penstock.subscriptions.describe_subscription(tenants.owner, "shop/paused")
    assert found.paused_by == f"account:{shop.account_id}"


# PostgreSQL: a setting that is not from act_as in this transaction.


@pytest.fixture
def pg(db: ContractDatabase) -> ContractDatabase:
    """PostgreSQL only."""
    if db.engine != "postgres":
        pytest.skip("settings are PostgreSQL's")
    return db


def _forged(tenants: Tenants, carrier: str, shop: Account) -> Iterator[tuple[str, Any]]:
    """Connections in whose open transaction something else than act_as has filled the setting."""
    with as_account(tenants, carrier, shop) as own:
        ((stolen,),) = database.execute(own, "SELECT current_setting('penstock.acting')")
    with as_login(tenants, carrier) as own:
        database.execute(own, f"SET penstock.acting = '{stolen}'")
        with open_transaction(own):
            yield "SET", own
    with as_login(tenants, carrier) as own:
        database.execute(own, f"SET penstock.acting = '{stolen}'")
        with open_transaction(own):
            database.execute(own, "SAVEPOINT before_it")
            act_as(own, shop)
            database.execute(own, "ROLLBACK TO before_it")
            yield "ROLLBACK TO", own
    tenants.owner.execute(f"ALTER ROLE \"{carrier}\" SET penstock.acting = '{stolen}'")
    with as_login(tenants, carrier) as own, open_transaction(own):
        yield "ALTER ROLE", own
    tenants.owner.execute(f'ALTER ROLE "{carrier}" RESET penstock.acting')
    options = f"-c penstock.acting={stolen.replace(' ', chr(92) + ' ')}"
    with psycopg.connect(tenants.url_of(carrier), options=options) as own:
        yield "options", own


@proves("an account lasts for one transaction", guard="who has set it, on PostgreSQL")
def test_a_setting_that_is_not_from_act_as_is_refused(
    pg: ContractDatabase, tenants: Tenants, shop: Account, carrier: str
) -> None:
    """Mutant: a reader that does not compare the transaction's time acts for the account."""
    for how, own in _forged(tenants, carrier, shop):
        with pytest.raises(ActsForNobody):
            _reads(own)
        assert how
    pg.without_guard("acting_account", " OR substr(acting, 34) <> acting_mark()", "")
    for how, own in _forged(tenants, carrier, shop):
        assert _reads(own) == [b"shop/orders"], how


@proves("an account lasts for one transaction", guard="who has set it, on PostgreSQL")
def test_a_login_that_is_no_gateway_s_cannot_set_it(
    pg: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Also with the mark of its own transaction."""
    login = tenants.login("consumer")

    def reads_by_force() -> object:
        with as_login(tenants, login) as own, open_transaction(own):
            database.execute(
                own,
                "SELECT set_config('penstock.acting', %(id)s || '- ' || extract(epoch FROM"
                " transaction_timestamp()) || ' penstock', true)",
                {"id": shop.account_id},
            )
            return _reads(own)

    with pytest.raises(ActsForNobody):
        reads_by_force()
    pg.without_guard("acting_account", "NOT is_gateway OR substr", "substr")
    assert reads_by_force()


# MySQL and MariaDB: a user variable outlives everything.


@proves("an account lasts for one transaction", guard="the transaction of a variable")
def test_a_user_variable_of_an_earlier_transaction_is_refused(
    mysql_db: MySQLDatabase,
) -> None:
    """After COMMIT, ROLLBACK, ROLLBACK TO and KILL QUERY.  Mutant: the variable alone counts."""
    with tenants_of(mysql_db) as tenants:
        tenants.install()
        shop, carrier = account(tenants.owner, "shop"), gateway(tenants)
        for is_guarded in (True, False):
            if not is_guarded:
                mysql_db.without_guard("require_acting", "is_bound AND is_gateway", "is_gateway")
            for how, own in _stale(mysql_db, tenants, carrier, shop):
                assert database.execute(own, "SELECT @penstock_acting IS NOT NULL") == [(1,)], how
                if is_guarded:
                    with pytest.raises(ActsForNobody):
                        _reads(own)
                else:
                    assert _reads(own) == [b"shop/orders"], how


def _stale(
    db: MySQLDatabase, tenants: Tenants, carrier: str, shop: Account
) -> Iterator[tuple[str, Any]]:
    for how in ("COMMIT", "ROLLBACK", "ROLLBACK TO", "KILL"):
        with as_login(tenants, carrier) as own:
            database.execute(own, "BEGIN")
            database.execute(own, "SAVEPOINT before_it")
            act_as(own, shop)
            if how == "KILL":
                _kill_in_a_call(db, tenants, own)
            database.execute(own, {"ROLLBACK TO": "ROLLBACK TO before_it"}.get(how, "ROLLBACK"))
            yield how, own


def _kill_in_a_call(db: MySQLDatabase, tenants: Tenants, own: Any) -> None:
    """The call waits for the tree of names, and is killed there: no handler runs."""
    holder = db.connect(autocommit=False)
    database.execute(holder, "SELECT * FROM penstock.name_tree FOR UPDATE")
    failed: list[BaseException] = []

    def makes() -> None:
        try:
            database.execute(own, "CALL penstock.create_namespace('shop/eu')")
        except BaseException as error:
            failed.append(error)

    caller = threading.Thread(target=makes)
    caller.start()
    db.wait_until_blocked(own)
    database.execute(db.connect(), f"KILL QUERY {own.thread_id()}")
    caller.join()
    holder.rollback()
    assert failed


@proves("an account lasts for one transaction", guard="another account after a refused act_as")
def test_after_an_act_as_that_was_refused_no_other_account_is_named(
    mysql_db: MySQLDatabase,
) -> None:
    """On PostgreSQL such a transaction is over.  The mutant compares NULL as the guard did."""
    with tenants_of(mysql_db) as tenants:
        tenants.install()
        shop, bank = account(tenants.owner, "shop"), account(tenants.owner, "bank")
        with as_login(tenants, gateway(tenants)) as own:
            for is_guarded in (True, False):
                if not is_guarded:
                    mysql_db.without_guard(
                        "act_as", "NOT (before_it <=> CONCAT", "(before_it <> CONCAT"
                    )
                with open_transaction(own):
                    act_as(own, shop)
                    with pytest.raises(AccountNotFound):
                        database.call(own, "act_as", account=bank.account_id, key_ids=["x" * 24])
                    if is_guarded:
                        with pytest.raises(ActsForNobody):
                            act_as(own, bank)
                    else:
                        act_as(own, bank)


@proves("an account lasts for one transaction", guard="the mark of an interrupted call")
def test_a_read_does_not_hide_that_a_call_was_interrupted(mysql_db: MySQLDatabase) -> None:
    """Also for an account.  The mutant does not set the mark again."""
    with tenants_of(mysql_db) as tenants:
        tenants.install()
        shop, carrier = account(tenants.owner, "shop"), gateway(tenants)
        for is_guarded in (True, False):
            if not is_guarded:
                mysql_db.without_guard(
                    "require_acting", "IF is_torn THEN", "IF is_torn AND FALSE THEN"
                )
            with as_login(tenants, carrier) as own, open_transaction(own):
                act_as(own, shop)
                # As a call leaves it that was killed; MariaDB may still undo the call.
                database.execute(own, "SAVEPOINT penstock_open")
                assert _reads(own)
                if is_guarded:
                    with pytest.raises(TornTransaction):
                        penstock.publish(own, "shop/orders", b"x")
                else:
                    penstock.publish(own, "shop/orders", b"x")


def test_a_variable_that_a_login_sets_itself_is_refused(mysql_db: MySQLDatabase) -> None:
    """Of any login, with any value; its savepoint does not help one that is no gateway's."""
    with tenants_of(mysql_db) as tenants:
        tenants.install()
        shop = account(tenants.owner, "shop")
        login = tenants.login("consumer")
        for value in (f"{shop.account_id}- penstock", "", "x"):
            with as_login(tenants, login) as own, open_transaction(own):
                database.execute(own, "SET @penstock_acting = %(v)s", {"v": value})
                database.execute(own, "SAVEPOINT penstock_account")
                with pytest.raises(ActsForNobody):
                    _reads(own)


def test_a_driver_s_error_closes_the_connection(mysql_db: MySQLDatabase) -> None:
    """A refusal of Penstock's does not."""
    with tenants_of(mysql_db) as tenants:
        tenants.install()
        shop, carrier = account(tenants.owner, "shop"), gateway(tenants)
        own: Any = database.connect(tenants.url_of(carrier))
        with pytest.raises(PenstockError), accounts.acting(own, *_of(shop)):
            _reads(own, "nobody")
        assert own.open
        with suppress(Exception), accounts.acting(own, *_of(shop)):
            database.execute(own, "SELECT 1 +")
        assert not own.open


def _of(who: Account) -> tuple[str, list[str]]:
    return who.account_id, [who.key_id]
