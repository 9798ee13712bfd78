// What operations tell the kernel: answers to its requests, and which of its pages are wrong.
//
// Answers go out through a fuse::Replier. EOF pages (fuse/eof_pages.h) are those that READs without
// a lease filled and that have zeros behind the file's end. Invariant: replier(), and
// invalidator() where there is a kernel, are called before the first request, and nothing here
// changes after that. Threads: ANY THREAD. Not here: notifications on their way to the kernel
// (fuse/notifier.h).
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
  static constexpr uint64_t kAttributesAlone = ~uint64_t{0};  // as an offset: no pages
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
  // The kernel's pages of that part of a file are not to be kept. When they are gone `read` of
  // eof_pages() ends (0: none), and `then` is called.
  void invalidate_pages(uint64_t ino, uint64_t offset, uint64_t length, uint64_t read = 0,
                        Then then = {});
  // The kernel asks for the inode's attributes again before it believes them; `then` is called.
  void forget_attributes(uint64_t ino, Then then) {
    invalidate_pages(ino, kAttributesAlone, 0, 0, std::move(then));
  }
  // What was fetched with an OPEN, the whole file (stamp 0: nothing), becomes its pages in the
  // kernel. False: they are not there, or not right.
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
