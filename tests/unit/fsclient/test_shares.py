"""Shares of a tree's limits: lanes know them before they create files; more is requested in
time.
"""

import trio
import trio.testing

from fscommon.wire.ops import Op

from .changes_world import FOLDER, World, delegated
from .test_delegated_changes import world

__all__ = ["world"]  # this is the fixture


async def test_a_share_of_a_limit_is_renewed_when_half_is_used(world: World) -> None:
    world.share = (8, 1 << 20)
    await delegated(world)
    assert world.lanes.shares == {FOLDER: (8, 1 << 20)}
    for ino in range(100, 104):
        world.bear(ino)
    world.changes.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert len([r for r in world.meta.requests(Op.DELEGATE) if r.ino]) == 1
    assert world.fs.inodes.hold(100).size_limit == 1 << 20
    world.share = (6, 1 << 10)
    world.bear(104)
    world.changes.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.shares == {FOLDER: (14, 1 << 10)}, "lanes count what they use themselves"
    world.share = (0, 0)
    for ino in range(105, 113):
        world.bear(ino)
    world.changes.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.shares == {}, "the limit was taken away"


async def test_a_full_tree_is_not_asked_for_more_with_each_file(world: World) -> None:
    world.share = (2, 1 << 20)
    await delegated(world)
    world.is_full = True
    for ino in range(100, 120):
        world.bear(ino)
        world.changes.collect()
        world.changes.created(FOLDER)
        await trio.testing.wait_all_tasks_blocked()
    assert len([r for r in world.meta.requests(Op.DELEGATE) if r.ino]) == 2
    world.changes.lose()
    assert world.lanes.shares == {}
