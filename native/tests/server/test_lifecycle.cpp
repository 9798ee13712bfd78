// Sessions, fencing, replaced connections, bounds, events, stop.

#include "peer.h"

namespace braidfs::server {
namespace {

// The most frames that one receive may read after reading was stopped (net/frame_stream.cpp).
constexpr uint64_t kOvershootMax = 16 * (net::FrameParser::kStagingSize / kHeaderSize + 1);

class Lifecycle : public ServerTest {
 protected:
  std::vector<Event> events(EventKind kind) {
    std::vector<Event> found;
    for (auto& event : server_->events().reap(1000)) {
      if (event.kind == kind) found.push_back(std::move(event));
    }
    return found;
  }
};

TEST_F(Lifecycle, NothingIsServedBeforeTheSessionTable) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall}, false);
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(peer.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(peer.status_of(write(0, pattern(100))), Status::kNotReady);
  EXPECT_EQ(metaserver.status_of(plain(Op::kDelete)), Status::kNotReady);
  server_->sessions(std::array{kSession});
  EXPECT_EQ(peer.status_of(write(0, pattern(100))), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kDelete)), Status::kOk);
}

TEST_F(Lifecycle, NoClientIsServedWithoutALeaseOfTheMetaserver) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  server_->serve_until(1);
  EXPECT_EQ(peer.status_of(write(0, pattern(100))), Status::kNotReady);
  EXPECT_EQ(peer.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kDelete, kFile + 1)), Status::kOk)
      << "it is the one who asks";
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  server_->serve_until((int64_t{now.tv_sec} + 3600) * 1'000'000'000);
  EXPECT_EQ(peer.status_of(write(0, pattern(100))), Status::kOk);
}

TEST_F(Lifecycle, ASessionThatTheTableLacksIsUnknownUntilItHasIt) {
  Peer peer = connect(999);
  Frame frame = request(Op::kRead);
  frame.header.length = 4096;
  put_capability(frame, capability_for(kFile, 999));
  EXPECT_EQ(peer.status_of(frame.seal()), Status::kUnknownSession);
  server_->sessions(std::array<uint64_t, 2>{kSession, 999});
  EXPECT_EQ(peer.status_of(frame), Status::kOk);
  server_->sessions(std::array{kSession});
  EXPECT_TRUE(peer.ends());
}

TEST_F(Lifecycle, FenceClosesTheSessionAndKeepsItOut) {
  Peer peer = connect();
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  Frame fence = request(Op::kFence);
  fence.header.offset = kSession;
  EXPECT_EQ(metaserver.status_of(fence.seal()), Status::kOk);
  EXPECT_EQ(counter("connections"), 1u) << "answered only when the session's connections ended";
  EXPECT_TRUE(peer.ends());
  server_->sessions(std::array{kSession});  // the table is older than the fence
  Peer again = connect();
  EXPECT_TRUE(again.ends());
}

TEST_F(Lifecycle, FenceOfASessionWithoutConnectionsIsAnswered) {
  Peer metaserver = connect_metaserver();
  Frame fence = request(Op::kFence);
  fence.header.offset = 4242;
  EXPECT_EQ(metaserver.status_of(fence.seal()), Status::kOk);
  fence.header.offset = 0;
  EXPECT_EQ(metaserver.status_of(fence.seal()), Status::kBadRequest);
}

TEST_F(Lifecycle, APeerThatStopsInTheMiddleOfAFrameIsCutAndAnIdleOneIsNot) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall, .stall_ms_max = 200});
  Peer idle = connect();
  Peer stalled = connect();
  const Bytes whole = write(0, pattern(4096)).raw();
  ASSERT_TRUE(stalled.send(Bytes(whole.begin(), whole.begin() + 1000)));
  EXPECT_TRUE(stalled.ends());
  EXPECT_EQ(counter("stalled_connections"), 1u);
  EXPECT_EQ(idle.status_of(write(0, pattern(100))), Status::kOk);
}

TEST_F(Lifecycle, APeerThatTakesNoRepliesIsCut) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall, .stall_ms_max = 200});
  Peer peer = connect();
  ASSERT_EQ(peer.status_of(write(0, pattern(1 << 20))), Status::kOk);
  for (int count = 0; count < 16; ++count) ASSERT_TRUE(peer.send(read(0, 1 << 20)));
  EXPECT_TRUE(eventually([&] { return counter("stalled_connections") == 1; }));
}

