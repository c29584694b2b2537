"""Schemas of payloads: the registry, what fits one, and which version may follow which."""
