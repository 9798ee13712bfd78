// The clones of /dev/fuse, one per lane, to which answers are written. ANY THREAD: the fds are
// fixed at construction and the kernel serialises writes; counters are atomic.
//
// An answer is written to the clone from which its request was read: at another the kernel returns
// ENOENT. ENOENT also means that the request has ended (connection aborted; ENODEV: unmounted).
// Such an answer is void: it is counted and otherwise ignored. An answer that the kernel rejects
// (EINVAL) is followed by EIO, so that no caller waits for ever.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fuse/request.h"
#include "net/unique_fd.h"

namespace braidfs::fuse {

class Channels final : public Replier {
 public:
  explicit Channels(std::vector<net::UniqueFd> clones) : clones_(std::move(clones)) {}

  size_t count() const noexcept { return clones_.size(); }
  int fd(Channel channel) const noexcept { return clones_[channel].get(); }

  void reply_error(Channel channel, uint64_t unique, int error) noexcept override;
  void reply_data(Channel channel, uint64_t unique,
                  std::span<const iovec> pieces) noexcept override;
  void reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept override;
  void reply_open(Channel channel, uint64_t unique, uint64_t fh,
                  bool keeps_pages) noexcept override;
  bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept override;

  // Answers with success and this body.
  void reply_body(Channel channel, uint64_t unique, std::span<const std::byte> body) noexcept;
  // Sends a whole reply, which includes the header.
  void send(Channel channel, std::span<const std::byte> reply) noexcept;
  // Asks the kernel to send an INTERRUPT again, whose request was read on a lane that has not
  // handled it yet. Only the clone that read that request accepts this, so all are tried.
  void reply_again(uint64_t interrupt_unique) noexcept;

  // Closes the clones (the connection ends when nobody else holds it). Later answers from other
  // threads are dropped.
  void close() noexcept;

  // Duplicates the clones' fds, to be kept over exec(2). 0 or -errno.
  int duplicate(std::vector<net::UniqueFd>& fds) const;

  uint64_t sent() const noexcept { return sent_.load(std::memory_order_relaxed); }
  uint64_t void_answers() const noexcept { return void_.load(std::memory_order_relaxed); }

 private:
  void write(Channel channel, uint64_t unique, std::span<const iovec> pieces) noexcept;

  std::vector<net::UniqueFd> clones_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> void_{0};
};

}  // namespace braidfs::fuse
