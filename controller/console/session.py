"""Who looks: a bearer token kept in memory behind a cookie, or nobody in particular where the API asks for nothing.

Promises: a token leaves only towards the API, is in no page, log or ``repr``, and is gone with the process; a cookie
is HttpOnly, SameSite=Strict and names a session, never a token; a console with a client certificate of its own lends
it to nobody: its viewers log in. Sessions end when idle or old, and are bounded in number. Called by the application.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field, replace

import grpc
from forecrest.v1 import control_pb2, control_service_pb2

from controller.client import Client
from controller.console.live import READ_TIMEOUT_S, Feed
from controller.console.trouble import Trouble, trouble_of
from controller.credentials import TOKEN_BYTES_MAX, Credentials, CredentialsError
from controller.ports import Clock

COOKIE = "forecrest_session"
SESSIONS_MAX = 500
IDLE_MAX_S = 12 * 3600.0
AGE_MAX_S = 7 * 24 * 3600.0
PLAN, OPERATE, OPERATE_ALL = "plan", "operate", "operate all"
EVERYTHING = frozenset({PLAN, OPERATE, OPERATE_ALL})


# What a login says of an API that does not let it begin, by what a page would say.
_UNABLE = {
    "error.status.401": "login.refused",
    "error.status.403": "login.forbidden",
    "error.status.429": "login.too_often",
    "error.status.503": "login.api_away",
    "error.status.504": "login.too_slow",
}


class LoginError(Exception):
    """The token cannot be used; ``key`` names the sentence that says why, ``detail`` is the API's own."""

    def __init__(self, key: str, detail: str = "", status: int = 401) -> None:
        super().__init__(key)
        self.key, self.detail, self.status = key, detail, status


@dataclass(slots=True)
class Session:
    """Somebody who logged in."""

    feed: Feed
    may: frozenset[str]
    digest: bytes = field(repr=False)
    began_s: float = 0.0
    seen_s: float = 0.0


class Sessions:
    """All of one console, in memory."""

    def __init__(self, target: str, credentials: Credentials, clock: Clock) -> None:
        # A token of the console's own environment would be everybody's: only what the connection needs is kept.
        self._credentials = replace(credentials, token="", token_file=None)
        self._target, self._clock = target, clock
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}
        self._feeds: dict[bytes, Feed] = {}
        self._anonymous: Feed | None = None

    def anonymous(self) -> Feed | None:
        """What somebody without a login sees: as much as the API tells nobody in particular. None: log in first."""
        if self._credentials.cert is not None:
            return None
        if self._anonymous is None:
            self._anonymous = Feed(Client(self._target, credentials=self._credentials), self._clock)
        return self._anonymous

    def csrf(self, cookie: str) -> str:
        """Return the token that forms of this browser must bring."""
        return hmac.new(self._secret, cookie.encode(), hashlib.sha256).hexdigest()

    async def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, unless it ended."""
        session = self._sessions.get(cookie)
        if session is None:
            return None
        if self._is_over(session):
            await self.end(cookie)
            return None
        session.seen_s = self._clock.monotonic()
        return session

    def _is_over(self, session: Session) -> bool:
        now_s = self._clock.monotonic()
        return now_s - session.seen_s > IDLE_MAX_S or now_s - session.began_s > AGE_MAX_S

    async def begin(self, token: str) -> str:
        """Return the cookie of a new session; raise LoginError."""
        token = token.strip()
        if (
            not token
            or len(token) > TOKEN_BYTES_MAX
            or not token.isascii()
            or not token.isprintable()
            or " " in token
        ):
            raise LoginError("login.not_a_token")
        digest = hashlib.sha256(token.encode()).digest()
        try:
            client = Client(self._target, credentials=replace(self._credentials, token=token))
        except CredentialsError as error:
            # In plain text beyond this machine a token is never sent.
            raise LoginError("login.insecure") from error
        feed = Feed(client, self._clock)
        try:
            may = await may_do(client)
        except BaseException:
            await feed.close()
            raise
        # Chosen only now: while the API was asked, a session with this token may have begun or ended.
        kept = self._feeds.setdefault(digest, feed)
        now_s = self._clock.monotonic()
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = Session(kept, may, digest, now_s, now_s)
        if kept is not feed:
            await feed.close()
        # Nobody comes back to ask for these, and their tokens would stay.
        for other in [one for one, session in self._sessions.items() if self._is_over(session)]:
            await self.end(other)
        while len(self._sessions) > SESSIONS_MAX:
            await self.end(min(self._sessions, key=lambda one: self._sessions[one].seen_s))
        return cookie

    async def end(self, cookie: str) -> None:
        """Forget a session, and its token with the last session that uses it."""
        session = self._sessions.pop(cookie, None)
        if session is None or any(one.digest == session.digest for one in self._sessions.values()):
            return
        self._feeds.pop(session.digest, None)
        await session.feed.close()

    async def close(self) -> None:
        """Forget everybody."""
        feeds = [*self._feeds.values(), *([self._anonymous] if self._anonymous else [])]
        self._sessions.clear()
        self._feeds.clear()
        for feed in feeds:
            await feed.close()


async def may_do(client: Client) -> frozenset[str]:
    """Ask the API what its caller may do; raise LoginError."""
    try:
        who = await client.control.GetCaller(control_service_pb2.GetCallerRequest(), timeout=READ_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise _login_error(trouble_of(error)) from error
    where = {permission.access: permission.namespaces for permission in who.permissions}
    operates = where.get(control_pb2.ACCESS_OPERATE, ())
    asked = {PLAN: control_pb2.ACCESS_PLAN in where, OPERATE: bool(operates), OPERATE_ALL: "*" in operates}
    return frozenset(what for what, may in asked.items() if may)


def _login_error(trouble: Trouble) -> LoginError:
    key = _UNABLE.get(trouble.key, "login.failed")
    # Of a token that is refused, or tried too often, our own sentence says all there is to say.
    detail = "" if trouble.status in {401, 429} else trouble.detail
    return LoginError(key, detail, trouble.status)


async def asks_for_login(target: str, credentials: Credentials) -> bool:
    """Whether the API refuses callers without a proof; raise AioRpcError if it does not answer."""
    if credentials.cert is not None:
        return True
    client = Client(target, credentials=replace(credentials, token="", token_file=None))
    try:
        await client.control.GetCaller(control_service_pb2.GetCallerRequest(), timeout=READ_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return True
        raise
    finally:
        await client.close()
    return False
