"""LEASE_TAKE, LEASE_RETURN, LEASES."""

from fscommon.wire.leases import LeaseQuery, LeaseReport, LeaseReturn, LeaseTake, SessionLeases
from fscommon.wire.messages import Empty, Entry
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.transaction import Transaction


def lease_take(tx: Transaction, request: LeaseTake, context: Context) -> Entry:
    return Entry(load(tx, request.ino).attributes.pack())


def lease_return(tx: Transaction, request: LeaseReturn, context: Context) -> Empty:
    return Empty()


def leases(tx: Transaction, request: LeaseQuery, context: Context) -> LeaseReport:
    rows = tuple(
        SessionLeases(session.id, session.node, 0, 0, 0, is_cached=False)
        for session in context.services.sessions.all()
    )
    return LeaseReport(rows, (), end=True)
