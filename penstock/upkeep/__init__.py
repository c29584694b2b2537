"""What every installation needs beside its applications: sequencing, sweeping, storage ahead.

``penstock upkeep`` runs it all; the daemon of a checkout is built on the same parts.  Nothing here
drops an event: that is the work of ``ops``.
"""
