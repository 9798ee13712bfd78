// A peer that sends whatever a test wants: raw messages and raw work on a queue pair, without the
// rules of a stream. It keeps the messages that it received.
#pragma once
#include "ends.h"

namespace braidfs::rdma {

class RawPeer final : private ChannelUser {
 public:
  RawPeer(Port& port, std::shared_ptr<Channel> channel)
      : port_(port), channel_(std::move(channel)) {}
  ~RawPeer() override { leave(); }

  void listen(net::EventLoop& loop) {
    ASSERT_EQ(port_.attach(loop), 0);
    channel_->bind(*this);
  }
  void leave() {
    if (!channel_) return;
    channel_->unbind();
    port_.retire(std::move(channel_));
  }

  static Bytes head_bytes(FrameHeader header) {
    seal(header);
    Bytes bytes(kHeaderSize);
    std::memcpy(bytes.data(), &header, kHeaderSize);
    return bytes;
  }
  static MessageHead frame_message(uint32_t head_length = kHeaderSize) {
    MessageHead head;
    head.kind = MessageHead::kFrame;
    head.head_length = head_length;
    return head;
  }
  // A message that moves `length` bytes.
  static MessageHead bulk_message(Bulk bulk, uint32_t length, size_t segments = 0) {
    MessageHead head = frame_message();
    head.bulk = static_cast<uint16_t>(bulk);
    head.bulk_length = length;
    head.segment_count = static_cast<uint16_t>(segments);
    return head;
  }

  void say(MessageHead head, const std::vector<Segment>& segments, const Bytes& frame,
           const Bytes& payload = {}) {
    Bytes message;
    const auto append = [&message](std::span<const std::byte> part) {
      message.insert(message.end(), part.begin(), part.end());
    };
    append(std::as_bytes(std::span(&head, 1)));
    append(std::as_bytes(std::span(segments)));
    append(frame);
    append(payload);
    say_bytes(message);
  }
  void say_bytes(const Bytes& message) {
    Blocks slot = port_.slots().take(1);
    std::memcpy(slot.at(0).data(), message.data(), message.size());
    const Work work{.kind = Work::Kind::kSend,
                    .local = slot.at(0).first(message.size()),
                    .local_key = port_.slots().local_key()};
    do_work(work, std::move(slot));
  }
  // An RDMA WRITE or READ of a block of its own to or from `remote`.
  void move(Work::Kind kind, const Segment& remote) {
    Blocks block = port_.out().take(1);
    std::ranges::fill(block.at(0), std::byte{0xee});
    const Work work{.kind = kind,
                    .local = block.at(0).first(remote.length),
                    .local_key = port_.out().local_key(),
                    .remote_address = remote.address,
                    .remote_key = remote.key};
    do_work(work, std::move(block));
  }

  std::vector<Message> heard;  // these are heads and segments
  bool failed = false;

 private:
  void do_work(Work work, Blocks memory) {
    std::vector<Work> works{work};
    Posted posted;
    posted.must_signal = true;
    posted.memory.push_back(std::move(memory));
    (void)channel_->post(works, std::move(posted));
  }
  void message_arrived(std::span<const std::byte> bytes) override {
    auto message = parse(bytes);
    ASSERT_TRUE(message);
    message->frame_head = message->payload = {};  // they are lost with the slot
    heard.push_back(std::move(*message));
  }
  void fetch_done(uint64_t, std::vector<Blocks>) override {}
  void channel_failed(const std::string&) override { failed = true; }

  Port& port_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace braidfs::rdma
