"""Key rings: which keys sign and verify, and which are refused without showing a secret."""

import hmac
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import KeyRing, NoSigningKey
from mainspring.security.keys import ED25519, HMAC, Algorithm

DATA = b"what is signed"
ALGORITHMS: list[Algorithm] = ["hmac-sha256", "ed25519"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_verifies_what_it_has_signed_and_nothing_else(algorithm: Algorithm) -> None:
    ring = KeyRing({"a": KeyRing.generate(algorithm), "b": KeyRing.generate(algorithm)}, sign_with="a")
    signature = ring.sign(DATA)
    assert ring.verify("a", DATA, signature)
    assert not ring.verify("a", DATA + b".", signature)
    assert not ring.verify("b", DATA, signature)
    assert not ring.verify("a", DATA, signature[:-1])
    assert not ring.verify("a", DATA, signature.upper() if signature.upper() != signature else "")
    assert not ring.verify("a", DATA, f"{signature} ")
    assert not ring.verify("a", DATA, "\u0660" * len(signature))
    assert not ring.verify("c", DATA, signature)


@pytest.mark.parametrize("size", [16, 32, 64, 65, 200])
def test_the_signature_of_hmac_is_that_of_the_standard_library(size: int) -> None:
    secret = bytes(range(size % 256))[:size].ljust(size, b"x")
    expected = hmac.digest(secret, DATA, "sha256").hex()
    assert KeyRing({"a": secret}, sign_with="a").sign(DATA) == expected[:32]


def test_a_public_key_verifies_and_cannot_sign() -> None:
    secret = KeyRing.generate("ed25519")
    signer = KeyRing({"a": secret}, sign_with="a")
    verifier = KeyRing({"a": KeyRing.public(secret)})
    assert verifier.verify("a", DATA, signer.sign(DATA))
    assert (verifier.has_secrets, verifier.algorithm_of("a")) == (False, "ed25519-public")
    with pytest.raises(NoSigningKey, match="sign_with"):
        verifier.sign(DATA)
    with pytest.raises(ValueError, match="can only verify"):
        KeyRing({"a": KeyRing.public(secret)}, sign_with="a")


def test_a_ring_without_sign_with_only_verifies() -> None:
    key = KeyRing.generate()
    signature = KeyRing({"a": key}, sign_with="a").sign(DATA)
    ring = KeyRing({"a": key})
    assert ring.verify("a", DATA, signature)
    with pytest.raises(NoSigningKey):
        ring.sign(DATA)


def test_a_secret_of_your_own_is_an_hmac_key() -> None:
    ring = KeyRing({"a": "a long secret of the shop", "b": b"a long secret of the shop"}, sign_with="a")
    assert ring.verify("b", DATA, ring.sign(DATA))
    assert ring.algorithm_of("a") == HMAC


def test_generated_keys_differ_and_name_their_algorithm() -> None:
    keys = {KeyRing.generate(algorithm) for algorithm in ALGORITHMS for _ in range(10)}
    assert len(keys) == 20
    assert {key.partition(":")[0] for key in keys} == {HMAC, ED25519}


@pytest.mark.parametrize(
    ("keys", "options", "problem"),
    [
        ({}, {}, "at least one key"),
        ({"a b": KeyRing.generate()}, {}, "'a b'"),
        ({"": KeyRing.generate()}, {}, "id of a key"),
        ({"a": "short"}, {}, "5 bytes"),
        ({"a": KeyRing.generate()[:-1]}, {}, "cannot be read"),
        ({"a": f"{KeyRing.generate()}="}, {}, "cannot be read"),
        ({"a": "ed25519:???"}, {}, "cannot be read"),
        ({"november": KeyRing.generate()}, {"sign_with": "novembre"}, "of this ring; did you mean 'november'"),
        ({"november": KeyRing.generate()}, {"sign_with": "b"}, "of this ring; its keys are 'november'"),
        ({"a": KeyRing.generate()}, {"valid_for": 0}, "valid_for"),
        ({"a": KeyRing.generate()}, {"valid_for": timedelta(days=-1)}, "valid_for"),
    ],
)
def test_bad_rings_are_refused(keys: dict[str, str], options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + problem.replace("?", r"\?")) as caught:
        KeyRing(keys, **options)  # type: ignore[arg-type]
    assert not any(key.partition(":")[2][:20] in str(caught.value) for key in keys.values() if len(key) > 20)


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="'a' must be a str or bytes, got int"):
        KeyRing({"a": 7})  # type: ignore[dict-item]


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="'rot13'"):
        KeyRing.generate("rot13")  # type: ignore[arg-type]


