"""The fingerprint of an error: its type, its message without values that vary, and its place in the code.

Dead letters with the same fingerprint probably have the same cause. The text of an error has the form that
`jobs/worker/error_text.py` writes: a description in the first line, and the traceback below.

Invariants
- Equal texts have equal fingerprints, in every process and every version: the key is part of URLs.
- The line number is no part of the place, so that a deploy that moves code does not split a group.
- The cost is linear in the length of the text, which a job may choose: patterns look at a bounded part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

KEY_LENGTH = 16
MAX_MESSAGE = 300
MAX_TYPE = 100
MAX_PLACE = 200
MAX_EXAMINED = 20_000  # characters; a worker stores at most 8,000

_TYPE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,99})(?::\s|:?$)")
_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]{1,1000})", line [0-9]+, in (?P<function>[^\n]{1,300})$', re.MULTILINE
)
_SECTION = re.compile(r"^(?:caused by|raised while this was handled|exception [0-9]+ of [0-9]+): ", re.MULTILINE)
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python[0-9.]+)/|^<frozen ")
_VARYING = (
    (re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<address>"),
    (re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}"), "<mail>"),
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,64}\b"), "<id>"),
    (re.compile(r"[0-9]+(?:[.,:][0-9]+)*"), "#"),
)
_QUOTED = re.compile(r"'[^'\n]{30,}'|\"[^\"\n]{30,}\"")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The parts of an error that jobs with the same cause share."""

    type: str | None
    """The name of the exception; None if the text names none, such as the text for an expired job."""
    message: str
    """The first line of the message, with placeholders for numbers, ids, addresses and long quoted values."""
    place: str | None
    """The file and the function of the innermost frame, if possible outside of libraries; None without a frame."""

    @property
    def key(self) -> str:
        """A short hexadecimal text that identifies the fingerprint, for URLs."""
        parts = (self.type or "", self.message, self.place or "")
        return sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:KEY_LENGTH]

    @property
    def title(self) -> str:
        """The type and the message of the error as one line; `no error text` if it has neither."""
        return ": ".join(part for part in (self.type, self.message) if part) or "no error text"


def fingerprint_of(error: str | None) -> Fingerprint:
    """Return the fingerprint of a stored error text; None counts as an empty text."""
    text = (error or "")[:MAX_EXAMINED]
    first = text.partition("\n")[0].strip()
    found = _TYPE.match(first)
    name = found[1] if found is not None and _is_type(found[1], text) else None
    message = first if name is None or found is None else first[found.end() :].strip()
    return Fingerprint(
        type=None if name is None else name[:MAX_TYPE],
        message=normalize(message),
        place=_place(text),
    )


def _is_type(name: str, text: str) -> bool:
    """Return whether `name`, the first word of an error text, is probably the name of an exception.

    This is so if the text has a traceback, or the name looks like that of a class.
    """
    last = name.rpartition(".")[2]
    return (
        "\n  File " in text
        or last.endswith(("Error", "Exception", "Timeout", "Exit", "Group"))
        or (last[:1].isupper() and any(letter.isupper() for letter in last[1:]))
    )


def normalize(message: str) -> str:
    """Return a message with placeholders for values that vary between jobs, on one line, cut to 300 characters."""
    text = _QUOTED.sub("'…'", message[: 4 * MAX_MESSAGE])
    for pattern, placeholder in _VARYING:
        text = pattern.sub(placeholder, text)
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _place(text: str) -> str | None:
    """Return the file and the function of the innermost frame outside of libraries in an error text.

    If all frames are in libraries, return those of the innermost frame. Only the first exception of the text
    counts. Return None if it has no traceback.
    """
    section = _SECTION.search(text)
    frames = [
        (each["file"], each["function"])
        for each in _FRAME.finditer(text, 0, section.start() if section else len(text))
    ]
    if not frames:
        return None
    own = [frame for frame in frames if not _LIBRARY.search(frame[0].replace("\\", "/"))]
    file, function = (own or frames)[-1]
    short = "/".join(file.replace("\\", "/").split("/")[-2:])
    return f"{short} in {function}"[:MAX_PLACE]
