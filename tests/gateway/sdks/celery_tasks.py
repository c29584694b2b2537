"""Tasks of Celery over SQS: ``celery_tasks send COUNT`` sends them, Celery's worker does them.

It runs among the packages of Celery and knows nothing of Penstock.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery

app: Any = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "eu-west-1", "is_secure": False, "visibility_timeout": 10,
        "wait_time_seconds": 2, "polling_interval": 0.1,
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
)  # fmt: skip


@app.task(name="note")
def note(number: int) -> None:
    """Write down that it was done."""
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{number}\n")


def main() -> None:
    """Send so many."""
    for number in range(int(sys.argv[2])):
        note.delay(number)


if __name__ == "__main__":
    main()
