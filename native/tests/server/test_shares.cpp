// What one peer may use of a server: a peer that does not read its answers holds a share of the
// lane's memory and no more, and connections do not take the descriptors that stored bytes need.
#include <sys/resource.h>

#include "peer.h"

namespace braidfs::server {
namespace {

constexpr uint32_t kLength = 1u << 20;
constexpr int kReads = 16;

class Shares : public ServerTest {
 protected:
  void one_small_lane() {
    launch({.lane_count = 1, .io = IoEngine::kSyscall, .buffer_bytes_max = 48u << 20});
    auto writer = connect();
    ASSERT_EQ(writer.status_of(write(0, bytes_)), Status::kOk);
  }
  Peer greedy() {
    Peer peer = connect();
    for (int i = 0; i < kReads; ++i) EXPECT_TRUE(peer.send(read(0, kLength)));
    return peer;
  }

  Bytes bytes_ = pattern(kLength);
};

TEST_F(Shares, ReadersThatTakeNoAnswersLeaveOthersTheirs) {
  one_small_lane();
  std::vector<Peer> readers;
  for (int i = 0; i < 12; ++i) readers.push_back(greedy());  // they want 192 MiB of 48
  ASSERT_TRUE(eventually([&] { return counter("buffer_waits") > 0; }));
  auto good = connect();
  for (int i = 0; i < 3; ++i) {
    const Reply reply = good.ask(read(0, kLength));
    ASSERT_EQ(reply.status(), Status::kOk);
    EXPECT_EQ(reply.payload, bytes_);
  }
  EXPECT_EQ(good.status_of(write(kLength, bytes_)), Status::kOk);
  for (auto& reader : readers) {  // a peer that reads them after all gets each one
    for (int i = 0; i < kReads; ++i) {
      const auto reply = reader.receive();
      ASSERT_TRUE(reply.has_value());
      EXPECT_EQ(reply->payload, bytes_);
    }
  }
}

TEST_F(Shares, WhereMemoryIsShortWhoTakesNoAnswersIsCutSoon) {
  one_small_lane();
  launch({.lane_count = 1,
          .io = IoEngine::kSyscall,
          .buffer_bytes_max = 48u << 20,
          .stall_ms_max = 6000});
  std::vector<Peer> readers;
  for (int i = 0; i < 60; ++i)
    readers.push_back(greedy());  // one answer for each is more than the memory allows
  auto good = connect();
  EXPECT_EQ(good.status_of(read(0, kLength)), Status::kOk);
  EXPECT_GT(counter("stalled_connections"), 0u);
}

TEST_F(Shares, AReaderThatTakesNoAnswersIsCutAndItsMemoryComesBack) {
  one_small_lane();
  launch({.lane_count = 1,
          .io = IoEngine::kSyscall,
          .buffer_bytes_max = 48u << 20,
          .stall_ms_max = 600});
  auto reader = greedy();
  ASSERT_TRUE(eventually([&] { return counter("stalled_connections") == 1; }));
  EXPECT_TRUE(reader.ends());
  EXPECT_TRUE(eventually([&] { return counter("in_flight") == 0; }));
}

TEST_F(Shares, APeerThatTakesItsAnswersMayHaveManyUnderWay) {
  one_small_lane();
  auto peer = greedy();
  for (int i = 0; i < kReads; ++i) {
    const auto reply = peer.receive();
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->status(), Status::kOk);
  }
}

TEST_F(Shares, ASessionHasItsShareOfConnections) {
  std::vector<Peer> peers;
  for (int i = 0; i < 256; ++i) {
    peers.push_back(connect());
    ASSERT_EQ(peers.back().status_of(plain(Op::kPing)), Status::kOk) << i;
  }
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Peer more(ends[0]);
  EXPECT_FALSE(
      server_->adopt({.socket = net::UniqueFd(ends[1]), .session = kSession, .connection = 7}));
  EXPECT_TRUE(more.ends());
  peers.pop_back();
  ASSERT_TRUE(eventually([&] { return counter("connections") < 256; }));
  auto again = connect();
  EXPECT_EQ(again.status_of(plain(Op::kPing)), Status::kOk);
}

TEST_F(Shares, ShortDescriptorsCloseKeptFilesAndFailNoWrite) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan needs descriptors of its own to look at an object's type";
#endif
  auto peer = connect();
  ASSERT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);
  ::close(next);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(next) + 24, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  constexpr uint64_t kFiles =
      50;  // these are more than descriptors, and fewer than the 64 locks that TSan follows at once
  for (uint64_t file = 1; file <= kFiles; ++file) {
    EXPECT_EQ(peer.status_of(write(0, pattern(4096), 1000 + file)), Status::kOk) << file;
  }
  for (uint64_t file = 1; file <= kFiles; ++file) {
    EXPECT_EQ(peer.status_of(read(0, 4096, 1000 + file)), Status::kOk) << file;
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace braidfs::server
