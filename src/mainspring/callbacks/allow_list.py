"""The allow-list of callbacks: parses URLs strictly, and compares them with patterns.

Invariants
- A URL is taken as it is written, or refused. It is never repaired, so that no other program reads it differently.
- A host is a DNS name. Address literals, also in their old numeric forms (`2130706433`, `0x7f.1`), are refused.
- A path is refused if a receiver could read another one in it: a dot segment, a slash, a backslash or a control
  character, however often it is encoded, in overlong UTF-8, or in letters that look alike (NFKC).
- A query with an encoded control character is refused. Otherwise queries are free: entries do not compare them.
- `*.example.com` matches at a dot: names below `example.com`, not `example.com` itself, not `evil-example.com`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from unicodedata import category, normalize
from urllib.parse import unquote_to_bytes

from mainspring.errors import CallbackRefused

MAX_URL = 2_048
MOST_ENCODINGS = 3
"""How often a path may be percent-encoded. One that still changes when it is decoded once more is refused."""
PORTS = {"https": 443, "http": 80}

_PARTS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?"
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH = re.compile(r"(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_QUERY = re.compile(r"\?([A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*")
_PARAMETERS = re.compile(r"[;?#]")


@dataclass(frozen=True, slots=True)
class CallbackUrl:
    """The URL of a callback in its parts. Scheme and host are in lower case.

    If the text has no port, `port` is 443 or 80, as the scheme says. `path` is without the query.
    """

    text: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def shown(self) -> str:
        """The URL without its query, which may have secrets, for messages."""
        return show_url(self.text)

    @property
    def origin(self) -> str:
        """The host, with the port if it is not the default of the scheme. Limits and pauses are kept by origin."""
        return self.host if self.port == PORTS[self.scheme] else f"{self.host}:{self.port}"


def show_url(text: object) -> str:
    """Return a URL for messages: without query, fragment and credentials, and at most 200 characters long."""
    shown = re.split(r"[?#]", str(text), maxsplit=1)[0]
    shown = re.sub(r"//[^/]*@", "//…@", shown)
    return shown if len(shown) <= 200 else shown[:199] + "…"


def parse_url(text: object) -> CallbackUrl:
    """Return the parts of the URL of a callback. Raises `CallbackRefused` if it is not a plain absolute URL."""
    if not isinstance(text, str):
        raise _refused(text, "it is not a string", "pass a URL such as 'https://hooks.example.com/orders'")
    if len(text) > MAX_URL:
        raise _refused(text, f"it has {len(text):,} characters, the limit is {MAX_URL:,}", "send data in the body")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise _refused(
            text,
            "it has a character that a URL must not have",
            "percent-encode paths and queries, and write a host name with other letters as xn--…",
        )
    parts = _PARTS.fullmatch(text)
    if parts is None or parts["scheme"].lower() not in PORTS:
        raise _refused(text, "it is not an absolute http or https URL without a fragment", "use https://host/path")
    scheme, path = parts["scheme"].lower(), parts["path"]
    host, port = _split_authority(text, parts["authority"], scheme)
    _check_path(text, path)
    _check_query(text, parts["query"] or "")
    return CallbackUrl(text, scheme, host, port, path or "/")


def _split_authority(text: str, authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise _refused(text, "it has credentials before its host", "use a header of the declaration, or a secret")
    if "[" in authority or "]" in authority:
        raise _refused(text, "its host is an address", "use a DNS name")
    name, colon, digits = authority.partition(":")
    host = name.lower()
    _check_host(text, host)
    if not colon:
        return host, PORTS[scheme]
    is_port = digits.isdecimal() and not digits.startswith("0") and len(digits) <= 5 and int(digits) <= 65_535
    if not is_port:
        raise _refused(text, f"its port {digits!r} is not valid", "use a number from 1 to 65535, or none")
    return host, int(digits)


def _check_host(text: str, host: str) -> None:
    labels = host.split(".")
    if len(host) > 253 or not all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels):
        raise _refused(text, f"its host {host[:100]!r} is not a DNS name", "use a name such as hooks.example.com")
    if _NUMBER.fullmatch(labels[-1]):
        raise _refused(text, "its host is an address", "use a DNS name")


def _check_path(text: str, path: str) -> None:
    if not _PATH.fullmatch(path):
        raise _refused(text, "its path has a character that must be encoded", "percent-encode the path")
    if "%" not in path and "." not in path:
        return
    for segment in path.split("/"):
        problem = _find_trap(segment)
        if problem is not None:
            raise _refused(
                text, f"its path {problem}", "write the path that is meant, percent-encoded once as UTF-8"
            )


def _find_trap(segment: str) -> str | None:
    """Return what is wrong with a segment of a path, such as `has a dot segment`; None if nothing is.

    A receiver may decode more than once, so each form of the segment is examined.
    """
    form = segment
    for _ in range(MOST_ENCODINGS + 1):
        if _is_dot_segment(form):
            return "has a dot segment"
        if "/" in form or "\\" in form or _has_control(form):
            return "has an encoded slash, backslash or control character"
        try:
            decoded = normalize("NFKC", unquote_to_bytes(form).decode())
        except UnicodeDecodeError:  # Python refuses overlong forms, which other decoders read as '.' or '/'
            return "is not encoded as UTF-8"
        if decoded == form:
            return None
        form = decoded
    return f"is percent-encoded more than {MOST_ENCODINGS} times"


def _is_dot_segment(segment: str) -> bool:
    """Return whether a server could take a segment for `.` or `..`.

    Some drop everything behind a semicolon, or decode `?` and `#` too early. Some drop spaces and dots at the end.
    """
    name = _PARAMETERS.split(segment, maxsplit=1)[0]
    if name.strip() in (".", ".."):
        return True
    return "." in name and any(map(str.isspace, name)) and all(each == "." or each.isspace() for each in name)


def _check_query(text: str, query: str) -> None:
    if query and not _QUERY.fullmatch(query):
        raise _refused(text, "its query has a character that must be encoded", "percent-encode the query")
    if "%" in query and _has_control(unquote_to_bytes(query).decode(errors="replace")):
        raise _refused(text, "its query has an encoded control character", "send such data in the body")


def _has_control(text: str) -> bool:
    return any(category(each) == "Cc" for each in text)


def _refused(text: object, reason: str, remedy: str) -> CallbackRefused:
    return CallbackRefused(url=show_url(text), reason=reason, remedy=remedy)


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """One entry of an allow-list: scheme, host or `*.` and a suffix, port, and a path or the start of one."""

    text: str
    scheme: str
    host: str
    is_suffix: bool
    port: int
    path: str
    is_prefix: bool

    def matches(self, url: CallbackUrl) -> bool:
        """Return whether the scheme, host, port and path of a URL match this entry.

        The query of the URL is not compared.
        """
        is_host = url.host.endswith(f".{self.host}") if self.is_suffix else url.host == self.host
        is_path = url.path.startswith(self.path) if self.is_prefix else url.path == self.path
        return is_host and is_path and (url.scheme, url.port) == (self.scheme, self.port)


def parse_pattern(text: object) -> UrlPattern:
    """Parse an entry of an allow-list.

    Raises `ValueError` if it is invalid, and `TypeError` if it is no string.
    """
    if not isinstance(text, str):
        raise TypeError(f"an entry of an allow-list is a text such as 'https://example.com/hooks/*', got {text!r}")
    example = "write https://hooks.example.com/orders/*, or https://*.example.com/* for all hosts below a name"
    scheme, separator, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    if not separator or not slash:
        raise ValueError(f"the allow-list entry {text!r} has no path; {example}")
    is_suffix = authority.startswith("*.")
    host = authority.removeprefix("*.")
    is_prefix = path == "*" or path.endswith("/*")
    path = "/" + (path[:-1] if is_prefix else path)
    if "?" in path or "*" in path or "*" in host:
        raise ValueError(
            f"the allow-list entry {text!r} has a '?' or a '*' in the wrong place: '*.' may begin the host, and "
            f"'/*' may end the path; {example}"
        )
    if is_suffix and "." not in host:
        raise ValueError(f"the allow-list entry {text!r} allows a whole top-level domain; {example}")
    try:
        url = parse_url(f"{scheme}://{host}{path}")
    except CallbackRefused as error:
        raise ValueError(f"the allow-list entry {text!r} cannot be used: {error.reason}; {example}") from None
    return UrlPattern(text, url.scheme, url.host, is_suffix, url.port, url.path, is_prefix)


def parse_patterns(texts: Iterable[object], what: str) -> tuple[UrlPattern, ...]:
    """Parse the entries of an allow-list; `what` is the name of the option, for errors.

    Raises `ValueError` for an invalid entry, and `TypeError` for an entry that is no string, or for a single
    string instead of a list.
    """
    if isinstance(texts, str):
        raise TypeError(f"{what} must be a list of URLs, got {texts!r}; write [{texts!r}]")
    return tuple(map(parse_pattern, texts))
