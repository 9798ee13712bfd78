// Small writes of many ranks into one file: pieces that gather, their gaps, and what leaves of
// them.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "client/inode.h"
#include "client/piece_table.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
constexpr uint32_t kChunk = 1u << 20;
constexpr uint32_t kHard = 47'008;  // no whole blocks, and no divisor of a chunk

Bytes slice(const Bytes& bytes, size_t from, size_t length) {
  return {bytes.begin() + static_cast<ptrdiff_t>(from),
          bytes.begin() + static_cast<ptrdiff_t>(from + length)};
}

// ---- one piece ----

std::vector<std::pair<uint64_t, uint64_t>> gaps_of(const Piece& piece) {
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  for (const Gap& gap : piece.gaps) gaps.emplace_back(gap.begin, gap.end);
  return gaps;
}

PiecePtr piece_of(uint64_t begin, uint64_t end) {
  auto piece = std::make_shared<Piece>();
  piece->capacity = kChunk;
  piece->coalesces = true;
  piece->begin = begin;
  piece->end = end;
  return piece;
}

TEST(Coalescing, APieceKnowsItsGaps) {
  const PiecePtr piece = piece_of(100, 200);
  piece->took(300, 400);
  piece->took(50, 60);
  piece->took(340, 360);
  using Gaps = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(gaps_of(*piece), (Gaps{{60, 100}, {200, 300}}));
  EXPECT_FALSE(piece->borders(210, 290));
  EXPECT_TRUE(piece->borders(200, 290));
  EXPECT_TRUE(piece->borders(210, 300));
  EXPECT_FALSE(piece->has_all(150, 310));
  EXPECT_TRUE(piece->has_all(100, 200));
  EXPECT_FALSE(piece->has_all(0, 60));
  piece->took(220, 240);
  EXPECT_EQ(gaps_of(*piece), (Gaps{{60, 100}, {200, 220}, {240, 300}}));
  piece->took(190, 250);
  EXPECT_EQ(gaps_of(*piece), (Gaps{{60, 100}, {250, 300}}));
  piece->took(60, 350);
  EXPECT_TRUE(piece->gaps.empty());
  EXPECT_EQ(piece->begin, 50u);
  EXPECT_EQ(piece->end, 400u);
  EXPECT_FALSE(piece->is_full());
  piece->took(400, kChunk);
  EXPECT_FALSE(piece->is_full()) << "its beginning is missing";
  piece->took(0, 50);
  EXPECT_TRUE(piece->is_full());
}

TEST(Coalescing, ACutLeavesNoGapAtTheEnd) {
  for (const uint64_t size : {401, 400, 350, 301, 300, 250, 200, 150}) {
    const PiecePtr piece = piece_of(0, 200);
    piece->took(300, 400);
    piece->took(500, 600);
    piece->cut(size);
    EXPECT_EQ(piece->end, size > 400   ? 400
                          : size > 300 ? size
                                       : std::min<uint64_t>(size, 200))
        << size;
    EXPECT_EQ(piece->gaps.size(), size > 300 ? 1u : 0u) << size;
  }
}

TEST(Coalescing, GapsAreBounded) {
  const PiecePtr piece = piece_of(0, 10);
  for (uint64_t at = 100; piece->gaps.size() < Piece::kGapsMax; at += 100) {
    ASSERT_TRUE(piece->may_take(at, at + 10));
    piece->took(at, at + 10);
  }
  EXPECT_FALSE(piece->may_take(50, 60));
  EXPECT_FALSE(piece->may_take(kChunk - 10, kChunk));
  EXPECT_TRUE(piece->may_take(10, 60));
  EXPECT_TRUE(piece->may_take(piece->end, kChunk));
}

// ---- the pieces of an inode ----

FileView one_object() {
  FileView view;
  view.stripe_width = 1;
  view.chunk_size = kChunk;
  view.rows = {{100, 0}};
  return view;
}

void acknowledge(PieceTable& table, const PiecePtr& piece, Actions& actions) {
  piece->acknowledged.note({100, 0}, 1);
  table.acknowledged(piece, actions);
}

