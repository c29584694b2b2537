"""A network that drops packets in silence: of single flows, or all.

Three network namespaces in a row.  Programs run in the near one, a proxy in front of the server
listens in the far one, and the router between them has rules that send packets nowhere: no answer,
no ICMP.  Both ends stay as they are, as behind a firewall that has forgotten its connections.  The
machine's own network is left alone.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.kit.silent_proxy import Flow, SilentProxy

_CLONE_NEWNET = 0x40000000
_NEAR, _ROUTER, _FAR = "10.77.1.1", "10.77.1.2", "10.77.2.2"
_ROUTER_OF_FAR = "10.77.2.1"
#: In the order of the router's rules, before its own: what drops all, and what drops flows.
_ALL, _FLOWS = "5", "10"
_numbers = itertools.count()


def lacks() -> str:
    """What this machine lacks for such a network, or ''."""
    if os.geteuid() != 0:
        return "root, for network namespaces"
    if shutil.which("ip") is None:
        return "the command ip of iproute2"
    try:
        with _namespaces() as names:
            _rule(names[1], "add", "sport", "1")
    except subprocess.CalledProcessError as error:
        return f"network namespaces: {error.stderr.strip()}"
    except OSError as error:
        return f"network namespaces: {error}"
    return ""


class LossyNetwork(SilentProxy):
    """The way from the near namespace to one server."""

    def __init__(self, url: str, names: tuple[str, str, str]) -> None:
        self._near, self._router, self._far = names
        super().__init__(url, listening=_listening_in(self._far))
        #: What stands before a command that is to run at the near end.
        self.prefix = ("ip", "netns", "exec", self._near)

    @property
    def flows(self) -> dict[str, Flow]:
        """Those that are open and not lost, each by what its client is called and its port."""
        return {f"{_name(flow)}:{flow.port}": flow for flow in self._flows if flow.is_open}

    def lose(self, flow: Flow) -> None:
        """Drop each packet of a flow from here on, both ways."""
        assert flow.is_open
        flow.is_lost = True
        for way in ("sport", "dport"):
            _rule(self._router, "add", way, str(flow.port))

    @contextmanager
    def lost(self) -> Iterator[None]:
        """Drop every packet, those of new connections too."""
        _rule(self._router, "add")
        try:
            yield
        finally:
            _rule(self._router, "del")


@contextmanager
def lossy_network(url: str) -> Iterator[LossyNetwork]:
    """A network in front of the server of an address."""
    with _namespaces() as names:
        network = LossyNetwork(url, names)
        try:
            yield network
        finally:
            network.close()


@contextmanager
def _namespaces() -> Iterator[tuple[str, str, str]]:
    number = f"penstock-{os.getpid()}-{next(_numbers)}"
    near, router, far = names = (f"{number}-near", f"{number}-router", f"{number}-far")
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for end, address, gateway in ((near, _NEAR, _ROUTER), (far, _FAR, _ROUTER_OF_FAR)):
            link = "near" if end == near else "far"
            _ip("link", "add", link, "netns", end, "type", "veth", "peer", link, "netns", router)
            for place, own in ((end, address), (router, gateway)):
                _ip("-n", place, "addr", "add", f"{own}/30", "dev", link)
                _ip("-n", place, "link", "set", link, "up")
            _ip("-n", end, "route", "add", "default", "via", gateway)
        _in_namespace(router, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        yield names


def _rule(router: str, verb: str, *which: str) -> None:
    packets = ("pref", _FLOWS, "ipproto", "tcp", *which) if which else ("pref", _ALL)
    _ip("-n", router, "rule", verb, *packets, "blackhole")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _listening_in(name: str) -> socket.socket:
    made: list[socket.socket] = []
    _in_namespace(name, lambda: made.append(socket.create_server((_FAR, 0))))
    return made[0]


def _in_namespace(name: str, call: object) -> None:
    """Call something in a thread that is in this namespace.  Sockets stay where they were made."""
    errors: list[Exception] = []

    def work() -> None:
        try:
            with Path("/run/netns", name).open() as place:
                if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            assert callable(call)
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _name(flow: Flow) -> str:
    """The name that a client gives its session."""
    found = re.search(rb"(penstock[\w .:-]*)", flow.said.rpartition(b"_name")[2])
    return found[1].decode().strip() if found else "?"
