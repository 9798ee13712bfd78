"""The key file: made private, refused when it is not."""

from pathlib import Path

import pytest

from fscommon.auth.key import create_key, load_key
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
