"""The images of deploy/Containerfile: built by Debian's buildah, and every program started in them.

`make test-long ARGS=tests/release/test_images.py`.  It takes some minutes, and root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

import penstock
from consumers.gateway import embedded
from resources.folder_server import free_port
from tests.consumers.process import Daemon, until
from tests.kit.proof import proves
from tests.kit.tenants import tenants_of
from tests.support import missing
from tools import figures
from tools.servers.buildah import Buildah
from tools.servers.errors import ServerUnavailable

ROOT = Path(__file__).resolve().parents[2]
USER = 10001
DATA = "/var/lib/penstock"
#: As it is pulled, and as it is unpacked.
SERVICE_BYTES, PLATFORM_BYTES = 200_000_000, 1_600_000_000
#: What anybody may write besides: Debian's own.
TEMPORARY = {"/tmp", "/var/tmp", "/run/lock"}

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]

#: What the archive and each sink load, of which `deploy/trim.sh` takes nothing.
LOADS = """
import io, boto3, pyarrow as pa, pyarrow.parquet as pq
import consumers.gateway.server, deltalake, obstore.store, penstock.archive.export
import penstock.archive.table, ops.relay.cold_blocks
from ops.sinks import aws, kafka, nats_jetstream, pulsar, rabbitmq, redis_streams
for service in ("sqs", "sns", "sts"):
    boto3.session.Session().client(service, region_name="eu-west-1")
