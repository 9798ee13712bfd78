// RDMA streams when work fails, peers vanish or lie, memory and credits run short, and completions
// of different queue pairs come in any order: nothing hangs, every end is reported once, and all
// lent memory is returned.
#include <algorithm>
#include <thread>

#include "ends.h"

namespace braidfs::rdma {
namespace {

class Faults : public testing::Test {
 protected:
  void echo(End& end) {
    end.on_frame = [&end](const Got& frame) {
      end.send(reply_to(frame.header), pattern(frame.header.length, frame.header.request_id));
    };
  }
  // Sends writes and reads of mixed sizes.
  static void ask_much(End& asks, uint64_t count) {
    for (uint64_t id = 1; id <= count; ++id) {
      FrameHeader header = request(id);
      if (id % 3 == 0) header.length = static_cast<uint32_t>(id * 7919 % 400000 + 1);
      const Bytes payload = id % 3 == 1 ? pattern(id * 6101 % 300000, id) : Bytes{};
      if (!asks.send(header, payload, header.length)) return;
    }
  }
  net::EventLoop loop;
};

// A completion error at each piece of work of the exchange in turn; nth 0: no error, to count the
// pieces.
TEST_F(Faults, WorkThatFailsEndsBothEndsOnceAndReturnsEverything) {
  NEEDS_FAKE_FABRIC();
  constexpr size_t kFrames = 30, kTries = 60;
  size_t works = 0;
  for (size_t nth = 0; nth <= works; nth += std::max<size_t>(1, works / kTries)) {
    Ports ports(loop);
    End asks, answers;
    open_ends(loop, &ports, asks, answers);
    echo(answers);
    if (nth > 0) ports.fabric.fail_after(nth, nth % 2 == 0 ? fake::kRetries : fake::kAccess);
    ask_much(asks, kFrames);
    const bool ended = turn_until(loop, [&] {
      return (asks.closed_count == 1 && answers.closed_count == 1) || asks.got.size() == kFrames;
    });
    ASSERT_TRUE(ended) << nth;
    for (int turn = 0; turn < 5; ++turn) loop.turn(0);
    EXPECT_EQ(asks.closed_count, nth == 0 ? 0 : 1) << nth;
    EXPECT_LE(answers.closed_count, 1);
    if (nth == 0) works = ports.fabric.works_done();
    asks.stream.reset();
    answers.stream.reset();
    ports.expect_whole();
  }
  EXPECT_GT(works, 60u);
}

TEST_F(Faults, CompletionsOfDifferentPeersMayComeInAnyOrder) {
  NEEDS_FAKE_FABRIC();
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Ports ports(loop);
    std::array<End, 4> asks, answers;
    for (size_t pair = 0; pair < asks.size(); ++pair) {
      open_ends(loop, &ports, asks[pair], answers[pair]);
      echo(answers[pair]);
    }
    ports.fabric.hold(true);
    for (auto& end : asks) ask_much(end, 60);
    std::mt19937 random(seed);
    ASSERT_TRUE(turn_until(
        loop,
        [&] {
          while (random() % 8 != 0 && ports.fabric.step(random)) {
          }
          return std::all_of(asks.begin(), asks.end(),
                             [](const End& end) { return end.got.size() == 60; });
        },
        40000));
    for (const End& end : asks) {
      for (uint64_t id = 1; id <= 60; ++id) EXPECT_EQ(end.got[id - 1].header.request_id, id);
    }
    for (auto& end : asks) end.stream.reset();
    for (auto& end : answers) end.stream.reset();
    ports.fabric.hold(false);
    ports.expect_whole();
  }
}

TEST_F(Faults, FewBlocksAndSlotsOnlyMakeItSlower) {
  Ports ports(loop, {.out_blocks = 10, .in_blocks = 10, .slots = 6});
  std::array<End, 6> asks, answers;
  for (size_t pair = 0; pair < asks.size(); ++pair) {
    open_ends(loop, &ports, asks[pair], answers[pair]);
    echo(answers[pair]);
    ask_much(asks[pair], 120);
  }
  ASSERT_TRUE(turn_until(
      loop,
      [&] {
        return std::all_of(asks.begin(), asks.end(),
                           [](const End& end) { return end.got.size() == 120; });
      },
      20000));
  EXPECT_GT(ports.initiator->counters().waits + ports.acceptor->counters().waits, 0u);
  for (auto& end : asks) end.stream.reset();
  for (auto& end : answers) end.stream.reset();
  ports.expect_whole();
}

TEST_F(Faults, APeerThatAnswersNoMoreEndsTheStreamAtTheNextWord) {
  NEEDS_FAKE_FABRIC();
  Ports ports(loop);
  auto [left, right] = socket_pair();
  auto [one, two] = ports.channels();
  End asks;
  asks.stream = open_stream(loop, std::move(left), one, asks);
  ASSERT_EQ(asks.stream->start(), 0);
  ports.fabric.lose(two->number());
  ports.acceptor->drop(two);
  two.reset();
  one.reset();
  ASSERT_TRUE(asks.send(request(1), pattern(500000, 1)));
  ASSERT_TRUE(turn_until(loop, [&] { return asks.closed_count == 1; }));
  EXPECT_EQ(asks.error, EIO);
  asks.stream.reset();
  ports.expect_whole();
}

TEST_F(Faults, AMemlockThatIsTooSmallIsToldWhenThePortIsMade) {
  fake::Fabric fabric;
  fake::FakeDevice device(fabric);
  device.memlock = 1 << 20;
  Port port(device, PortSettings{});
  EXPECT_EQ(port.make(), -ENOMEM);
}

// The fake device refuses unless the test changes that; so does Soft-RoCE so far
// (docs/decisions/0011-gpu-memory.md).
TEST_F(Faults, ADeviceThatTakesNoDmabufSaysSo) {
  Ports ports(loop);
  const Dmabuf memory{.fd = -1, .offset = 0, .length = 4096, .address = 0};
  std::unique_ptr<Region> region;
  EXPECT_EQ(ports.device.register_dmabuf(memory, true, region), -EOPNOTSUPP);
  EXPECT_EQ(region, nullptr);
}

TEST_F(Faults, APeerThatDescribesItselfWronglyIsRefused) {
  Ports ports(loop);
  std::shared_ptr<Channel> channel;
  ASSERT_EQ(ports.acceptor->make_channel(channel), 0);
  const Peer good = channel->local();
  for (const auto& invalidate : std::vector<std::function<void(Peer&)>>{
           [](Peer& peer) { peer.magic = 1; }, [](Peer& peer) { peer.slot_size = 100; },
           [](Peer& peer) { peer.credits = 0; }, [](Peer& peer) { peer.credits = 1u << 30; },
           [](Peer& peer) { peer.mtu = 9; }}) {
    Peer bad = good;
    invalidate(bad);
    EXPECT_EQ(channel->connect(bad), -EPROTO);
  }
  ports.acceptor->drop(channel);
}

// Both programs run on threads of their own, for the sanitizers.
TEST_F(Faults, TwoThreadsExchangeFrames) {
  net::EventLoop other;
  Ports ports(loop);
  End asks, answers;
  auto [left, right] = socket_pair();
  auto [one, two] = ports.channels();
  std::thread server([&, socket = std::move(right), channel = std::move(two)]() mutable {
    answers.stream = open_stream(other, std::move(socket), std::move(channel), answers);
    EXPECT_EQ(answers.stream->start(), 0);
    echo(answers);
    other.run();
    answers.stream.reset();
    for (int turn = 0; turn < 20; ++turn) other.turn(10);
  });
  asks.stream = open_stream(loop, std::move(left), std::move(one), asks);
  ASSERT_EQ(asks.stream->start(), 0);
  ask_much(asks, 300);
  EXPECT_TRUE(turn_until(
      loop, [&] { return asks.got.size() == 300; }, 20000));
  other.stop();
  server.join();
  asks.stream.reset();
  for (int turn = 0; turn < 20; ++turn) loop.turn(10);
  EXPECT_EQ(ports.initiator->out().free_count(), ports.initiator->out().count());
}

}  // namespace
}  // namespace braidfs::rdma
