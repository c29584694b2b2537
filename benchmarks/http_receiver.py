"""A receiver of webhooks, for many calls at a time: ``python -m benchmarks.http_receiver SECONDS``.

Each call takes so long. It says its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import functools
import sys


async def _serve(
    seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(int(length.split(b":")[1]))
            if seconds:
                await asyncio.sleep(seconds)
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(seconds: float) -> None:
    """Serve on a port of the kernel."""
    server = await asyncio.start_server(
        functools.partial(_serve, seconds), "127.0.0.1", 0, backlog=512
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
