"""What `braidfs status` learns about certificates: from the servers that are up, over real TLS."""

import functools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fsclient.cli.expiry import Shown, ask_with_certificates, of_storage_servers, seen
from fsclient.cli.frame import Reach
from fscommon.auth.key import create_key, load_key
from fscommon.config.tls import OFF, OPTIONAL, REQUIRED, TlsSettings
from fscommon.net.address import Address
from fscommon.net.certificate import end_of_certificates
from fscommon.net.serve import Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.net.tls import transport_of
from fscommon.wire.admin import NodeStatus, Traffic
from fscommon.wire.codec import encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.messages import StatusReply
from tests.cluster.certificates import Certificates

from ..common.test_net import RecordedLog
from .test_cli_parts import make_status

LOCAL = Address("127.0.0.1", 0)


class Servers:
    """They answer STATUS of two nodes, or nothing else; each has a certificate of its own."""

    def __init__(self, path: Path, certificates: Certificates) -> None:
        self.path = path
        self.certificates = certificates
        self.reply = make_status()
        self.log = RecordedLog()
        create_key(path / "key")

    def issued(self, name: str, days: int) -> Certificates:
        folder = self.path / name
        shutil.copytree(self.certificates.folder, folder)
        made = Certificates(folder)
        made.issue(days=days)
        return made

    async def start(self, nursery: trio.Nursery, settings: TlsSettings) -> Address:
        address: Address = await nursery.start(
            functools.partial(
                serve,
                LOCAL,
                key=load_key(self.path / "key"),
                on_connection=self._answer,
                transport=transport_of(settings),
                log=self.log,
            )
        )
        return address

    def reach(self, mode: str, address: Address = LOCAL) -> Reach:
        tls = TlsSettings(mode, self.certificates.authority)
        return Reach((address,), self.path / "key", 5.0, tls)

    async def _answer(self, peer: Peer, stream: FrameStream) -> None:
        while batch := await stream.receive_batch():
            for frame in batch:
                header = frame.header
                await stream.send(
                    encode_frame(
                        header.op,
                        flags=FLAG_REPLY,
                        request_id=header.request_id,
                        body=encode(self.reply),
                    )
                )


@pytest.fixture
def servers(tmp_path: Path, certificates: Certificates) -> Servers:
    return Servers(tmp_path, certificates)


def node(number: int, address: Address | str, *, is_up: bool = True) -> NodeStatus:
    return NodeStatus(number, f"s{number}", str(address), is_up, 1.0, True, Traffic())


def ends_s(own: Certificates) -> int:
    return end_of_certificates((own.folder / "server.crt").read_bytes())


async def test_storage_servers_show_theirs(servers: Servers) -> None:
    """A server whose certificate expired is reported although it cannot connect.

    A server that does not answer shows no certificate, nor does one that is known to be down; and
    no server logs a problem because of the visit.
    """
    good, ended = servers.issued("good", 5), servers.issued("ended", -1)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            first = await servers.start(nursery, good.settings())
            second = await servers.start(nursery, ended.settings())
            nodes = (node(1, first), node(2, "127.0.0.1:1"), node(3, first, is_up=False))
            reply = make_status(nodes=nodes)
            expected = [Shown("storage server s1", ends_s(good))]
            assert await of_storage_servers(servers.reach(REQUIRED), reply) == expected
            assert servers.log.events == []
            reply = replace(reply, nodes=(*nodes, node(4, second)))
            expected.append(Shown("storage server s4", None))
            assert await of_storage_servers(servers.reach(REQUIRED), reply) == expected
            nursery.cancel_scope.cancel()
    left = [one.seconds_left for one in seen(expected)]
    assert left[0] is not None and 4 * 86400 < left[0] <= 5 * 86400 and left[1] is None
    assert [one.as_json()["ends"] is None for one in expected] == [False, True]


async def test_where_tls_is_optional_a_plain_server_shows_nothing(servers: Servers) -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            address = await servers.start(nursery, TlsSettings(OFF))
            reply = make_status(nodes=(node(1, address),))
            assert await of_storage_servers(servers.reach(OPTIONAL), reply) == []
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", [OFF, REQUIRED])
async def test_status_with_all_of_them(servers: Servers, mode: str) -> None:
    own = servers.issued("own", 40)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            address = await servers.start(nursery, own.settings(mode))
            servers.reply = make_status(nodes=(node(1, address),))
            reply, shown = await trio.to_thread.run_sync(
                ask_with_certificates, servers.reach(mode, address)
            )
            nursery.cancel_scope.cancel()
    assert isinstance(reply, StatusReply) and reply.nodes == servers.reply.nodes
    names = [] if mode == OFF else ["the metaserver", "storage server s1"]
    assert shown == [Shown(name, ends_s(own)) for name in names]
