"""The engine of a cluster's journal: members of etcd or one PostgreSQL, below the cluster's state.

Their logs and pid files lie beside those of the servers, and what they store is in STATE/journal.
"""

import secrets
import shutil
from contextlib import closing
from typing import Protocol

from metaserver.owners import Owner
from metaserver.store.journal import JournalError, Sighting
from metaserver.store.journals.address import parse_journal
from metaserver.store.journals.settings import JournalSettings, open_journal
from tests.cluster.etcd import EtcdCluster
from tests.cluster.plan import POSTGRESQL, ClusterPlan, JournalPlan
from tests.cluster.postgresql import PostgresqlServer
from tests.cluster.process import Program


class Engine(Protocol):
    @property
    def programs(self) -> tuple[Program, ...]: ...

    def start(self) -> None:
        """Starts those programs that do not run, and waits until they serve. Raises
        ProcessError."""
        ...

    def stop(self) -> None: ...


class _Postgresql:
    """One server, which is created at its first start. Its password is kept in a file."""

    def __init__(self, plan: ClusterPlan, journal: JournalPlan) -> None:
        file = plan.password_file
        password = (file.read_text() if file.exists() else "") or secrets.token_hex(16)
        self._server = PostgresqlServer(
            plan.engine_folder, journal.ports[0], password, state=plan.state
        )

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self._server.program,)

    def start(self) -> None:
        if not self._server.is_created:
            shutil.rmtree(self._server.data, ignore_errors=True)
            self._server.create()
        if self._server.program.pid() is None:
            self._server.start()

    def stop(self) -> None:
        if self._server.program.pid() is not None:
            self._server.stop()
        self._server.program.pid_path.unlink(missing_ok=True)


def engine_of(plan: ClusterPlan) -> Engine | None:
    """Raises ProcessError if the engine is not installed."""
    journal = plan.journal
    if journal is None:
        return None
    if journal.engine == POSTGRESQL:
        return _Postgresql(plan, journal)
    return EtcdCluster(plan.state, planned=journal, data=plan.engine_folder)


def sighting(plan: ClusterPlan) -> Sighting | None:
    """What the journal says now; None if the plan has none, or it does not answer."""
    if plan.journal is None:
        return None
    password = plan.password_file if plan.journal.engine == POSTGRESQL else None
    settings = JournalSettings(parse_journal(plan.journal.address), password_file=password)
    with closing(open_journal(settings)) as door:
        try:
            return door.sighting()
        except JournalError:
            return None


def active_name(plan: ClusterPlan) -> str | None:
    """The name of the metaserver that has claimed the journal."""
    seen = sighting(plan)
    owner = Owner.of(seen.head.owner) if seen else None
    return owner.name if owner else None
