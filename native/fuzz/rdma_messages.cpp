// Fuzzes both kinds of RDMA stream over the fake verbs with messages of a peer that may say
// anything. Values that the fuzzer could never guess are corrected: the magic number, the checksum
// of a frame's header, keys and addresses of memory that the peer really has.
#include <algorithm>
#include <cstring>

#include "../tests/rdma/fake_verbs.h"
#include "net/unique_fd.h"
#include "rdma/rdma_stream.h"

#include <sys/socket.h>

namespace braidfs::rdma {
namespace {

constexpr PortSettings kAcceptor{
    .is_acceptor = true, .out_blocks = 6, .in_blocks = 4, .receive_slots = 64, .send_slots = 64};
constexpr PortSettings kInitiator{
    .is_acceptor = false, .out_blocks = 6, .in_blocks = 0, .receive_slots = 64, .send_slots = 64};

class Sink final : public net::StreamSink {
 public:
  std::unique_ptr<net::Stream> stream;

  net::PayloadPlace payload_buffer(const FrameHeader& header, std::span<const std::byte>) override {
    place_.resize(header.payload_length);
    return {static_cast<net::Verdict>(header.request_id % 7 == 0 ? net::Verdict::kPause
                                                                 : net::Verdict::kTake),
            place_};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte>, std::span<std::byte>) override {
    if ((header.flags & kFlagReply) != 0) return true;
    net::OutFrame out;
    out.header = header;
    out.header.flags = kFlagReply;
    out.payload = std::span(bytes_).first(header.length % bytes_.size());
    (void)stream->send(std::move(out));
    return true;
  }
  void closed(int, const std::string&) override { stream.reset(); }

 private:
  std::vector<std::byte> place_;
  std::vector<std::byte> bytes_{300000};
};

// Makes the message look like one of a peer that keeps to the outer form.
void make_plausible(std::span<std::byte> bytes, const Arena& memory) {
  MessageHead head;
  if (bytes.size() < sizeof head) return;
  std::memcpy(&head, bytes.data(), sizeof head);
  head.magic = MessageHead::kMagic;
  head.kind = static_cast<uint16_t>(head.kind % 4);
  head.segment_count = static_cast<uint16_t>(head.segment_count % 4);
  head.head_rest %= 10000;
  const size_t segments = head.segment_count * sizeof(Segment);
  if (bytes.size() < sizeof head + segments) return;
  const size_t rest = bytes.size() - sizeof head - segments;
  head.short_length = static_cast<uint32_t>(std::min<size_t>(head.short_length % 4200, rest));
  head.head_length = static_cast<uint32_t>(rest - head.short_length);
  std::memcpy(bytes.data(), &head, sizeof head);
  for (size_t at = sizeof head; at < sizeof head + segments; at += sizeof(Segment)) {
    Segment segment;
    std::memcpy(&segment, bytes.data() + at, sizeof segment);
    if (segment.key % 4 == 0) continue;
    segment.key = memory.remote_key();
    segment.address =
        reinterpret_cast<uint64_t>(memory.block(0).data()) + segment.address % (8 * kBlockSize);
    std::memcpy(bytes.data() + at, &segment, sizeof segment);
  }
  FrameHeader frame;
  if (head.kind != MessageHead::kFrame || head.head_length < sizeof frame) return;
  const auto place = bytes.subspan(sizeof head + segments, head.head_length);
  std::memcpy(&frame, place.data(), sizeof frame);
  if (frame.length % 4 != 0) {
    const auto body = std::span<const std::byte>(place).subspan(kHeaderSize);
    const bool moves = head.bulk == static_cast<uint16_t>(Bulk::kFetch) ||
                       head.bulk == static_cast<uint16_t>(Bulk::kWritten);
    frame.body_length = static_cast<uint32_t>(body.size());
    frame.payload_length = head.short_length + (moves ? head.bulk_length : 0);
    frame.body_checksum = body.empty() ? 0 : xxh3(body);
    seal(frame);
  }
  std::memcpy(place.data(), &frame, sizeof frame);
}

void run(std::span<const uint8_t> input) {
  const bool is_acceptor = (input[0] & 1) != 0;
  fake::Fabric fabric;
  fake::FakeDevice device(fabric);
  net::EventLoop loop;
  Port mine(device, is_acceptor ? kAcceptor : kInitiator), theirs(device, kInitiator);
  if (mine.make() != 0 || theirs.make() != 0) return;
  std::shared_ptr<Channel> channel, peer;
  if (mine.make_channel(channel) != 0 || theirs.make_channel(peer) != 0) return;
  if (channel->connect(peer->local()) != 0 || peer->connect(channel->local()) != 0) return;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  const net::UniqueFd other(ends[1]);
  Sink sink;
  const std::shared_ptr<Channel> heard = channel;
  sink.stream = open_stream(loop, net::UniqueFd(ends[0]), std::move(channel), sink);
  if (sink.stream->start() != 0) return;
  for (uint64_t id = 1; id < 4 && !is_acceptor; ++id) {
    net::OutFrame out;
    out.header.request_id = id;
    out.reply_length_max = 100000;
    (void)sink.stream->send(std::move(out));
  }
  loop.turn(0);
  for (input = input.subspan(1); input.size() > 2;) {
    const size_t length =
        std::min<size_t>((input[0] | input[1] << 8) % kSlotSize, input.size() - 2);
    const auto said = std::as_bytes(input.subspan(2, length));
    std::vector<std::byte> message(said.begin(), said.end());
    make_plausible(message, theirs.out());
    heard->received(message);
    input = input.subspan(2 + length);
    loop.turn(0);
    if (sink.stream && length % 5 == 0) sink.stream->resume();
  }
  loop.turn(0);
  sink.stream.reset();
}

}  // namespace
}  // namespace braidfs::rdma

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) braidfs::rdma::run({data, size});
  return 0;
}
