"""A worker whose store is removed or replaced while it runs: it ends after its handlers, and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring import StoreReplaced
from mainspring.cli.exit_codes import ExitCode
from tests.processes.apps.gated import app, wrap
from tests.processes.pipe_gates import make_gate, opened
from tests.processes.sandbox import READY, Sandbox

STORE = "jobs.db"


def remove(folder: Path) -> None:
    for file in folder.glob(f"{STORE}*"):
        if file.is_file():
            file.unlink()


def replace_by_a_backup(folder: Path) -> None:
    app.backup(str(folder / "backup.db"))
    remove(folder)
    (folder / "backup.db").rename(folder / STORE)


def rename(folder: Path) -> None:
    (folder / STORE).rename(folder / "elsewhere.db")


@pytest.mark.parametrize("act", [remove, replace_by_a_backup, rename], ids=lambda act: act.__name__)
def test_a_worker_ends_after_its_handlers_with_a_code_of_its_own(
    sandbox: Sandbox, act: Callable[[Path], None]
) -> None:
    make_gate("gate")
    health = str(sandbox.folder)
    worker = sandbox.start(
        "-m", "mainspring", "run", "tests.processes.apps.gated:app", "--grace", "60s", MAINSPRING_HEALTH_DIR=health
    )
    worker.expect_all(READY)
    wrap.submit(1)
    worker.expect("start wrap/1")
    act(sandbox.folder)
    with pytest.raises(StoreReplaced):
        wrap.submit(2)
    worker.expect("stopping")
    check = sandbox.start("-m", "mainspring", "healthcheck", "--ready", MAINSPRING_HEALTH_DIR=health)
    assert check.wait() == ExitCode.FAILURE
    assert not worker.is_at_end  # the handler waits at the gate
    with opened("gate"):
        worker.expect("end wrap/1")
        assert worker.wait() == ExitCode.STORE_REPLACED
    assert "will not try again" in "\n".join(worker.lines)
    assert "restart this process" in worker.expect_end_of_output()[-1]
    app.close()
