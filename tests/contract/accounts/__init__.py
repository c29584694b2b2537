"""Accounts of a gateway, on every engine."""
