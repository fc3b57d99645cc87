"""A program that submits a job and ends without `app.close()`: `python exiting_program.py URL ACTION`.

With `fork`, it makes a child that ends in the same way. With `locked`, it waits for a line before it ends, and its
exit has little time for the store.
"""

from __future__ import annotations

import os
import sys
import warnings

from mainspring import Mainspring
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.jobs import activity_writer

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
activity_writer.EXIT_SECONDS = 600.0  # tests depend on no idle machine
(SqliteEngine.__init__.__kwdefaults__ or {})["busy_timeout"] = 3_600.0  # longer than any test waits


def main(url: str, action: str) -> None:
    app = Mainspring(url)
    send = app.job(name="send", queue="mail")(lambda: None)
    send.submit()
    if action == "fork" and (child := os.fork()):
        os.waitpid(child, 0)
    elif action == "locked":
        activity_writer.EXIT_SECONDS = 0.01
        sys.stdout.write("submitted\n")
        sys.stdout.flush()
        sys.stdin.readline()
    sys.exit()


if __name__ == "__main__":
    main(*sys.argv[1:])
