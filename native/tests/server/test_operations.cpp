// Every data operation, through a socket, with both I/O engines.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "peer.h"

namespace braidfs::server {
namespace {

class Operations : public ServerTest, public ::testing::WithParamInterface<IoEngine> {
 protected:
  void SetUp() override {
    if (GetParam() == IoEngine::kUring && net::Uring::probe() != 0)
      GTEST_SKIP() << "no io_uring here";
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

Frame raw(Frame frame) {
  frame.header.flags |= kFlagRaw;
  return frame.seal();
}

// docs/decisions/0047: bytes in the page cache go unchecked to a local reader, which checks them
// itself.
TEST_P(Operations, RawReadsAreLent) {
  Peer peer = connect();
  Bytes bytes = pattern(70'000);
  ASSERT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  expect_bytes(peer.ask(read(0, 70'000)), 0, bytes);
  EXPECT_EQ(counter("reads_lent"), 0u);
  expect_bytes(peer.ask(raw(read(0, 70'000))), 0, bytes);
  EXPECT_EQ(counter("reads_lent"), 1u);
  expect_bytes(peer.ask(raw(read(0, 200'000))), 0, bytes);  // this is up to the object's end
  expect_bytes(peer.ask(raw(read(4096, 61'440))), 4096,
               Bytes(bytes.begin() + 4096, bytes.begin() + 65'536));
  EXPECT_EQ(counter("reads_lent"), 3u);
  expect_bytes(peer.ask(raw(read(100, 60'000))), 100,
               Bytes(bytes.begin() + 100, bytes.begin() + 60'100));
  expect_bytes(peer.ask(raw(read(0, 8192))), 0, Bytes(bytes.begin(), bytes.begin() + 8192));
  EXPECT_EQ(counter("reads_lent"), 3u) << "parts of blocks, and little";
  EXPECT_EQ(counter("read_bytes"), 70'000u * 3 + 61'440 + 60'000 + 8192);
  ASSERT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
  const Bytes other = pattern(4096, 9);
  ASSERT_EQ(peer.status_of(write(8192, other)), Status::kOk);  // it is in the redo log now
  std::copy(other.begin(), other.end(), bytes.begin() + 8192);
  expect_bytes(peer.ask(raw(read(0, 70'000))), 0, bytes);
  EXPECT_EQ(counter("reads_lent"), 3u);
  ASSERT_EQ(peer.status_of(write(1 << 20, pattern(4096))), Status::kOk);
  Bytes holes(70'000);
  expect_bytes(peer.ask(raw(read(200'704, 70'000))), 200'704, holes);
  EXPECT_EQ(counter("reads_lent"), 3u);
}

// The metaserver makes durable what sessions that have ended have left. What is durable is not
// written over in its place, so a block that is written then is in the redo log, and not lent.
TEST_P(Operations, ATargetIsSyncedAsAWhole) {
  Peer peer = connect();
  const std::array<uint64_t, 2> files{kFile, kFile + 1};
  const auto written_to = [&](uint64_t file, const Bytes& bytes) {
    Frame frame = bare_write(0, bytes);
    frame.header.file_id = file;
    put_capability(frame, capability_for(file));
    return peer.status_of(frame.seal());
  };
  for (const uint64_t file : files) ASSERT_EQ(written_to(file, pattern(70'000)), Status::kOk);
  EXPECT_EQ(peer.status_of(plain(Op::kSync, kEveryFile)), Status::kBadCapability);
  Peer metaserver = connect_metaserver();
  const Reply reply = metaserver.ask(plain(Op::kSync, kEveryFile));
  ASSERT_EQ(reply.status(), Status::kOk);
  EXPECT_NE(reply.header.offset, 0u) << "the incarnation";
  for (const uint64_t file : files) {
    ASSERT_EQ(written_to(file, pattern(4096, 9)), Status::kOk);
    ASSERT_EQ(peer.status_of(raw(read(0, 70'000, file))), Status::kOk);
    EXPECT_EQ(counter("reads_lent"), 0u) << file;
  }
  Frame stale = request(Op::kSync, kEveryFile);
  stale.header.offset = reply.header.offset + 1;
  EXPECT_EQ(metaserver.status_of(stale.seal()), Status::kStaleIncarnation);
}

TEST_P(Operations, RawReadsFetchWhatTheyLend) {
  const Bytes bytes = pattern(150'000);
  {
    Peer peer = connect();
    ASSERT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
    ASSERT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
  }
  server_->stop(5000);
  launch({.lane_count = 1, .io = GetParam()});
  Peer peer = connect();
  for (int round = 0; round < 2; ++round) {  // the first one must read the records, too
    for (const net::UniqueFd& fd : object_files())
      ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    expect_bytes(peer.ask(raw(read(0, 150'000))), 0, bytes);
  }
  EXPECT_GE(counter("reads_lent"), GetParam() == IoEngine::kUring ? 1u : 0u);
}

// The reader notices it, asks again, and gets the error.
TEST_P(Operations, WrongBytesThatAreLentShow) {
  Peer peer = connect();
  const Bytes bytes = pattern(100'000);
  ASSERT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  ASSERT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
  for (const net::UniqueFd& fd : object_files()) {
    // This is block 3 of group 0, slot A.
    ASSERT_EQ(::pwrite(fd.get(), "wrong", 5, 4096 + 3 * 4096), 5);
    ASSERT_EQ(fsync(fd.get()), 0);
  }
  const Reply reply = peer.ask(raw(read(0, 100'000)));
  ASSERT_EQ(reply.status(), Status::kOk);
  std::vector<uint64_t> sums(reply.body.size() / 8);
  std::memcpy(sums.data(), reply.body.data(), reply.body.size());
  EXPECT_EQ(first_mismatch(0, reply.payload, sums), 3u);
  EXPECT_EQ(counter("reads_lent"), 1u);
  EXPECT_EQ(peer.status_of(read(0, 100'000)), Status::kCorrupt);
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

constexpr uint64_t kSink = 78;

TEST_P(Operations, MissingObjectIsAHoleUnlessItMustExist) {
  Peer peer = connect();
  const Reply hole = peer.ask(read(0, 4096));
  EXPECT_EQ(hole.status(), Status::kOk);
  EXPECT_TRUE(hole.payload.empty());
  Frame must = read(0, 4096);
  must.header.flags |= kFlagMustExist;
  EXPECT_EQ(peer.status_of(must.seal()), Status::kNoObject);
}

// An object that a disk has lost is not created again, because the rest of it would be zeros.
TEST_P(Operations, WhatMustExistIsNotMade) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  Frame truncate = request(Op::kTruncate);
  truncate.header.offset = 6000;
  truncate.header.epoch = 3;
  const auto must = [](Frame frame) {
    frame.header.flags |= kFlagMustExist;
    return frame.seal();
  };
  EXPECT_EQ(peer.status_of(must(write(0, pattern(10)))), Status::kNoObject);
  EXPECT_EQ(peer.status_of(must(write(0, pattern(1 << 20)))), Status::kNoObject);
  EXPECT_EQ(peer.status_of(must(ranged(Op::kPunch, 0, 4096))), Status::kNoObject);
  EXPECT_EQ(peer.status_of(must(copy(0, 0, 4096, kSink))), Status::kNoObject);
  EXPECT_EQ(metaserver.status_of(must(truncate)), Status::kNoObject);
  for (const uint64_t file : {kFile, kSink}) {
    EXPECT_EQ(peer.status_of(ranged(Op::kStat, 0, 0, file)), Status::kNoObject)
        << "nothing was made";
  }
  EXPECT_EQ(metaserver.status_of(truncate.seal()), Status::kOk);
  EXPECT_EQ(peer.status_of(must(ranged(Op::kPunch, 0, 4096))), Status::kStaleTruncateEpoch);
  Frame written = write(0, pattern(10));
  written.header.epoch = 3;
  EXPECT_EQ(peer.status_of(must(written)), Status::kOk);
  Frame again = truncate;
  again.header.epoch = 4;
  EXPECT_EQ(metaserver.status_of(must(again)), Status::kOk);
  Frame sync = ranged(Op::kSync, 0, 0);
  EXPECT_EQ(peer.status_of(must(sync)), Status::kBadRequest)
      << "of what changes an object or reads it";
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

TEST_P(Operations, CopyMovesBlocksBetweenObjects) {
  Peer peer = connect();
  const Bytes bytes = pattern(3 << 20);
  EXPECT_EQ(peer.status_of(write(8192, bytes)), Status::kOk);
  EXPECT_EQ(peer.status_of(write(0, pattern(40960, 9), kSink)), Status::kOk);
  const Reply copied = peer.ask(copy(8192, 4096, 3 << 20, kSink));
  EXPECT_EQ(copied.status(), Status::kOk);
  EXPECT_NE(copied.header.offset, 0u) << "the incarnation, for the SYNC";
  expect_bytes(peer.ask(read(4096, 3 << 20, kSink)), 4096, bytes);
  const Bytes before = pattern(40960, 9);
  expect_bytes(peer.ask(read(0, 4096, kSink)), 0, Bytes(before.begin(), before.begin() + 4096));
  expect_bytes(peer.ask(read(8192, 3 << 20)), 8192, bytes);
  EXPECT_EQ(counter("copied_bytes"), 3u << 20);
}

TEST_P(Operations, CopyKeepsHolesAndClearsWhatWasThere) {
  Peer peer = connect();
  const Bytes bytes = pattern(8192);
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  EXPECT_EQ(peer.status_of(write(1 << 20, bytes)), Status::kOk);
  EXPECT_EQ(peer.status_of(write(0, pattern(2 << 20, 7), kSink)), Status::kOk);
  EXPECT_EQ(peer.status_of(copy(0, 0, 2 << 20, kSink)), Status::kOk);
  Bytes expected(2 << 20);
  std::copy(bytes.begin(), bytes.end(), expected.begin());
  std::copy(bytes.begin(), bytes.end(), expected.begin() + (1 << 20));
  expect_bytes(peer.ask(read(0, 2 << 20, kSink)), 0, expected);
  const Reply data = peer.ask(ranged(Op::kSeek, 8192, 0, kSink));
  uint64_t at = 0;
  ASSERT_EQ(data.body.size(), 16u);
  std::memcpy(&at, data.body.data(), 8);
  EXPECT_EQ(at, 1u << 20) << "no zeros were written";
}

TEST_P(Operations, CopyOfAnObjectThatIsNotThere) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(write(0, pattern(8192), kSink)), Status::kOk);
  CopySource source = source_at(kFile, 0);
  source.flags = kCopyMustExist;
  EXPECT_EQ(peer.status_of(copy(source, 0, 4096, kSink, capability_for(kFile))), Status::kNoObject);
  EXPECT_EQ(peer.status_of(copy(0, 0, 4096, kSink)), Status::kOk);
  const Bytes before = pattern(8192);
  Bytes expected(4096);
  expected.insert(expected.end(), before.begin() + 4096, before.end());
  expect_bytes(peer.ask(read(0, 8192, kSink)), 0, expected);
}

// A copy reports to the metaserver that its sink's object is durable: from then on a missing object
// is a lost one.
TEST_P(Operations, CopyOfNothingLeavesAnObject) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(copy(0, 0, 1 << 20, kSink)), Status::kOk);
  EXPECT_EQ(peer.status_of(ranged(Op::kSync, 0, 0, kSink)), Status::kOk);
  launch(config_);
  Peer again = connect();
  Frame must = read(0, 4096, kSink);
  must.header.flags |= kFlagMustExist;
  const Reply reply = again.ask(must.seal());
  EXPECT_EQ(reply.status(), Status::kOk);
  EXPECT_TRUE(reply.payload.empty());
}

TEST_P(Operations, CommandsOfAFormerAttemptAreRefused) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  const Bytes bytes = pattern(8192);
  const auto with_epoch = [](Frame frame, uint64_t offset, uint32_t epoch) {
    frame.header.offset = offset;
    frame.header.epoch = epoch;
    return frame.seal();
  };
  EXPECT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
  const Frame cut = with_epoch(request(Op::kTruncate), 4096, 3);
  EXPECT_EQ(metaserver.status_of(cut), Status::kOk);
  EXPECT_EQ(metaserver.status_of(cut), Status::kOk) << "it is cut so already";
  EXPECT_EQ(
      peer.status_of(with_epoch(write(4096, Bytes(bytes.begin(), bytes.begin() + 4096)), 4096, 3)),
      Status::kOk);
  EXPECT_EQ(metaserver.status_of(cut), Status::kStaleTruncateEpoch);
  EXPECT_EQ(peer.status_of(ranged(Op::kPunch, 0, 8192)), Status::kStaleTruncateEpoch);
  EXPECT_EQ(peer.status_of(ranged(Op::kSeek, 0, 0)), Status::kStaleTruncateEpoch);
  CopySource source = source_at(kFile, 0);
  source.epoch_end = 3;  // it knows of epoch 2
  EXPECT_EQ(peer.status_of(copy(source, 0, 4096, kSink, capability_for(kFile))),
            Status::kStaleTruncateEpoch);
  // The first is an earlier client's, the second this epoch's.
  for (const uint32_t epoch_end : {0u, 4u}) {
    source.epoch_end = epoch_end;
    EXPECT_EQ(peer.status_of(copy(source, 0, 4096, kSink, capability_for(kFile))), Status::kOk);
  }
  Bytes expected(bytes.begin(), bytes.begin() + 4096);
  expected.insert(expected.end(), bytes.begin(), bytes.begin() + 4096);
  expect_bytes(peer.ask(read(0, 8192)), 0, expected);
}

// A client that may write a file cannot create objects that do not belong to it.
TEST_P(Operations, ACapabilityIsOfTheObjectsThatItsFileHas) {
  Peer peer = connect();
  const auto say = [&](Frame frame, uint32_t stripe, uint32_t epoch, const Capability& capability) {
    std::memcpy(frame.body.data(), &capability, sizeof(capability));
    frame.header.stripe_index = stripe;
    frame.header.epoch = epoch;
    return peer.status_of(frame.seal());
  };
  for (const uint32_t width : {1u, 2u, 3u, 5u, 64u}) {
    std::vector<uint32_t> targets(width);
    for (uint32_t stripe = 0; stripe < width; ++stripe) targets[stripe] = kTarget + stripe;
    const Capability right = capability_for(kFile, kSession, kRightRead | kRightWrite, targets, 4);
    const Bytes bytes = pattern(4096);
    EXPECT_EQ(say(write(0, bytes), 0, 4, right), Status::kOk);
    EXPECT_EQ(say(write(0, bytes), 0, 5, right), Status::kBadCapability)
        << "an epoch that is to come";
    for (const uint32_t stripe : {width, 63u, 62u}) {
      if (stripe < width || stripe >= limits::kStripeWidthMax) continue;
      EXPECT_EQ(say(write(0, bytes), stripe, 4, right), Status::kBadCapability);
      EXPECT_EQ(say(ranged(Op::kPunch, 0, 4096), stripe, 4, right), Status::kBadCapability);
      EXPECT_EQ(say(ranged(Op::kSync, 0, 0), stripe, 0, right), Status::kBadCapability);
      EXPECT_EQ(say(read(0, 4096), stripe, 0, right), Status::kBadCapability);
      EXPECT_EQ(say(copy(0, 0, 4096, kFile), stripe, 4, right), Status::kBadCapability);
    }
    if (width == 64) continue;   // with a bit for each stripe half of all targets are right
    targets[0] = kTarget + 100;  // this target belongs to another server
    const Capability elsewhere =
        capability_for(kFile, kSession, kRightRead | kRightWrite, targets, 4);
    EXPECT_EQ(say(write(0, bytes), 0, 4, elsewhere), Status::kBadCapability) << width;
  }
  EXPECT_GT(counter("refused_capabilities"), 0u);
}

TEST_P(Operations, CopyAfterATruncateIsRefused) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(peer.status_of(write(0, pattern(8192))), Status::kOk);
  Frame truncate = request(Op::kTruncate, kSink);
  truncate.header.epoch = 3;
  EXPECT_EQ(metaserver.status_of(truncate.seal()), Status::kOk);
  EXPECT_EQ(peer.status_of(copy(0, 0, 8192, kSink)), Status::kStaleTruncateEpoch);
}

TEST_P(Operations, CopyNeedsTheRightToReadAndToWrite) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(write(0, pattern(8192))), Status::kOk);
  const CopySource source = source_at(kFile, 0);
  for (const Capability& wrong : {capability_for(kSink), capability_for(kFile, kSession + 1),
                                  capability_for(kFile, kSession, kRightWrite)}) {
    EXPECT_EQ(peer.status_of(copy(source, 0, 4096, kSink, wrong)), Status::kBadCapability);
  }
  Frame readonly = copy(0, 0, 4096, kSink);
  const Capability reading = capability_for(kSink, kSession, kRightRead);
  std::memcpy(readonly.body.data(), &reading, sizeof(reading));
  EXPECT_EQ(peer.status_of(readonly.seal()), Status::kBadCapability);
  EXPECT_EQ(peer.ask(read(0, 4096, kSink)).payload.size(), 0u);
  CopySource elsewhere = source;
  elsewhere.target = kTarget + 1;
  EXPECT_EQ(peer.status_of(copy(elsewhere, 0, 4096, kSink, capability_for(kFile))),
            Status::kNoTarget);
  for (const CopySource& bad :
       {CopySource{kFile, 100, 0, kTarget}, CopySource{kFile, 0, limits::kStripeWidthMax, kTarget},
        CopySource{kFile, 0, 0, kTarget, 2}, CopySource{kFile, ~0ull << 12, 0, kTarget}}) {
    EXPECT_EQ(peer.status_of(copy(bad, 0, 4096, kSink, capability_for(kFile))),
              Status::kBadRequest);
  }
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

TEST_P(Operations, DeleteAllRemovesWhatItNames) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  constexpr uint64_t kOther = kFile + 1;
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  EXPECT_EQ(peer.status_of(write(0, pattern(4096), kOther)), Status::kOk);
  const Reply reply = metaserver.ask(delete_all({{kFile, 0}, {kFile, 1}, {kFile, 0}}));
  EXPECT_EQ(reply.status(), Status::kOk);
  EXPECT_EQ(reply.body, Bytes(6)) << "a status for each, all of them 0";
  EXPECT_EQ(peer.status_of(ranged(Op::kStat, 0, 0)), Status::kNoObject);
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kNoObject)
      << "a late write brings nothing back";
  EXPECT_EQ(peer.status_of(ranged(Op::kStat, 0, 0, kOther)), Status::kOk);
}

// The number of a file's pages in the page cache.
size_t resident_pages(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size == 0) return 0;
  const auto size = static_cast<size_t>(status.st_size);
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return 0;
  std::vector<unsigned char> pages((size + 4095) / 4096);
  const int done = ::mincore(mapped, size, pages.data());
  ::munmap(mapped, size);
  return done != 0 ? 0 : static_cast<size_t>(std::ranges::count_if(pages, [](unsigned char page) {
    return page & 1;
  }));
}

TEST_P(Operations, FetchReadsObjectsIntoThePageCache) {
  Peer peer = connect();
  const Bytes bytes = pattern(200'000);
  std::vector<Named> names;
  for (uint64_t file = kFile; file < kFile + 4; ++file) {
    EXPECT_EQ(peer.status_of(write(0, bytes, file)), Status::kOk);
    EXPECT_EQ(peer.status_of(ranged(Op::kSync, 0, 0, file)), Status::kOk);
    names.push_back({.file_id = file, .length = static_cast<uint32_t>(bytes.size())});
  }
  const auto resident = [&] {
    size_t pages = 0;
    for (const auto& file : object_files()) pages += resident_pages(file.get());
    return pages;
  };
  launch(config_);  // what the server had in memory is lost
  for (const auto& file : object_files()) {
    ASSERT_EQ(::fdatasync(file.get()), 0);
    ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  ASSERT_LT(resident(), 4u);
  Peer again = connect();
  names.push_back({.file_id = kFile + 99});  // there is no such object
  EXPECT_EQ(again.status_of(fetch(names)), Status::kOk);
  EXPECT_TRUE(eventually([&] { return resident() >= 4 * bytes.size() / 4096; })) << resident();
  EXPECT_EQ(counter("fetches"), 1u);
  EXPECT_EQ(counter("fetched_used"), 0u);
  for (uint64_t file = kFile; file < kFile + 4; ++file) {
    expect_bytes(again.ask(read(0, static_cast<uint32_t>(bytes.size()), file)), 0, bytes);
  }
  EXPECT_EQ(counter("fetched_used"), 4u);
  EXPECT_EQ(counter("fetched_objects"), 5u);
}

TEST_P(Operations, FetchLeavesOutWhatThePeerMayNotRead) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(fetch({{.session = kSession + 1}, {.file_id = kFile + 1}})),
            Status::kOk);
  EXPECT_TRUE(eventually([&] { return counter("fetched_objects") == 1; }));
  EXPECT_EQ(counter("refused_capabilities"), 1u);
  EXPECT_EQ(peer.status_of(fetch({{.file_id = kFile + 2}})), Status::kOk);
  EXPECT_TRUE(eventually([&] { return counter("fetched_objects") == 2; }))
      << "the one before was never fetched";
}

TEST_P(Operations, FetchIsRefusedWhereThereIsNoRoom) {
  ServerConfig config = config_;
  config.fetched_bytes_max = 10'000;
  launch(config);
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(fetch({{.length = 9'000}, {.file_id = kFile + 1, .length = 9'000}})),
            Status::kBusy);
  EXPECT_TRUE(eventually([&] { return counter("fetched_objects") == 1; }));
  EXPECT_EQ(counter("fetches_refused"), 1u);
  (void)peer.ask(read(0, 4096));
  EXPECT_EQ(peer.status_of(fetch({{.file_id = kFile + 1, .length = 9'000}})), Status::kOk)
      << "the other was read";
  config.fetched_bytes_max = 0;
  launch(config);
  EXPECT_EQ(connect().status_of(fetch({{.length = 1}})), Status::kBusy);
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
