"""The units and the role that make backups call the command as it is."""

import re
import shlex

import click

from fsclient.cli.meta import meta_backup
from tests.dev.steps import ROOT

UNITS = ROOT / "packaging" / "systemd"
ROLE = ROOT / "ansible" / "roles" / "metaserver"
SERVICE = (UNITS / "braidfs-meta-backup.service").read_text()
TIMER = (UNITS / "braidfs-meta-backup.timer").read_text()


def _environment() -> dict[str, str]:
    (line,) = re.findall(r"^Environment=(.*)$", SERVICE, re.M)
    return dict(word.split("=", 1) for word in shlex.split(line))


def test_the_service_runs_the_command() -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", SERVICE, re.M)
    values = _environment()
    words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda name: values[name[1]], line))
    assert words[:3] == ["braidfs", "meta", "backup"]
    seen = click.Context(meta_backup, info_name="backup")
    meta_backup.parse_args(seen, words[3:])
    assert str(seen.params["file"]) == "/var/lib/braidfs/backups"
    assert (seen.params["keep"], seen.params["force"]) == (14, False)
    assert "StateDirectory=braidfs/backups" in SERVICE, "the service may write there"


def test_it_is_off_until_somebody_enables_the_timer() -> None:
    assert "[Install]" not in SERVICE and "WantedBy=timers.target" in TIMER
    rules = (ROOT / "packaging" / "debian" / "rules").read_text()
    assert "dh_installsystemd -pbraidfs-metaserver braidfs-metaserver.service\n" in rules


def test_the_role_sets_what_the_service_reads() -> None:
    template = (ROLE / "templates" / "backup.conf.j2").read_text()
    assert set(re.findall(r'Environment="?(\w+)=', template)) == set(_environment())
    assert "ReadWritePaths=" in template, "ProtectSystem=strict"
    defaults = (ROLE / "defaults" / "main.yml").read_text()
    assert 'metaserver_backup_directory: ""\n' in defaults
    assert f"metaserver_backup_keep: {_environment()['KEEP']}\n" in defaults
