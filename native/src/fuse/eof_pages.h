// READs that are answered without a lease on the file's bytes and fill pages of the kernel's. Where
// such an answer ends at the file's end the kernel fills the rest of the page with zeros, and would
// show them as file content as soon as it is told a larger size, until the page is invalidated. So
// answers that tell one wait until it was; and a READ does not go by an end that is no longer the
// one that was told last.
//
// ANY THREAD; guarded by mu_. There is an entry for each such READ from its beginning until its
// pages are invalidated, and an answer waits only for READs that were before it: both are bounded
// by the requests that the kernel has under way.
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
#include <vector>

#include "fuse/request.h"

namespace braidfs::fuse {

class EofPages {
 public:
  // Sends a whole reply, header included.
  using Send = std::function<void(Channel channel, std::span<const std::byte> reply)>;

  // Sizes of the file that are told from now on count for this READ, until end(). Never 0.
  uint64_t begin(uint64_t nodeid);
  // Its answer will end there. False: another size was told since it began; nothing is noted then.
  bool cut(uint64_t nodeid, uint64_t read, uint64_t file_end);
  // Its pages are invalidated: whoever waited only for them goes on.
  void end(uint64_t nodeid, uint64_t read, const Send& send);

  // A reply leaves that tells this size of the file. True: it was kept, and is sent later.
  bool keeps(uint64_t nodeid, uint64_t size, Channel channel, std::span<const std::byte> reply);
  // What may be told of this size at once, by a reply that must not wait.
  uint64_t clip(uint64_t nodeid, uint64_t size);
  bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }

 private:
  struct Reply {
    uint64_t behind;  // the youngest READ that it waits for
    Channel channel;
    std::vector<std::byte> bytes;
  };
  struct File {
    std::map<uint64_t, uint64_t> reads;  // to where they are cut; kNotCut
    bool was_told = false;
    uint64_t told = 0;  // the size told last
    std::deque<Reply> replies;
  };
  static constexpr uint64_t kNotCut = ~uint64_t{0};

  static uint64_t least_end(const File& file) noexcept;

  std::mutex mu_;
  std::unordered_map<uint64_t, File> files_;  // guarded by mu_
  uint64_t next_ = 1;                         // guarded by mu_
  std::atomic<size_t> count_{0};              // of files_
};

}  // namespace braidfs::fuse
