"""When certificates expire: read from files, as a metric that follows them, and for whole
programs.
"""

import base64
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trio.testing

from fsclient.cli.certificates import look_at
from fscommon.config.tls import REQUIRED, TlsSettings
from fscommon.net.certificate import end_of_certificates
from fscommon.net.tcp import TcpTransport
from fscommon.net.tls import (
    CERTIFICATE_METRIC,
    CERTIFICATE_WATCH_S,
    TlsTransport,
    certificate_ends_s,
    watch_certificate,
)
from fscommon.observe.metrics import Metrics
from tests.cluster.certificates import Certificates

from .test_net import RecordedLog


@pytest.fixture
def own(tmp_path: Path, certificates: Certificates) -> Certificates:
    """Certificates that a test may change."""
    shutil.copytree(certificates.folder, tmp_path / "own")
    return Certificates(tmp_path / "own")


def server_file(own: Certificates) -> Path:
    return own.folder / "server.crt"


@pytest.mark.parametrize("days", [-1, 1, 90, 20_000])
def test_the_end_is_that_which_openssl_says(own: Certificates, days: int) -> None:
    """This holds also after 2049, where DER writes times in another way."""
    own.issue(days=days)
    ends = end_of_certificates(server_file(own).read_bytes())
    assert datetime.fromtimestamp(ends, UTC) == look_at(server_file(own)).ends


def test_of_a_chain_the_first_to_end(own: Certificates) -> None:
    own.issue(days=5)
    soon = server_file(own).read_bytes()
    authority = own.authority.read_bytes()
    assert end_of_certificates(authority + soon) == end_of_certificates(soon)
    assert end_of_certificates(soon) < end_of_certificates(authority)


def test_what_is_no_certificate(own: Certificates) -> None:
    """A certificate that is truncated before the end of `validity`, or has an octet of it changed,
    gives an expiry or a ValueError, nothing else."""
    pem = server_file(own).read_bytes()
    found = re.search(rb"CERTIFICATE-----(.+?)-----END", pem, re.DOTALL)
    assert found is not None
    der = base64.b64decode(found[1])

    def end(octets: bytes) -> int:
        body = base64.b64encode(octets)
        return end_of_certificates(
            b"-----BEGIN CERTIFICATE-----\n" + body + b"\n-----END CERTIFICATE-----\n"
        )

    right = end(der)
    for cut in range(len(der)):
        with pytest.raises(ValueError, match="certificate"):
            end(der[:cut])
    for at in range(200):
        for value in (0, 0x80, 0x84, 0xFF):
            try:
                assert isinstance(end(der[:at] + bytes([value]) + der[at + 1 :]), int)
            except ValueError:
                continue
    assert end(der) == right
    for text in (b"", b"no certificate", pem.replace(b"M", b"!")):
        with pytest.raises(ValueError, match="certificate"):
            end_of_certificates(text)


async def test_the_metric_follows_a_renewal(
    own: Certificates, autojump_clock: trio.testing.MockClock
) -> None:
    """No client connects meanwhile. A file that cannot be used leaves the old certificate
    in use."""
    own.issue(days=5)
    metrics, log = Metrics("test"), RecordedLog()
    transport = TlsTransport(own.settings(), log)
    file = server_file(own)

    def shown() -> float | None:
        return metrics.registry.get_sample_value(CERTIFICATE_METRIC)

    async with trio.open_nursery() as nursery:
        assert shown() is None
        nursery.start_soon(watch_certificate, transport, metrics)
        await trio.testing.wait_all_tasks_blocked()
        before = end_of_certificates(file.read_bytes())
        assert shown() == before
        own.issue(days=90)
        renewed = end_of_certificates(file.read_bytes())
        assert renewed > before
        await trio.sleep(CERTIFICATE_WATCH_S + 1)
        assert shown() == renewed
        file.write_text("nothing")
        await trio.sleep(CERTIFICATE_WATCH_S + 1)
        assert shown() == renewed
        nursery.cancel_scope.cancel()


async def test_without_a_certificate_there_is_no_metric(certificates: Certificates) -> None:
    metrics = Metrics("test")
    for transport in (None, TcpTransport()):
        await watch_certificate(transport, metrics)
        assert certificate_ends_s(transport) is None
    client = TlsTransport(TlsSettings(REQUIRED, certificates.authority))
    assert certificate_ends_s(client) is None
    assert metrics.registry.get_sample_value(CERTIFICATE_METRIC) is None
