"""What every installation needs besides its applications: sequencing, sweeping, storage ahead.

``penstock upkeep`` runs all of it.  The daemon of a checkout uses the same parts.  Nothing here
drops an event: ``ops`` does that.
"""
