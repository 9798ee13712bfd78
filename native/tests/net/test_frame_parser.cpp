// Every division of a stream of frames parses to the same frames; damaged frames are refused.
#include <gtest/gtest.h>

#include <cstring>

#include "net/frame_parser.h"

namespace braidfs::net {
namespace {

using Bytes = std::vector<std::byte>;

Bytes make_frame(uint64_t request_id, size_t body_length, size_t payload_length) {
  Bytes bytes(kHeaderSize + body_length + payload_length);
  for (size_t index = kHeaderSize; index < bytes.size(); ++index) {
    bytes[index] = static_cast<std::byte>(index * 7 + request_id);
  }
  FrameHeader header;
  header.op = static_cast<uint8_t>(Op::kWrite);
  header.request_id = request_id;
  header.body_length = static_cast<uint32_t>(body_length);
  header.payload_length = static_cast<uint32_t>(payload_length);
  const auto body = std::span<const std::byte>(bytes).subspan(kHeaderSize, body_length);
  header.body_checksum = body.empty() ? 0 : xxh3(body);
  seal(header);
  std::memcpy(bytes.data(), &header, kHeaderSize);
  return bytes;
}

struct Seen {
  uint64_t request_id;
  Bytes body;
  Bytes payload;
  bool operator==(const Seen&) const = default;
};

class Collector : public FrameSink {
 public:
  PayloadPlace payload_buffer(const FrameHeader& header, std::span<const std::byte>) override {
    if (header.request_id == discard) return {Verdict::kDiscard, {}};
    if (header.request_id == refuse) return {Verdict::kRefuse, {}};
    if (header.request_id == pause) return {Verdict::kPause, {}};
    place.assign(header.payload_length, std::byte{0xee});
    return {Verdict::kTake, place};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override {
    seen.push_back(
        {header.request_id, {body.begin(), body.end()}, {payload.begin(), payload.end()}});
    return header.request_id != last;
  }
  Bytes place;
  std::vector<Seen> seen;
  uint64_t discard = 0, refuse = 0, pause = 0, last = 0;
};

// Gives the parser up to `count` bytes; returns how many it took.
size_t feed(FrameParser& parser, FrameSink& sink, std::span<const std::byte> bytes,
            ParseResult& result) {
  std::array<iovec, 2> places;
  const size_t used = parser.wanted(places);
  size_t taken = 0;
  for (size_t index = 0; index < used && taken < bytes.size(); ++index) {
    const size_t part = std::min(places[index].iov_len, bytes.size() - taken);
    std::memcpy(places[index].iov_base, bytes.data() + taken, part);
    taken += part;
  }
  result = taken == 0 ? result : parser.received(taken, sink);
  return taken;
}

ParseResult feed_all(FrameParser& parser, FrameSink& sink, std::span<const std::byte> bytes) {
  ParseResult result = ParseResult::kMore;
  while (!bytes.empty() && result == ParseResult::kMore) {
    bytes = bytes.subspan(feed(parser, sink, bytes, result));
  }
  return result;
}

Bytes stream_of_frames() {
  Bytes stream;
  for (const auto& [id, body, payload] :
       {std::tuple{1, 0, 0}, {2, 72, 13}, {3, 5, 0}, {4, 0, 300}, {5, 129, 257}}) {
    const Bytes frame = make_frame(static_cast<uint64_t>(id), static_cast<size_t>(body),
                                   static_cast<size_t>(payload));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  return stream;
}

TEST(FrameParser, EveryCutGivesTheSameFrames) {
  const Bytes stream = stream_of_frames();
  Collector whole;
  FrameParser parser(4096, 4096);
  ASSERT_EQ(feed_all(parser, whole, stream), ParseResult::kMore);
  ASSERT_EQ(whole.seen.size(), 5u);
  EXPECT_TRUE(parser.idle());
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    Collector cut_up;
    FrameParser other(4096, 4096);
    ASSERT_EQ(feed_all(other, cut_up, std::span(stream).first(cut)), ParseResult::kMore);
    ASSERT_EQ(feed_all(other, cut_up, std::span(stream).subspan(cut)), ParseResult::kMore);
    ASSERT_EQ(cut_up.seen, whole.seen) << cut;
  }
}

TEST(FrameParser, OneByteAtATime) {
  const Bytes stream = stream_of_frames();
  Collector sink;
  FrameParser parser(4096, 4096);
  for (const std::byte& byte : stream) {
    ASSERT_EQ(feed_all(parser, sink, std::span(&byte, 1)), ParseResult::kMore);
  }
  EXPECT_EQ(sink.seen.size(), 5u);
}

TEST(FrameParser, PayloadLargerThanStaging) {
  const Bytes frame = make_frame(1, 2048, 3 * FrameParser::kStagingSize + 17);
  Collector sink;
  FrameParser parser(4096, 1u << 20);
  EXPECT_EQ(feed_all(parser, sink, frame), ParseResult::kMore);
  ASSERT_EQ(sink.seen.size(), 1u);
  EXPECT_TRUE(std::equal(sink.seen[0].payload.begin(), sink.seen[0].payload.end(),
                         frame.begin() + kHeaderSize + 2048));
}

TEST(FrameParser, DiscardedPayloadIsSkipped) {
  Collector sink;
  sink.discard = 4;
  FrameParser parser(4096, 4096);
  EXPECT_EQ(feed_all(parser, sink, stream_of_frames()), ParseResult::kMore);
  EXPECT_EQ(sink.seen.size(), 4u);
  EXPECT_EQ(sink.seen.back().request_id, 5u);
}

TEST(FrameParser, PausedParserTakesNothingUntilResumed) {
  Collector sink;
  sink.pause = 2;
  FrameParser parser(4096, 4096);
  EXPECT_EQ(feed_all(parser, sink, stream_of_frames()), ParseResult::kPaused);
  std::array<iovec, 2> places;
  EXPECT_EQ(parser.wanted(places), 0u);
  EXPECT_EQ(parser.resume(sink), ParseResult::kPaused);
  sink.pause = 0;
  EXPECT_EQ(parser.resume(sink), ParseResult::kMore);
  EXPECT_EQ(sink.seen.size(), 5u);
}

TEST(FrameParser, EveryFlippedBitOfHeaderAndBodyIsRefused) {
  const Bytes good = make_frame(1, 24, 8);
  for (size_t bit = 0; bit < (kHeaderSize + 24) * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    Collector sink;
    FrameParser parser(4096, 4096);
    EXPECT_EQ(feed_all(parser, sink, bad), ParseResult::kFault) << bit;
    EXPECT_TRUE(sink.seen.empty());
  }
}

TEST(FrameParser, LimitsAndRefusals) {
  Collector sink;
  FrameParser body(16, 4096);
  EXPECT_EQ(feed_all(body, sink, make_frame(1, 17, 0)), ParseResult::kFault);
  EXPECT_EQ(body.fault(), FrameFault::kBodyLength);
  FrameParser payload(16, 16);
  EXPECT_EQ(feed_all(payload, sink, make_frame(1, 0, 17)), ParseResult::kFault);
  EXPECT_EQ(payload.fault(), FrameFault::kPayloadLength);
  sink.refuse = 1;
  FrameParser refused(4096, 4096);
  EXPECT_EQ(feed_all(refused, sink, make_frame(1, 0, 17)), ParseResult::kFault);
  sink.last = 9;
  FrameParser ended(4096, 4096);
  EXPECT_EQ(feed_all(ended, sink, make_frame(9, 0, 0)), ParseResult::kFault);
}

}  // namespace
}  // namespace braidfs::net
