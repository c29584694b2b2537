"""Which errors stay until somebody changes something: they are not repeated."""

from __future__ import annotations

import pytest

from ops.sinks import SinkMisconfigured, SinkUnavailable
from penstock import errors


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (errors.ConfigurationError("x"), True),
        (errors.MissingExtra("x"), True),
        (errors.TopicNotFound("x"), True),
        (errors.PermissionDenied("x"), True),
        (errors.NotMigrated("x"), True),
        (errors.ForeignTarget("x"), True),
        (SinkMisconfigured("x"), True),
        (errors.InUse("x"), False),
        (errors.PortTaken("x"), False),
        (errors.DatabaseUnavailable("x"), False),
        (errors.TargetUnavailable("x"), False),
        (SinkUnavailable("x"), False),
        (OSError("x"), False),
    ],
)
def test_an_error_says_whether_it_lasts(error: Exception, stays: bool) -> None:
    assert errors.lasts(error) is stays
