// READ and WRITE against fake targets: exact bytes across chunks and targets, merging, ordering.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <random>

#include "client/link.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;

Bytes slice(const Bytes& bytes, size_t from, size_t length) {
  return {bytes.begin() + static_cast<ptrdiff_t>(from),
          bytes.begin() + static_cast<ptrdiff_t>(from + length)};
}

TEST(DataPath, WriteThroughIsStripedExactly) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(700'001, 1);
  EXPECT_EQ(rig.write(kFh, 0, bytes, O_DSYNC).count, bytes.size());
  EXPECT_EQ(rig.file(bytes.size()), bytes);
  EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes, bytes);
  EXPECT_EQ(rig.read(kFh, 65'535, 3).bytes, slice(bytes, 65'535, 3));
  EXPECT_EQ(rig.read(kFh, 700'000, 4096).bytes, slice(bytes, 700'000, 1));
  EXPECT_TRUE(rig.read(kFh, 700'001, 4096).bytes.empty());
}

// A capability is good whatever map it was made under.
TEST(DataPath, NoMapEpochIsStated) {
  Rig rig;
  Bytes capability = rig.capability();
  capability[20] = std::byte{7};
  rig.core->inode_put(rig.attributes(5000), rig.layout(), capability);
  rig.core->handle_put(kFh, Rig::kIno, O_RDWR, false);
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
  for (const FrameHeader& header : rig.targets[0]->seen(Op::kRead)) EXPECT_EQ(header.map_epoch, 0u);
}

TEST(DataPath, WriteBehindIsReadBackAndDrained) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(300'000, 2);
  for (size_t at = 0; at < bytes.size(); at += 10'000) {
    EXPECT_EQ(rig.write(kFh, at, slice(bytes, at, 10'000)).count, 10'000u);
  }
  EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes, bytes);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size()), bytes);
  ASSERT_FALSE(rig.commits().empty());
  EXPECT_EQ(rig.commits().back().size, bytes.size());
  EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
}

TEST(DataPath, SmallSequentialWritesMerge) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(64u << 10, 3);
  for (size_t at = 0; at < bytes.size(); at += 1024) rig.write(kFh, at, slice(bytes, at, 1024));
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.file(bytes.size()), bytes);
  EXPECT_LE(rig.targets[0]->count(Op::kWrite), 8u);  // one, unless the test machine dawdled
}

// Payloads in whole blocks of half a piece and more stay in the memory they were read into.
TEST(DataPath, LargeWritesKeepTheirMemory) {
  for (const uint32_t flags : {0, O_DIRECT, O_DSYNC}) {
    Rig rig({.lanes = 1, .chunk_size = 1u << 20});
    rig.open(kFh, O_RDWR);
    const Bytes bytes = pattern(6u << 20, 40 + flags);
    std::vector<const std::byte*> places;
    const size_t lengths[] = {1u << 20,   512u << 10, 512u << 10,      500u << 10,
                              524u << 10, 100,        (1u << 20) - 100};
    size_t at = 0;
    for (const size_t length : lengths) {
      EXPECT_EQ(rig.write(kFh, at, slice(bytes, at, length), flags).count, length);
      at += length;
      rig.on_lane(0, [&](fuse::LaneContext& context) {
        places.push_back(rig.core->receive_buffer(context, 1u << 20).data());
      });
    }
    EXPECT_NE(places[0], places[1]);
    EXPECT_NE(places[1], places[2]);
    EXPECT_EQ(places[2], places[3]) << "too small to keep the memory";
    EXPECT_NE(places[3], places[4]);
    EXPECT_EQ(places[4], places[5]) << "too small";
    EXPECT_EQ(places[5], places[6]) << "no whole blocks";
    EXPECT_EQ(rig.read(kFh, 0, 1u << 20).bytes, slice(bytes, 0, 1u << 20));
    EXPECT_EQ(rig.flush(kFh), 0);
    EXPECT_EQ(rig.file(at), slice(bytes, 0, at));
    EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
    EXPECT_EQ(rig.account(Buffer::Account::kReceive), Memory::kPieceMax);
  }
}

// Later writes into and over memory that was kept, in parts and whole.
TEST(DataPath, KeptMemoryIsWrittenOverInOrder) {
  Rig rig({.lanes = 2, .chunk_size = 1u << 20});
  rig.open(kFh, O_RDWR);
  Bytes wanted = pattern(4u << 20, 50);
  std::mt19937 chance(7);
  rig.write(kFh, 0, slice(wanted, 0, 1u << 20));
  for (size_t at = 1u << 20; at < wanted.size(); at += 1u << 20)
    rig.write(kFh, at, slice(wanted, at, 1u << 20));
  for (int round = 0; round < 120; ++round) {
    const size_t block = chance() % 1024;
    const bool whole = chance() % 2 == 0;
    const size_t from = whole ? block % 512 * 4096 : chance() % (3u << 20);
    const size_t length = whole ? (512u << 10) + chance() % 128 * 4096 : 1 + chance() % 9000;
    const Bytes piece = pattern(length, 1000 + round);
    EXPECT_EQ(rig.write(kFh, from, piece).count, length);
    std::copy(piece.begin(), piece.end(), wanted.begin() + static_cast<ptrdiff_t>(from));
  }
  EXPECT_EQ(rig.fsync(kFh), 0);
  EXPECT_EQ(rig.file(wanted.size()), wanted);
}

