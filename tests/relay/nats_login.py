"""The logins of the NATS that tests share: who says nothing may do everything."""

from __future__ import annotations

USER = "relay"
CONFIGURATION = """
authorization {
  users = [ { user: anyone, password: "anyone" }, { user: relay, password: "renewed" } ]
}
no_auth_user: anyone
"""
