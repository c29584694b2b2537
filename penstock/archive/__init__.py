"""The archive: where targets are, what a row looks like, the tables, and reading copies back.

It needs the extra ``archive``.  What writes, repairs and removes copies is in ``ops``.
"""
