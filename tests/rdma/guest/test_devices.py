"""The guest itself: two Soft-RoCE rails that are up and move bytes."""

import os
import subprocess

import pytest

from fscommon.net.rdma import GidKind, Wishes, choose, find_ports
from tests.dev.build import NATIVE_BUILD


def test_both_rails_are_found_and_would_be_used() -> None:
    choices = choose(find_ports(), Wishes())
    assert [one.port.name for one in choices] == ["rxe0:1", "rxe1:1"]
    assert [str(one.gid.address.ipv4_mapped) for one in choices if one.gid] == [
        "10.77.0.1",
        "10.77.1.1",
    ]
    assert all(
        one.port.is_active and one.port.gids[0].kind is GidKind.ROCE_V2_LINK_LOCAL
        for one in choices
    )


@pytest.mark.parametrize("rail", [0, 1])
def test_a_reliable_queue_pair_moves_bytes(rail: int) -> None:
    words = ["ibv_rc_pingpong", "-d", f"rxe{rail}", "-g", "1", "-n", "20", "-p", str(19000 + rail)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    client = subprocess.run(
        [
            "bash",
            "-c",
            'for i in $(seq 50); do "$@" && exit 0; sleep 0.2; done; exit 1',
            "-",
            *words,
            f"10.77.{rail}.1",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    output, _ = server.communicate(timeout=60)
    assert client.returncode == 0 and server.returncode == 0, client.stdout + client.stderr + output
    assert "20 iters" in client.stdout


def test_the_streams_tests_hold_on_real_queue_pairs() -> None:
    """The conformance suite, hostile peers, scarce memory and many clients of native/tests/rdma, on
    Soft-RoCE."""
    result = subprocess.run(
        [
            str(NATIVE_BUILD / "tests" / "test_rdma"),
            "--gtest_filter=Streams/Conformance.*/Rdma:Hostile*.*:Faults.*:Lives.*",
        ],
        env={**os.environ, "BRAIDFS_RDMA_DEVICE": "rxe0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert "[  PASSED  ]" in result.stdout
