"""TLS on a real cluster: everything that goes over the network is recorded, and cannot be read.

The recorder is between the client and every server: the source of the mount and the addresses that
storage servers advertise are its own. The same cluster without TLS shows that the recorder does see
the bytes.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fsclient.cli.frame import EXIT_UNHEALTHY, EXIT_UNREACHABLE
from tests.cluster import mounts
from tests.cluster.certificates import Certificates, make_certificates
from tests.cluster.cluster import BIN, Cluster, link_mount_helper
from tests.cluster.plan import SHORT_SESSIONS, save_client_config
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_survival import kill

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

MARK = b"the weights of the model are these"
NAME = "a-name-that-nobody-may-know"
SIZE = 6 << 20


class Recorder:
    """Forwards bytes between each connection to one of its ports and the port behind it. A
    connection ends when nobody listens behind it, or one side has failed."""

    def __init__(self) -> None:
        self.seen: list[bytearray] = []  # there is one entry for each direction of a connection
        self._sockets: list[socket.socket] = []

    def port_for(self, port: int) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept, listener, port)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def saw(self, what: bytes) -> bool:
        return any(what in octets for octets in self.seen)

    def count(self) -> int:
        return sum(map(len, self.seen))

    def _start(self, work: Callable[..., None], sock: socket.socket, *words: object) -> None:
        self._sockets.append(sock)
        threading.Thread(target=work, args=(sock, *words), daemon=True).start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                one = listener.accept()[0]
                try:
                    other = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    one.close()
                    continue
                self._start(self._hand_on, one, other)
                self._start(self._hand_on, other, one)

    def _hand_on(self, from_: socket.socket, to: socket.socket) -> None:
        seen = bytearray()
        self.seen.append(seen)
        with contextlib.suppress(OSError):
            while octets := from_.recv(1 << 18):
                seen += octets
                to.sendall(octets)
        for sock in (from_, to):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def secret_file(path: Path) -> str:
    octets = (MARK + os.urandom(64)) * (SIZE // (len(MARK) + 64))
    path.write_bytes(octets)
    return hashlib.sha256(octets).hexdigest()


@contextlib.contextmanager
def recorded(
    make_cluster: ClusterMaker, certificates: Certificates | None
) -> Iterator[tuple[Recorder, Callable[[], Path]]]:
    """The recorder, and a function that mounts the cluster again so that every byte goes through
    it."""
    toml = certificates.toml() if certificates else {}
    recorder, settings = Recorder(), {"metaserver": dict(toml)}
    for index in (1, 2):
        port = free_port()
        settings[f"storageserver-{index}"] = {
            **toml,
            "listen": f"127.0.0.1:{port}",
            "advertise": f"127.0.0.1:{recorder.port_for(port)}",
        }
    settings["client"] = certificates.client_toml() if certificates else {}
    cluster = make_cluster(settings=settings)
    source = f"127.0.0.1:{recorder.port_for(cluster.plan.metaserver.port)}:/"
    point = cluster.plan.state / "through"

    def mount() -> Path:
        link_mount_helper()
        if mounts.is_mounted(point):
            mounts.unmount(point)
        mounts.mount(source, point, cluster.plan.options())
        return point

    try:
        yield recorder, mount
    finally:
        if mounts.is_mounted(point):
            mounts.unmount(point)
        recorder.close()


@pytest.mark.parametrize(
    "is_on", [pytest.param(True, id="tls"), pytest.param(False, id="plain", marks=pytest.mark.full)]
)
def test_who_listens_learns_nothing(
    make_cluster: ClusterMaker, certificates: Certificates, *, is_on: bool
) -> None:
    """The recorder sees neither bytes of a file nor its name, and both arrive unchanged.

    Without TLS it sees both, so it would have seen them.
    """
    with recorded(make_cluster, certificates if is_on else None) as (recorder, mount):
        written = secret_file(mount() / NAME)
        assert hashlib.sha256((mount() / NAME).read_bytes()).hexdigest() == written
        assert recorder.count() > 2 * SIZE - 4096
        assert recorder.saw(MARK) is not is_on
        assert recorder.saw(NAME.encode()) is not is_on


@pytest.fixture
def secure(make_cluster: ClusterMaker, certificates: Certificates, tmp_path: Path) -> Cluster:
    """A cluster that demands TLS; its certificates may be changed."""
    folder = tmp_path / "tls"
    shutil.copytree(certificates.folder, folder)
    own = Certificates(folder)
    # Clients renew, and report their transport, about each second.
    short = SHORT_SESSIONS["metaserver"]
    http = {"http_tls": True, "page_listen": f"127.0.0.1:{free_port()}"}
    settings = {
        "metaserver": {**own.toml(), **short, **http},
        "storageserver": {**own.toml(), "http_tls": True},
        "client": own.client_toml(),
    }
    return make_cluster(settings=settings)


def refused_mount(cluster: Cluster, settings: dict[str, object]) -> str:
    """settings: more keys of its client.toml. Returns what was said."""
    point = cluster.plan.state / "refused"
    point.mkdir(exist_ok=True)
    file = save_client_config(cluster.plan, "refused", settings)
    words = (
        BIN / "mount.fuse.braidfs",
        cluster.plan.source(),
        point,
        "-o",
        f"key_file={cluster.plan.key_file},config={file},timeout=3",
    )
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 32 and not mounts.is_mounted(point), ended
    return ended.stderr


def check_what_is_told_to_whom(secure: Cluster, tmp_path: Path) -> None:
    """A mount without TLS, one that trusts another authority, RDMA, and the command line."""
    assert "takes no connection without TLS" in refused_mount(secure, {"tls": "off"})
    other = make_certificates(tmp_path / "other")
    theirs = other.client_toml()
    said = refused_mount(secure, theirs)
    assert "unable to get local issuer certificate" in said
    assert "tls=optional" not in refused_mount(secure, {**theirs, "tls": "optional"})
    assert "RDMA" not in refused_mount(secure, {"tls_ca": "/nonexistent"})
    assert "no encryption" in refused_mount(secure, {"transport": "rdma"})
    cli = Cli(secure)
    assert "without TLS" in cli.run("status", code=EXIT_UNREACHABLE).stderr


def admin(cluster: Cluster, folder: Path) -> Cli:
    """The command line with an admin.toml that sets TLS."""
    cli = Cli(cluster)
    file = cluster.plan.state / "admin.toml"
    file.write_text(f'tls = "required"\ntls_ca = "{folder / "ca.crt"}"\n')
    cli.environment["BRAIDFS_ADMIN_CONFIG"] = str(file)
    return cli


def check_every_verb_that_reaches_a_server(secure: Cluster, tmp_path: Path) -> None:
    cli = admin(secure, tmp_path / "tls")
    path = secure.mount_path / "file"
    secret_file(path)

    def ways() -> set[str]:
        return {one["transport"] for one in cli.json("client", "list")[0]["paths"]}

    # The client reports it with its next renewal.
    assert wait_until(lambda: ways() == {"tls"}, 30), ways()
    assert " TLS" in cli.text("status")
    shown = cli.json("status")["certificates"]
    assert [row["server"] for row in shown] == [
        "the metaserver",
        *(f"storage server {server.name}" for server in secure.plan.storageservers),
    ]
    for row in shown:
        assert 88 < (datetime.fromisoformat(row["ends"]) - datetime.now(UTC)).days < 90
    bundle = tmp_path / "bundle.tar.gz"
    cli.run("support", "bundle", "-o", bundle)
    with tarfile.open(bundle) as archive:
        file = archive.extractfile("braidfs-support/status.json")
        assert file is not None and json.load(file)["certificates"] == shown
    assert all(not one["error"] for one in cli.json("node", "ping"))
    assert cli.json("stat", path)["objects"][0]["state"] == "present"
    port = secure.plan.storageservers[0].port
    found = cli.json("net", "check", f"127.0.0.1:{port}", code=3)
    assert found["transport"] == "tcp" and "TLS is on" in found["server_reason"]


def check_http_with_tls(secure: Cluster, tmp_path: Path) -> None:
    """Metrics of both servers and the page are served by https only, and a certificate is renewed
    without a restart."""
    plan, folder = secure.plan, tmp_path / "tls"
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    page = int(str(plan.settings["metaserver"]["page_listen"]).rpartition(":")[2])
    ports = [plan.metaserver.metrics_port, plan.storageservers[0].metrics_port]
    for port, path, word in (
        *((port, "metrics", b"braidfs_certificate_expiry_timestamp_seconds") for port in ports),
        (page, "", b"page.js"),
        (page, "status.json", b'"health"'),
    ):
        at = f"127.0.0.1:{port}/{path}"
        with urllib.request.urlopen(f"https://{at}", context=context, timeout=20) as reply:
            assert word in reply.read()
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://{at}", timeout=20)
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{at}", timeout=20)
    before = shown_certificate(page, context)
    # This connection sends nothing; others are served nevertheless.
    with socket.create_connection(("127.0.0.1", page)):
        Certificates(folder).issue()
        assert wait_until(lambda: shown_certificate(page, context) != before, 20)


def check_metrics_of_a_mount(secure: Cluster, tmp_path: Path) -> None:
    """Metrics of a mount are also served by https only; a missing certificate is reported before
    anything is mounted."""
    folder, port = tmp_path / "tls", free_port()
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    own = Certificates(folder).toml()
    listen = {"metrics_listen": f"127.0.0.1:{port}", "http_tls": True}
    missing = refused_mount(secure, {**own, **listen, "tls_certificate": "/nonexistent"})
    assert "http_tls: /nonexistent" in missing and "No such file" in missing
    assert "say metrics_listen, too" in refused_mount(secure, {**own, "http_tls": True})
    with secure.second_client(tmp_path / "metered", settings={**own, **listen}):
        at = f"127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(f"https://{at}", context=context, timeout=20) as reply:
            assert b'braidfs_up{program="client"} 1.0' in reply.read()
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{at}", timeout=20)


def shown_certificate(port: int, context: ssl.SSLContext) -> bytes | None:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return tls.getpeercert(binary_form=True)


def check_certificates_change_under_a_mount(secure: Cluster, tmp_path: Path) -> None:
    """Certificates are renewed while bytes flow: nothing is restarted, and new connections see the
    new one."""
    cli, folder = admin(secure, tmp_path / "tls"), tmp_path / "tls"
    path = secure.mount_path / "file"
    written = secret_file(path)
    link_mount_helper()
    cli.run("client", "restart", secure.mount_path)  # the mount goes on by TLS
    with path.open("rb") as file:
        kill(secure)  # so does the next process
        assert hashlib.sha256(file.read()).hexdigest() == written
    words = ("--ca", folder / "ca.crt")
    before = cli.json("tls", "check", secure.plan.metaserver_address, *words)
    assert before["cipher"] == "TLS_AES_128_GCM_SHA256" and before["days_left"] > 80
    cli.run("tls", "issue", "127.0.0.1", "--authority", folder, "--to", folder, "--days", 700)
    assert cli.json("tls", "check", secure.plan.metaserver_address, *words)["days_left"] > 600
    for server in secure.plan.storageservers:
        after = cli.json("tls", "check", f"127.0.0.1:{server.port}", *words)
        assert after["days_left"] > 600
    with secure.second_client(tmp_path / "next") as point:
        assert hashlib.sha256((point / "file").read_bytes()).hexdigest() == written
    assert hashlib.sha256(path.read_bytes()).hexdigest() == written


@pytest.mark.full
@pytest.mark.expects_warnings
def test_a_cluster_changes_over(make_cluster: ClusterMaker, certificates: Certificates) -> None:
    """The cluster goes from no TLS to TLS, one server at a time, with a client that was mounted
    before: first `optional` everywhere, then `required`."""
    cluster = make_cluster()
    path = cluster.mount_path / "file"
    written = secret_file(path)
    for mode in ("optional", "required"):
        for server, program in zip(
            (*cluster.plan.storageservers, cluster.plan.metaserver),
            (*cluster.storageservers, cluster.metaserver),
            strict=True,
        ):
            text = cluster.plan.config_path(server).read_text()
            text = "".join(line for line in text.splitlines(True) if not line.startswith("tls"))
            words = "".join(
                f"{key} = {json.dumps(value)}\n" for key, value in certificates.toml(mode).items()
            )
            cluster.plan.config_path(server).write_text(words + text)
            program.stop()
            program.start()
            if mode == "optional":
                assert hashlib.sha256(path.read_bytes()).hexdigest() == written
        if mode == "optional":
            cluster.unmount()
            save_client_config(cluster.plan, "client", certificates.client_toml())
            mounts.mount(cluster.plan.source(), cluster.mount_path, cluster.plan.options())
        assert hashlib.sha256(path.read_bytes()).hexdigest() == written


def check_who_stands_in_the_middle_is_found_out(secure: Cluster, tmp_path: Path) -> None:
    """An attacker terminates TLS itself, with a certificate for the same address by another
    authority.

    There is no mount, and the attacker gets no byte of the client's proof after the handshake.
    """
    fake = make_certificates(tmp_path / "fake")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fake.folder / "server.crt", fake.folder / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[str] = []

    def attack() -> None:
        with contextlib.suppress(OSError):
            while True:
                try:
                    with context.wrap_socket(listener.accept()[0], server_side=True) as tls:
                        heard.append(repr(tls.recv(4096)))
                except ssl.SSLError as error:
                    heard.append(str(error.reason))

    threading.Thread(target=attack, daemon=True).start()
    port = listener.getsockname()[1]
    point = tmp_path / "point"
    point.mkdir()
    words = (
        BIN / "mount.fuse.braidfs",
        f"127.0.0.1:{port}:/",
        point,
        "-o",
        f"{secure.plan.options()},timeout=3",
    )
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    listener.close()
    assert ended.returncode == 32 and "no TLS with this server" in ended.stderr, ended
    assert heard and set(heard) == {"TLSV1_ALERT_UNKNOWN_CA"}


@pytest.mark.expects_log("connection refused", "the process before was killed")
def test_a_cluster_that_demands_tls(secure: Cluster, tmp_path: Path) -> None:
    check_what_is_told_to_whom(secure, tmp_path)
    check_who_stands_in_the_middle_is_found_out(secure, tmp_path)
    check_every_verb_that_reaches_a_server(secure, tmp_path)
    check_http_with_tls(secure, tmp_path)
    check_metrics_of_a_mount(secure, tmp_path)
    check_certificates_change_under_a_mount(secure, tmp_path)


@pytest.mark.expects_log("wrong magic")
def test_the_verbs_that_make_certificates(tmp_path: Path, cluster: Cluster) -> None:
    cli, folder = Cli(cluster), tmp_path / "made"
    made = cli.json("tls", "authority", folder)
    assert made["days_left"] > 3600 and "BraidFS authority" in made["subject"]
    assert os.stat(folder / "ca.key").st_mode & 0o777 == 0o600
    assert "exists" in cli.run("tls", "authority", folder, code=2).stderr
    words = ("tls", "issue", "10.0.0.1", "stor1.example", "--authority", folder, "--to", folder)
    issued = cli.json(*words, "--days", 60)
    assert issued["names"] == ["10.0.0.1", "stor1.example"] and issued["changed"]
    assert "names    10.0.0.1, stor1.example" in cli.text("tls", "check", folder / "server.crt")
    assert not cli.json(*words, "--days", 60, "--renew")["changed"]
    assert cli.json(*words[:3], *words[4:], "--renew")["changed"]  # one name was dropped
    as_client = ("openssl", "verify", "-purpose", "sslclient", "-CAfile", folder / "ca.crt")
    assert subprocess.run((*as_client, folder / "server.crt"), check=False).returncode != 0
    for_both = (*words[:3], *words[4:], "--renew", "--client-auth")
    assert cli.json(*for_both)["changed"] and not cli.json(*for_both)["changed"]
    assert subprocess.run((*as_client, folder / "server.crt"), check=False).returncode == 0
    soon = cli.json("tls", "check", folder / "server.crt", "--days", 400, code=EXIT_UNHEALTHY)
    assert 364 < soon["days_left"] < 366
    assert "neither an address nor" in cli.run("tls", "issue", "a,b", code=2).stderr
    assert "tls authority" in cli.run("tls", "issue", "x", "--authority", tmp_path, code=2).stderr
    assert "there is no" in cli.run("tls", "check", tmp_path / "none", code=2).stderr
    said = cli.run(
        "tls", "check", cluster.plan.metaserver_address, "--ca", folder / "ca.crt", code=1
    ).stderr
    assert "its tls is off" in said