TEST(Coalescing, WhatIsCoveredOnlyInPartIsKept) {
  PieceTable table;
  Actions seen;
  table.see(one_object(), seen);
  Actions actions;
  const PiecePtr older = piece_of(1000, 2000);
  table.add(older, actions);
  table.seal(older, actions);
  acknowledge(table, older, actions);
  const PiecePtr newer = piece_of(0, 100);
  table.add(newer, actions);
  table.merged(newer, 3000, 4000, actions);
  table.seal(newer, actions);
  acknowledge(table, newer, actions);
  EXPECT_EQ(older->state, PieceState::kHeld) << "it lies in a gap of the newer one";
}

TEST(Coalescing, TheOldestMakesWay) {
  PieceTable table;
  Actions seen;
  table.see(one_object(), seen);
  std::vector<PiecePtr> pieces;
  Actions actions;
  constexpr uint64_t kMost = 8;
  for (uint64_t chunk = 0; chunk <= kMost; ++chunk) {
    EXPECT_TRUE(actions.send.empty());
    pieces.push_back(piece_of(chunk * kChunk, chunk * kChunk + 10));
    pieces.back()->chunk = chunk;
    pieces.back()->window = chunk * kChunk;
    table.make_way(kMost * Memory::kPieceMax, actions);
    table.add(pieces.back(), actions);
  }
  ASSERT_EQ(actions.send.size(), 1u);
  EXPECT_EQ(actions.send.front(), pieces.front());
}

TEST(Coalescing, ItMayTakeLongerThanOtherPieces) {
  PieceTable table;
  Actions seen;
  table.see(one_object(), seen);
  Actions actions;
  const auto began = Clock::now();
  const PiecePtr coalescing = piece_of(0, 10);
  const PiecePtr other = piece_of(kChunk, kChunk + 10);
  other->coalesces = false;
  other->chunk = 1;
  for (const PiecePtr& piece : {coalescing, other}) {
    piece->first_written = began;
    table.add(piece, actions);
  }
  EXPECT_FALSE(table.seal_aged(began + PieceTable::kAge, actions));
  ASSERT_EQ(actions.send.size(), 1u);
  EXPECT_EQ(actions.send.front(), other);
  EXPECT_TRUE(table.seal_aged(began + PieceTable::kCoalescingAge, actions));
  EXPECT_EQ(actions.send.size(), 2u);
}

TEST(Coalescing, RandomWritesDoNotLieSideBySide) {
  SideBySide side_by_side;
  EXPECT_FALSE(side_by_side);
  for (int write = 0; write < 100; ++write) side_by_side.note(write % 4 == 0);
  EXPECT_FALSE(side_by_side);
  for (int write = 0; write < 20; ++write) side_by_side.note(write % 2 == 0);
  EXPECT_TRUE(side_by_side);
  for (int write = 0; write < 400; ++write) side_by_side.note(write % 2 == 0);
  for (int write = 0; write < 200; ++write) side_by_side.note(false);
  EXPECT_TRUE(side_by_side) << "a rank may write alone for a while";
  for (int write = 0; write < 100; ++write) side_by_side.note(false);
  EXPECT_FALSE(side_by_side);
}

// ---- through the lanes ----

struct Transfers {
  explicit Transfers(uint32_t seed, size_t count) : bytes(pattern(count * kHard, seed)) {}
  uint64_t begin(Rig& rig, size_t number) const {
    return rig.start_write(kFh, number * kHard, slice(bytes, number * kHard, kHard));
  }
  Bytes bytes;
};

size_t writes_of(Rig& rig, uint32_t length_min = 0) {
  size_t count = 0;
  for (const auto& target : rig.targets) {
    for (const FrameHeader& header : target->seen(Op::kWrite))
      count += header.length >= length_min ? 1 : 0;
  }
  return count;
}

// Four ranks in turns, two of them ten transfers behind.
std::vector<size_t> strided(size_t count) {
  std::vector<size_t> order;
  for (size_t step = 0; step < count / 4 + 10; ++step) {
    for (const size_t rank : {2, 0, 3, 1}) {
      const size_t at = rank % 2 == 0 ? step : step - 10;
      if (at < count / 4) order.push_back(at * 4 + rank);
    }
  }
  return order;
}

TEST(Coalescing, RanksFillWholeChunks) {
  Rig rig({.chunk_size = kChunk});
  rig.open(kFh, O_WRONLY);
  const Transfers transfers(3, 400);
  for (const size_t number : strided(400)) {
    const uint64_t unique = transfers.begin(rig, number);
    EXPECT_EQ(rig.replier.wait(unique).count, kHard);
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(transfers.bytes.size(), true), transfers.bytes);
  EXPECT_GE(writes_of(rig, kChunk), 1u);  // 14 of 18, unless the test machine dawdled
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
}