file = io.BytesIO()
pq.write_table(pa.table({"a": [1]}), file)
print(pq.read_table(file).num_rows)
"""
SPARK = """
from ops.spark import local_session
print(local_session("image").range(7).count())
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Both images, on a bare Debian."""
    try:
        buildah = Buildah(tmp_path_factory.mktemp("images"))
        buildah.import_base()
    except ServerUnavailable as error:
        missing("buildah", error)
    try:
        for target in ("service", "platform"):
            buildah.build(ROOT / "deploy" / "Containerfile", ROOT, target, target)
        yield buildah
    finally:
        buildah.close()


@dataclass
class Contained(Daemon):
    """A program in a container of its own; ``arguments`` is the command that starts it."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.output = self.folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(self.arguments, stdout=output, stderr=subprocess.STDOUT)

    def terminate(self) -> None:
        """SIGTERM to the entry point: buildah itself would kill it."""
        for each in psutil.Process(self.process.pid).children(recursive=True):
            if each.name() == "tini":
                each.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it in any case, with what it has started."""
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        super().kill()


Start = Callable[..., Contained]


@pytest.fixture
def start(images: Buildah, tmp_path: Path) -> Iterator[Start]:
    """Starts a program in a container, which ends with the test.

    What the images name as a volume is a folder of the test's.
    """
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(ROOT / "policies.yaml", data)
    os.chown(data, USER, USER)
    with ExitStack() as stack:

        def started(image: str, *command: str, **environment: str) -> Contained:
            container = images.container(image)
            arguments = images.running(
                container, "tini", "-s", "--", *command, environment=environment,
                volumes=[f"{data}:{DATA}"],
            )  # fmt: skip
            program = Contained("", tmp_path / container, tuple(arguments))
            stack.callback(program.kill)
            return program

        yield started


def done(program: Contained) -> str:
    """What a program says that ends by itself."""
    assert program.exit_code(300) == 0, program.text()
    return program.text()


@proves("the images")
def test_their_sizes_and_their_user(images: Buildah) -> None:
    found: dict[str, int] = {}
    for image in ("service", "platform"):
        pulled, unpacked = images.sizes(image)
        found |= {f"{image} pulled": pulled, f"{image} unpacked": unpacked}
        assert pulled < SERVICE_BYTES if image == "service" else unpacked < PLATFORM_BYTES
        assert images.configuration(image)["User"] == f"{USER}:{USER}"
    figures.keep("images", **found)


@proves("the images")
@pytest.mark.parametrize(
    ("image", "volumes"),
    [
        ("service", {DATA}),
        ("platform", {DATA, "/opt/dagster/storage", "/opt/penstock/.penstock"}),
    ],
)
def test_nothing_is_written_outside_of_volumes(start: Start, image: str, volumes: set[str]) -> None:
    """So the root can be read-only.  The user is none that may write to it."""
    look = "find / -xdev -writable -type d -not -path '/proc/*' -not -path '/dev/*' 2>/dev/null"
    found = done(start(image, "sh", "-c", f"id -u; {look} || true; find {DATA} -writable"))
    user, *folders = found.split()
    assert (user, set(folders)) == (str(USER), volumes | TEMPORARY)


@proves("the images")
def test_the_service_has_all_that_its_programs_load(start: Start) -> None:
    assert done(start("service", "python", "-c", LOADS)) == "1\n"
    assert done(start("service", "penstock", "--version")) == f"{penstock.__version__}\n"
    refused = start("service", "penstock", "archive", "shop/orders")
    assert refused.exit_code(60) == 2
    assert "the Python package pyspark is not installed" in refused.text()


@proves("the images")
@pytest.mark.parametrize("image", ["service", "platform"])
def test_the_daemon_runs(start: Start, empty_database_url: str, image: str) -> None:
    """After `penstock migrate`, and until SIGTERM; then a relay and the upkeep."""
    login = {"PENSTOCK_DATABASE_URL": empty_database_url}
    done(start(image, "penstock", "migrate", **login))
    daemon = start(
        image, "python", "-m", "consumers", "--roles", "sequencer,sweep", "--http-port", "0",
        **login,
    ).wait_started()  # fmt: skip
    _is_ready(daemon)
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        with connection.transaction():
            penstock.create_namespace(connection, "shop")
            penstock.create_topic(connection, "shop/orders", partitions=1)
            penstock.subscribe(connection, "export", ["shop/orders"])
            penstock.publish(connection, "shop/orders", b"{}", key="o-1")
        until(lambda: penstock.fetch(connection, "shop/orders", 0, 1), "the event has a sequence")
    _ends(daemon)
    done(start(image, "penstock", "relay", "export", f"jsonl:{DATA}/out", **login))
    assert "o-1" in done(start(image, "sh", "-c", f"cat $(find {DATA}/out -type f)"))
    upkeep = start(image, "penstock", "upkeep", "--http-port", "0", **login).wait_started()
    _is_ready(upkeep)
    _ends(upkeep)


def _is_ready(program: Daemon) -> None:
    until(lambda: program.get("/readyz")[0] == 200, "it is ready")
    assert program.get("/livez")[0] == 200


def _ends(program: Daemon) -> None:
    program.terminate()
    assert program.exit_code() == 0, program.text()


@proves("the images")
def test_the_gateway_runs(start: Start, database_url: str, tmp_path: Path) -> None:
    with (
        psycopg.connect(database_url, autocommit=True) as owner,
        tenants_of(owner, database_url) as tenants,
    ):
        tenants.install()
        folder = tmp_path / "data"
        url, _ = embedded.made(database_url, folder)
        os.chown(folder / embedded._FILE, USER, USER)
        gateway = start(
            "service", "penstock", "gateway", "--port", "0", PENSTOCK_DATABASE_URL=url,
            PENSTOCK_MASTER_KEYS_FILE=f"{DATA}/{embedded._FILE}",
        ).wait_started()  # fmt: skip
        try:
            _is_ready(gateway)
            _ends(gateway)
        finally:
            gateway.kill()
            owner.execute(f"DROP OWNED BY {embedded.LOGIN}")
            owner.execute(f"DROP ROLE {embedded.LOGIN}")


@proves("the images")
def test_spark_runs_in_the_platform(start: Start) -> None:
    assert done(start("platform", "python", "-W", "ignore", "-c", SPARK)).endswith("7\n")


@proves("the images")
def test_dagster_runs_in_the_platform(start: Start, database_url: str) -> None:
    """Code server and webserver, with runs and events in PostgreSQL: it has one code location."""
    parts = urlsplit(database_url)
    told = {
        "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username,
        "PASSWORD": parts.password or "none", "DB": parts.path.strip("/"),
    }  # fmt: skip
    login = {f"DAGSTER_POSTGRES_{name}": str(value) for name, value in told.items()}
    login["PENSTOCK_DATABASE_URL"] = database_url
    code, page = free_port(), free_port()
    # The first one makes Dagster's tables; two at once would hinder each other.
    server = start(
        "platform", "dagster", "code-server", "start", "-h", "127.0.0.1", "-p", str(code),
        "-m", "dagster_project.definitions", **login,
    )  # fmt: skip
    until(lambda: "Started Dagster code proxy server" in server.text(), "the code server", 180)
    webserver = start(
        "platform", "sh", "-c",
        f"sed 's/host: code/host: 127.0.0.1/; s/4000/{code}/' /opt/dagster/workspace.yaml"
        f" > /tmp/workspace.yaml && exec dagster-webserver -h 127.0.0.1 -p {page}"
        " -w /tmp/workspace.yaml",
        **login,
    )  # fmt: skip
    asked = b'{"query": "{repositoriesOrError {... on RepositoryConnection {nodes {name}}}}"}'

    def repositories() -> str:
        assert webserver.process.poll() is None, webserver.text()
        request = urllib.request.Request(
            f"http://127.0.0.1:{page}/graphql", asked, {"Content-Type": "application/json"}
        )
        with suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())
        return ""

    until(lambda: '"name"' in repositories(), "the webserver shows the definitions", 180)
