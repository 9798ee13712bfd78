// What RDMA streams do when work fails, peers vanish or lie, memory and credits run short, and
// completions of different queue pairs come in any order: nothing hangs, every end is told once, and
// all that was lent comes back.
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
  // Writes and reads of mixed sizes.
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

// A completion error at pieces of work all along the exchange; nth 0: none, to count them.
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

TEST_F(Faults, APeerThatDescribesItselfWronglyIsRefused) {
  Ports ports(loop);
  std::shared_ptr<Channel> channel;
  ASSERT_EQ(ports.acceptor->make_channel(channel), 0);
  const Peer good = channel->local();
  for (const auto& spoil : std::vector<std::function<void(Peer&)>>{
           [](Peer& peer) { peer.magic = 1; }, [](Peer& peer) { peer.slot_size = 100; },
           [](Peer& peer) { peer.credits = 0; }, [](Peer& peer) { peer.credits = 1u << 30; },
           [](Peer& peer) { peer.mtu = 9; }}) {
    Peer bad = good;
    spoil(bad);
    EXPECT_EQ(channel->connect(bad), -EPROTO);
  }
  ports.acceptor->drop(channel);
}

// ---- a hostile initiator, speaking raw messages to an honest acceptor ----

class Hostile : public Faults {
 protected:
  void SetUp() override {
    auto [left, right] = socket_pair();
    socket = std::move(left);
    std::shared_ptr<Channel> two;
    std::tie(raw, two) = ports.channels();
    answers.stream = open_stream(loop, std::move(right), std::move(two), answers);
    ASSERT_EQ(answers.stream->start(), 0);
    ASSERT_EQ(ports.initiator->attach(loop), 0);
    echo(answers);
  }
  void TearDown() override {
    answers.stream.reset();
    ports.initiator->retire(std::move(raw));
    ports.expect_whole();
  }
  static Bytes head_bytes(FrameHeader header) {
    seal(header);
    Bytes bytes(kHeaderSize);
    std::memcpy(bytes.data(), &header, kHeaderSize);
    return bytes;
  }
  void say(MessageHead head, const std::vector<Segment>& segments, const Bytes& frame,
           const Bytes& payload = {}) {
    Bytes message;
    const auto append = [&message](std::span<const std::byte> part) {
      const size_t at = message.size();
      message.resize(at + part.size());
      std::ranges::copy(part, message.begin() + static_cast<ptrdiff_t>(at));
    };
    append(std::as_bytes(std::span(&head, 1)));
    append(std::as_bytes(std::span(segments)));
    append(frame);
    append(payload);
    say_bytes(message);
  }
  void say_bytes(const Bytes& message) {
    Blocks slot = ports.initiator->slots().take(1);
    std::memcpy(slot.at(0).data(), message.data(), message.size());
    std::vector<Work> works{{.kind = Work::Kind::kSend,
                             .local = slot.at(0).first(message.size()),
                             .local_key = ports.initiator->slots().local_key()}};
    Posted posted;
    posted.must_signal = true;
    posted.memory.push_back(std::move(slot));
    (void)raw->post(works, std::move(posted));
  }
  void expect_cut() {
    ASSERT_TRUE(turn_until(loop, [&] { return answers.closed_count == 1; }));
    EXPECT_NE(answers.error, 0);
  }
  static MessageHead frame_message(uint32_t head_length = kHeaderSize) {
    MessageHead head;
    head.kind = MessageHead::kFrame;
    head.head_length = head_length;
    return head;
  }

  Ports ports{loop};
  std::shared_ptr<Channel> raw;
  net::UniqueFd socket;
  End answers;
};

TEST_F(Hostile, AWrongKeyCostsTheQueuePair) {
  FrameHeader header = request(1);
  header.payload_length = 100000;
  MessageHead head = frame_message();
  head.bulk = static_cast<uint16_t>(Bulk::kFetch);
  head.bulk_length = 100000;
  head.segment_count = 1;
  say(head, {{.address = 4096, .key = 77, .length = 100000}}, head_bytes(header));
  expect_cut();
  EXPECT_TRUE(answers.got.empty());
}

TEST_F(Hostile, APlaceOutsideTheRegionCostsTheQueuePair) {
  FrameHeader header = request(1);
  header.length = 50000;
  MessageHead head = frame_message();
  head.bulk = static_cast<uint16_t>(Bulk::kPlace);
  head.bulk_length = 50000;
  head.segment_count = 1;
  const auto end = ports.initiator->out().block(255);
  say(head,
      {{.address = reinterpret_cast<uint64_t>(end.data()) + end.size() - 10,
        .key = ports.initiator->out().remote_key(),
        .length = 50000}},
      head_bytes(header));
  expect_cut();
}

