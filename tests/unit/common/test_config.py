"""Configuration files and mount options: what is accepted, and the error message for what
is not.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from fscommon.config import ByteSize, MountOptions, load, parse_mount_options, parse_size
from fscommon.config.mount_options import FORMER_WORDS
from fscommon.config.toml import FILE_BYTES_MAX
from fscommon.errors import ConfigError

NO_LIMIT = ByteSize(0)


@dataclass(frozen=True, slots=True)
class Part:
    path: Path
    capacity_bytes: ByteSize = NO_LIMIT


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    parts: tuple[Part, ...] = ()
    addresses: tuple[str, ...] = ("a",)
    timeout_s: float = 1.5
    count: int = 3
    wanted: bool = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")


def load_text(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load(Config, path)


def test_everything(tmp_path: Path) -> None:
    text = """
    name = "n"
    addresses = ["x", "y"]
    timeout_s = 2
    count = 7
    wanted = true
    [[parts]]
    path = "/a"
    [[parts]]
    path = "/b"
    capacity_bytes = "1.5 GiB"
    """
    parts = (Part(Path("/a")), Part(Path("/b"), ByteSize(3 << 29)))
    assert load_text(tmp_path, text) == Config("n", parts, ("x", "y"), 2.0, 7, True)


def test_defaults(tmp_path: Path) -> None:
    assert load_text(tmp_path, 'name = "n"') == Config("n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the key 'name' is missing"),
        ('nme = "n"', "unknown key 'nme': did you mean 'name'"),
        ('name = "n"\nqqqqqq = 1', r"unknown key 'qqqqqq'$"),
        ("name = 5", "name: expected text, not an integer"),
        ('name = "n"\ncount = true', "count: expected an integer, not true or false"),
        ('name = "n"\ncount = 1.5', "count: expected an integer, not a number"),
        ('name = "n"\ncount = -1', "count must not be negative"),
        ('name = "n"\naddresses = "x"', "addresses: expected a list, not text"),
        ('name = "n"\naddresses = [1]', r"addresses\[0\]: expected text"),
        ('name = "n"\nparts = [1]', r"parts\[0\]: expected a table"),
        ('name = "n"\n[[parts]]\npth = "x"', r"parts\[0\]: unknown key 'pth': .*'path'"),
        ('name = "n"\n[[parts]]\npath = "x"\ncapacity_bytes = "1 GB?"', "is not a size"),
        ('name = "n"\n[[parts]]\npath = "x"\ncapacity_bytes = -1', "is not a size"),
        ("name = ", "is not TOML"),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        load_text(tmp_path, text)
    assert str(tmp_path) in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load(Config, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"\xff\xfe", "is not TOML"),
        (b"name = " + b"[" * 100_000, "is not TOML: its values are nested too deeply"),
        (b"count = " + b"9" * 5000, "is not TOML: Exceeds the limit"),
        (b"#" * (FILE_BYTES_MAX + 1), f"is too large: at most {FILE_BYTES_MAX} bytes"),
    ],
)
def test_bytes_that_are_no_toml(tmp_path: Path, octets: bytes, words: str) -> None:
    (tmp_path / "c.toml").write_bytes(octets)
    with pytest.raises(ConfigError, match=words) as refused:
        load(Config, tmp_path / "c.toml")
    assert str(tmp_path / "c.toml") in str(refused.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("64 KiB", 65536), ("1.5GiB", 3 << 29), ("2TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1 XiB", "1e400 GiB", "-5", "5 5", "1.2.3"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_no_mount_options() -> None:
    assert parse_mount_options("") == MountOptions()


def test_mount_options() -> None:
    options = parse_mount_options("ro,key_file=/k,lanes=3,timeout=2.5,hard,dirty_mib=64")
    expected = MountOptions(ro=True, key_file="/k", lanes=3, timeout=2.5, hard=True, dirty_mib=64)
    assert options == expected


@pytest.mark.parametrize("word", sorted(FORMER_WORDS))
def test_former_words_do_nothing(word: str) -> None:
    for written in (word, f"{word}=7"):
        options = parse_mount_options(f"ro,{written}")
        assert options == MountOptions(ro=True, former_words=(word,))
    assert word not in {field.name for field in fields(MountOptions)}


def test_prefetch_is_auto_or_off() -> None:
    assert parse_mount_options("prefetch=off,read_mib=0").prefetch == "off"
    with pytest.raises(ConfigError, match="'prefetch=no' is not auto or off"):
        parse_mount_options("prefetch=no")


def test_words_of_mount_are_ignored() -> None:
    words = "rw,noatime,auto,noauto,defaults,user,_netdev,nofail"
    words += ",users,group,noowner,iversion,noiversion,dirsync,lazytime,comment=root's,uhelper=x"
    more = "x-systemd.automount,x-systemd.requires=network.target,X-mount.mkdir=0755"
    assert parse_mount_options(f"{words},{more},,relatime") == MountOptions()


@pytest.mark.parametrize("word", ("snyc", "acl", "discard", "x", "usr_xattr=1", "errors=panic"))
def test_an_unknown_word_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=f"'{word.partition('=')[0]}'"):
        parse_mount_options(f"rw,{word},nofail")


def test_the_last_word_wins() -> None:
    assert not parse_mount_options("ro,rw").ro
    assert parse_mount_options("lanes=1,lanes=2").lanes == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key_fiel=/k", "unknown mount option 'key_fiel': did you mean 'key_file'"),
        ("zzzzzzz", r"unknown mount option 'zzzzzzz'$"),
        ("lanes", "needs a value"),
        ("lanes=", "needs a value"),
        ("lanes=x", "is not a number"),
        ("lanes=65", "is not from 0 to 64"),
        ("timeout=nan", "is not from"),
        ("timeout=0", "is not from"),
        ("hard=1", "takes no value"),
        ("sealed", "needs 'ro'"),
        ("ro,sealed,rw", "needs 'ro'"),
        ("passthrough,cache_dir=/nvme", "'passthrough' needs 'ro'"),
        ("ro,passthrough", "'passthrough' needs 'cache_dir=DIRECTORY'"),
        ("ro,sealed,passthrough,cache_dir=/nvme", "exclude each other"),
    ],
)
def test_refused_mount_options(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_mount_options(text)


def test_every_number_has_bounds() -> None:
    numbers: dict[str, Any] = {
        name: value
        for name in MountOptions.__slots__
        if type(value := getattr(MountOptions(), name)) in (int, float)
    }
    text = ",".join(f"{name}={value}" for name, value in numbers.items())
    assert parse_mount_options(text) == MountOptions()


def test_security_words_are_kept_in_order() -> None:
    options = parse_mount_options("nosuid,_netdev,nodev,noexec,exec,sync,nosymfollow,ro")
    assert options.kernel_words == "nosuid,nodev,noexec,exec,sync,nosymfollow"
    assert options.ro


def test_the_field_is_no_option() -> None:
    with pytest.raises(ConfigError):
        parse_mount_options("kernel_words=suid")
