"""The log: sequencing, fetching, positions, state; storage on MySQL, histories after restores."""

from __future__ import annotations

from penstock.log.bookmarks import (
    Bookmark as Bookmark,
    bookmark_positions as bookmark_positions,
    drop_bookmark as drop_bookmark,
    list_bookmarks as list_bookmarks,
    place_bookmark as place_bookmark,
)
from penstock.log.positions import (
    Lsn as Lsn,
    lsn_of as lsn_of,
    sequence_of as sequence_of,
)
from penstock.log.sequences import (
    Gap as Gap,
    LogStatus as LogStatus,
    SequenceResult as SequenceResult,
    ensure_slices as ensure_slices,
    fetch as fetch,
    gaps as gaps,
    high_watermarks as high_watermarks,
    nothing_waits as nothing_waits,
    sequence as sequence,
    status as status,
)
