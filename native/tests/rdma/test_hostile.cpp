// Peers that authenticated and then break the rules: they lose their queue pair and the stream
// ends; no byte outside of the offered memory is touched, and all lent memory is returned.
#include <algorithm>

#include "raw_peer.h"

namespace braidfs::rdma {
namespace {

// ---- a client against an honest server ----

class HostileClient : public testing::Test {
 protected:
  void SetUp() override {
    auto [left, right] = socket_pair();
    socket = std::move(left);
    auto [one, two] = ports.channels();
    client = std::make_unique<RawPeer>(*ports.initiator, std::move(one));
    answers.stream = open_stream(loop, std::move(right), std::move(two), answers);
    ASSERT_EQ(answers.stream->start(), 0);
    client->listen(loop);
    answers.on_frame = [this](const Got& frame) {
      answers.send(reply_to(frame.header), pattern(frame.header.length, frame.header.request_id));
    };
  }
  void TearDown() override {
    answers.stream.reset();
    client.reset();
    ports.expect_whole();
  }
  void expect_cut() {
    ASSERT_TRUE(turn_until(loop, [&] { return answers.closed_count == 1; }));
    EXPECT_NE(answers.error, 0);
  }
  static FrameHeader read_of(uint32_t length, uint64_t id = 1) {
    FrameHeader header = request(id);
    header.length = length;
    return header;
  }
  Segment piece_of(const Arena& arena, uint32_t block, uint32_t length) const {
    return {reinterpret_cast<uint64_t>(arena.block(block).data()), arena.remote_key(), length};
  }

