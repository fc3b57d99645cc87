"""An engine of another package is used by every command, without a change in Mainspring."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.cli.shop_program import ENVIRONMENT, MODULE, ShopProgram
from tests.programs import program, read_line
from tests.support import PATIENCE

TOY = Path(__file__).parents[1] / "data" / "toy_engine"

pytestmark = pytest.mark.long


@pytest.fixture
def toy_shop(shop: ShopProgram, monkeypatch: pytest.MonkeyPatch) -> ShopProgram:
    """A shop whose jobs are in a store of the toy engine."""
    monkeypatch.syspath_prepend(TOY)
    (shop.folder / "shop.py").write_text(MODULE.replace("sqlite:///shop.db", "toy:///shop.toy"))
    shop.url = f"toy:///{shop.folder}/shop.toy"
    return shop


def run(shop: ShopProgram, *arguments: str) -> str:
    environment = ENVIRONMENT | {"PYTHONPATH": str(TOY), "MAINSPRING_HEALTH_DIR": str(shop.folder)}
    with program("-m", "mainspring", *arguments, folder=shop.folder, environment=environment) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return output


def test_jobs_are_submitted_listed_run_examined_and_measured_on_a_toy_engine(toy_shop: ShopProgram) -> None:
    job_id = run(toy_shop, "submit", "shop.cancel_order", "order_id=7", "--app", "shop:app").strip()
    assert "shop.cancel_order" in run(toy_shop, "jobs", "list", "--url", toy_shop.url)

    environment = ENVIRONMENT | {"PYTHONPATH": str(TOY), "MAINSPRING_HEALTH_DIR": str(toy_shop.folder)}
    worker = program("-m", "mainspring", "run", "shop:app", folder=toy_shop.folder, environment=environment)
    with worker as process, Mainspring(toy_shop.url) as app:
        said = read_line(process)
        while "toy " not in said:
            said = read_line(process)
        assert str(toy_shop.folder / "shop.toy") in said
        assert app.handle(job_id).wait(PATIENCE) == "FAILED"
        process.terminate()
        assert process.wait(PATIENCE) == 0

    assert job_id in run(toy_shop, "dlq", "list", "--url", toy_shop.url)
    assert "1 dead letter" in run(toy_shop, "doctor", "--url", toy_shop.url)
    assert "toy 1.0" in run(toy_shop, "bench", "--url", toy_shop.url, "--seconds", "0.01", "--jobs", "100")
