"""The table of leases against a model of the metaserver: it holds no bit that the metaserver does
not count.

The model grants, recalls and learns of returns; replies and recalls travel on two connections, each
in order, so a recall may overtake a reply and the other way round.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fsclient.leases.table import KnownLimit, LeaseTable
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
)

BOTH_DATA = LEASE_DATA | LEASE_DATA_EXCLUSIVE


@dataclass
class Sent:
    """A request whose id is not known before it is sent."""

    request_id: int = 0


def test_what_is_granted_is_held_until_leases_end() -> None:
    table = LeaseTable()
    assert table.granted(5, LEASE_META | LEASE_DATA, 1) == LEASE_META | LEASE_DATA
    assert table.granted(5, LEASE_META, 2) == 0
    assert not table.holds(5, LEASE_META, 0.0)
    table.renewed(10.0, 30.0)
    assert table.holds(5, LEASE_META | LEASE_DATA, 39.9)
    assert not table.holds(5, LEASE_META, 40.0)
    assert not table.holds(5, LEASE_ENTRIES, 0.0)
    table.renewed(5.0, 30.0)
    assert table.until == 40.0


def test_a_shared_bit_takes_its_exclusive_one_along_but_not_the_other_way() -> None:
    table = LeaseTable()
    table.granted(5, BOTH_DATA | LEASE_META | LEASE_META_EXCLUSIVE, 1)
    assert table.give_up(5, LEASE_META_EXCLUSIVE, KnownLimit(1)) == LEASE_META_EXCLUSIVE
    assert table.held(5) == BOTH_DATA | LEASE_META
    assert table.give_up(5, LEASE_DATA, KnownLimit(1)) == BOTH_DATA
    assert table.held(5) == LEASE_META


def test_a_reply_that_a_recall_overtook_grants_nothing() -> None:
    table = LeaseTable()
    assert table.give_up(5, LEASE_DATA, KnownLimit(7)) == 0
    assert table.granted(5, BOTH_DATA | LEASE_META, 7) == LEASE_META
    assert table.granted(5, BOTH_DATA, 8) == BOTH_DATA


def test_until_the_return_is_sent_every_grant_is_masked() -> None:
    table = LeaseTable()
    sent = Sent()
    table.granted(5, LEASE_DATA, 1)
    table.give_up(5, LEASE_DATA, sent)
    assert table.granted(5, LEASE_DATA, 1000) == 0
    sent.request_id = 12
    assert table.granted(5, LEASE_DATA, 12) == 0
    assert table.granted(5, LEASE_DATA, 13) == LEASE_DATA


def test_masks_are_pruned_when_they_hide_nothing_more() -> None:
    table = LeaseTable()
    for ino in range(1, 101):
        table.give_up(ino, LEASE_META, KnownLimit(ino))
    table.prune(50)
    assert table.mask_count == 50
    assert table.granted(60, LEASE_META, 60) == 0


def test_an_end_without_a_word_leaves_only_exclusive_leases() -> None:
    table = LeaseTable()
    table.granted(5, LEASE_META | LEASE_ENTRIES, 1)
    table.granted(6, BOTH_DATA, 2)
    assert set(table.drop_shared()) == {5, 6}
    assert (table.held(5), table.held(6)) == (0, BOTH_DATA)
    assert table.with_bits(LEASE_DATA_EXCLUSIVE) == (6,)
    assert set(table.clear()) == {6}
    assert len(table) == 0


@dataclass
class Model:
    """One inode, one bit, as the metaserver sees it."""

    table: LeaseTable = field(default_factory=LeaseTable)
    counted: bool = False
    recalled: bool = False
    newest: int = 0  # the newest request id received there
    # Each entry has request id and flags.
    replies: list[tuple[int, int]] = field(default_factory=list)
    recalls: list[int] = field(default_factory=list)  # these are limits
    returning: list[Sent] = field(default_factory=list)

    def request(self) -> None:
        """A request is received and answered; it grants unless a recall is in progress."""
        self.newest += 1
        self.counted |= not self.recalled
        self.replies.append((self.newest, LEASE_META if self.counted else 0))

    def recall(self) -> None:
        if self.counted and not self.recalled:
            self.recalled = True
            self.recalls.append(self.newest)

    def reply_arrives(self) -> None:
        if self.replies:
            request_id, flags = self.replies.pop(0)
            self.table.granted(5, flags, request_id)

    def recall_arrives(self) -> None:
        if self.recalls:
            sent = Sent()
            self.table.give_up(5, LEASE_META, KnownLimit(self.recalls.pop(0)))
            self.table.give_up(5, LEASE_META, sent)
            self.returning.append(sent)

    def returned(self) -> None:
        if self.returning:
            self.newest += 1
            self.returning.pop(0).request_id = self.newest
            self.counted = self.recalled = False


@given(st.lists(st.integers(0, 4), max_size=60))
def test_the_table_never_holds_what_the_metaserver_does_not_count(steps: list[int]) -> None:
    model = Model()
    acts = (model.request, model.recall, model.reply_arrives, model.recall_arrives, model.returned)
    for step in steps:
        acts[step]()
        assert not model.table.held(5) or model.counted


def test_a_file_that_is_recalled_again_and_again_has_few_masks() -> None:
    """Two clients that write a file in turns make it so."""
    table = LeaseTable()
    for turn in range(1, 1000):
        unsent = Sent()
        table.granted(5, LEASE_DATA | LEASE_META, 10 * turn)
        table.give_up(5, LEASE_DATA, unsent)
        table.give_up(5, LEASE_DATA | LEASE_META, KnownLimit(10 * turn))
        unsent.request_id = 10 * turn
        table.give_up(5, LEASE_DATA, KnownLimit(10 * turn + 5))
        assert not table.granted(5, LEASE_DATA, 10 * turn + 5)
        assert table.granted(5, LEASE_META, 10 * turn + 1) == LEASE_META
    assert table.mask_count < 10


def test_a_wider_mask_takes_the_place_of_narrower_ones_only() -> None:
    table = LeaseTable()
    table.give_up(5, LEASE_DATA, KnownLimit(20))
    table.give_up(5, LEASE_DATA | LEASE_META, KnownLimit(10))
    assert not table.granted(5, LEASE_DATA, 15), "the older one reaches further"
    table.give_up(5, LEASE_META, KnownLimit(30))
    assert not table.granted(5, LEASE_DATA, 20) and not table.granted(5, LEASE_META, 30)
    assert table.granted(5, LEASE_DATA | LEASE_META, 31) == LEASE_DATA | LEASE_META
