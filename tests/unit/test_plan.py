"""The plan of a loopback cluster: what is recorded, extended and refused."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.cluster.plan import (
    ETCD,
    POSTGRESQL,
    ClusterPlan,
    JournalPlan,
    PlanError,
    make_plan,
    recorded,
    save,
)


def saved(state: Path, metaservers: int | None = None, journal: str | None = None) -> ClusterPlan:
    plan = make_plan(state, metaservers=metaservers, journal=journal)
    save(plan)
    return plan


def configuration(plan: ClusterPlan, name: str) -> dict[str, object]:
    return tomllib.loads((plan.state / "config" / f"{name}.toml").read_text())


def all_ports(plan: ClusterPlan) -> list[int]:
    ports = [plan.client_metrics_port]
    for server in plan.servers:
        ports += [server.port, server.metrics_port]
    if plan.journal:
        ports += [*plan.journal.ports, *plan.journal.peer_ports]
    return ports


def test_one_metaserver_has_no_journal(tmp_path: Path) -> None:
    plan = saved(tmp_path)
    assert plan.journal is None and plan.standbys == ()
    assert not {"journal", "name"} & configuration(plan, "metaserver").keys()


def test_several_metaservers_get_etcd(tmp_path: Path) -> None:
    plan = saved(tmp_path, 3)
    journal = plan.journal
    assert journal and journal.engine == ETCD and len(journal.ports) == 3
    assert journal.names == ("etcd-1", "etcd-2", "etcd-3")
    for name in ("metaserver", "metaserver-2", "metaserver-3"):
        found = configuration(plan, name)
        assert found["name"] == name and found["journal"] == journal.address
    addresses = plan.source().removesuffix(":/").split(",")
    assert len(addresses) == 3
    assert configuration(plan, "storageserver-1")["metaservers"] == addresses


def test_the_environment_has_all_metaservers(tmp_path: Path) -> None:
    plan = saved(tmp_path, 2)
    text = (tmp_path / "cluster.env").read_text()
    first, second = plan.metaservers
    assert f"BRAIDFS_METASERVER=127.0.0.1:{first.port},127.0.0.1:{second.port}\n" in text
    assert f"BRAIDFS_KEY_FILE={plan.key_file}\n" in text


def test_no_port_is_there_twice(tmp_path: Path) -> None:
    saved(tmp_path)
    ports = all_ports(make_plan(tmp_path, metaservers=3))
    assert len(ports) == len(set(ports)) == 1 + 2 * 5 + 6


@pytest.mark.parametrize("engine", [ETCD, POSTGRESQL])
def test_everything_is_recorded(tmp_path: Path, engine: str) -> None:
    plan = saved(tmp_path, 2, engine)
    assert recorded(tmp_path) == plan
    assert make_plan(tmp_path) == plan, "nothing changes if nothing is asked for"
    assert make_plan(tmp_path, metaservers=2, journal=engine) == plan


def test_postgresql_has_a_password_file(tmp_path: Path) -> None:
    plan = saved(tmp_path, 2, POSTGRESQL)
    assert plan.journal and len(plan.journal.ports) == 1 and plan.journal.peer_ports == ()
    found = configuration(plan, "metaserver-2")
    assert found["journal_password_file"] == str(plan.password_file)
    assert "password" not in str(found["journal"])


def test_a_state_with_one_metaserver_is_extended(tmp_path: Path) -> None:
    before = saved(tmp_path)
    plan = saved(tmp_path, 2)
    assert plan.metaserver == before.metaserver
    assert plan.storageservers == before.storageservers
    assert plan.journal is not None and [one.name for one in plan.standbys] == ["metaserver-2"]
    assert configuration(plan, "metaserver")["state_directory"] == str(tmp_path / "meta")
    more = saved(tmp_path, 3)
    assert more.journal == plan.journal and more.metaservers[:2] == plan.metaservers


def test_one_metaserver_may_have_a_journal(tmp_path: Path) -> None:
    plan = saved(tmp_path, 1, ETCD)
    assert plan.standbys == () and plan.journal is not None
    assert configuration(plan, "metaserver")["journal"] == plan.journal.address


def test_fewer_metaservers_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    with pytest.raises(PlanError, match="has 2 metaservers: 1 would"):
        make_plan(tmp_path, metaservers=1)


@pytest.mark.parametrize(("before", "after"), [(ETCD, POSTGRESQL), (POSTGRESQL, ETCD)])
def test_another_engine_is_refused(tmp_path: Path, before: str, after: str) -> None:
    saved(tmp_path, 2, before)
    with pytest.raises(PlanError, match=re.escape(f"its journal in {before}")):
        make_plan(tmp_path, metaservers=3, journal=after)


def test_a_journal_that_the_settings_name_is_not_started(tmp_path: Path) -> None:
    address = "etcd://127.0.0.1:9/elsewhere"
    plan = make_plan(tmp_path, metaservers=2, settings={"metaserver": {"journal": address}})
    save(plan)
    assert plan.journal is None
    assert configuration(plan, "metaserver-2")["journal"] == address
    assert configuration(plan, "metaserver")["name"] == "metaserver"


def test_a_record_of_before_has_no_journal(tmp_path: Path) -> None:
    plan = saved(tmp_path)
    text = plan.file.read_text()
    cut = text.replace(',\n "journal": null', "").replace(',\n "standbys": []', "")
    assert cut != text
    plan.file.write_text(cut)
    assert recorded(tmp_path) == plan


def test_addresses_of_engines() -> None:
    assert JournalPlan(ETCD, (1, 2), (3, 4)).address == "etcd://127.0.0.1:1,127.0.0.1:2/braidfs"
    one = JournalPlan(POSTGRESQL, (5,))
    assert one.address == "postgresql://postgres@127.0.0.1:5/postgres"
    assert one.names == ("postgresql",)
