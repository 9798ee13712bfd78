// What every stream of the data path promises (net/stream.h), run over a socket, over one with TLS
// and over RDMA.
#include "../net/certificate.h"
#include "ends.h"

namespace braidfs::rdma {
namespace {

class Conformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kRdma) ports = std::make_unique<Ports>(loop);
  }
  void open(net::StreamLimits limits = {}) {
    if (GetParam() != Kind::kTls) return open_ends(loop, ports.get(), asks, answers, limits);
    auto [left, right] = socket_pair();
    auto [one, other] = net::Certificate().sockets(std::move(left), std::move(right));
    asks.stream = open_stream(loop, std::move(one), nullptr, asks, limits);
    answers.stream = open_stream(loop, std::move(other), nullptr, answers, limits);
    EXPECT_EQ(asks.stream->start(), 0);
    EXPECT_EQ(answers.stream->start(), 0);
  }
  void TearDown() override {
    asks.stream.reset();
    answers.stream.reset();
    if (ports) ports->expect_whole();
  }
  // The acceptor answers with what it received, and with as many bytes as `length` says.
  void echo() {
    answers.on_frame = [this](const Got& frame) {
      Bytes bytes = frame.header.length > 0 ? pattern(frame.header.length, frame.header.request_id)
                                            : frame.payload;
      answers.send(reply_to(frame.header), frame.header.length > 0 ? bytes : Bytes{}, 0,
                   frame.body);
    };
  }

  net::EventLoop loop;
  std::unique_ptr<Ports> ports;
  End asks, answers;
};

TEST_P(Conformance, RequestsWithPayloadsOfAllSizesArriveWhole) {
  open();
  echo();
  const std::vector<size_t> sizes = {0,       1,         4095,   4096,    4097,    8000,
                                     8192,    128 << 10, 128001, 1 << 20, 1048577, (3 << 20) + 7,
                                     16 << 20};
  for (size_t index = 0; index < sizes.size(); ++index) {
    ASSERT_TRUE(asks.send(request(index + 1), pattern(sizes[index], index), 0, pattern(64, index)));
  }
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == sizes.size(); }));
  for (size_t index = 0; index < sizes.size(); ++index) {
    EXPECT_EQ(answers.got[index].payload, pattern(sizes[index], index)) << sizes[index];
    EXPECT_EQ(asks.got[index].header.request_id, index + 1);
    EXPECT_EQ(asks.got[index].body, pattern(64, index));
  }
}

TEST_P(Conformance, RepliesWithPayloadsOfAllSizesArriveWhole) {
  open();
  echo();
  const std::vector<uint32_t> sizes = {1, 4096, 4097, 65536, 131072, 131073, 1 << 20, 16 << 20};
  for (size_t index = 0; index < sizes.size(); ++index) {
    FrameHeader header = request(index + 1);
    header.length = sizes[index];
    ASSERT_TRUE(asks.send(header, {}, sizes[index]));
  }
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == sizes.size(); }));
  for (size_t index = 0; index < sizes.size(); ++index) {
    EXPECT_EQ(asks.got[index].payload, pattern(sizes[index], index + 1));
  }
}

TEST_P(Conformance, AReplyMayBeShorterThanItsPlaceOrHaveNoPayload) {
  open();
  answers.on_frame = [&](const Got& frame) {
    answers.send(reply_to(frame.header), frame.header.request_id % 2 == 0
                                             ? Bytes{}
                                             : pattern(frame.header.request_id * 3000, 1));
  };
  for (uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(asks.send(request(id), {}, 1 << 20));
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 20; }));
  for (uint64_t id = 1; id <= 20; ++id) {
    EXPECT_EQ(asks.got[id - 1].payload, id % 2 == 0 ? Bytes{} : pattern(id * 3000, 1));
  }
}

TEST_P(Conformance, LongBodiesArriveWhole) {
  open();
  echo();
  for (uint64_t id = 1; id <= 5; ++id) {
    ASSERT_TRUE(asks.send(request(id), pattern(id * 1000, id), 0, pattern(id * 12001, id)));
  }
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 5; }));
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_EQ(answers.got[id - 1].payload, pattern(id * 1000, id));
    EXPECT_EQ(asks.got[id - 1].body, pattern(id * 12001, id));
  }
}

TEST_P(Conformance, ThousandsOfFramesKeepTheirOrder) {
  open();
  echo();
  uint64_t sent = 0;
  const auto more = [&] {
    for (; sent < 5000 && asks.stream->frames_queued() < 400; ++sent) {
      ASSERT_TRUE(asks.send(request(sent + 1), pattern(sent % 300, sent)));
    }
  };
  ASSERT_TRUE(turn_until(loop, [&] {
    more();
    return asks.got.size() == 5000;
  }));
  for (uint64_t index = 0; index < 5000; ++index) {
    ASSERT_EQ(asks.got[index].header.request_id, index + 1);
    ASSERT_EQ(answers.got[index].payload, pattern(index % 300, index));
  }
}

