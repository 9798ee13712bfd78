// Rails are opened and closed: a closed rail fails its streams and gives no new ones, and it is
// destroyed, with its registered memory, when nothing uses it any more.
#include <algorithm>
#include <thread>

#include "ends.h"
#include "rdma/rails.h"

namespace braidfs::rdma {
namespace {

class RailsTest : public testing::Test {
 protected:
  static constexpr PortSettings kInitiator{.is_acceptor = false,
                                           .out_blocks = 32,
                                           .in_blocks = 0,
                                           .receive_slots = 64,
                                           .send_slots = 64};
  static constexpr PortSettings kAcceptor{.is_acceptor = true,
                                          .out_blocks = 32,
                                          .in_blocks = 32,
                                          .receive_slots = 64,
                                          .send_slots = 64};

  // Opens one more rail of a program; its device can be made to fail.
  int add(Rails& rails, const PortSettings& settings, fake::FakeDevice** device = nullptr) {
    auto made = std::make_unique<fake::FakeDevice>(fabric);
    if (device != nullptr) *device = made.get();
    std::shared_ptr<Rail> rail;
    std::string reason;
    EXPECT_EQ(Rail::make(std::move(made), 1, settings, rail, reason), 0);
    return rails.add(std::move(rail));
  }
  static std::span<const std::byte> bytes_of(const Peer& peer) {
    return std::as_bytes(std::span(&peer, 1));
  }
  // Opens a connection between two rails, agreed on as two programs do.
  void open(size_t left, size_t right) {
    uint64_t asking = 0, answering = 0;
    Peer one, two;
    ASSERT_EQ(client.offer(left, 0, asking, one), 0);
    ASSERT_EQ(server.offer(right, 0, answering, two), 0);
    ASSERT_EQ(server.connect(answering, bytes_of(one)), 0);
    ASSERT_EQ(client.connect(asking, bytes_of(two)), 0);
    asking_pair = one.queue_pair;
    auto [near, far] = socket_pair();
    asks.stream = open_stream(loop, std::move(near), client.claim(asking).channel, asks);
    answers.stream = open_stream(loop, std::move(far), server.claim(answering).channel, answers);
    ASSERT_EQ(asks.stream->start(), 0);
    ASSERT_EQ(answers.stream->start(), 0);
    answers.on_frame = [this](const Got& got) { answers.send(reply_to(got.header)); };
  }
  bool answered(uint64_t id) {
    const size_t before = asks.got.size();
    return asks.send(request(id), pattern(9000, id)) &&
           turn_until(loop, [&] { return asks.got.size() == before + 1; });
  }

