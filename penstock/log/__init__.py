"""The log: sequencing, fetching, its state; storage on MySQL, histories after a restore."""

from __future__ import annotations

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
