"""Real etcd members on the loopback of this machine, private to one test, module or cluster.

Each has a folder and two ports of its own, and is signalled by its pid. With certificates, members
and clients speak TLS, and each client needs one. With places, each runs in a network namespace of
its own; a member may be removed, and another one added.
"""

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsclient.cli.certificates import create_authority
from tests.cluster.networks import Place
from tests.cluster.plan import HERE, JournalPlan
from tests.cluster.ports import free_port
from tests.cluster.process import PATIENCE, ProcessError, Program, tail, wait_until

HEALTHY_SECONDS_MAX = 60.0 * PATIENCE
_ASK_SECONDS = 2.0 * PATIENCE
# A member is a client of itself, and of the others.
_EXTENSIONS = """basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=IP:127.0.0.1
"""


@dataclass(frozen=True, slots=True)
class EtcdCertificates:
    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "etcd.crt"

    @property
    def key(self) -> Path:
        return self.folder / "etcd.key"

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_etcd_certificates(folder: Path) -> EtcdCertificates:
    """An authority, and one certificate for members and clients alike. It has no name, because
    etcd would take that for the name of a user."""
    create_authority(folder)
    made = EtcdCertificates(folder)
    (folder / "extensions").write_text(_EXTENSIONS)
    new_key = "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /O=braidfs"
    sign = "x509 -req -days 30 -CA ca.crt -CAkey ca.key -set_serial 7 -extfile extensions"
    for words in (
        f"{new_key} -keyout etcd.key -out etcd.csr",
        f"{sign} -in etcd.csr -out etcd.crt",
    ):
        subprocess.run(("openssl", *words.split()), cwd=folder, check=True, capture_output=True)
    return made


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """data: the folder of what it stores."""

    name: str
    port: int
    peer_port: int
    place: Place
    data: Path
    program: Program

    @property
    def endpoint(self) -> str:
        return f"{self.place.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a member is."""

    name: str
    port: int
    peer_port: int
    place: Place = HERE


def _rows(planned: JournalPlan) -> list[_Row]:
    return list(map(_Row, planned.names, planned.ports, planned.peer_ports))


def _new_rows(places: Sequence[Place]) -> list[_Row]:
    return [
        _Row(f"m{number}", free_port(), free_port(), place) for number, place in enumerate(places)
    ]


