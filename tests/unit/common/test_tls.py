"""TLS: which peers are trusted, which are refused and with what message, and how certificates and
keys change.
"""

import os
import shutil
import socket
from pathlib import Path

import pytest
import trio

from fscommon.config.tls import MODES, OFF, OPTIONAL, REQUIRED, TlsSettings
from fscommon.errors import ConfigError, TransportError
from fscommon.native import load_module
from fscommon.net.address import Address
from fscommon.net.tls import TlsTransport, tls_of, transport_of
from tests.cluster.certificates import Certificates, make_certificates

from .test_net import RecordedLog, dial, serving


@pytest.fixture
def own(tmp_path: Path, certificates: Certificates) -> Certificates:
    """Certificates that a test may change."""
    shutil.copytree(certificates.folder, tmp_path / "own")
    return Certificates(tmp_path / "own")


@pytest.mark.parametrize("theirs", MODES)
@pytest.mark.parametrize("ours", MODES)
async def test_every_pair_of_modes(ours: str, theirs: str, certificates: Certificates) -> None:
    """Encrypted if both ends can; unencrypted only if neither demands TLS; otherwise refused with a
    remedy."""
    server = transport_of(certificates.settings(theirs))
    client = transport_of(TlsSettings(ours, certificates.authority))
    async with serving(transport=server) as address:
        if (ours, theirs) == (OFF, REQUIRED):
            with pytest.raises(TransportError, match="takes no connection without TLS"):
                await dial(address, transport=client)
        elif (ours, theirs) == (REQUIRED, OFF):
            with pytest.raises(TransportError, match="its tls is off"):
                await dial(address, transport=client)
        else:
            stream = await dial(address, transport=client)
            assert (stream.tls is not None) == (OFF not in (ours, theirs))
            await stream.aclose()


async def refusal(address: Address, authority: Path) -> str:
    with pytest.raises(TransportError) as caught:
        await dial(address, transport=TlsTransport(TlsSettings(OPTIONAL, authority)))
    return str(caught.value)


async def test_an_authority_that_is_another(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    async with serving(transport=TlsTransport(certificates.settings())) as address:
        assert "unable to get local issuer certificate" in await refusal(address, other.authority)


async def test_a_server_of_another_name(own: Certificates) -> None:
    own.issue(["192.0.2.7", "stor1.example"])
    async with serving(transport=TlsTransport(own.settings())) as address:
        assert "IP address mismatch" in await refusal(address, own.authority)
        by_name = Address("localhost", address.port)
        assert "hostname mismatch" in await refusal(by_name, own.authority)


async def test_a_certificate_that_has_ended(own: Certificates) -> None:
    own.issue(days=-1)
    async with serving(transport=TlsTransport(own.settings())) as address:
        assert "certificate has expired" in await refusal(address, own.authority)


async def test_a_certificate_of_no_server(own: Certificates) -> None:
    """A certificate that the authority signed for another purpose is no server's; nor is the
    authority's own."""
    for name in ("crt", "key"):
        shutil.copy(own.folder / f"ca.{name}", own.folder / f"server.{name}")
    async with serving(transport=TlsTransport(own.settings())) as address:
        said = await refusal(address, own.authority)
        assert "IP address mismatch" in said or "unsuitable certificate purpose" in said


async def test_certificates_are_read_again_when_they_change(own: Certificates) -> None:
    """The existing connection goes on; a new one sees the new certificate; broken files change
    nothing."""
    server = TlsTransport(own.settings(), log := RecordedErrors())
    async with serving(transport=server) as address:
        theirs = TlsSettings(REQUIRED, own.authority)
        before = await dial(address, transport=TlsTransport(theirs))

        async def ends() -> int:
            _, (_, _, ends_s) = await tls_of(address, theirs)
            return ends_s

        first = await ends()
        own.issue(days=700)
        assert await ends() > first
        (own.folder / "server.crt").write_text("no certificate")
        assert await ends() > first
        assert "stay in use" in log.said[0]
        await before.send(b"")
        await before.aclose()


class RecordedErrors(RecordedLog):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def error(self, event: str, **fields: object) -> None:
        self.said.append(event)


@pytest.mark.parametrize("missing", ["server.crt", "server.key", "ca.crt"])
def test_files_that_cannot_be_used_are_named(own: Certificates, missing: str) -> None:
    (own.folder / missing).write_text("nothing")
    with pytest.raises(ConfigError, match=missing):
        TlsTransport(own.settings())
    (own.folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        TlsTransport(own.settings())


def test_a_key_of_another_certificate(own: Certificates) -> None:
    other = make_certificates(own.folder.parent / "third")
    shutil.copy(other.folder / "server.key", own.folder / "server.key")
    with pytest.raises(ConfigError, match=r"key values mismatch|not that of"):
        TlsTransport(own.settings())


def test_a_word_that_is_no_mode() -> None:
    with pytest.raises(ValueError, match="off, optional, required, not 'on'"):
        TlsSettings("on")


async def test_strangers_that_begin_tls_and_fall_silent(certificates: Certificates) -> None:
    """They delay no other peer, and do not end the server."""
    async with serving(transport=TlsTransport(certificates.settings())) as address:
        strangers = [socket.create_connection((address.host, address.port)) for _ in range(5)]
        for stranger, octets in zip(
            strangers,
            (b"", b"\x16", b"\x16\x03\x01\xff\xff" + bytes(100), os.urandom(300), b"\x16" * 70_000),
            strict=True,
        ):
            stranger.sendall(octets)
        stream = await dial(address, transport=TlsTransport(certificates.settings()))
        assert stream.tls is not None
        await stream.aclose()
        for stranger in strangers:
            stranger.close()


def test_keys_change_on_the_way(certificates: Certificates) -> None:
    """With three records for each key, 3,000 messages use a thousand keys in each direction."""
    context = load_module().TlsContext
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    settings = certificates.settings()
    server = context.server(str(settings.certificate), str(settings.key)).open(
        ends[0].fileno(), "", 3
    )
    client = context.client(str(settings.authority)).open(ends[1].fileno(), "localhost", 3)
    for _ in range(10):
        if client.shake() + server.shake() == 0:
            break
    for number in range(3000):
        for one, other in ((client, server), (server, client)):
            sent = b"%d" % number * (1 + number % 7)
            assert one.send(sent) == len(sent) and one.flush()
            assert other.receive(1 << 16) == sent
    assert client.cipher() == "TLS_AES_128_GCM_SHA256"
    for end in ends:
        end.close()


async def test_a_flipped_bit_ends_the_connection(certificates: Certificates) -> None:
    """So does anything that a party between them inserts."""
    context = load_module().TlsContext
    (ours, theirs), settings = socket.socketpair(), certificates.settings()
    server = context.server(str(settings.certificate), str(settings.key)).open(theirs.fileno(), "")
    client = context.client(str(settings.authority)).open(ours.fileno(), "localhost")
    while client.shake() + server.shake():
        await trio.lowlevel.checkpoint()
    client.send(b"as it was written")
    record = bytearray(theirs.recv(1 << 16))
    assert b"as it was written" not in record
    record[-3] ^= 1
    ours.send(record)
    with pytest.raises(OSError, match="bad record mac"):
        server.receive(1 << 16)
    ours.close()
    theirs.close()