  fake::Fabric fabric;
  net::EventLoop loop;  // its tasks may hold rails
  Rails client, server;
  End asks, answers;
  uint32_t asking_pair = 0;
};

TEST_F(RailsTest, AClosedRailFailsItsStreamsAndGivesBackItsMemory) {
  ASSERT_EQ(add(client, kInitiator), 0);
  ASSERT_EQ(add(server, kAcceptor), 0);
  const size_t regions = fabric.regions();
  ASSERT_NO_FATAL_FAILURE(open(0, 0));
  ASSERT_TRUE(answered(1));
  client.close(0);
  ASSERT_TRUE(
      turn_until(loop, [&] { return asks.closed_count == 1 && answers.closed_count == 1; }));
  EXPECT_EQ(asks.error, EIO);
  uint64_t token = 0;
  Peer peer;
  EXPECT_EQ(client.offer(0, 0, token, peer), -ENODEV);
  ASSERT_TRUE(turn_until(loop, [&] { return fabric.pairs() == 0; }));
  EXPECT_TRUE(client.check().empty());
  loop.turn(0);
  EXPECT_LT(fabric.regions(), regions);
  EXPECT_EQ(client.offer(0, 0, token, peer), -EINVAL) << "its number is not used again";
  std::map<std::string, uint64_t> sums;
  client.add_counters(sums);
  EXPECT_GT(sums["rdma_messages_sent"], 0u) << "what it counted stays";
}

TEST_F(RailsTest, AnAgreementOnAClosedRailComesToNothing) {
  ASSERT_EQ(add(client, kInitiator), 0);
  uint64_t token = 0;
  Peer peer;
  ASSERT_EQ(client.offer(0, 0, token, peer), 0);
  client.close(0);
  EXPECT_EQ(client.claim(token).channel, nullptr);
  EXPECT_EQ(client.connect(token, bytes_of(peer)), -ENOENT);
  EXPECT_TRUE(client.check().empty());
  EXPECT_EQ(fabric.regions(), 0u) << "no lane ever used it";
}

// A device is removed and comes back many times.
TEST_F(RailsTest, RailsMayComeAndGoWithoutEnd) {
  ASSERT_EQ(add(server, kAcceptor), 0);
  for (int round = 0; round < 3 * static_cast<int>(Rails::kRailsMax); ++round) {
    ASSERT_EQ(add(client, kInitiator), round);
    ASSERT_NO_FATAL_FAILURE(open(static_cast<size_t>(round), 0));
    ASSERT_TRUE(answered(static_cast<uint64_t>(round) + 1));
    client.close(static_cast<size_t>(round));
    ASSERT_TRUE(
        turn_until(loop, [&] { return !asks.stream && !answers.stream && fabric.pairs() == 0; }));
    EXPECT_TRUE(client.check().empty());
    loop.turn(0);
    ASSERT_EQ(fabric.regions(), 4u) << round << ": only the server's are left";
  }
}

TEST_F(RailsTest, ADeviceThatFailedIsToldUntilItsRailIsClosed) {
  fake::FakeDevice* device = nullptr;
  ASSERT_EQ(add(client, kInitiator), 0);
  ASSERT_EQ(add(client, kInitiator, &device), 1);
  EXPECT_TRUE(client.check().empty());
  device->failed = true;
  EXPECT_EQ(client.check(), std::vector<int>{1});
  EXPECT_EQ(client.check(), std::vector<int>{1});
  client.close(1);
  EXPECT_TRUE(client.check().empty());
}

// A stream that only waits for an answer gets no completion; the device's event reports the
// failure.
TEST_F(RailsTest, AQueuePairThatTheDeviceGaveUpEndsItsStream) {
  ASSERT_EQ(add(client, kInitiator), 0);
  ASSERT_EQ(add(server, kAcceptor), 0);
  ASSERT_NO_FATAL_FAILURE(open(0, 0));
  ASSERT_TRUE(answered(1));
  fabric.give_up(asking_pair);
  for (int turn = 0; turn < 5; ++turn) loop.turn(1);
  EXPECT_EQ(asks.closed_count, 0);
  EXPECT_TRUE(client.check().empty()) << "the device itself is well";
  ASSERT_TRUE(
      turn_until(loop, [&] { return asks.closed_count == 1 && answers.closed_count == 1; }));
  EXPECT_EQ(asks.error, EIO);
}

TEST_F(RailsTest, TooManyAtOnceAreRefused) {
  for (int count = 0; count < static_cast<int>(Rails::kRailsMax); ++count) {
    ASSERT_EQ(add(client, kInitiator), count);
  }
  EXPECT_EQ(add(client, kInitiator), -EMFILE);
  client.close(3);
  (void)client.check();
  EXPECT_EQ(add(client, kInitiator), static_cast<int>(Rails::kRailsMax));
}

// The place is in memory that is not the initiator's own (docs/decisions/0011): the wire shows no
// difference.
TEST_F(RailsTest, AnswersCanBeWrittenIntoADmabuf) {
  NEEDS_FAKE_FABRIC();
  fake::FakeDevice device(fabric);
  Bytes other(1 << 16);
  const Dmabuf memory{.fd = 5,
                      .offset = 0,
                      .length = other.size(),
                      .address = reinterpret_cast<uint64_t>(other.data())};
  std::unique_ptr<Region> region;
  EXPECT_EQ(device.register_dmabuf(memory, true, region), -EOPNOTSUPP);
  device.takes_dmabuf = true;
  ASSERT_EQ(device.register_dmabuf(memory, true, region), 0);

  Ports ports(loop);
  auto [left, right] = socket_pair();
  auto [raw, channel] = ports.channels();
  answers.stream = open_stream(loop, std::move(right), std::move(channel), answers);
  ASSERT_EQ(answers.stream->start(), 0);
  FrameHeader header = request(1);
  seal(header);
  const Segment place{.address = memory.address, .key = region->remote_key(), .length = 40000};
  MessageHead head;
  head.kind = MessageHead::kFrame;
  head.head_length = kHeaderSize;
  head.segment_count = 1;
  head.bulk = static_cast<uint16_t>(Bulk::kPlace);
  head.bulk_length = place.length;
  // The fabric of the ports has keys of its own: its device registers the region there.
  std::unique_ptr<Region> there;
  ports.fake.takes_dmabuf = true;
  ASSERT_EQ(ports.fake.register_dmabuf(memory, true, there), 0);
  Segment same = place;
  same.key = there->remote_key();
  Blocks slot = ports.initiator->slots().take(1);
  std::byte* at = slot.at(0).data();
  std::memcpy(at, &head, sizeof head);
  std::memcpy(at + sizeof head, &same, sizeof same);
  std::memcpy(at + sizeof head + sizeof same, &header, kHeaderSize);
  std::vector<Work> works{{.kind = Work::Kind::kSend,
                           .local = slot.at(0).first(sizeof head + sizeof same + kHeaderSize),
                           .local_key = ports.initiator->slots().local_key()}};
  answers.on_frame = [this](const Got& got) {
    answers.send(reply_to(got.header), pattern(40000, 1));
  };
  Posted posted;
  posted.memory.push_back(std::move(slot));
  ASSERT_TRUE(raw->post(works, std::move(posted)));
  const Bytes wanted = pattern(40000, 1);
  EXPECT_TRUE(
      turn_until(loop, [&] { return std::equal(wanted.begin(), wanted.end(), other.begin()); }));
  answers.stream.reset();
}

}  // namespace
}  // namespace braidfs::rdma
