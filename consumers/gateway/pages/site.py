"""The page as a whole: closed without a key, who may come in, and where each path leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie

from consumers.gateway.access import Failures
from consumers.gateway.answers import Refused
from consumers.gateway.pages import (
    accounts,
    letters,
    looks,
    overview,
    peeking,
    rest,
    showing,
    subscriptions,
)
from consumers.gateway.pages.readings import Background, CannotRead, Readings
from consumers.gateway.pages.sessions import (
    COOKIE,
    LONGEST_NAME,
    SESSION_SECONDS,
    Session,
    Sessions,
    is_token,
)
from consumers.gateway.pages.settings import PageSettings
from consumers.gateway.pages.visits import (
    HTML,
    House,
    PageRoute,
    Problem,
    Visit,
    redirect,
    values_of,
)
from penstock.accounts import MasterKeys
from penstock.doctor import doctor
from penstock.upkeep.pages import PageAnswer, PageRequest


def sign_out(_: Visit) -> PageAnswer:
    """Forget the session in this browser."""
    gone = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
    return redirect("/sign-in", {"Set-Cookie": gone})


ROUTES = (
    *overview.ROUTES,
    *peeking.ROUTES,
    *subscriptions.ROUTES,
    *letters.ROUTES,
    *looks.ROUTES,
    *accounts.ROUTES,
    PageRoute("/sign-out", sign_out, is_write=True),
)
logger = logging.getLogger("penstock.page")

#: Nothing on a page runs, comes from elsewhere, is framed, is kept, or tells where it was.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: The doctor opens connections of its own and looks at everything.
DOCTOR_SECONDS = 15.0
#: Visits at a time; more are asked to come again.
MOST_VISITS = 8
_FAILURES_A_MINUTE = 10
_CLOSED = (
    "The page is closed until it has a key. Set PENSTOCK_GATEWAY_ADMIN_KEY_FILE, and start again."
)


class Site:
    """Answers everything on the admin port but the health of the program."""

    def __init__(
        self,
        settings: PageSettings,
        masters: MasterKeys | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        findings = Background(lambda: doctor(settings.url), DOCTOR_SECONDS, time.monotonic)
        self._house = House(
            settings, Readings(settings.url), findings, masters, showing.environment()
        )
        self._sessions = Sessions(settings.key, clock) if settings.key else None
        self._failures = Failures(_FAILURES_A_MINUTE, clock)
        self._counting = threading.Lock()
        self._turns = threading.BoundedSemaphore(MOST_VISITS)
        self._routes = {(each.path, each.is_write): each for each in ROUTES}
        self._style = showing.style()

    def __call__(self, request: PageRequest) -> PageAnswer:
        """One request."""
        if not self._turns.acquire(blocking=False):
            return _with_headers(PageAnswer(503, b"too many visits at a time\n"))
        try:
            return _with_headers(self._answered(request))
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close the connection."""
        self._house.readings.close()

    def _answered(self, request: PageRequest) -> PageAnswer:
        sessions = self._sessions
        if sessions is None:
            return PageAnswer(403, f"{_CLOSED}\n".encode())
        if request.path.startswith(rest.PREFIX):
            return self._called(sessions, request)
        try:
            return self._page(sessions, request)
        except CannotRead as error:
            return self._problem(Problem(409, str(error)))
        except Problem as problem:
            return self._problem(problem)

    def _page(self, sessions: Sessions, request: PageRequest) -> PageAnswer:
        if request.path == "/style.css":
            return PageAnswer(200, self._style, "text/css; charset=utf-8")
        if request.path == "/sign-in":
            return self._sign_in(sessions, request)
        return self._visited(request, _session(sessions, request))

    def _called(self, sessions: Sessions, request: PageRequest) -> PageAnswer:
        """A call of a program, which shows the key itself."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        try:
            with self._counted(request.address):
                if scheme.lower() != "bearer" or not sessions.is_key(shown.strip()):
                    self._failures.note(request.address)
                    told = {"WWW-Authenticate": "Bearer"}
                    raise Problem(401, "show the key of the page: Authorization: Bearer KEY", told)
        except Problem as problem:
            return rest.refused(problem)
        answer = rest.answer(self._house, request)
        if request.method != "GET" and answer.status < 300:  # noqa: PLR2004 - it was done
            # Nothing of the body or the query, as for a form; keys have their secrets in answers.
            told = {"method": request.method, "path": request.path, "address": request.address}
            logger.info("a program has acted", extra=told)
        return answer

    def _visited(self, request: PageRequest, session: Session | None) -> PageAnswer:
        if session is None:
            if request.method == "GET":
                return redirect("/sign-in")
            raise Problem(401, "sign in first")
        is_write = request.method == "POST"
        route = self._routes.get((request.path, is_write))
        if route is None or request.method not in {"GET", "POST"}:
            raise Problem(404, "there is no such page")
        given = values_of(request.query)
        if is_write:
            given = _form(request)
            if not is_token(session, given.get("token", "")):
                raise Problem(403, "the form is not of this session: open its page again")
        answer = route.handler(Visit(self._house, session, given))
        if is_write:
            # Who and what, but nothing of the form: it may hold a reason that is nobody's business.
            told = {"person": session.person, "path": request.path, "address": request.address}
            logger.info("the page has acted", extra=told)
        return answer

    def _sign_in(self, sessions: Sessions, request: PageRequest) -> PageAnswer:
        if request.method != "POST":
            return self._form_to_sign_in("")
        given = _form(request)
        person = " ".join(given.get("person", "").split())
        with self._counted(request.address):
            if not sessions.is_key(given.get("key", "").strip()):
                self._failures.note(request.address)
                return self._form_to_sign_in("this is not the key of the page", 401)
        if not person or len(person) > LONGEST_NAME or not person.isprintable():
            return self._form_to_sign_in("say who you are, in 60 characters at most", 400)
        return redirect("/", {"Set-Cookie": _cookie(sessions.begin(person), request)})

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        with self._counting:
            try:
                self._failures.require_few(address)
            except Refused as error:
                raise Problem(429, error.message, error.headers) from None
            yield

    def _form_to_sign_in(self, problem: str, status: int = 200) -> PageAnswer:
        template = self._house.templates.get_template("sign_in.html")
        return PageAnswer(status, template.render(problem=problem).encode(), HTML)

    def _problem(self, problem: Problem) -> PageAnswer:
        template = self._house.templates.get_template("problem.html")
        text = template.render(problem=problem.message)
        return PageAnswer(problem.status, text.encode(), HTML, problem.headers)


def _session(sessions: Sessions, request: PageRequest) -> Session | None:
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return None
    return sessions.read(cookies[COOKIE].value) if COOKIE in cookies else None


def _cookie(value: str, request: PageRequest) -> str:
    made = f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_SECONDS}"
    return f"{made}; Secure" if request.headers.get("x-forwarded-proto") == "https" else made


def _form(request: PageRequest) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem(415, "only forms are taken here")
    try:
        return values_of(request.body.decode("ascii"))
    except UnicodeDecodeError:
        raise Problem(400, "the form cannot be read") from None


def _with_headers(answer: PageAnswer) -> PageAnswer:
    return replace(answer, headers={**HEADERS, **answer.headers})