TEST_F(Hostile, APlaceTooSmallForTheReplyIsNotWrittenTo) {
  FrameHeader header = request(1);
  header.length = 50000;  // what the answer will have
  MessageHead head = frame_message();
  head.bulk = static_cast<uint16_t>(Bulk::kPlace);
  head.bulk_length = 100;
  head.segment_count = 1;
  const auto place = ports.initiator->out().block(0);
  say(head,
      {{.address = reinterpret_cast<uint64_t>(place.data()),
        .key = ports.initiator->out().remote_key(),
        .length = 100}},
      head_bytes(header));
  expect_cut();
}

TEST_F(Hostile, ARequestReplayedWhileItsFirstIsUnansweredIsRefused) {
  answers.on_frame = nullptr;
  FrameHeader header = request(7);
  MessageHead head = frame_message();
  head.bulk = static_cast<uint16_t>(Bulk::kPlace);
  head.bulk_length = 5000;
  head.segment_count = 1;
  const std::vector<Segment> place{{.address = 1, .key = 2, .length = 5000}};
  say(head, place, head_bytes(header));
  say(head, place, head_bytes(header));
  expect_cut();
  EXPECT_EQ(answers.got.size(), 1u);
}

TEST_F(Hostile, WhatDoesNotAddUpIsRefused) {
  const Bytes good = head_bytes(request(1));
  struct Case {
    const char* what;
    std::function<void(MessageHead&)> spoil;
  };
  const std::vector<Case> cases{
      {"magic", [](MessageHead& head) { head.magic = 0; }},
      {"kind", [](MessageHead& head) { head.kind = 9; }},
      {"bulk", [](MessageHead& head) { head.bulk = 9; }},
      {"written by an initiator",
       [](MessageHead& head) {
         head.bulk = static_cast<uint16_t>(Bulk::kWritten);
         head.bulk_length = 1;
       }},
      {"fetch without segments", [](MessageHead& head) { head.bulk = 1, head.bulk_length = 1; }},
      {"length without bulk", [](MessageHead& head) { head.bulk_length = 1; }},
      {"head too long", [](MessageHead& head) { head.head_length += 1; }},
      {"more segments than bytes", [](MessageHead& head) { head.segment_count = 3; }},
      {"payload that is not there", [](MessageHead& head) { head.short_length = 10; }},
      {"fetched what was never offered", [](MessageHead& head) { head.fetched = 1; }},
      {"a head without end", [](MessageHead& head) { head.head_rest = 1u << 31; }},
      {"a continuation of nothing", [](MessageHead& head) { head.kind = MessageHead::kMore; }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    Hostile::TearDown();
    answers.closed_count = 0;
    Hostile::SetUp();
    MessageHead head = frame_message();
    one.spoil(head);
    say(head, {}, good);
    expect_cut();
    EXPECT_TRUE(answers.got.empty());
  }
}

TEST_F(Hostile, ADamagedFrameHeaderIsRefused) {
  Bytes frame = head_bytes(request(1));
  frame[20] ^= std::byte{1};
  say(frame_message(), {}, frame);
  expect_cut();
}

TEST_F(Hostile, AMessageCutAnywhereIsRefused) {
  const Bytes frame = head_bytes(request(1));
  Bytes whole(sizeof(MessageHead));
  const MessageHead head = frame_message();
  std::memcpy(whole.data(), &head, sizeof head);
  whole.insert(whole.end(), frame.begin(), frame.end());
  EXPECT_TRUE(parse(whole));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(parse(std::span(whole).first(length))) << length;
  }
}

TEST_F(Hostile, CreditsWithoutEndAreRefused) {
  MessageHead head;
  head.kind = MessageHead::kCredits;
  head.credits = 65535;
  say(head, {}, {});
  say(head, {}, {});
  expect_cut();
}

TEST_F(Hostile, BytesBesideTheQueuePairEndIt) {
  ASSERT_EQ(::write(socket.get(), "x", 1), 1);
  expect_cut();
}

// Both programs on threads of their own, for the sanitizers.
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
  EXPECT_TRUE(turn_until(loop, [&] { return asks.got.size() == 300; }, 20000));
  other.stop();
  server.join();
  asks.stream.reset();
  for (int turn = 0; turn < 20; ++turn) loop.turn(10);
  EXPECT_EQ(ports.initiator->out().free_count(), ports.initiator->out().count());
}

}  // namespace
}  // namespace braidfs::rdma
