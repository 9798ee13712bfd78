// The kernel's READ: waits for a lease and for overlapping written pieces, then is answered from
// what was fetched before, or from its Fetch.
//
// All of it is on the lane that took the request, except after a wait, when the lane that ended the
// wait goes on. Without a lease on the file's bytes Python is asked for one first (rule 12); one
// that was not granted does not keep bytes from being read: they are those of after the lease
// request. They do not stay in the kernel then, and a READ that ends at the file's end asks again
// when another end was reported meanwhile (EOF pages). Invariant: it is answered once, and lives
// until nothing is on its way for it. Threads: one at a time, the lane that let it proceed. Not
// here: where bytes come from (fetch.h), what is fetched before anybody asks (early_fetch.h).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "client/fetch.h"
#include "client/prefetch/extents.h"

namespace braidfs::client {

class ReadOperation final : public FetchUser {
 public:
  static void start(Lane& lane, const Handle& handle, const fuse::ReadRequest& request);
  void proceed(Lane& lane) override;
  void fetched(Lane& lane, int error) override { answer(lane, error); }
  void begin_again(Lane& lane) override;
  void about_to_wait(Lane& lane) override;
  bool is_read() const noexcept override { return true; }

 private:
  static constexpr uint32_t kEndsMax = 100;  // that were reported while it asked for the true one

  // Each true: proceed() will be called again, or it was answered.
  bool ask_for_lease(Lane& lane);
  bool waits(Lane& lane);
  bool waits_for_end(Lane& lane);
  bool ask_prefetcher(Lane& lane, prefetch::Extents& wanted);
  void ask_sources(Lane& lane);

  // All LOCKED inode.
  void begin_near_end(const Leases& leases);
  void begin_eof_pages(Context& context);
  bool ends_elsewhere(Context& context);
  void note_pages();

  void answer(Lane& lane, int error);
  void reply(Context& context);
  std::vector<std::shared_ptr<Operation>> end_near_end();
  void invalidate_eof_pages(Context& context);
  bool in_one_buffer(Lane& lane);
  Inode& inode() const noexcept { return *fetch_.inode(); }
  uint64_t end() const noexcept { return fetch_.offset() + fetch_.size(); }

  Fetch fetch_{*this};
  prefetch::Parts parts_;  // what it is answered from instead of the Fetch's buffer
  uint64_t closes_ = 0;    // the handle that ends with it; 0: none
  uint64_t request_ = 0;   // the lease request whose answer suffices; 0: none was made
  uint32_t ends_ = 0;
  uint64_t eof_read_ = 0;  // its number in fuse/eof_pages.h, when that is done without a lease
  bool registered_ = false;
  bool fills_pages_ = false;  // of the kernel's
  bool near_end_ = false;     // it is in Inode::near_end
  bool asked_prefetcher_ = false;
};

}  // namespace braidfs::client
