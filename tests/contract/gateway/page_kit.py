"""A browser of the page on the admin port, as small as can be: cookies, forms, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode

from consumers.gateway.pages.settings import PageSettings
from consumers.gateway.pages.site import Site
from penstock.upkeep.metrics import Figures
from penstock.upkeep.pages import HealthServer
from tests.contract.gateway.kit import MASTERS, Reply, send

KEY = "k" * 40
PERSON = "Ada <i>"
#: A name, a key, a reason or a payload that tries to be a tag.
NASTY = "<script>alert('&')</script>"


class Fine:
    """The state of a program in which nothing is wrong."""

    def not_live(self) -> str:
        return ""

    def not_ready(self) -> str:
        return ""

    def figures(self) -> Figures:
        return {}


@dataclass
class Visitor:
    """Somebody who looks at the page."""

    port: int
    cookie: str = ""
    token: str = field(default="", repr=False)

    def get(self, path: str, **given: object) -> Reply:
        """A page; its token is kept for forms."""
        whole = f"{path}?{urlencode(given)}" if given else path
        reply = send(self.port, "GET", whole, headers=self._told())
        found = re.search(rb'name="token" value="([^"]+)"', reply.body)
        self.token = found[1].decode() if found else self.token
        return reply

    def text(self, path: str, **given: object) -> str:
        """A page that has to be there, as it is read: without tags."""
        reply = self.get(path, **given)
        assert reply.status == 200, (reply.status, text_of(reply))
        return text_of(reply)

    def post(self, path: str, *, token: str | None = None, **form: object) -> Reply:
        """A form with the token of the session, or with another one."""
        form["token"] = self.token if token is None else token
        told = self._told() | {"Content-Type": "application/x-www-form-urlencoded"}
        return send(self.port, "POST", path, urlencode(form).encode(), told)

    def sign_in(self, key: str = KEY, person: str = PERSON) -> Reply:
        reply = self.post("/sign-in", key=key, person=person)
        self.cookie = reply.headers.get("set-cookie", "").partition(";")[0]
        if self.cookie:
            self.get("/consumers")
        return reply

    def _told(self) -> dict[str, str]:
        return {"Cookie": self.cookie} if self.cookie else {}


def text_of(reply: Reply) -> str:
    """What a person reads."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", reply.body.decode())).split())


@contextmanager
def page_of(url: str, *, key: str | None = KEY, writes: bool = True) -> Iterator[Visitor]:
    """The page over a database, and somebody who has signed in where there is a key."""
    with served(url, key=key, writes=writes) as visitor:
        if key is not None:
            assert visitor.sign_in().status == 303
        yield visitor


@contextmanager
def served(url: str, *, key: str | None = KEY, writes: bool = True) -> Iterator[Visitor]:
    """The page over a database, and somebody who has not signed in."""
    site = Site(PageSettings(key, url, writes), MASTERS)
    server = HealthServer("127.0.0.1", 0, Fine(), site)
    server.start()
    try:
        yield Visitor(server.port)
    finally:
        server.stop()
        site.close()
