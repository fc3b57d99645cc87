"""Prints tables that fit the terminal, plain columns for pipes, and JSON for scripts.

Output has colors and is fitted to the width on a terminal only; in a pipe nothing is cut off. Control characters
in a job never reach the terminal. A command can watch whether the reader has closed its output, so that
`mainspring events | head` ends even while there is nothing to write.
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import msgspec

from mainspring.cli.exit_codes import OutputClosed, OutputFailed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

STYLES = {"PENDING": "cyan", "RUNNING": "blue", "COMPLETED": "green", "FAILED": "red", "CANCELED": "dim"}
GAP = "  "
MIN_WIDTH = 15  # characters; a column is not cut to less than this
PIPE_WIDTH = 1_000_000  # the line width for a pipe, so that no line is wrapped
C1 = re.compile("[\x7f-\x9f]")


class Styled(NamedTuple):
    """A text with a style of rich, such as `red`.

    It is used in place of rich's `Text`, which is slow to import.
    """

    plain: str
    style: str


Cell: TypeAlias = "str | Styled | Text"


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_line(text: str) -> None:
    """Write the text and a newline to stdout completely, and flush it.

    Raises `OutputClosed` if the reader has closed stdout, and `OutputFailed` if it cannot be written. With
    PYTHONUNBUFFERED, one write may take only a part of the text, so the rest is written by further ones.
    """
    rest = memoryview((text + "\n").encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    try:
        sys.stdout.flush()
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise OutputFailed(error.strerror) from error


def print_message(text: str) -> None:
    """Print a message for the user on stderr, because it is not part of the output."""
    sys.stderr.write(text + "\n")


def print_rich(renderable: RenderableType, *, wraps: bool = True, crops: bool = False) -> None:
    """Print text, or a table of the library Rich. On a terminal, it has colors, and long lines are wrapped.

    With `crops`, long lines on a terminal are cropped instead; with `wraps=False`, they are printed as they are.
    In a pipe, lines are neither wrapped nor cropped.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import, and a pipe gets its tables without it

    width = None if (wraps or crops) and is_terminal() else PIPE_WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as capture:
        console.print(renderable, no_wrap=crops or None, overflow="ellipsis" if crops else None)
    print_line("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def print_json(data: Any) -> None:
    """Print data as one indented JSON document on stdout."""
    print_line(_escaped(msgspec.json.format(msgspec.json.encode(data), indent=2).decode()))


def print_json_line(data: Any) -> None:
    """Print data as JSON on one line of stdout (JSON Lines)."""
    print_line(_escaped(msgspec.json.encode(data).decode()))


def _escaped(json: str) -> str:
    """Escape the control characters that JSON leaves as they are (U+007F to U+009F): terminals interpret them."""
    return C1.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    uncut: Sequence[str] = (),
    droppable: Sequence[str] = (),
    right_aligned: Sequence[str] = (),
) -> None:
    """Print a table. `uncut`, `droppable` and `right_aligned` are titles of columns.

    If a terminal is too narrow, the `droppable` columns are left out one by one. If that is not enough, all
    columns but the `uncut` ones are cut.
    """
    if is_terminal():
        from rich.console import Console  # noqa: PLC0415 - see print_rich

        cells = [[to_text(cell) for cell in row] for row in rows]
        columns = _fitting(titles, cells, uncut, droppable, Console().width)
        chosen = [titles[place] for place in columns]
        print_rich(_table(chosen, [[row[place] for place in columns] for row in cells], uncut, right_aligned))
    else:
        texts = [[escape_control(cell) if isinstance(cell, str) else cell.plain for cell in row] for row in rows]
        print_line(_plain(titles, texts, right_aligned))


def to_text(cell: Cell) -> Text:
    """Convert a cell of a table to a text of rich, with control characters of a plain string escaped."""
    from rich.text import Text  # noqa: PLC0415 - see print_rich

    if isinstance(cell, Styled):
        return Text(cell.plain, style=cell.style)
    return Text(escape_control(cell)) if isinstance(cell, str) else cell


def _fitting(
    titles: Sequence[str], rows: list[list[Text]], uncut: Sequence[str], droppable: Sequence[str], width: int
) -> list[int]:
    """Return the indices of the columns that remain after `droppable` ones were left out to fit into the width."""
    needs = []
    for place, title in enumerate(titles):
        widest = max([_width(title), *(row[place].cell_len for row in rows)])
        needs.append(widest if title in uncut else min(widest, MIN_WIDTH))
    places = list(range(len(titles)))
    for title in droppable:
        if sum(needs[place] + len(GAP) for place in places) - len(GAP) <= width:
            break
        places.remove(titles.index(title))
    return places


def _table(
    titles: Sequence[str], rows: list[list[Text]], uncut: Sequence[str], right_aligned: Sequence[str]
) -> Table:
    from rich.table import Table  # noqa: PLC0415 - see print_rich

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, len(GAP), 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=title in uncut, justify="right" if title in right_aligned else "left")
    for row in rows:
        for cell in row:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*row)
    return table


def _plain(titles: Sequence[str], rows: list[list[str]], right_aligned: Sequence[str]) -> str:
    columns = []
    for title, *cells in zip(titles, *rows, strict=True):
        width = max(map(_width, (title, *cells)))
        paddings = ((cell, " " * (width - _width(cell))) for cell in (title, *cells))
        columns.append([pad + cell if title in right_aligned else cell + pad for cell, pad in paddings])
    return "\n".join(GAP.join(line).rstrip() for line in zip(*columns, strict=True))


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes; Chinese characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most tables do not need it

    return cell_len(text)


def styled_status(status: str) -> Styled:
    """Return a job's status as a text with the color of the status."""
    return Styled(status, STYLES.get(status, ""))


def format_time(instant: datetime | None) -> str:
    """Return an instant in UTC as text, `2027-01-01 02:00:00`; a hyphen for None."""
    return "-" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def format_distance(instant: datetime | None, now: int, *, in_short: bool = False) -> str:
    """Return an instant relative to now as text, such as `in 12 min`; a hyphen for None."""
    from mainspring.jobs.timestamps import describe_distance, to_instant  # noqa: PLC0415 - only commands that show jobs need it

    return "-" if instant is None else describe_distance(to_instant(instant, "instant"), now, in_short=in_short)


def compact_json(data: Any) -> str:
    """Return data as JSON on one line, with control characters escaped."""
    return escape_control(msgspec.json.encode(data).decode())


def escape_control(text: str, *, keep: str = "") -> str:
    """Escape characters that are not printable, except those in `keep`: a terminal would interpret them."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


class StdoutWatch:
    """Calls `on_closed`, on another thread, if the reader closes stdout during the `with` block."""

    def __init__(self, *, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._is_closed = False
        self._end_reader, self._end_writer = os.pipe()
        self._thread = Thread(target=self._watch, name="mainspring-stdout-watch", daemon=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # 0, because poll reports errors and hang-ups in any case
        poll.register(self._end_reader, 0)
        if any(descriptor != self._end_reader for descriptor, _ in poll.poll()):
            self._is_closed = True
            self._on_closed()

    def exit_if_closed(self) -> None:
        """Raise `OutputClosed`, which ends the command, if the reader has closed the output."""
        if self._is_closed:
            raise OutputClosed

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end_writer)
        self._thread.join()
        os.close(self._end_reader)