  net::EventLoop loop;
  Ports ports{loop};
  std::unique_ptr<RawPeer> client;
  net::UniqueFd socket;
  End answers;
};

TEST_F(HostileClient, AWrongKeyCostsTheQueuePair) {
  FrameHeader header = request(1);
  header.payload_length = 100000;
  client->say(RawPeer::bulk_message(Bulk::kFetch, 100000, 1),
              {{.address = 4096, .key = 77, .length = 100000}}, RawPeer::head_bytes(header));
  expect_cut();
  EXPECT_TRUE(answers.got.empty());
}

TEST_F(HostileClient, APlaceOutsideTheRegionCostsTheQueuePair) {
  Segment place = piece_of(ports.initiator->out(), 255, 50000);
  place.address += kBlockSize - 10;
  client->say(RawPeer::bulk_message(Bulk::kPlace, 50000, 1), {place},
              RawPeer::head_bytes(read_of(50000)));
  expect_cut();
}

TEST_F(HostileClient, APlaceTooSmallForTheReplyIsNotWrittenTo) {
  client->say(RawPeer::bulk_message(Bulk::kPlace, 100, 1),
              {piece_of(ports.initiator->out(), 0, 100)},
              RawPeer::head_bytes(read_of(50000)));  // the answer will have these bytes
  expect_cut();
}

TEST_F(HostileClient, ARequestReplayedWhileItsFirstIsUnansweredIsRefused) {
  answers.on_frame = nullptr;
  const std::vector<Segment> place{{.address = 1, .key = 2, .length = 5000}};
  for (int time = 0; time < 2; ++time) {
    client->say(RawPeer::bulk_message(Bulk::kPlace, 5000, 1), place,
                RawPeer::head_bytes(request(7)));
  }
  expect_cut();
  EXPECT_EQ(answers.got.size(), 1u);
}

// Each piece is one piece of work at the server: it accepts no more than an honest request has.
TEST_F(HostileClient, APlaceInCrumbsIsRefused) {
  const auto whole = ports.initiator->out().block(0);
  for (const uint32_t crumb : {0u, 1000u}) {
    SCOPED_TRACE(crumb);
    HostileClient::TearDown();
    answers.closed_count = 0;
    HostileClient::SetUp();
    std::vector<Segment> place;
    for (size_t index = 0; index < kSegmentsMax; ++index) {
      const auto at = reinterpret_cast<uint64_t>(whole.data()) + index * crumb;
      place.push_back({.address = at, .key = ports.initiator->out().remote_key(), .length = crumb});
    }
    place.back().length = 3 * kBlockSize;
    const auto length = static_cast<uint32_t>(total_length(place));
    client->say(RawPeer::bulk_message(Bulk::kPlace, length, place.size()), place,
                RawPeer::head_bytes(read_of(length)));
    expect_cut();
    EXPECT_TRUE(answers.got.empty());
  }
}

TEST_F(HostileClient, WhatDoesNotAddUpIsRefused) {
  const Bytes good = RawPeer::head_bytes(request(1));
  struct Case {
    const char* what;
    std::function<void(MessageHead&)> invalidate;
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
    HostileClient::TearDown();
    answers.closed_count = 0;
    HostileClient::SetUp();
    MessageHead head = RawPeer::frame_message();
    one.invalidate(head);
    client->say(head, {}, good);
    expect_cut();
    EXPECT_TRUE(answers.got.empty());
  }
}

TEST_F(HostileClient, ADamagedFrameHeaderIsRefused) {
  Bytes frame = RawPeer::head_bytes(request(1));
  frame[20] ^= std::byte{1};
  client->say(RawPeer::frame_message(), {}, frame);
  expect_cut();
}

TEST_F(HostileClient, AMessageCutAnywhereIsRefused) {
  const Bytes frame = RawPeer::head_bytes(request(1));
  Bytes whole(sizeof(MessageHead));
  const MessageHead head = RawPeer::frame_message();
  std::memcpy(whole.data(), &head, sizeof head);
  whole.insert(whole.end(), frame.begin(), frame.end());
  EXPECT_TRUE(parse(whole));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(parse(std::span(whole).first(length))) << length;
  }
}

TEST_F(HostileClient, CreditsWithoutEndAreRefused) {
  MessageHead head;
  head.kind = MessageHead::kCredits;
  head.credits = 65535;
  client->say(head, {}, {});
  client->say(head, {}, {});
  expect_cut();
}

TEST_F(HostileClient, BytesBesideTheQueuePairEndIt) {
  ASSERT_EQ(::write(socket.get(), "x", 1), 1);
  expect_cut();
}

// A server exposes no memory: no key of it gives access to any, not even the right keys.
TEST_F(HostileClient, NoMemoryOfAServerCanBeReadOrWritten) {
  for (const auto kind : {Work::Kind::kRead, Work::Kind::kWrite}) {
    SCOPED_TRACE(static_cast<int>(kind));
    HostileClient::TearDown();
    answers.closed_count = 0;
    HostileClient::SetUp();
    const Arena& theirs = ports.acceptor->out();
    std::ranges::fill(theirs.block(3), std::byte{0x11});
    client->move(kind, piece_of(theirs, 3, 4096));
    ASSERT_TRUE(turn_until(loop, [&] { return client->failed; }));
    EXPECT_TRUE(
        std::ranges::all_of(theirs.block(3), [](std::byte at) { return at == std::byte{0x11}; }));
  }
}

// A client agreed on a queue pair, sent messages, and left before a lane had it: its messages had
// taken slots that all clients share.
TEST_F(HostileClient, WhatADroppedQueuePairReceivedCostsNoSlots) {
  for (int round = 0; round < 8; ++round) {
    auto [one, two] = ports.channels();
    RawPeer other(*ports.initiator, std::move(one));
    other.listen(loop);
    for (int word = 0; word < 40; ++word) {
      other.say(RawPeer::frame_message(), {}, RawPeer::head_bytes(request(1)));
    }
    ports.acceptor->drop(std::move(two));
    other.leave();
    loop.turn(0);
  }
  client->say(RawPeer::frame_message(), {}, RawPeer::head_bytes(request(1)));
  ASSERT_TRUE(turn_until(loop, [&] { return answers.got.size() == 1; })) << "320 words, 256 slots";
}

// ---- a server against an honest client ----

class HostileServer : public testing::Test {
 protected:
  void SetUp() override {
    auto [left, right] = socket_pair();
    socket = std::move(right);
    auto [one, two] = ports.channels();
    server = std::make_unique<RawPeer>(*ports.acceptor, std::move(two));
    asks.stream = open_stream(loop, std::move(left), std::move(one), asks);
    ASSERT_EQ(asks.stream->start(), 0);
    server->listen(loop);
  }
  void TearDown() override {
    asks.stream.reset();
    server.reset();
    ports.expect_whole();
  }
  void again() {
    HostileServer::TearDown();
    asks.closed_count = 0;
    asks.got.clear();
    HostileServer::SetUp();
  }
  // Sends a READ of `length` bytes; returns the place that was offered to the server.
  Segment ask(uint32_t length, uint64_t id = 1) {
    EXPECT_TRUE(asks.send(request(id), {}, length));
    const size_t before = server->heard.size();
    EXPECT_TRUE(turn_until(loop, [&] { return server->heard.size() == before + 1; }));
    const auto& segments = server->heard.back().segments;
    EXPECT_FALSE(segments.empty());
    return segments.empty() ? Segment{} : segments.front();
  }
  static Bytes reply(uint64_t id, uint32_t payload_length) {
    FrameHeader header = reply_to(request(id));
    header.payload_length = payload_length;
    return RawPeer::head_bytes(header);
  }
  // The device reports the failure by an event (which Rail::has_failed() reads), or with the next
  // message.
  void expect_cut() {
    for (uint64_t id = 100; asks.closed_count == 0 && id < 110; ++id) {
      (void)asks.send(request(id));
      (void)turn_until(
          loop, [&] { return asks.closed_count > 0; }, 200);
    }
    EXPECT_EQ(asks.closed_count, 1);
    EXPECT_NE(asks.error, 0);
    EXPECT_TRUE(asks.got.empty());
  }