TEST(Coalescing, GapsStayWhatTheyWere) {
  Rig rig({.chunk_size = kChunk});
  rig.open(kFh, O_RDWR);
  Bytes wanted = pattern(4u << 20, 5);
  EXPECT_EQ(rig.write(kFh, 0, wanted).count, wanted.size());
  EXPECT_EQ(rig.fsync(kFh), 0);
  std::mt19937 chance(11);
  for (int round = 0; round < 300; ++round) {
    const size_t stripe = chance() % 64;
    for (const size_t part : {0, 2, 1, 3}) {
      const size_t from = stripe * (64u << 10) + part * 9'000 + (round % 3) * 700;
      const Bytes some = pattern(part == 1 && round % 2 == 0 ? 9'000 : 5'000, 100 + round);
      EXPECT_EQ(rig.write(kFh, from, some).count, some.size());
      std::copy(some.begin(), some.end(), wanted.begin() + static_cast<ptrdiff_t>(from));
    }
    if (round % 50 != 17) continue;
    EXPECT_EQ(rig.read(kFh, stripe << 16, 40'000).bytes, slice(wanted, stripe << 16, 40'000));
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(wanted.size(), true), wanted);
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
}

// Parts of one piece that a target acknowledged before it was lost are sent again with the others.
TEST(Coalescing, ALostTargetGetsAllPartsAgain) {
  Rig rig({.targets = 1, .chunk_size = kChunk});
  rig.open(kFh, O_WRONLY);
  const Transfers transfers(9, 60);
  std::vector<size_t> order = strided(60);
  std::erase_if(order, [](size_t number) { return number % 7 == 3; });
  Bytes wanted = transfers.bytes;
  for (size_t number = 3; number < 60; number += 7) {
    std::fill_n(wanted.begin() + static_cast<ptrdiff_t>(number * kHard), kHard, std::byte{0});
  }
  for (const size_t number : order)
    EXPECT_EQ(rig.replier.wait(transfers.begin(rig, number)).count, kHard);
  EXPECT_EQ(rig.flush(kFh), 0);
  rig.targets[0]->lose_unsynced();
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(wanted.size(), true), wanted);
}

TEST(Coalescing, ARefusedPartFailsThePiece) {
  Rig rig({.targets = 1, .chunk_size = kChunk});
  rig.open(kFh, O_WRONLY);
  std::atomic<int> seen = 0;
  rig.targets[0]->decide([&](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op != static_cast<uint8_t>(Op::kWrite) || ++seen != 2) return {};
    return {FakeTarget::Fault::kStatus, Status::kEio};
  });
  const Transfers transfers(9, 20);
  for (const size_t number : {0, 1, 2, 3, 6, 10, 14}) {
    EXPECT_EQ(rig.replier.wait(transfers.begin(rig, static_cast<size_t>(number))).count, kHard);
  }
  EXPECT_EQ(rig.fsync(kFh), EIO);
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
}

// 1 MiB from memory that does not begin with a page comes as two WRITEs: one piece, where the first
// was read.
TEST(Coalescing, AWriteThatTheKernelCutIsOnePiece) {
  Rig rig({.lanes = 1, .chunk_size = kChunk});
  rig.open(kFh, O_WRONLY);
  const Bytes bytes = pattern(3 * kChunk, 21);
  for (size_t at = 0; at < bytes.size(); at += kChunk) {
    const std::byte* before = nullptr;
    const std::byte* after = nullptr;
    rig.on_lane(0, [&](fuse::LaneContext& context) {
      before = rig.core->receive_buffer(context, kChunk).data();
    });
    EXPECT_EQ(rig.write(kFh, at, slice(bytes, at, kChunk - 16)).count, kChunk - 16);
    rig.on_lane(0, [&](fuse::LaneContext& context) {
      after = rig.core->receive_buffer(context, kChunk).data();
    });
    EXPECT_NE(before, after) << "it was copied";
    EXPECT_EQ(rig.write(kFh, at + kChunk - 16, slice(bytes, at + kChunk - 16, 16)).count, 16u);
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size(), true), bytes);
  EXPECT_LE(writes_of(rig), 6u);  // three, unless the test machine dawdled
}

}  // namespace
}  // namespace braidfs::client::rig
