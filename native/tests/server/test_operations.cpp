// Every data operation, through a socket, with both I/O engines.
#include "peer.h"

namespace braidfs::server {
namespace {

class Operations : public ServerTest, public ::testing::WithParamInterface<IoEngine> {
 protected:
  void SetUp() override {
    if (GetParam() == IoEngine::kUring && Uring::probe() != 0) GTEST_SKIP() << "no io_uring here";
    config_.io = GetParam();
    ServerTest::SetUp();
  }
};

void expect_bytes(const Reply& reply, uint64_t offset, const Bytes& bytes) {
  ASSERT_EQ(reply.status(), Status::kOk);
  ASSERT_EQ(reply.payload.size(), bytes.size());
  EXPECT_TRUE(reply.payload == bytes);
  std::vector<uint64_t> sums(blocks_touched(offset, static_cast<uint32_t>(bytes.size())));
  ASSERT_EQ(reply.body.size(), 8 * sums.size());
  std::memcpy(sums.data(), reply.body.data(), reply.body.size());
  EXPECT_EQ(first_mismatch(offset, bytes, sums), std::nullopt);
}

TEST_P(Operations, BytesWrittenAreRead) {
  Peer peer = connect();
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, size_t>>{
           {0, 4096}, {8192, 100}, {5000, 70000}, {1 << 20, 1 << 20}, {(4 << 20) + 17, 3 << 20}}) {
    const Bytes bytes = pattern(size, static_cast<uint8_t>(size));
    const Reply written = peer.ask(write(offset, bytes));
    EXPECT_EQ(written.status(), Status::kOk);
    EXPECT_NE(written.header.offset, 0u) << "the incarnation travels in every reply";
    expect_bytes(peer.ask(read(offset, static_cast<uint32_t>(size))), offset, bytes);
  }
}

TEST_P(Operations, LargestPayloadPasses) {
  Peer peer = connect();
  const Bytes bytes = pattern(limits::kFramePayloadLengthMax);
  EXPECT_EQ(peer.status_of(write(4095, bytes)), Status::kOk);
  expect_bytes(peer.ask(read(4095, limits::kFramePayloadLengthMax)), 4095, bytes);
}

TEST_P(Operations, BytesSurviveARestart) {
  const Bytes bytes = pattern(300000);
  {
    Peer peer = connect();
    EXPECT_EQ(peer.status_of(write(12345, bytes)), Status::kOk);
    EXPECT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
  }
  server_->stop(5000);
  launch({.lane_count = 1, .io = GetParam()});
  Peer peer = connect();
  expect_bytes(peer.ask(read(12345, 300000)), 12345, bytes);
}

TEST_P(Operations, ReadEndsWhereTheObjectEnds) {
  Peer peer = connect();
  const Bytes bytes = pattern(5000);
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  expect_bytes(peer.ask(read(0, 65536)), 0, bytes);
  EXPECT_TRUE(peer.ask(read(8192, 4096)).payload.empty());
}

TEST_P(Operations, MissingObjectIsAHoleUnlessItMustExist) {
  Peer peer = connect();
  const Reply hole = peer.ask(read(0, 4096));
  EXPECT_EQ(hole.status(), Status::kOk);
  EXPECT_TRUE(hole.payload.empty());
  Frame must = read(0, 4096);
  must.header.flags |= kFlagMustExist;
  EXPECT_EQ(peer.status_of(must.seal()), Status::kNoObject);
}

TEST_P(Operations, SyncRefusesAnotherIncarnation) {
  Peer peer = connect();
  const uint64_t incarnation = peer.ask(write(0, pattern(4096))).header.offset;
  EXPECT_EQ(peer.status_of(ranged(Op::kSync, incarnation, 0)), Status::kOk);
  EXPECT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
  EXPECT_EQ(peer.status_of(ranged(Op::kSync, incarnation + 1, 0)), Status::kStaleIncarnation);
}

TEST_P(Operations, TruncateCutsAndRefusesOlderWrites) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  const Bytes bytes = pattern(10000);
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  Frame truncate = request(Op::kTruncate);
  truncate.header.offset = 6000;
  truncate.header.epoch = 3;
  EXPECT_EQ(metaserver.status_of(truncate.seal()), Status::kOk);
  expect_bytes(peer.ask(read(0, 10000)), 0, Bytes(bytes.begin(), bytes.begin() + 6000));
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kStaleTruncateEpoch);
}