TEST_F(Lifecycle, WhoWasIdleForLongestGoesForOthers) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall});
  Peer first = connect();
  Peer second = connect();
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(first.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(second.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(server_->connection_count(), 3u);
  server_->close_idle(100, std::chrono::hours(1));
  EXPECT_EQ(second.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(first.status_of(plain(Op::kPing)), Status::kOk);  // now the other one is the older
  server_->close_idle(1, std::chrono::milliseconds(0));
  EXPECT_TRUE(second.ends());
  server_->close_idle(100, std::chrono::milliseconds(0));
  EXPECT_TRUE(first.ends());
  EXPECT_EQ(metaserver.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_TRUE(eventually([&] { return server_->connection_count() == 1; }));
}

TEST_F(Lifecycle, FenceByPythonClosesToo) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(plain(Op::kPing)), Status::kOk);
  server_->fence(kSession);
  EXPECT_TRUE(peer.ends());
  ASSERT_TRUE(eventually([&] { return counter("connections") == 0; }));
  const auto closed = events(EventKind::kClosed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].a, kSession);
  EXPECT_EQ(closed[0].b, connection_);
}

TEST_F(Lifecycle, HalfAWriteOnAReplacedConnectionNeverLands) {
  Peer old = connect();
  const uint64_t old_name = connection_;
  EXPECT_EQ(old.status_of(write(0, pattern(65536, 1))), Status::kOk);
  Bytes late = write(0, pattern(65536, 2)).raw();
  const Bytes rest(late.end() - 100, late.end());
  late.resize(late.size() - 100);
  EXPECT_TRUE(old.send(late));
  ASSERT_TRUE(eventually([&] { return counter("in_flight") == 1; }));
  Peer fresh = connect(kSession, old_name);
  EXPECT_TRUE(fresh.ask(read(0, 65536)).payload == pattern(65536, 1));
  old.send(rest);
  EXPECT_TRUE(old.ends());
  EXPECT_TRUE(fresh.ask(read(0, 65536)).payload == pattern(65536, 1));
}

TEST_F(Lifecycle, TheReplacedConnectionsRequestsEndFirst) {
  for (int round = 0; round < 30; ++round) {
    Peer old = connect();
    const uint64_t old_name = connection_;
    Bytes burst;
    for (int index = 0; index < 12; ++index) {
      const Bytes raw = write(65536 * index, pattern(65536)).raw();
      burst.insert(burst.end(), raw.begin(), raw.end());
      const Bytes sync = ranged(Op::kSync, 0, 0).raw();
      burst.insert(burst.end(), sync.begin(), sync.end());
    }
    std::thread sender([&] { old.send(burst); });
    if (round % 3 != 0) old.receive();
    Peer fresh = connect(kSession, old_name);
    EXPECT_EQ(fresh.status_of(plain(Op::kPing)), Status::kOk);
    EXPECT_LE(counter("in_flight"), 1u) << "the old connection still had requests";
    EXPECT_EQ(counter("connections"), 1u);
    sender.join();
    fresh.hang_up();
    ASSERT_TRUE(eventually([&] { return counter("connections") == 0; }));
  }
}

TEST_F(Lifecycle, AChainOfReplacementsEndsWithTheLast) {
  std::vector<Peer> peers;
  peers.push_back(connect());
  for (int index = 0; index < 20; ++index) peers.push_back(connect(kSession, connection_));
  EXPECT_EQ(peers.back().status_of(plain(Op::kPing)), Status::kOk);
  for (size_t index = 0; index + 1 < peers.size(); ++index) EXPECT_TRUE(peers[index].ends());
}

