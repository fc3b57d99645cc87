"""Stores for measuring are beside the user's, and are gone afterwards."""

from pathlib import Path

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.bench.figures import cpus, file_system, machine
from mainspring.bench.stores import BenchStore, stores_of

MOUNTS = r"""
22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw
23 22 8:1 / /srv rw,noatime shared:2 master:1 - xfs /dev/sda1 rw
24 23 0:22 / /srv/a\040folder rw - nfs4 server:/export rw
""".strip()


def test_a_store_is_a_folder_beside_the_users_file_even_if_a_measurement_fails(tmp_path: Path) -> None:
    stores = stores_of(Mainspring(f"sqlite:///{tmp_path / 'shop.db'}", threads=3, durability="normal"))

    def measure(store: BenchStore) -> None:
        assert Path(store.app.url.removeprefix("sqlite:///")).parent.parent == tmp_path
        assert (store.app.threads, store.app.durability) == (3, "normal")
        store.app.counts()
        assert store.size is not None
        assert store.size() > 0
        raise RuntimeError("measured")

    with pytest.raises(RuntimeError, match="measured"), stores.store() as store:
        measure(store)
    assert list(tmp_path.iterdir()) == []  # the user's file was not made either


def test_a_folder_that_cannot_be_used_is_named_with_the_remedy(tmp_path: Path) -> None:
    stores = stores_of(Mainspring(f"sqlite:///{tmp_path / 'missing' / 'shop.db'}"))
    with pytest.raises(
        EngineUnavailable, match=r"missing: no temporary store can be made in this folder .* --in FOLDER"
    ):
        stores.store().__enter__()


def test_a_role_on_nats_is_refused_before_anything_is_asked_of_the_server() -> None:
    stores = stores_of(Mainspring("nats://ann:secret@127.0.0.1:1?prefix=shop&role=worker"))
    with pytest.raises(EngineUnavailable, match="the role 'worker' may use the streams of 'shop' only") as refused:
        stores.store().__enter__()
    assert "give --url without a role" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_memory_has_no_folder_and_no_size() -> None:
    stores = stores_of(Mainspring("memory://"))
    assert stores.folder is None
    with stores.store() as store:
        assert store.size is None
        assert stores.describe(store.app) == {"engine": "memory of this process"}


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system(Path("/home/ann"), mounts) == "overlay"
    assert file_system(Path("/srv/shop"), mounts) == "xfs"
    assert file_system(Path("/srv/a folder/shop"), mounts) == "nfs4"
    assert file_system(tmp_path, tmp_path / "not there") is None


def test_the_machine_is_described() -> None:
    described = machine()
    assert described["cpus"] == cpus() >= 1
    assert described["python"].startswith("CPython 3.")
