"""Addresses of journals: what they mean, and what is said of those that are wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.errors import ConfigError
from metaserver.program import main
from metaserver.store.journals import postgresql_session
from metaserver.store.journals.address import JournalAddress, parse_journal


@pytest.mark.parametrize(
    ("text", "scheme", "endpoints", "path"),
    [
        ("etcd://h1/braidfs", "etcd", ("h1:2379",), "/braidfs"),
        ("etcd://h1:1,h2,h3:3/a/b.c_d-2", "etcd", ("h1:1", "h2:2379", "h3:3"), "/a/b.c_d-2"),
        ("etcds://[::1],[fd00::2]:7/x", "etcds", ("[::1]:2379", "[fd00::2]:7"), "/x"),
        ("postgresql://h1/braidfs", "postgresql", ("h1:5432",), "braidfs"),
        (
            "postgresql://braid@h1,h2:6432/names?sslmode=verify-full&passfile=/etc/pw",
            "postgresql",
            ("h1:5432", "h2:6432"),
            "names",
        ),
    ],
)
def test_addresses(text: str, scheme: str, endpoints: tuple[str, ...], path: str) -> None:
    found = parse_journal(text)
    assert found == JournalAddress(scheme, endpoints, path, text)
    assert found.is_tls == (scheme == "etcds")
    assert found.is_etcd == scheme.startswith("etcd")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected etcd://"),
        ("h1:2379/braidfs", "expected etcd://"),
        ("http://h1/braidfs", "'http' is not the address of a journal"),
        ("ETCD://h1/braidfs", "expected etcd://"),
        ("etcd://h1", "a prefix of its keys"),
        ("etcd://h1/", "a prefix of its keys"),
        ("etcd://h1/a/", "'/a/' is none"),
        ("etcd://h1//a", "'//a' is none"),
        ("etcd://h1/a*", "'/a\\*' is none"),
        ("etcd:///a", "'' is not an address"),
        ("etcd://h1,/a", "'' is not an address"),
        ("etcd://h1:0/a", "'h1:0' has no valid port"),
        ("etcd://h1:70000/a", "'h1:70000' has no valid port"),
        ("etcd://::1/a", r"write IPv6 as \[ADDRESS\]:PORT"),
        ("etcd://h1,h1:2379/a", "names h1:2379 twice"),
        ("etcd://h1, h2/a", "spaces"),
        ("etcd://h1/a\n", "spaces"),
        ("etcd://h1/a?tls=no", "no options"),
        ("etcd://h1/a?", "no options"),
        ("etcd://me@h1/a", "has no user"),
        ("postgresql://h1", "the name of a database"),
        ("postgresql://h1/a/b", "'/a/b' is none"),
        ("postgresql:///a", "'' is not an address"),
        (f"etcd://h1/{'a' * 5000}", "too long"),
    ],
)
def test_addresses_that_are_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_journal(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@h1/a",
        "postgresql://h1/a?password=secret",
        "postgresql://h1/a?x=y&PassWord=secret",
        "postgresql://h1/a?pass%77ord=secret",
        "etcd://me:secret@h1/a",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_journal(text)
    assert "secret" not in str(told.value)


@given(st.text(max_size=40), st.sampled_from(["", "etcd://", "etcds://h/", "postgresql://h/"]))
def test_any_text_is_parsed_or_refused(text: str, begin: str) -> None:
    try:
        found = parse_journal(begin + text)
    except ConfigError:
        return
    assert found.endpoints and found.path and parse_journal(found.text) == found


def test_the_check_of_a_configuration_shows_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    file = tmp_path / "metaserver.toml"
    file.write_text(
        f'state_directory = "{tmp_path}"\nkey_file = "{tmp_path}/key"\nname = "m1"\n'
        'journal = "etcds://e1,e2,e3/braidfs"\njournal_user = "braidfs"\n'
        f'journal_password_file = "{password}"\n'
    )
    assert main(["--config", str(file), "--check"]) == 0
    shown = capsys.readouterr().out
    keys = {key["name"]: key["value"] for key in json.loads(shown)}
    assert keys["journal"] == "etcds://e1,e2,e3/braidfs" and keys["journal_user"] == "braidfs"
    assert keys["journal_password_file"] == str(password) and "hunter2" not in shown
    file.write_text(file.read_text().replace("etcds://e1,e2,e3", "postgresql://u:hunter2@h"))
    assert main(["--config", str(file), "--check"]) == 1
    said = capsys.readouterr()
    assert "has a password in it" in said.err and "hunter2" not in said.out + said.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('address = "meta1:0x"', "address: "),
        ('listen = "meta1:0x"', "listen: "),
        ('journal = "etcd://h1"', "journal: "),
        ('journal = "postgresql://h1/a?nonsense=1"', "journal: "),
        ('journal_user = "me"', "journal: a user of etcd needs a file with the password"),
        ('journal_key = "/k"', "journal: certificates for etcd are of no use without TLS"),
        ('name = "a b"', "name: "),
    ],
)
def test_an_error_names_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    file = tmp_path / "metaserver.toml"
    lines = {
        "state_directory": f'state_directory = "{tmp_path}"',
        "key_file": f'key_file = "{tmp_path}/key"',
        "name": 'name = "m1"',
        "journal": 'journal = "etcd://e1/braidfs"',
        line.partition(" ")[0]: line,
    }
    file.write_text("\n".join(lines.values()) + "\n")
    assert main(["--config", str(file), "--check"]) == 1
    said = capsys.readouterr().err
    assert words in said and (words.startswith("journal: ") or "journal:" not in said)


def test_postgresql_without_psycopg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check needs neither a server nor the file with the password."""
    file = tmp_path / "metaserver.toml"
    file.write_text(
        f'state_directory = "{tmp_path}"\nkey_file = "{tmp_path}/key"\nname = "m1"\n'
        'journal = "postgresql://u@h/d"\njournal_password_file = "/not/there/yet"\n'
    )
    assert main(["--config", str(file), "--check"]) == 0
    monkeypatch.setattr(postgresql_session, "_missing", "No module named 'psycopg'")
    assert main(["--config", str(file), "--check"]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "journal: PostgreSQL needs the Python package psycopg" in sentence
    assert "install the Debian package braidfs-postgresql" in sentence
