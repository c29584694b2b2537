"""An S3-compatible store in a process of its own: ``python -m tests.archive.s3_server``.

It says its port, and serves until its standard input ends.  In a process of its own, because
delta-rs waits for answers while it keeps this one from running.
"""

from __future__ import annotations

import logging
import sys


def main() -> None:
    """Serve on a port of the kernel."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
