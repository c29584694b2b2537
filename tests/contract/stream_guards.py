"""The guards of the fence on each dialect: what a mutant takes out of which function."""

from __future__ import annotations

from tests.contract.stream_kit import Guard

NO_EPOCH: Guard = {
    "postgres": (
        "hold_leases",
        "ON given.partition_id = l.partition_id AND given.lease_epoch = l.lease_epoch",
        "ON given.partition_id = l.partition_id",
    ),
    "mysql": ("hold_lease", "AND l.lease_epoch = given_epoch", ""),
    "memory": (
        "stream.held",
        "present != [epoch for _, epoch in wanted]",
        "len(present) < len(wanted)",
    ),
}
NO_FENCE: Guard = {
    "postgres": (
        "hold_leases",
        "IF held <> cardinality(partition_ids) OR left_seconds IS NULL OR left_seconds <= 0 THEN",
        "IF false THEN",
    ),
    "mysql": (
        "hold_leases",
        "IF NOT all_held OR NOT COALESCE(left_seconds > 0, FALSE) THEN",
        "IF FALSE THEN",
    ),
    "memory": (
        "stream.held",
        "if present != [epoch for _, epoch in wanted] or member is None or member.deadline <= now:",
        "if False:",
    ),
}
NO_LIMIT: Guard = {
    "postgres": ("hold_leases", "PERFORM limit_transaction(left_seconds);", ""),
    "mysql": (
        "limit_transaction",
        "IF @penstock_own_limit = 0 OR @penstock_own_limit > allowed THEN",
        "IF FALSE THEN",
    ),
    "memory": ("stream.held", "tx.limit(member.deadline - now)", ""),
}
NO_LOCK: Guard = {
    "postgres": ("hold_leases", "FOR NO KEY UPDATE OF l", ""),
    "mysql": ("hold_lease", "FOR UPDATE", ""),
    "memory": ("stream.held", "lock_lease(tx, place)", 'tx.get("leases", place)'),
}
NOT_FORWARD: dict[str, list[tuple[str, str, str]]] = {
    "postgres": [
        ("commit", "WHERE given.wanted IS NULL OR given.wanted <= stored.position", "WHERE false"),
        ("commit", "OR given.wanted > high_watermark(given.partition_id)", ""),
        ("commit", "OR given.read_after <> stored.position", ""),
    ],
    "mysql": [
        ("move_positions", "CALL check_positions(owner_id, partition_ids, positions, after);", ""),
    ],
    "memory": [
        ("stream._problem", "if position <= lease.position:", "if False:"),
        ("stream._problem", "if position > high:", "if False:"),
    ],
}
READ_BEHIND: Guard = {
    "postgres": ("commit", "OR given.read_after <> stored.position", ""),
    "mysql": ("check_positions", "ELSEIF read_after <> stands_at THEN", "ELSEIF FALSE THEN"),
    "memory": (
        "stream._problem",
        "if behind is not None and behind != lease.position:",
        "if False:",
    ),
}
NAMED_TWICE: Guard = {
    "postgres": (
        "commit",
        "(SELECT count(DISTINCT p.id) FROM unnest(partition_ids) AS p (id))",
        "cardinality(partition_ids)",
    ),
    "mysql": ("move_positions", "COUNT(DISTINCT p.id)", "COUNT(p.id)"),
    "memory": (
        "stream.commit",
        "if len(set(partition_ids)) != len(partition_ids):",
        "if False:",
    ),
}
JOIN_DOES_NOT_WAIT: Guard = {
    "postgres": (
        "join",
        "IF give_up_leases(owner.id, consumer, 'expired', now) > 0 THEN",
        "IF give_up_leases(owner.id, consumer, 'expired', now) < 0 THEN",
    ),
    "mysql": ("join", "IF blocked > 0 THEN", "IF blocked < 0 THEN"),
    "memory": (
        "leases.join",
        'if _give_up(tx, owner, consumer, "expired") > 0:',
        'if _give_up(tx, owner, consumer, "expired") < 0:',
    ),
}
LEAVE_FORGETS: Guard = {
    "postgres": (
        "leave",
        "IF give_up_leases(owner.id, consumer, 'released', clock_timestamp()) = 0 THEN",
        "PERFORM give_up_leases(owner.id, consumer, 'released', clock_timestamp()); IF true THEN",
    ),
    "mysql": ("leave", "IF blocked = 0 THEN", "IF TRUE THEN"),
    "memory": (
        "leases.leave",
        'if _give_up(tx, owner, consumer, "released") == 0:',
        'if _give_up(tx, owner, consumer, "released") >= 0:',
    ),
}
SEEK_LEAVES_THE_LEASE: Guard = {
    "postgres": (
        "move_position",
        "SET state = 'AVAILABLE', holder = NULL, lease_epoch = l.lease_epoch + 1,",
        "SET",
    ),
    "mysql": (
        "move_position",
        "SET l.state = 'AVAILABLE', l.holder = NULL, l.lease_epoch = held_epoch + 1,",
        "SET",
    ),
    "memory": (
        "subscriptions._move",
        "put_lease(tx, LeaseRow(*place, position, epoch, moved_epoch=epoch))",
        "put_lease(tx, replace(lease, position=position))",
    ),
}
