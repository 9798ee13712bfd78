// READs that are answered without a lease on the file's bytes and fill pages of the kernel's cache
// (EOF pages). Where such an answer ends at the file's end, the kernel fills the rest of the page
// with zeros. Once it gets a larger size it would show them as file content, until the page is
// invalidated. So answers with a larger size wait for that, and a READ is not cut at a size that is
// older than the one that the kernel got last.
//
// ANY THREAD; guarded by mu_. There is an entry for each such READ from its start until its pages
// are invalidated, and an answer waits only for READs that started before it: both are bounded by
// the requests that the kernel has in flight.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fuse/request.h"

namespace braidfs::fuse {

class EofPages {
 public:
  // Sends a whole reply, header included.
  using Send = std::function<void(Channel channel, std::span<const std::byte> reply)>;

  explicit EofPages(Send send) : send_(std::move(send)) {}

  // Starts a READ and returns its number, never 0. Sizes that the kernel gets until end() count for
  // it.
  uint64_t begin(uint64_t nodeid);
  // The READ's answer will end at file_end. False: the kernel got a larger size, so it must not.
  bool cut(uint64_t nodeid, uint64_t read, uint64_t file_end);
  // The READ's pages are invalidated, or it has filled none: sends the replies that waited only for
  // them.
  void end(uint64_t nodeid, uint64_t read);

  // A reply with this size of the file is to be sent. True: it was kept, and is sent later.
  bool keeps(uint64_t nodeid, uint64_t size, Channel channel, std::span<const std::byte> reply);
  // The size that a reply which must not wait may contain now.
  uint64_t clip(uint64_t nodeid, uint64_t size);
  bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

 private:
  struct Reply {
    uint64_t behind;  // the latest READ for which it waits
    Channel channel;
    std::vector<std::byte> bytes;
  };
  struct File {
    std::map<uint64_t, uint64_t> reads;  // to where each is cut, or kNotCut
    bool has_size = false;
    uint64_t size = 0;  // that the kernel got last
    std::deque<Reply> replies;
  };
  static constexpr uint64_t kNotCut = ~uint64_t{0};

  static uint64_t least_end(const File& file) noexcept;

  const Send send_;
  std::mutex mu_;
  std::unordered_map<uint64_t, File> files_;  // guarded by mu_
  uint64_t next_ = 1;                         // guarded by mu_
  std::atomic<size_t> count_{0};              // the size of files_
};

}  // namespace braidfs::fuse
