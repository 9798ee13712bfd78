// The two ends of braidfs-transport-bench: one stream each, over a socket or a queue pair. They use
// the data path's streams (net/stream.h) and nothing above them: no capabilities, sums, FUSE or
// disk. The client keeps `depth` requests under way, and notes how long each took. Threads: one for
// each end.
#pragma once
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/event_loop.h"
#include "net/frame_stream.h"
#include "rdma/rails.h"
#include "rdma/rdma_stream.h"

namespace braidfs::bench {

struct Load {
  bool is_write = false;
  uint32_t size = 4096;
  uint64_t count = 10000;
  uint32_t depth = 1;
};

struct Figures {
  double seconds = 0;
  int64_t cpu_ns = 0;  // of this process, user and kernel time
  std::vector<int64_t> latencies_ns;
};

inline int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class Client final : public net::StreamSink {
 public:
  Client(net::EventLoop& loop, const Load& load)
      : loop_(loop), load_(load), bytes_(load.size), issued_(load.depth) {}

  // Runs the load. Nothing is returned when the connection broke.
  std::optional<Figures> run(std::unique_ptr<net::Stream> stream) {
    stream_ = std::move(stream);
    figures_.latencies_ns.reserve(load_.count);
    const int64_t began = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t slot = 0; slot < load_.depth && sent_ < load_.count; ++slot) send_request(slot);
    while (figures_.latencies_ns.size() < load_.count && !broken_) loop_.turn(1000);
    figures_.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    figures_.seconds = static_cast<double>(clock_ns(CLOCK_MONOTONIC) - began) / 1e9;
    stream_.reset();
    if (broken_) return std::nullopt;
    return std::move(figures_);
  }

  net::PayloadPlace payload_buffer(const FrameHeader&, std::span<const std::byte>) override {
    return {net::Verdict::kTake, bytes_};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte>, std::span<std::byte>) override {
    const auto slot = static_cast<uint32_t>(header.request_id % load_.depth);
    figures_.latencies_ns.push_back(clock_ns(CLOCK_MONOTONIC) - issued_[slot]);
    if (sent_ < load_.count) send_request(slot);
    return true;
  }
  void closed(int, const std::string&) override { broken_ = true; }

 private:
  void send_request(uint32_t slot) {
    net::OutFrame out;
    out.header.op = static_cast<uint8_t>(load_.is_write ? Op::kWrite : Op::kRead);
    out.header.request_id = ++rounds_ * load_.depth + slot;
    out.header.length = load_.size;
    if (load_.is_write) out.payload = bytes_;
    if (!load_.is_write) out.reply_length_max = load_.size;
    issued_[slot] = clock_ns(CLOCK_MONOTONIC);
    ++sent_;
    if (!stream_->send(std::move(out))) broken_ = true;
  }

  net::EventLoop& loop_;
  const Load load_;
  std::unique_ptr<net::Stream> stream_;
  std::vector<std::byte> bytes_;
  std::vector<int64_t> issued_;
  Figures figures_;
  uint64_t rounds_ = 0, sent_ = 0;
  bool broken_ = false;
};

// Answers until the client closes the connection.
class Server final : public net::StreamSink {
 public:
  explicit Server(net::EventLoop& loop) : loop_(loop), bytes_(limits::kFramePayloadLengthMax) {}

  int64_t run(std::unique_ptr<net::Stream> stream) {
    stream_ = std::move(stream);
    const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    while (!ended_) loop_.turn(1000);
    const int64_t used = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    stream_.reset();
    return used;
  }

  net::PayloadPlace payload_buffer(const FrameHeader& header, std::span<const std::byte>) override {
    return {net::Verdict::kTake, std::span(bytes_).first(header.payload_length)};
  }
  bool frame(const FrameHeader& header, std::span<const std::byte>, std::span<std::byte>) override {
    net::OutFrame out;
    out.header = header;
    out.header.flags = kFlagReply;
    const bool is_read = header.op == static_cast<uint8_t>(Op::kRead);
    if (is_read && header.length > bytes_.size()) return false;
    if (is_read) out.payload = std::span(bytes_).first(header.length);
    return stream_->send(std::move(out));
  }
  void closed(int, const std::string&) override { ended_ = true; }

 private:
  net::EventLoop& loop_;
  std::unique_ptr<net::Stream> stream_;
  std::vector<std::byte> bytes_;
  bool ended_ = false;
};

}  // namespace braidfs::bench