TEST_P(Conformance, ABoundedQueueTellsWhenItHasRoom) {
  open({.frames_queued_max = 8});
  echo();
  uint64_t id = 1;
  while (asks.send(request(id), pattern(100, id))) ++id;
  EXPECT_EQ(id, 9u);
  ASSERT_TRUE(turn_until(loop, [&] { return asks.sendable_count == 1; }));
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 8; }));
}

TEST_P(Conformance, APausedReceiverHoldsTheSenderBackAndGoesOn) {
  open();
  echo();
  bool pause = true;
  answers.verdict = [&](const FrameHeader&) {
    return pause ? net::Verdict::kPause : net::Verdict::kTake;
  };
  for (uint64_t id = 1; id <= 300; ++id) ASSERT_TRUE(asks.send(request(id), pattern(50000, id)));
  for (int turn = 0; turn < 50; ++turn) loop.turn(1);
  EXPECT_EQ(answers.got.size(), 0u);
  EXPECT_GT(asks.stream->frames_queued(), 0u);
  pause = false;
  answers.stream->resume();
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 300; }));
  EXPECT_EQ(answers.got[299].payload, pattern(50000, 300));
}

TEST_P(Conformance, ARequestThatWaitsForAPlaceOfItsPayloadKeepsThatOfItsReply) {
  open();
  echo();
  bool pause = true;
  answers.verdict = [&](const FrameHeader&) {
    return std::exchange(pause, false) ? net::Verdict::kPause : net::Verdict::kTake;
  };
  for (uint64_t id = 1; id <= 3; ++id) {
    FrameHeader header = request(id);
    header.length = 50000;
    ASSERT_TRUE(asks.send(header, pattern(100, id), 50000));
  }
  ASSERT_TRUE(turn_until(loop, [&] { return !pause; }));
  answers.stream->resume();
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 3; }));
  EXPECT_EQ(asks.got[2].payload, pattern(50000, 3));
}

TEST_P(Conformance, AReceiverThatStoppedGetsNothingUntilItStartsAgain) {
  open();
  echo();
  answers.stream->receive(false);
  for (uint64_t id = 1; id <= 200; ++id) ASSERT_TRUE(asks.send(request(id), pattern(5000, id)));
  for (int turn = 0; turn < 50; ++turn) loop.turn(1);
  EXPECT_EQ(answers.got.size(), 0u);
  answers.stream->receive(true);
  ASSERT_TRUE(turn_until(loop, [&] { return asks.got.size() == 200; }));
}

TEST_P(Conformance, ADiscardedPayloadIsSkipped) {
  open();
  answers.verdict = [](const FrameHeader& header) {
    return header.request_id % 2 == 0 ? net::Verdict::kDiscard : net::Verdict::kTake;
  };
  for (uint64_t id = 1; id <= 6; ++id) ASSERT_TRUE(asks.send(request(id), pattern(id * 9000, id)));
  ASSERT_TRUE(turn_until(loop, [&] { return answers.got.size() == 3; }));
  EXPECT_EQ(answers.got[2].payload, pattern(45000, 5));
}

TEST_P(Conformance, ARefusedFrameEndsBothEndsOnce) {
  open();
  answers.verdict = [](const FrameHeader&) { return net::Verdict::kRefuse; };
  ASSERT_TRUE(asks.send(request(1), pattern(9000, 1)));
  ASSERT_TRUE(turn_until(loop, [&] { return asks.closed_count + answers.closed_count == 2; }));
  EXPECT_EQ(answers.error, EPROTO);
  for (int turn = 0; turn < 20; ++turn) loop.turn(1);
  EXPECT_EQ(asks.closed_count, 1);
  EXPECT_EQ(answers.closed_count, 1);
}

TEST_P(Conformance, WhatWasLentReturnsWhenTheStreamIsCut) {
  open();
  answers.stream->receive(false);
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_TRUE(asks.send(request(id), pattern(1 << 20, id)));
  }
  const std::weak_ptr<Bytes> last = asks.lent;
  EXPECT_FALSE(last.expired());
  asks.stream->cut(ETIMEDOUT, "a test");
  EXPECT_FALSE(asks.send(request(41)));
  ASSERT_TRUE(
      turn_until(loop, [&] { return asks.closed_count == 1 && answers.closed_count == 1; }));
  EXPECT_EQ(asks.error, ETIMEDOUT);
  EXPECT_TRUE(last.expired());
}

TEST_P(Conformance, ThePeersEndIsToldOnce) {
  open();
  answers.stream.reset();
  ASSERT_TRUE(turn_until(loop, [&] { return asks.closed_count == 1; }));
  EXPECT_EQ(asks.error, 0);
}

INSTANTIATE_TEST_SUITE_P(Streams, Conformance,
                         testing::Values(Kind::kSocket, Kind::kTls, Kind::kRdma),
                         [](const auto& which) {
                           return which.param == Kind::kSocket ? "Socket"
                                  : which.param == Kind::kTls  ? "Tls"
                                                               : "Rdma";
                         });

}  // namespace
}  // namespace braidfs::rdma
