// What operations tell the kernel: answers to its requests, and which of its pages are wrong.
//
// Answers go out through a fuse::Replier. EOF pages (fuse/eof_pages.h) are pages that a READ
// without a lease filled, with zeros behind the file's end. Invariant: replier(), and invalidator()
// if there is a kernel, are called before the first request, and nothing here changes after that.
// Threads: ANY THREAD. Not here: how notifications are sent to the kernel (fuse/notifier.h).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "client/inode.h"
#include "client/leases.h"
#include "fuse/eof_pages.h"
#include "fuse/request.h"

namespace braidfs::client {

class KernelReplies {
 public:
  static constexpr uint64_t kAttributesAlone = ~uint64_t{0};  // an offset that means: no pages
  using Then = std::function<void()>;
  using InvalidatePages =
      std::function<void(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read, Then then)>;

  explicit KernelReplies(const Leases& leases) : leases_(leases) {}

  void replier(fuse::Replier& replier) noexcept { replier_ = &replier; }
  void invalidator(InvalidatePages invalidate, fuse::EofPages& eof_pages) {
    invalidate_pages_ = std::move(invalidate);
    eof_pages_ = &eof_pages;
  }

  fuse::Replier& replier() noexcept { return *replier_; }
  // error: a positive errno; 0 means success without a body.
  void reply_error(const fuse::RequestHead& head, int error) noexcept {
    replier_->reply_error(head.channel, head.unique, error);
  }
  fuse::EofPages* eof_pages() noexcept { return eof_pages_; }  // nullptr: there is no kernel
  // The kernel must not keep its pages of this part of the file. When they are gone, the READ with
  // the number `read` ends in eof_pages() (0: there is none), and `then` is called.
  void invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read = 0,
                        Then then = {});
  // The READ with this number in eof_pages() fills no page without a lease.
  void end_eof_read(uint64_t ino, uint64_t read) {
    if (eof_pages_ != nullptr) eof_pages_->end(ino, read);
  }
  // The kernel must ask for the attributes of the inode again. `then` is called when it has
  // forgotten them.
  void forget_attributes(uint64_t ino, Then then) {
    invalidate_pages(ino, kAttributesAlone, 0, 0, std::move(then));
  }
  // Stores the bytes of a whole file, which were fetched with its OPEN, as pages in the kernel.
  // `stamp` is theirs; 0: there are none. False: the pages were not stored, or are not right.
  bool store_pages(Inode& inode, uint64_t stamp, uint64_t nodeid, std::span<const std::byte> bytes);
  uint64_t opens_stored() const noexcept { return opens_stored_.load(std::memory_order_relaxed); }

 private:
  const Leases& leases_;
  fuse::Replier* replier_ = nullptr;
  InvalidatePages invalidate_pages_;
  fuse::EofPages* eof_pages_ = nullptr;
  std::atomic<uint64_t> opens_stored_ = 0;
};

}  // namespace braidfs::client
