"""/livez, /readyz and /metrics of the daemon."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from penstock.errors import ConfigurationError, PortTaken
from penstock.supervisor import Supervisor

_ABOUT = {
    "sequenced_events": "Events that got their sequence",
    "sequencer_passes": "Passes of the sequencer",
    "swept_consumers": "Dead consumers that were collected",
    "consumed_events": "Events that handlers have done",
    "consumed_batches": "Batches that handlers have done",
    "consumed_failures": "Handlers that failed, and refused commits",
    "stale_commits": "Commits that the fence refused",
    "relayed_events": "Events that a sink has taken",
    "relayed_batches": "Blocks that a sink has taken",
    "relayed_failures": "Attempts that a sink refused or could not take",
}


class WorkerMetrics(Collector):
    """The workers' own counters, read when somebody asks."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        """One counter for each figure, with the worker as its label."""
        found: dict[str, CounterMetricFamily] = {}
        restarts = CounterMetricFamily(
            "penstock_worker_restarts", "Restarts after a failure", labels=["worker"]
        )
        up = GaugeMetricFamily(
            "penstock_worker_up", "1 while the worker has no unanswered failure", labels=["worker"]
        )
        for worker, count, error in self._supervisor.states():
            restarts.add_metric([worker.name], count)
            up.add_metric([worker.name], 0.0 if error else 1.0)
            for name, value in worker.counters().items():
                family = found.setdefault(
                    name,
                    CounterMetricFamily(f"penstock_{name}", _ABOUT[name], labels=["worker"]),
                )
                family.add_metric([worker.name], value)
        yield from found.values()
        yield restarts
        yield up


class HealthServer:
    """Answers on a port (0: the kernel chooses); ``ready`` says what is missing, or ''."""

    def __init__(
        self, host: str, port: int, supervisor: Supervisor, ready: Callable[[], str]
    ) -> None:
        registry = CollectorRegistry()
        registry.register(WorkerMetrics(supervisor))
        answers = {
            "/livez": lambda: _verdict(", ".join(supervisor.stuck()), "stuck: "),
            "/readyz": lambda: _verdict(
                "draining" if supervisor.draining else ready(), "not ready: "
            ),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(answers))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"port {port} is taken", hint="choose another with --http-port, or 0 for any"
                ) from None
            raise ConfigurationError(
                f"cannot listen on {host} port {port}: {error.strerror}",
                hint="choose others with --http-host and --http-port",
            ) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _verdict(problem: str, prefix: str) -> tuple[int, str, bytes]:
    text = f"{prefix}{problem}\n" if problem else "ok\n"
    return (503 if problem else 200), "text/plain; charset=utf-8", text.encode()


def _handler(
    answers: dict[str, Callable[[], tuple[int, str, bytes]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            answer = answers.get(self.path.partition("?")[0])
            status, kind, body = (
                answer() if answer else (404, "text/plain; charset=utf-8", b"not found\n")
            )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds; they are no news."""

    return Handler