TEST_P(Operations, PunchMakesZeros) {
  Peer peer = connect();
  Bytes bytes = pattern(20000);
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  EXPECT_EQ(peer.status_of(ranged(Op::kPunch, 3000, 9000)), Status::kOk);
  std::fill(bytes.begin() + 3000, bytes.begin() + 12000, std::byte{0});
  expect_bytes(peer.ask(read(0, 20000)), 0, bytes);
}

TEST_P(Operations, StatTellsTheLength) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(ranged(Op::kStat, 0, 0)), Status::kNoObject);
  EXPECT_EQ(peer.status_of(write(4096, pattern(100))), Status::kOk);
  const Reply reply = peer.ask(ranged(Op::kStat, 0, 0));
  ASSERT_EQ(reply.body.size(), 24u);
  uint64_t length = 0;
  std::memcpy(&length, reply.body.data(), 8);
  EXPECT_EQ(length, 4196u);
}

TEST_P(Operations, DeleteRemovesAndIsIdempotent) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kDelete)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kDelete)), Status::kOk);
  EXPECT_EQ(peer.status_of(ranged(Op::kStat, 0, 0)), Status::kNoObject);
}

TEST_P(Operations, ManyRequestsInFlightAreAllAnswered) {
  Peer peer = connect();
  constexpr int kCount = 400;
  Bytes all;
  for (int index = 0; index < kCount; ++index) {
    const Bytes raw = write(4096 * index, pattern(4096, static_cast<uint8_t>(index))).raw();
    all.insert(all.end(), raw.begin(), raw.end());
  }
  std::thread sender([&] { EXPECT_TRUE(peer.send(all)); });
  for (int index = 0; index < kCount; ++index) {
    const auto reply = peer.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->status(), Status::kOk);
  }
  sender.join();
  for (int index = 0; index < kCount; ++index) {
    const Bytes bytes = pattern(4096, static_cast<uint8_t>(index));
    expect_bytes(peer.ask(read(4096 * index, 4096)), 4096 * index, bytes);
  }
}

TEST_P(Operations, SeekFindsDataAndHoles) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(ranged(Op::kSeek, 0, 0)), Status::kNoObject);
  EXPECT_EQ(peer.status_of(write(8192, pattern(4096, 1))), Status::kOk);
  const auto found = [&](uint64_t offset, uint32_t hole) {
    const Reply reply = peer.ask(ranged(Op::kSeek, offset, hole));
    EXPECT_EQ(reply.status(), Status::kOk);
    EXPECT_EQ(reply.body.size(), 16u);
    uint64_t at = 0;
    if (reply.body.size() == 16) std::memcpy(&at, reply.body.data(), sizeof(at));
    return at;
  };
  EXPECT_EQ(found(0, 0), 8192u);
  EXPECT_EQ(found(8192, 1), 12288u);
  EXPECT_EQ(found(12288, 0), ~uint64_t{0});
}

TEST_P(Operations, ConcurrentConnectionsSeeWholeWrites) {
  constexpr int kWriters = 4;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([peer = std::make_shared<Peer>(connect()), writer] {
      const Bytes bytes(65536, static_cast<std::byte>(writer + 1));
      for (int round = 0; round < 40; ++round) {
        EXPECT_EQ(peer->status_of(write(1000, bytes)), Status::kOk);
        const Reply seen = peer->ask(read(1000, 65536));
        ASSERT_EQ(seen.payload.size(), 65536u);
        EXPECT_TRUE(seen.payload == Bytes(65536, seen.payload[0])) << "a torn write";
      }
    });
  }
  for (auto& writer : writers) writer.join();
}

INSTANTIATE_TEST_SUITE_P(Engines, Operations,
                         ::testing::Values(IoEngine::kSyscall, IoEngine::kUring),
                         [](const auto& engine) {
                           return engine.param == IoEngine::kUring ? "Uring" : "Syscall";
                         });

}  // namespace
}  // namespace braidfs::server
