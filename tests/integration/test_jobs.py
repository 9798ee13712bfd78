"""`braidfs job`, and what of jobs `status`, `target list` and the page's JSON show."""

import json
import subprocess

import pytest

from tests.cluster.cluster import BIN
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


@pytest.mark.expects_warnings  # the metaserver is restarted
def test_jobs_are_listed_and_paused(make_cluster: ClusterMaker) -> None:
    """What is paused stays paused over a restart of the metaserver."""
    cli = Cli(mirrored(make_cluster))
    kinds = {row["job"]: row["kind"] for row in cli.json("job", "list")}
    assert kinds == {1: "repair", 2: "scrub"}
    assert "replicas that files lack" in cli.text("job", "list")
    (paused,) = cli.json("job", "pause", 1)
    assert (paused["job"], paused["state"]) == (1, "paused")
    assert "job 1 is paused" in cli.text("status") and "it is paused" in cli.text("status")
    assert cli.json("status")["health"] == "healthy"
    cli.cluster.metaserver.stop()
    cli.cluster.metaserver.start()
    assert wait_until(lambda: cli.end("job", "list").code == 0, 30 * PATIENCE)
    assert cli.json("job", "list")[0]["state"] == "paused"

    def is_resumed() -> bool:
        return cli.end("job", "resume", 1).code == 0

    assert wait_until(is_resumed, 60 * PATIENCE), "once the recovery has ended"
    assert cli.json("job", "list")[0]["state"] != "paused"
    log = cli.cluster.metaserver.log_path.read_text()
    assert "op=JOB_SET outcome=OK" in log


def test_wrong_arguments(make_cluster: ClusterMaker) -> None:
    cli = Cli(mirrored(make_cluster))
    assert "there is no job 99" in cli.run("job", "pause", 1, 99, code=1).stderr
    assert cli.json("job", "list")[0]["state"] != "paused", "all of them, or none"
    assert "JOB" in cli.run("job", "resume", code=2).stderr
    for verb in ("drain", "remove"):
        assert "--server" in cli.run("target", verb, code=2).stderr
        assert "--server" in cli.run("target", verb, 1, "--server", "s", code=2).stderr
        assert "there is no target 99" in cli.run("target", verb, 1, 99, code=2).stderr
        unknown = cli.run("target", verb, "--server", "nobody", code=2).stderr
        assert "braidfs node list" in unknown
        assert "add --wait" in cli.run("target", verb, 1, "--timeout", 5, code=2).stderr
    assert "was not drained" in cli.run("target", "remove", 1, code=1).stderr
    assert {row["state"] for row in cli.json("target", "list")} == {"up"}


def test_jobs_are_watched(make_cluster: ClusterMaker) -> None:
    cli = Cli(mirrored(make_cluster))
    command = [str(BIN / "braidfs"), "job", "list", "--watch", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=cli.environment
    ) as watching:
        try:
            assert watching.stdout is not None
            for _ in range(2):
                rows = json.loads(watching.stdout.readline())
                assert [row["kind"] for row in rows] == ["repair", "scrub"]
        finally:
            watching.kill()
