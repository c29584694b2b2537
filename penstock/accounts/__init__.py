"""Accounts: the tenants of a gateway, for which one login acts.

An account is a principal of its own in the database.  It has only the rights that it was given, and
the login that carries it has none beside these.
"""

from __future__ import annotations

from penstock.accounts.accounts import (
    Account as Account,
    AuditEntry as AuditEntry,
    Holdings as Holdings,
    audit_of as audit_of,
    create_account as create_account,
    delete_account as delete_account,
    grant_account as grant_account,
    list_accounts as list_accounts,
    revoke_account as revoke_account,
)
from penstock.accounts.acting import (
    Acting as Acting,
    acting as acting,
    call_for as call_for,
    check_gateway as check_gateway,
)
from penstock.accounts.keys import (
    FoundKey as FoundKey,
    Key as Key,
    NewKey as NewKey,
    create_key as create_key,
    find_key as find_key,
    keys_of as keys_of,
    note_uses as note_uses,
    revoke_key as revoke_key,
)
from penstock.accounts.masters import MasterKeys as MasterKeys
from penstock.accounts.quotas import Quota as Quota, quota_of as quota_of, set_quota as set_quota