class EtcdCluster:
    """One or three members. `quota`: bytes at which etcd refuses changes. `planned`: names and
    ports of the members, which are new ones without it. `data`: the folder of what they store, if
    it is not `folder`. `places`: where each new member runs."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        *,
        certificates: EtcdCertificates | None = None,
        quota: int = 0,
        planned: JournalPlan | None = None,
        data: Path | None = None,
        places: Sequence[Place] = (),
    ) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise ProcessError("etcd is not installed: apt-get install etcd-server etcd-client")
        self._program = program
        self._folder = folder
        self._data = data or folder
        self._certificates = certificates
        self._quota = quota
        self._user = ""  # NAME:PASSWORD for etcdctl, once there are users
        rows = _rows(planned) if planned else _new_rows(places or (HERE,) * count)
        peers = self._peers(rows)
        self.members = tuple(self._member(row, peers) for row in rows)

    def _member(
        self, row: _Row, peers: str, state: str = "new", data: Path | None = None
    ) -> EtcdMember:
        data = data or self._data / f"data-{row.name}"
        argv = (self._program, *self._options(row, peers, state, data))
        program = Program(row.name, argv, self._folder, row.place.enter)
        return EtcdMember(row.name, row.port, row.peer_port, row.place, data, program)

    def _peers(self, rows: Sequence[_Row | EtcdMember]) -> str:
        return ",".join(f"{one.name}={self._url(one, one.peer_port)}" for one in rows)

    @property
    def programs(self) -> tuple[Program, ...]:
        return tuple(member.program for member in self.members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def _url(self, row: _Row | EtcdMember, port: int) -> str:
        return f"{'https' if self._certificates else 'http'}://{row.place.address}:{port}"

    def _options(self, row: _Row, peers: str, state: str, data: Path) -> list[str]:
        url, peer_url = self._url(row, row.port), self._url(row, row.peer_port)
        options = {
            "name": row.name,
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": peers,
            "initial-cluster-state": state,
            "initial-cluster-token": self._folder.name,
            "snapshot-count": "1000",
            "quota-backend-bytes": str(self._quota),
            "logger": "zap",
        }
        if self._certificates:
            for kind in ("", "peer-"):
                options[f"{kind}cert-file"] = str(self._certificates.certificate)
                options[f"{kind}key-file"] = str(self._certificates.key)
                options[f"{kind}trusted-ca-file"] = str(self._certificates.authority)
                options[f"{kind}client-cert-auth"] = "true"
        options["data-dir"] = str(data)  # last: no other program has it
        return [f"--{key}={value}" for key, value in options.items()]

    def replace(self, member: EtcdMember, data: Path | None = None) -> EtcdMember:
        """Removes a member, and adds an empty one with a new identity at the same addresses: what
        an administrator does whose host was lost. data: where it stores; None: at the usual place.
        Returns the new one, which is healthy."""
        member.program.stop()
        shutil.rmtree(member.data)
        others = tuple(one for one in self.members if one != member)
        endpoints = tuple(one.endpoint for one in others)
        identity = self._identity(member, endpoints)
        self.control("member", "remove", f"{identity:x}", endpoints=endpoints)
        self._add(member, endpoints)
        row = _Row(member.name, member.port, member.peer_port, member.place)
        new = self._member(row, self._peers((*others, row)), "existing", data)
        self.members = tuple(new if one == member else one for one in self.members)
        new.program.start(ready=False)
        self.wait_healthy()
        return new

    def _add(self, member: EtcdMember, endpoints: tuple[str, ...]) -> None:
        """etcd refuses for some seconds after its members have connected to each other anew."""
        peer_url = self._url(member, member.peer_port)
        words = ("member", "add", member.name, f"--peer-urls={peer_url}")

        def is_added() -> bool:
            try:
                self.control(*words, endpoints=endpoints)
            except ProcessError as error:
                if "unhealthy cluster" not in str(error):
                    raise
                return False
            return True

        if not wait_until(is_added, HEALTHY_SECONDS_MAX):
            raise ProcessError(f"etcd does not accept {member.name}")

    def lead(self, member: EtcdMember) -> None:
        """Makes this member the leader."""
        leader = self.leader()
        if leader != member:
            identity = self._identity(member, self.endpoints)
            self.control("move-leader", f"{identity:x}", endpoints=(leader.endpoint,))

    def _identity(self, member: EtcdMember, endpoints: tuple[str, ...]) -> int:
        listed = json.loads(self.control("member", "list", "-w", "json", endpoints=endpoints))
        return next(int(one["ID"]) for one in listed["members"] if one.get("name") == member.name)

    def start(self) -> None:
        """Starts those that do not run, and waits until all are healthy."""
        for member in self.members:
            member.program.start(ready=False)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        for member in self.members:
            if not wait_until(lambda: self.is_healthy(member), HEALTHY_SECONDS_MAX):  # noqa: B023
                log = member.program.log_path
                raise ProcessError(f"{member.name} is not healthy; its log ends:\n{tail(log)}")

    def stop(self) -> None:
        for member in self.members:
            with contextlib.suppress(ProcessError):
                member.program.signal(signal.SIGCONT)
            member.program.stop()

    def kill(self) -> None:
        """Ends it for good: without a majority a member takes long to end by itself."""
        for member in self.members:
            with contextlib.suppress(ProcessError):  # it has ended
                member.program.kill()

    def is_healthy(self, member: EtcdMember) -> bool:
        try:
            return bool(json.loads(self._fetch(member, "/health")).get("health") == "true")
        except (OSError, ValueError):
            return False

    def _fetch(self, member: EtcdMember, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        context = self._certificates.context() if self._certificates else None
        raw = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url(member, member.port) + path, raw)

        def fetch() -> bytes:
            with urllib.request.urlopen(request, timeout=_ASK_SECONDS, context=context) as answer:
                return bytes(answer.read())

        return member.place.call(fetch)

    def ask(self, member: EtcdMember, path: str, body: Mapping[str, Any]) -> Any:
        """One request to its JSON gateway. Unlike control() it starts no program: that would close
        what this process has open, which waits while a mount does."""
        return json.loads(self._fetch(member, path, body))

    def leader(self) -> EtcdMember:
        """The member that leads now. Raises ProcessError if none says so."""
        for member in self.members:
            with contextlib.suppress(OSError, ValueError):
                status = json.loads(self._fetch(member, "/v3/maintenance/status", {}))
                if status["leader"] == status["header"]["member_id"]:
                    return member
        raise ProcessError("no member of etcd leads")

    def control(self, *words: str, endpoints: tuple[str, ...] = ()) -> str:
        """Runs etcdctl with these words, and returns what it printed."""
        options = [f"--endpoints={','.join(map(self._full, endpoints or self.endpoints))}"]
        if self._certificates:
            options.append(f"--cacert={self._certificates.authority}")
            options.append(f"--cert={self._certificates.certificate}")
            options.append(f"--key={self._certificates.key}")
        if self._user:
            options.append(f"--user={self._user}")
        done = subprocess.run(
            (*self.members[0].place.enter, "etcdctl", *options, *words),
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * PATIENCE,
        )
        if done.returncode:
            raise ProcessError(f"etcdctl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _full(self, endpoint: str) -> str:
        return f"{'https' if self._certificates else 'http'}://{endpoint}"

    def require_users(self, user: str, password: str, prefix: str) -> None:
        """From now on etcd wants a user and a password; this user may use the prefix alone."""
        self.control("user", "add", "root:root-password")
        self.control("role", "add", "root")
        self.control("user", "grant-role", "root", "root")
        self.control("user", "add", f"{user}:{password}")
        self.control("role", "add", "metaserver")
        self.control("role", "grant-permission", "metaserver", "readwrite", prefix, "--prefix")
        self.control("user", "grant-role", user, "metaserver")
        self.control("auth", "enable")
        self._user = "root:root-password"


@contextlib.contextmanager
def running_etcd(
    folder: Path,
    count: int = 1,
    *,
    certificates: EtcdCertificates | None = None,
    quota: int = 0,
    places: Sequence[Place] = (),
) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(folder, count, certificates=certificates, quota=quota, places=places)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