  net::EventLoop loop;
  Ports ports{loop};
  std::unique_ptr<RawPeer> server;
  net::UniqueFd socket;
  End asks;
};

TEST_F(HostileServer, WhatItWritesOutsideTheOfferedMemoryCostsTheQueuePair) {
  Bytes others(1 << 16, std::byte{0x22});
  const Arena& pool = ports.initiator->out();
  const auto end = reinterpret_cast<uint64_t>(pool.block(pool.count() - 1).data()) + kBlockSize;
  const uint32_t key = pool.remote_key();
  const uint32_t unexposed = ports.initiator->slots().remote_key();
  const auto slot = reinterpret_cast<uint64_t>(ports.initiator->slots().block(0).data());
  const std::vector<std::pair<const char*, Segment>> cases{
      {"behind the pool's end", {.address = end, .key = key, .length = 4096}},
      {"across the pool's end", {.address = end - 100, .key = key, .length = 4096}},
      {"other memory of the process",
       {.address = reinterpret_cast<uint64_t>(others.data()), .key = key, .length = 4096}},
      {"memory that is registered, but for nobody else",
       {.address = slot, .key = unexposed, .length = 4096}},
      {"a key of nobody", {.address = end - kBlockSize, .key = key ^ 0x5a00, .length = 4096}},
  };
  for (const auto& [what, remote] : cases) {
    for (const auto kind : {Work::Kind::kWrite, Work::Kind::kRead}) {
      SCOPED_TRACE(what);
      again();
      (void)ask(50000);
      std::ranges::fill(pool.block(pool.count() - 1), std::byte{0x33});
      server->move(kind, remote);
      ASSERT_TRUE(turn_until(loop, [&] { return server->failed; })) << "it was let in";
      expect_cut();
      const auto untouched = [](std::byte wanted) {
        return [wanted](std::byte at) { return at == wanted; };
      };
      EXPECT_TRUE(std::ranges::all_of(others, untouched(std::byte{0x22})));
      EXPECT_TRUE(std::ranges::all_of(pool.block(pool.count() - 1), untouched(std::byte{0x33})));
    }
  }
}

TEST_F(HostileServer, AReplyMustFitTheRequest) {
  struct Case {
    const char* what;
    std::function<void()> act;
  };
  const auto written = [this](uint64_t id, uint32_t length) {
    server->say(RawPeer::bulk_message(Bulk::kWritten, length), {}, reply(id, length));
  };
  const std::vector<Case> cases{
      {"to a request that was never made", [&] { written(2, 50000); }},
      {"longer than its place", [&] { written(1, 200000); }},
      {"of another length than its frame",
       [&] { server->say(RawPeer::bulk_message(Bulk::kWritten, 50000), {}, reply(1, 40000)); }},
      {"that wants to be fetched",
       [&] {
         server->say(RawPeer::bulk_message(Bulk::kFetch, 50000, 1),
                     {{.address = 1, .key = 2, .length = 50000}}, reply(1, 50000));
       }},
      {"with a place",
       [&] {
         server->say(RawPeer::bulk_message(Bulk::kPlace, 50000, 1),
                     {{.address = 1, .key = 2, .length = 50000}}, reply(1, 0));
       }},
      {"that fetched what was never offered",
       [&] {
         MessageHead head = RawPeer::frame_message();
         head.fetched = 1;
         server->say(head, {}, reply(1, 0));
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    again();
    (void)ask(50000);
    one.act();
    expect_cut();
  }
}

TEST_F(HostileServer, AReplyThatIsReplayedHasNoPlaceAnyMore) {
  const Segment place = ask(50000);
  server->move(Work::Kind::kWrite, {place.address, place.key, 50000});
  server->say(RawPeer::bulk_message(Bulk::kWritten, 50000), {}, reply(1, 50000));
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 1; }));
  EXPECT_EQ(asks.got[0].payload, Bytes(50000, std::byte{0xee}));
  server->say(RawPeer::bulk_message(Bulk::kWritten, 50000), {}, reply(1, 50000));
  asks.got.clear();
  expect_cut();
}

}  // namespace
}  // namespace braidfs::rdma
