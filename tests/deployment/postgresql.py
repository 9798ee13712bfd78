"""A PostgreSQL server on a test host, for a metaserver's journal."""

from pathlib import Path

from tests.cluster.process import PATIENCE, wait_until
from tests.deployment.hosts import NETWORK, Host, HostError

PASSWORD = "journal-password"
_FOLDER = "/run/postgresql-journal"


def start_postgresql(host: Host) -> str:
    """Returns the address for a journal there. PASSWORD is that of its user."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        raise HostError("PostgreSQL is not installed: apt-get install postgresql")
    as_user = ("runuser", "-u", "postgres", "--")
    host.run("install", "-d", "-o", "postgres", _FOLDER)
    host.run("tee", f"{_FOLDER}/password", stdin=PASSWORD)
    options = ("-A", "scram-sha-256", "--pwfile", f"{_FOLDER}/password")
    host.run(*as_user, programs[-1] / "initdb", *options, "-D", f"{_FOLDER}/data")
    network = f"host all all {NETWORK}.0/24 scram-sha-256\n"
    host.run("tee", "-a", f"{_FOLDER}/data/pg_hba.conf", stdin=network)
    server = (programs[-1] / "postgres", "-D", f"{_FOLDER}/data", "-k", _FOLDER, "-h", "*")
    host.run("systemd-run", "--unit=journal", "--uid=postgres", *server)
    asked = ("pg_isready", "-h", host.address)
    if not wait_until(lambda: host.run(*asked, check=False).returncode == 0, 60 * PATIENCE):
        raise HostError(host.text("journalctl", "-u", "journal", "-n", "20", "--no-pager"))
    return f"postgresql://postgres@{host.address}/postgres"