def test_only_ed25519_keys_have_public_keys() -> None:
    with pytest.raises(ValueError, match="hmac-sha256"):
        KeyRing.public(KeyRing.generate())


def test_no_representation_shows_a_secret() -> None:
    key = KeyRing.generate()
    ring = KeyRing({"2026-11": key}, sign_with="2026-11")
    assert repr(ring) == str(ring) == "KeyRing(2026-11; sign_with='2026-11')"


# -- files


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_ring_is_read_from_a_file(tmp_path: Path) -> None:
    first, second = KeyRing.generate(), KeyRing.generate("ed25519")
    options = 'sign_with = "b"\nvalid_days = 30\naccept_unsigned = true\n'
    text = f'{options}[keys]\n"2026-11" = "{first}"\nb = "{second}"\n'
    ring = KeyRing.from_file(write(tmp_path / "keys.toml", text))
    assert (ring.ids, ring.sign_with, ring.accept_unsigned) == (("2026-11", "b"), "b", True)
    assert ring.valid_for == 30 * 86_400 * 1_000_000
    assert ring.verify("b", DATA, ring.sign(DATA))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[keys", "not valid TOML"),
        ("", "at least one key"),
        ("sing_with = 'a'\n", "unknown field 'sing_with'"),
        ("sign_with = 2026\n", "sign_with in the key file '.*' must be the id of a key, in quotes, not 2026"),
        ("valid_days = 'ten'\n", "valid_days in the key file '.*' must be a number of days, not 'ten'"),
        ("valid_days = true\n", "valid_days in the key file '.*' must be a number of days, not True"),
        ("accept_unsigned = 'yes'\n", "accept_unsigned in the key file '.*' must be true or false, not 'yes'"),
        ("keys = 'a'\n", "keys in the key file '.*' must be a table of keys by id, not 'a'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        KeyRing.from_file(write(tmp_path / "keys.toml", text))


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mainspring keys create"):
        KeyRing.from_file(tmp_path / "keys.toml")


def test_secrets_that_others_can_read_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = KeyRing.generate("ed25519")
    path = write(tmp_path / "keys.toml", f'[keys]\na = "{secret}"\n', 0o644)
    with caplog.at_level(logging.WARNING, "mainspring.signing"):
        KeyRing.from_file(write(tmp_path / "public.toml", f'[keys]\na = "{KeyRing.public(secret)}"\n', 0o644))
        assert caplog.messages == []
        KeyRing.from_file(path)
    assert f"chmod 600 {path}" in caplog.text


def test_hmac_needs_no_package_and_ed25519_names_the_extra() -> None:
    script = """
import sys
sys.modules["cryptography"] = None
sys.modules["cryptography.exceptions"] = None
from mainspring import KeyRing, MissingExtra
ring = KeyRing({"a": KeyRing.generate(), "b": KeyRing.generate("ed25519")}, sign_with="a")
assert ring.verify("a", b"", ring.sign(b""))
for call in (lambda: ring.verify("b", b"", ""), lambda: KeyRing.public(KeyRing.generate("ed25519"))):
    try:
        call()
    except MissingExtra as error:
        assert "mainspring[signing]" in str(error)
    else:
        raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
