"""Forbids the package to open a SQLite file beside SQLite, in every process that a test starts.

When a process closes any descriptor of a file, the kernel drops all POSIX locks of the process on this file, also
those of SQLite. So no code of the package may open a database or its `-shm` that the process has open. An audit
hook looks at each call of `open` and `os.open` whose nearest frame outside of the standard library is one of the
package. If the process has the file open as part of a database, the call fails, and is written to the report,
because the package may catch the error. SQLite's own calls are not seen, because they are made by C code.

SQLite locks no bytes of `-wal`. The module `log_file` may open it, to extend it and to write it to the disk.

Python imports a module of this name at the start of an interpreter, and `tests/conftest.py` puts this folder on
PYTHONPATH. A module of the same name in a later folder of the path is run, too.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from types import FrameType

REPORT = "TEST_STORE_OPENS_FILE"
"""The environment variable with the path of the report."""
DESCRIPTORS = "/proc/self/fd"
MAGIC = b"SQLite format 3\0"
LIBRARY = (f"{os.path.dirname(os.__file__)}{os.sep}", "<frozen ")  # noqa: PTH120 - a start loads no pathlib
SITE = f"{os.sep}site-packages{os.sep}"
OWNER_OF_LOGS = "mainspring.engines.sqlite.log_file"


def opening_module(frame: FrameType | None) -> str:
    """Return the name of the module that opens a file: the nearest one outside of the standard library."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY) or SITE in file:
            return str(frame.f_globals.get("__name__"))
        frame = frame.f_back
    return ""


def is_database_of_this_process(path: str) -> bool:
    """Return whether this process has a file open that is a SQLite database, or the `-shm` or `-wal` of one."""
    try:
        wanted = os.stat(path)  # noqa: PTH116 - a start loads no pathlib
    except OSError:
        return False
    for name in os.listdir(DESCRIPTORS):  # noqa: PTH208
        try:
            found = os.stat(f"{DESCRIPTORS}/{name}")  # noqa: PTH116
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return path.endswith(("-shm", "-wal")) or os.pread(int(name), len(MAGIC), 0) == MAGIC
        except OSError:  # closed meanwhile, or cannot be read
            continue
    return False


def forbid_opens(report: str) -> None:
    """Let calls that open a database which this process uses fail from now on, and write them to the report.

    `report` is the path of the report, unless the environment names another one then.
    """

    def check(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if isinstance(arguments[2], int) and arguments[2] & os.O_EXCL:  # fails if the file exists
            return
        module = opening_module(sys._getframe().f_back)
        if not module.startswith("mainspring."):
            return
        path = os.fsdecode(arguments[0])
        if module == OWNER_OF_LOGS and path.endswith("-wal"):
            return
        if is_database_of_this_process(path):
            message = f"{module} opens {path}, which this process has open: its locks would be lost"
            descriptor = os.open(os.environ.get(REPORT, report), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, f"{message}\n".encode())
            os.close(descriptor)
            raise AssertionError(message)

    if os.path.isdir(DESCRIPTORS):  # noqa: PTH112 - other systems than Linux cannot list open files so easily
        sys.addaudithook(check)


def run_next_customization() -> None:
    """Run the module `sitecustomize` that this one hides."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != here])
    if spec is not None and spec.loader is not None:
        code = spec.loader.get_code("sitecustomize")  # type: ignore[attr-defined] # a loader of a file has it
        exec(code, {"__name__": "sitecustomize", "__file__": spec.origin})


if __name__ == "sitecustomize":
    if REPORT in os.environ:
        forbid_opens(os.environ[REPORT])
    run_next_customization()
