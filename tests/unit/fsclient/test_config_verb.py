"""`braidfs config check` on hosts on which little or nothing is configured yet."""

import os
from pathlib import Path

import pytest

from fsclient.cli import config
from fsclient.cli.frame import EXIT_DONE, EXIT_FAILED, EXIT_UNHEALTHY, EXIT_USAGE, run_cli
from fsclient.cli.main import cli
from fscommon.auth.key import create_key
from tests.dev.steps import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /etc/braidfs."""
    monkeypatch.setattr(config, "FOLDER", str(tmp_path))
    return tmp_path


def test_a_host_without_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(cli, ["config", "check"]) == EXIT_DONE
    assert "nothing to check" in capsys.readouterr().out
    assert run_cli(cli, ["config", "check", "--json"]) == EXIT_DONE
    assert capsys.readouterr().out == "[]\n"
    assert run_cli(cli, ["config", "show"]) == EXIT_USAGE


def test_the_files_of_the_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of their keys are remarks, so a key that is not made yet is no fault of theirs."""
    for name in ("admin.toml", "client.toml"):
        (folder / name).write_bytes((ROOT / "packaging" / "debian" / name).read_bytes())
    assert run_cli(cli, ["config", "check"]) == EXIT_DONE
    assert capsys.readouterr().out.count("sound") == 2
    (folder / "admin.toml").write_text('metaservers = ["meta1"]\nkey_file = "/none/of/it"\n')
    assert run_cli(cli, ["config", "check"]) == EXIT_FAILED
    assert "cannot read the key file /none/of/it" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_cannot_be_made(folder: Path) -> None:
    assert run_cli(cli, ["config", "check", str(metaserver_at(folder, "/none/of/it"))]) == (
        EXIT_UNHEALTHY
    )


def test_a_state_directory_that_the_program_makes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = metaserver_at(folder, f"{folder}/state/metaserver")
    assert run_cli(cli, ["config", "check", str(file)]) == EXIT_DONE, capsys.readouterr().out
    assert not (folder / "state").exists()


def metaserver_at(folder: Path, state: str) -> Path:
    create_key(folder / "key")
    file = folder / "metaserver.toml"
    file.write_text(
        f'state_directory = "{state}"\nkey_file = "{folder}/key"\nlisten = "127.0.0.1:0"\n'
    )
    return file