TEST_F(Lifecycle, AnotherSessionsConnectionIsNotReplaced) {
  Peer old = connect();
  Peer stranger = connect(kSession + 1, connection_);
  EXPECT_EQ(stranger.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(old.status_of(plain(Op::kPing)), Status::kOk);
}

TEST_F(Lifecycle, ANameInUseIsRefused) {
  Peer first = connect();
  --connection_;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Peer second(ends[0]);
  EXPECT_FALSE(server_->adopt(
      {.socket = net::UniqueFd(ends[1]), .session = kSession, .connection = connection_ + 1}));
  EXPECT_TRUE(second.ends());
  EXPECT_EQ(first.status_of(plain(Op::kPing)), Status::kOk);
}

TEST_F(Lifecycle, RequestsInFlightAreBounded) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall});
  Peer peer = connect();
  ASSERT_EQ(peer.status_of(write(0, pattern(65536))), Status::kOk);
  constexpr int kCount = 12000;
  std::thread sender([&] {
    const Bytes raw = read(0, 16384).raw();
    for (int index = 0; index < kCount; ++index) ASSERT_TRUE(peer.send(raw));
  });
  ASSERT_TRUE(eventually([&] { return counter("in_flight") >= Connection::kInFlightMax; }));
  uint64_t most = 0;
  for (int look = 0; look < 50; ++look) {
    most = std::max(most, counter("in_flight"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(most, Connection::kInFlightMax + kOvershootMax);
  for (int index = 0; index < kCount; ++index) {
    const auto reply = peer.receive();
    ASSERT_TRUE(reply.has_value()) << index;
    ASSERT_EQ(reply->payload.size(), 16384u);
  }
  sender.join();
  EXPECT_TRUE(eventually([&] { return counter("in_flight") == 0; }));
}

TEST_F(Lifecycle, PayloadMemoryIsBoundedAndEverybodyIsServed) {
  constexpr size_t kMemory = 48u << 20;
  launch({.lane_count = 1, .io = IoEngine::kSyscall, .buffer_bytes_max = kMemory});
  static constexpr uint32_t kLarge = limits::kFramePayloadLengthMax;
  std::vector<Peer> peers;
  for (int index = 0; index < 6; ++index) peers.push_back(connect());
  ASSERT_EQ(peers[0].status_of(write(0, pattern(kLarge))), Status::kOk);
  for (auto& peer : peers) {
    for (int index = 0; index < 2; ++index) ASSERT_TRUE(peer.send(read(0, kLarge)));
  }
  ASSERT_TRUE(eventually([&] { return counter("buffer_waits") > 0; }));
  EXPECT_LE(counter("buffer_bytes"), kMemory);
  std::vector<std::thread> readers;
  for (auto& peer : peers) {
    readers.emplace_back([&peer] {
      EXPECT_EQ(peer.receive()->payload.size(), kLarge);
      EXPECT_EQ(peer.receive()->payload.size(), kLarge);
      EXPECT_EQ(peer.status_of(write(0, pattern(kLarge))), Status::kOk);
    });
  }
  for (auto& reader : readers) reader.join();
  EXPECT_LE(counter("buffer_bytes"), kMemory);
}

TEST_F(Lifecycle, AWaitingRequestGoesWithItsConnection) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall, .buffer_bytes_max = 0});
  Peer hog = connect();
  ASSERT_EQ(hog.status_of(write(0, pattern(limits::kFramePayloadLengthMax))), Status::kOk);
  for (int index = 0; index < 8; ++index) {
    ASSERT_TRUE(hog.send(read(0, limits::kFramePayloadLengthMax)));
  }
  ASSERT_TRUE(eventually([&] { return counter("buffer_waits") > 0; }));
  hog.hang_up();
  EXPECT_TRUE(eventually([&] { return counter("in_flight") == 0; }));
  Peer other = connect();
  EXPECT_EQ(other.ask(read(0, 4096)).payload.size(), 4096u);
}

TEST_F(Lifecycle, StopEndsConnectionsAndASecondStopIsNothing) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  server_->stop(5000);
  EXPECT_TRUE(peer.ends());
  server_->stop(5000);
  EXPECT_FALSE(server_->adopt({.socket = {}, .session = kSession, .connection = 1}));
}

TEST_F(Lifecycle, AFlippedBitOnDiskIsEioAndAnEvent) {
  const Bytes bytes = pattern(1 << 20);
  {
    Peer peer = connect();
    ASSERT_EQ(peer.status_of(write(0, bytes)), Status::kOk);
    ASSERT_EQ(peer.status_of(ranged(Op::kSync, 0, 0)), Status::kOk);
    server_->stop(5000);
  }
  int flipped = 0;
  for (const net::UniqueFd& fd : object_files()) {
    char byte = 0;
    const off_t at = 4096 + 8 * 4096 + 77;  // this is block 8 of group 0, slot A
    ASSERT_EQ(::pread(fd.get(), &byte, 1, at), 1);
    byte ^= 1;
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, at), 1);
    ++flipped;
  }
  ASSERT_EQ(flipped, 1);
  launch({.lane_count = 1, .io = IoEngine::kSyscall});
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(read(0, 1 << 20)), Status::kCorrupt);
  const auto corrupt = events(EventKind::kCorrupt);
  ASSERT_GE(corrupt.size(), 1u);
  EXPECT_EQ(corrupt[0].token, kTarget);
  EXPECT_EQ(corrupt[0].ino, kFile);
  EXPECT_EQ(corrupt[0].b, 8u * 4096);
  EXPECT_TRUE(peer.ask(read(0, 32768)).payload == Bytes(bytes.begin(), bytes.begin() + 32768));
}

}  // namespace
}  // namespace braidfs::server
