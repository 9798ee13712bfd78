"""The key file: created private, refused when it is not."""

from pathlib import Path

import pytest

from fscommon.auth.key import (
    Credential,
    client_secret,
    create_client_key,
    create_key,
    load_credential,
    load_key,
    session_secret,
)
from fscommon.errors import ConfigError


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    create_key(path)
    return path


def test_a_new_key(key_file: Path) -> None:
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert len(load_key(key_file)) == 32
    assert load_key(str(key_file)) == load_key(key_file)


def test_an_old_key_is_not_overwritten(key_file: Path) -> None:
    with pytest.raises(ConfigError, match="File exists"):
        create_key(key_file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_use(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match=r"used by others .* chmod 600"):
        load_key(key_file)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "0 bytes"), ("ab" * 31, "31 bytes"), ("xyz", "hexadecimal"), ("ä", "hexadecimal")],
)
def test_no_key(key_file: Path, text: str, words: str) -> None:
    key_file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_key(key_file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the key file .*No such file"):
        load_key(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_key(tmp_path)


def test_a_key_of_a_client(tmp_path: Path) -> None:
    made = Credential(0x5F3A0C91D2E4B7A8, bytes(range(32)))
    path = tmp_path / "client.key"
    create_client_key(path, made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_credential(path) == made
    assert made.secret.hex() not in repr(made)
    with pytest.raises(ConfigError, match="mounting only"):
        load_key(path)
    with pytest.raises(ConfigError, match="File exists"):
        create_client_key(path, made)


def test_the_cluster_key_is_a_credential(key_file: Path) -> None:
    assert load_credential(key_file) == Credential(0, load_key(key_file))


@pytest.mark.parametrize(
    "text",
    [
        "client:",
        "client::",
        f"client:{'1' * 16}",
        f"client:{'0' * 16}:{'ab' * 32}",
        f"client:{'1' * 14}:{'ab' * 32}",
        f"client:{'1' * 16}:{'ab' * 31}",
        f"client:{'x' * 16}:{'ab' * 32}",
        f"client:{'1' * 16}:{'ab' * 32}:more",
    ],
)
def test_no_key_of_a_client(key_file: Path, text: str) -> None:
    key_file.write_text(text)
    with pytest.raises(ConfigError):
        load_credential(key_file)


def test_each_secret_is_its_own() -> None:
    key, cluster = bytes(32), bytes(16)
    made = {
        client_secret(key, cluster, 1),
        client_secret(key, cluster, 2),
        client_secret(key, b"x" * 16, 1),
        client_secret(b"x" * 32, cluster, 1),
        session_secret(key, 1),
        session_secret(key, 2),
    }
    assert len(made) == 6 and all(len(secret) == 32 for secret in made)
