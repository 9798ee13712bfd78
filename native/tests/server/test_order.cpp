// A new connection of a session is served when all requests of the one before have ended, also
// those that are stuck with a worker, and those of connections before that one.
#include <condition_variable>
#include <mutex>

#include "peer.h"
#include "store/fault.h"

namespace braidfs::server {
namespace {

// While one lives, the syncs of all stores are stuck.
class StuckSyncs {
 public:
  StuckSyncs() {
    const std::scoped_lock lock(mu_);
    stuck_ = true;
    store::fault_hook = [](store::FaultPoint point) {
      if (point == store::FaultPoint::kSyncBeforeBytes) wait();
    };
  }
  ~StuckSyncs() { release(); }
  static void release() {
    store::fault_hook = nullptr;
    const std::scoped_lock lock(mu_);
    stuck_ = false;
    released_.notify_all();
  }
  static size_t waiting() {
    const std::scoped_lock lock(mu_);
    return waiting_;
  }

 private:
  static void wait() {
    std::unique_lock lock(mu_);
    ++waiting_;
    released_.wait(lock, [] { return !stuck_; });
    --waiting_;
  }
  static inline std::mutex mu_;
  static inline std::condition_variable released_;
  static inline bool stuck_ = false;
  static inline size_t waiting_ = 0;
};

class OrderOfConnections : public ServerTest {
 protected:
  void SetUp() override {
    // without a background thread's syncs in between: nothing is old enough within a test
    ServerTest::SetUp();
    former_.emplace(connect());
    ASSERT_EQ(former_->status_of(write(0, pattern(4096, 1))), Status::kOk);
  }
  void TearDown() override {
    StuckSyncs::release();
    ServerTest::TearDown();
  }

  // Sends a SYNC that is stuck with a worker. Returns the connection's name.
  uint64_t stick() {
    EXPECT_TRUE(former_->send(ranged(Op::kSync, 0, 0)));
    EXPECT_TRUE(eventually([] { return StuckSyncs::waiting() == 1; }));
    return connection_;
  }
  static bool answers_within(Peer& peer, int milliseconds) {
    pollfd poll_fd{.fd = peer.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&poll_fd, 1, milliseconds) > 0;
  }
  bool adopt(uint64_t connection, uint64_t previous) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const net::UniqueFd ours(ends[0]);
    return server_->adopt({.socket = net::UniqueFd(ends[1]),
                           .session = kSession,
                           .connection = connection,
                           .previous = previous});
  }

  std::optional<Peer> former_;
};

TEST_F(OrderOfConnections, ARequestThatIsStuckWithAWorkerIsWaitedFor) {
  const StuckSyncs stuck;
  const uint64_t name = stick();
  Peer next = connect(kSession, name);
  const Frame ask = write(0, pattern(4096, 2));
  ASSERT_TRUE(next.send(ask));
  EXPECT_FALSE(answers_within(next, 300));
  Peer other = connect();
  EXPECT_EQ(other.status_of(plain(Op::kPing)), Status::kOk) << "it replaces nothing";
  EXPECT_TRUE(other.ask(read(0, 4096)).payload == pattern(4096, 1));
  StuckSyncs::release();
  const auto answer = next.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status(), Status::kOk);
}

TEST_F(OrderOfConnections, ConnectionsThatEndedWhileTheyWaitedAreNoShortCut) {
  const StuckSyncs stuck;
  stick();
  former_->hang_up();
  for (int count = 0; count < 3; ++count) {
    Peer gone = connect(kSession, connection_);
    ASSERT_TRUE(gone.send(write(0, pattern(4096, 3))));
    gone.hang_up();
  }
  Peer last = connect(kSession, connection_);
  ASSERT_TRUE(last.send(plain(Op::kPing)));
  EXPECT_FALSE(answers_within(last, 300));
  StuckSyncs::release();
  EXPECT_TRUE(last.receive());
  EXPECT_TRUE(last.ask(read(0, 4096)).payload == pattern(4096, 1)) << "nothing of theirs was read";
}

TEST_F(OrderOfConnections, OneThatWasRefusedIsNoShortCut) {
  const StuckSyncs stuck;
  const uint64_t name = stick();
  for (const uint64_t refused : {1u, 2u, 3u}) {
    server_->announce(kSession, refused, refused == 1 ? name : refused - 1);
  }
  Peer last = connect(kSession, 3);
  ASSERT_TRUE(last.send(plain(Op::kPing)));
  EXPECT_FALSE(answers_within(last, 300));
  EXPECT_FALSE(adopt(3, 2)) << "its requests would come too late";
  EXPECT_FALSE(adopt(1, name));
  StuckSyncs::release();
  EXPECT_TRUE(last.receive());
}

TEST_F(OrderOfConnections, OneThatIsAdoptedBehindItsSuccessorIsRefused) {
  server_->announce(kSession, 1, connection_);
  Peer next = connect(kSession, 1);
  EXPECT_EQ(next.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_TRUE(former_->ends());
  EXPECT_FALSE(adopt(1, connection_));
  EXPECT_EQ(next.status_of(plain(Op::kPing)), Status::kOk);
}

TEST_F(OrderOfConnections, NamesInACircleHarmNobody) {
  server_->announce(kSession, 1, 2);
  server_->announce(kSession, 2, 1);
  Peer third = connect(kSession, 1);
  EXPECT_EQ(third.status_of(plain(Op::kPing)), Status::kOk);
  EXPECT_EQ(former_->status_of(plain(Op::kPing)), Status::kOk);
}

TEST(ConnectionRegistry, OldAnnouncementsAreForgotten) {
  ConnectionRegistry registry;
  registry.announce({kSession, 1}, 100);
  ASSERT_TRUE(registry.add({kSession, 100}, 0, 0));
  EXPECT_EQ(registry.predecessor(kSession, 1), 100u);
  EXPECT_EQ(registry.predecessor(kSession + 1, 1), 0u);
  for (uint64_t name = 0; name < ConnectionRegistry::kAnnouncedMax; ++name) {
    registry.announce({7, name}, 0);
  }
  EXPECT_EQ(registry.predecessor(kSession, 1), 0u);
  EXPECT_EQ(registry.predecessor(kSession, 100), 100u);
}

}  // namespace
}  // namespace braidfs::server
