// Two ends of a stream on one event loop: over a socket pair, or over queue pairs of the fake
// fabric. The initiator sends requests, the acceptor answers each; both keep what they received.
// With BRAIDFS_RDMA_DEVICE=rxe0 (port 1, GID index 1) in the environment the queue pairs are real
// ones of that device; tests that need the fake fabric are then skipped.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake_verbs.h"
#include "net/frame_stream.h"
#include "rdma/ibverbs.h"
#include "rdma/rdma_stream.h"

namespace braidfs::rdma {

using Bytes = std::vector<std::byte>;

inline Bytes pattern(size_t length, uint64_t seed) {
  Bytes bytes(length);
  for (size_t index = 0; index < length; ++index) {
    bytes[index] = static_cast<std::byte>((index * 131 + seed * 7 + (index >> 8)) & 0xff);
  }
  return bytes;
}

struct Got {
  FrameHeader header;
  Bytes body;
  Bytes payload;
};

class End : public net::StreamSink {
 public:
  std::unique_ptr<net::Stream> stream;
  std::vector<Got> got;
  std::function<void(const Got&)> on_frame;
  std::function<net::Verdict(const FrameHeader&)> verdict;
  int closed_count = 0;
  int error = -1;
  std::string reason;
  int sendable_count = 0;

  net::PayloadPlace payload_buffer(const FrameHeader& header, std::span<const std::byte>) override {
    const net::Verdict wanted = verdict ? verdict(header) : net::Verdict::kTake;
    place_.assign(wanted == net::Verdict::kTake ? header.payload_length : 0, std::byte{0});
    return {wanted, place_};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override {
    got.push_back({header, Bytes(body.begin(), body.end()), Bytes(payload.begin(), payload.end())});
    if (on_frame) on_frame(Got(got.back()));
    return true;
  }
  void closed(int code, const std::string& why) override {
    ++closed_count;
    error = code;
    reason = why;
    stream.reset();
  }
  void sendable() override { ++sendable_count; }

  bool send(FrameHeader header, Bytes payload = {}, uint32_t reply_length_max = 0,
            Bytes body = {}) {
    auto kept = std::make_shared<Bytes>(std::move(payload));
    net::OutFrame out;
    out.header = header;
    out.body = body;
    out.payload = *kept;
    out.keep = kept;
    out.reply_length_max = reply_length_max;
    lent = kept;
    return stream && stream->send(std::move(out));
  }
  std::weak_ptr<Bytes> lent;  // the last payload sent

 private:
  Bytes place_;
};

inline FrameHeader request(uint64_t id) {
  FrameHeader header;
  header.op = static_cast<uint8_t>(Op::kRead);
  header.request_id = id;
  return header;
}

inline FrameHeader reply_to(const FrameHeader& asked) {
  FrameHeader header = asked;
  header.flags = kFlagReply;
  return header;
}

inline std::pair<net::UniqueFd, net::UniqueFd> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {net::UniqueFd(ends[0]), net::UniqueFd(ends[1])};
}

struct Sizes {
  uint32_t out_blocks = 256;
  uint32_t in_blocks = 256;
  uint32_t slots = 256;
};

inline const char* real_device_name() { return std::getenv("BRAIDFS_RDMA_DEVICE"); }

inline std::unique_ptr<Device> open_real_device() {
  std::unique_ptr<Device> device;
  std::string reason;
  const DeviceAddress address{.device = real_device_name(), .port = 1, .gid_index = 1};
  EXPECT_EQ(open_device(address, device, reason), 0) << reason;
  return device;
}

#define NEEDS_FAKE_FABRIC() \
  if (real_device_name() != nullptr) GTEST_SKIP() << "on a real device nothing fails on demand"

// The ports of both programs, on one loop.
class Ports {
 public:
  explicit Ports(net::EventLoop& loop, Sizes sizes = {})
      : sizes_(sizes),
        real_(real_device_name() == nullptr ? nullptr : open_real_device()),
        device(real_ ? *real_ : static_cast<Device&>(fake)),
        loop_(loop) {
    initiator = std::make_unique<Port>(
        device, PortSettings{false, sizes.out_blocks, 0, sizes.slots, sizes.slots});
    acceptor = std::make_unique<Port>(
        device, PortSettings{true, sizes.out_blocks, sizes.in_blocks, sizes.slots, sizes.slots});
    EXPECT_EQ(initiator->make(), 0);
    EXPECT_EQ(acceptor->make(), 0);
  }
  // Two connected channels.
  std::pair<std::shared_ptr<Channel>, std::shared_ptr<Channel>> channels() {
    std::shared_ptr<Channel> asks, answers;
    EXPECT_EQ(initiator->make_channel(asks), 0);
    EXPECT_EQ(acceptor->make_channel(answers), 0);
    EXPECT_EQ(answers->connect(asks->local()), 0);
    EXPECT_EQ(asks->connect(answers->local()), 0);
    return {asks, answers};
  }
  // Checks that all lent memory was returned, and that no queue pair is left.
  void expect_whole() {
    const auto is_idle = [this] { return initiator->is_idle() && acceptor->is_idle(); };
    for (int turn = 0; turn < 500 && !is_idle(); ++turn) loop_.turn(10);
    EXPECT_TRUE(is_idle());
    EXPECT_EQ(fabric.pairs(), 0u);
    for (Port* port : {initiator.get(), acceptor.get()}) {
      EXPECT_EQ(port->out().free_count(), port->out().count());
      EXPECT_EQ(port->in().free_count(), port->in().count());
      EXPECT_EQ(port->slots().free_count(), port->slots().count());
      EXPECT_TRUE(port->work_fits(Port::kWorkMax));
    }
    if (real_ == nullptr) {
      EXPECT_EQ(fabric.slots_posted(), 2u * sizes_.slots);
    }
  }

  fake::Fabric fabric;
  fake::FakeDevice fake{fabric};

 private:
  const Sizes sizes_;
  std::unique_ptr<Device> real_;

 public:
  Device& device;
  std::unique_ptr<Port> initiator, acceptor;

 private:
  net::EventLoop& loop_;
};

enum class Kind { kSocket, kTls, kRdma };

inline void open_ends(net::EventLoop& loop, Ports* ports, End& asks, End& answers,
                      net::StreamLimits limits = {}) {
  auto [left, right] = socket_pair();
  std::shared_ptr<Channel> one, two;
  if (ports != nullptr) std::tie(one, two) = ports->channels();
  asks.stream = open_stream(loop, std::move(left), one, asks, limits);
  answers.stream = open_stream(loop, std::move(right), two, answers, limits);
  EXPECT_EQ(asks.stream->start(), 0);
  EXPECT_EQ(answers.stream->start(), 0);
}

template <typename Done>
bool turn_until(net::EventLoop& loop, Done done, int turns = 3000) {
  for (int turn = 0; turn < turns && !done(); ++turn) loop.turn(1);
  return done();
}

}  // namespace braidfs::rdma
