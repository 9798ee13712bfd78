"""What a metaserver's configuration says of its journal, and how a door to it is opened.

The client library of an engine is imported when a journal in it is opened: most metaservers have no
journal, and would spend a third of their start on both libraries.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from metaserver.store.journal import Journal
from metaserver.store.journals.address import JournalAddress


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """user and the files are for etcd; PostgreSQL has its user and TLS in the address, and uses
    password_file."""

    address: JournalAddress
    user: str = ""
    password_file: Path | None = None
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def open_journal(settings: JournalSettings) -> Journal:
    """Connects at the first call. Raises ConfigError, ValueError."""
    if not settings.address.is_etcd:
        from metaserver.store.journals.postgresql import PostgresqlJournal  # noqa: PLC0415

        return PostgresqlJournal(
            settings.address.text, password_file=settings.password_file, timeout_s=2.0
        )
    from metaserver.store.journals.etcd import EtcdJournal  # noqa: PLC0415
    from metaserver.store.journals.etcd_gateway import EtcdSettings  # noqa: PLC0415

    return EtcdJournal(
        EtcdSettings(
            settings.address.endpoints,
            settings.address.path,
            is_tls=settings.address.is_tls,
            authority=settings.authority,
            certificate=settings.certificate,
            key=settings.key,
            user=settings.user,
            password_file=settings.password_file,
        )
    )


def check_journal(settings: JournalSettings) -> None:
    """Checks what can be checked without a connection and without the files, which may be put in
    place later. Raises ConfigError, ValueError."""
    if not settings.address.is_etcd:
        settings = replace(settings, password_file=None)
    open_journal(settings).close()