TEST(DataPath, PartialPieceLeavesWhenItHasAged) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.write(kFh, 0, pattern(100, 4));
  for (int tries = 0; tries < 1000 && rig.account(Buffer::Account::kDirty) > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(rig.file(100), pattern(100, 4));
}

TEST(DataPath, HolesAndMissingObjectsAreZeros) {
  Rig rig;
  rig.open(kFh, O_RDWR, 1'000'000);
  EXPECT_EQ(rig.read(kFh, 0, 4096).bytes, Bytes(4096));
  rig.write(kFh, 200'000, pattern(10, 5), O_DIRECT);
  Bytes expected(300'000);
  const Bytes ten = pattern(10, 5);
  std::copy(ten.begin(), ten.end(), expected.begin() + 200'000);
  EXPECT_EQ(rig.read(kFh, 0, 300'000).bytes, expected);
}

TEST(DataPath, MissingObjectThatWasSyncedIsAnError) {
  Rig rig;
  rig.open(kFh, O_RDWR, 1'000'000, 0b1);
  EXPECT_EQ(rig.read(kFh, 0, 4096).error, EIO);
  EXPECT_EQ(rig.read(kFh, 65'536, 4096).bytes, Bytes(4096));
}

TEST(DataPath, LaterWriteOfABlockWinsWhateverTheTargetsSpeed) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide([](const FrameHeader& header) -> FakeTarget::Decision {
    return {header.op == static_cast<uint8_t>(Op::kWrite) ? FakeTarget::Fault::kStall
                                                          : FakeTarget::Fault::kNone};
  });
  std::vector<uint64_t> waiting;
  for (uint32_t round = 0; round < 6; ++round) {  // alternates between two lanes
    waiting.push_back(rig.start_write(kFh, round * 100, pattern(1000, 10 + round), O_DIRECT));
  }
  for (const uint64_t unique : waiting) EXPECT_EQ(rig.replier.wait(unique).count, 1000u);
  EXPECT_LE(rig.targets[0]->count(Op::kWrite), 1u);
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.flush(kFh), 0);
  Bytes expected(1500);
  for (uint32_t round = 0; round < 6; ++round) {
    const Bytes bytes = pattern(1000, 10 + round);
    std::copy(bytes.begin(), bytes.end(), expected.begin() + round * 100);
  }
  EXPECT_EQ(rig.file(1500), expected);
}

TEST(DataPath, DirectWriteLeavesAtOnceAndIsNotWaitedFor) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  rig.targets[0]->decide([](const FrameHeader& header) -> FakeTarget::Decision {
    return {header.op == static_cast<uint8_t>(Op::kWrite) ? FakeTarget::Fault::kStall
                                                          : FakeTarget::Fault::kNone};
  });
  EXPECT_EQ(rig.write(kFh, 0, pattern(100, 1), O_DIRECT).count, 100u);
  const uint64_t durable = rig.start_write(kFh, 4096, pattern(100, 2), O_DIRECT | O_DSYNC);
  EXPECT_FALSE(rig.replier.wait_for(durable, 150));
  EXPECT_EQ(rig.targets[0]->count(Op::kWrite), 2u);  // neither merged nor kept back
  rig.targets[0]->release_stalled();
  EXPECT_EQ(rig.replier.wait(durable).count, 100u);
  EXPECT_EQ(rig.flush(kFh), 0);
  EXPECT_EQ(rig.file(100), pattern(100, 1));
}

struct GatheringRig {
  Rig rig;
  FakeTarget& target;

  explicit GatheringRig(uint32_t lanes) : rig(settings(lanes)), target(*rig.targets[0]) {
    rig.open(kFh, O_RDWR);
  }
  static RigSettings settings(uint32_t lanes) {
    RigSettings settings{.lanes = lanes, .chunk_size = 1u << 20};
    settings.core.gather_ms = 60'000;
    return settings;
  }
  uint64_t start(uint32_t block, uint32_t flags) {
    return rig.start_write(kFh, block * 4096, pattern(4096, block), flags);
  }
  void write(uint32_t block) { EXPECT_EQ(rig.replier.wait(start(block, O_DIRECT)).count, 4096u); }
  void expect_blocks(uint32_t count) {
    Bytes expected;
    for (uint32_t block = 0; block < count; ++block) {
      const Bytes bytes = pattern(4096, block);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(rig.file(expected.size(), true), expected);
  }
};

TEST(DataPath, SmallWritesGatherUntilSomebodyWaitsForOne) {
  GatheringRig gathering(1);
  gathering.write(0);
  ASSERT_TRUE(eventually([&] { return gathering.target.count(Op::kWrite) == 1; }));
  for (uint32_t block = 1; block <= 5; ++block) gathering.write(block);
  EXPECT_EQ(gathering.target.count(Op::kWrite), 1u);
  EXPECT_EQ(gathering.rig.replier.wait(gathering.start(6, O_DIRECT | O_DSYNC)).count, 4096u);
  EXPECT_EQ(gathering.target.count(Op::kWrite), 7u);
  gathering.expect_blocks(7);
}

TEST(DataPath, GatheredWritesOfAnyLaneLeaveForAnFsync) {
  GatheringRig gathering(2);
  for (uint32_t block = 0; block <= 8; ++block) gathering.write(block);
  EXPECT_LT(gathering.target.count(Op::kWrite), 9u);
  EXPECT_EQ(gathering.rig.fsync(kFh), 0);
  EXPECT_EQ(gathering.target.count(Op::kWrite), 9u);
  gathering.expect_blocks(9);
}

TEST(DataPath, ManySmallWritesDoNotGatherAnyLonger) {
  GatheringRig gathering(1);
  gathering.write(0);
  ASSERT_TRUE(eventually([&] { return gathering.target.count(Op::kWrite) == 1; }));
  for (uint32_t block = 1; block <= Link::kGatherMax; ++block) gathering.write(block);
  EXPECT_TRUE(eventually([&] { return gathering.target.count(Op::kWrite) > Link::kGatherMax; }));
}

TEST(DataPath, FlippedBitOnTheWayIsReadAgain) {
  Rig rig;
  rig.open(kFh, O_RDWR);
  const Bytes bytes = pattern(5000, 6);
  rig.write(kFh, 0, bytes);
  EXPECT_EQ(rig.flush(kFh), 0);
  auto flips = std::make_shared<int>(2);
  rig.targets[0]->decide([flips](const FrameHeader&) -> FakeTarget::Decision {
    return {(*flips)-- > 0 ? FakeTarget::Fault::kFlip : FakeTarget::Fault::kNone};
  });
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, bytes);
  std::vector<bool> raw;
  for (const FrameHeader& header : rig.targets[0]->seen(Op::kRead))
    raw.push_back((header.flags & kFlagRaw) != 0);
  EXPECT_EQ(raw, (std::vector{true, false, false})) << "after wrong bytes the server is to look";
  rig.targets[0]->decide({});
  EXPECT_EQ(rig.read(kFh, 0, 100).bytes.size(), 100u);
  EXPECT_NE(rig.targets[0]->seen(Op::kRead).back().flags & kFlagRaw, 0);
}

TEST(DataPath, RandomOperationsAgreeWithAModel) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    RigSettings settings;
    settings.targets = seed;
    settings.core.memory.dirty_bytes_max = seed == 2 ? 1u << 20 : 256u << 20;
    settings.core.memory.held_bytes_max = seed == 3 ? 0 : 1u << 20;
    Rig rig(settings);
    rig.open(kFh, O_RDWR);
    std::mt19937 random(seed);
    Bytes model;
    for (int step = 0; step < 400; ++step) {
      const uint32_t action = random() % 10;
      const uint64_t offset = random() % 600'000;
      const auto length =
          static_cast<uint32_t>(1 + (random() % 4 == 0 ? random() % 300'000 : random() % 6000));
      if (action < 6) {
        const Bytes bytes = pattern(length, random());
        ASSERT_EQ(rig.write(kFh, offset, bytes, action == 0 ? O_DIRECT : 0).count, length);
        if (model.size() < offset + length) model.resize(offset + length);
        std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<ptrdiff_t>(offset));
      } else if (action < 9) {
        const size_t from = std::min<size_t>(offset, model.size());
        const size_t there = std::min<size_t>(length, model.size() - from);
        ASSERT_EQ(rig.read(kFh, offset, length).bytes, slice(model, from, there)) << step;
      } else {
        ASSERT_EQ(random() % 2 == 0 ? rig.flush(kFh) : rig.fsync(kFh), 0);
      }
    }
    ASSERT_EQ(rig.fsync(kFh), 0);
    EXPECT_EQ(rig.file(model.size(), true), model);
    EXPECT_TRUE(rig.empties(Buffer::Account::kDirty));
    EXPECT_TRUE(rig.empties(Buffer::Account::kHeld));
  }
}

}  // namespace
}  // namespace braidfs::client::rig
