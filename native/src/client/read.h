// The kernel's READ. It waits for a lease and for overlapping written pieces, and is answered from
// bytes that were prefetched, or from its Fetch.
//
// Without a lease on the file's bytes Python is asked for one first (rule 12). If the lease is not
// granted, the bytes are read all the same, since they are those of a time after the lease request.
// But then they do not stay in the kernel, and a READ that ends at the file's end asks again if
// another end was reported meanwhile (EOF pages).
//
// Linux sends a read(2) as several READs by the size that it knows, which may be too large. It
// takes the first short answer for the file's end, and believes none to a READ that it sent before
// that, or before pages of the file were invalidated. So a READ that finds nothing is answered
// behind those before it, and the pages of these are invalidated behind its answer.
//
// Invariant: a READ is answered once, and lives until nothing is under way for it. Threads: one at
// a time: the lane that took the request, or after a wait the lane that ended the wait. Not here:
// where bytes come from (fetch.h), prefetching (early_fetch.h).
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
  // How often the file's end may change while the READ asks for it.
  static constexpr uint32_t kEndsMax = 100;

  // Each returns true if the READ was answered, or proceed() will be called again.
  bool ask_for_lease(Lane& lane);
  bool waits(Lane& lane);
  bool waits_for_end(Lane& lane);
  bool waits_for_lanes(Lane& lane);
  // What the Prefetcher wants of that file.
  struct Wanted {
    InodePtr inode{};
    prefetch::Extents extents{};
  };
  bool ask_prefetcher(Lane& lane, Wanted& wanted);
  void ask_sources(Lane& lane);

  // These are LOCKED by the inode.
  void begin_near_end(const Leases& leases);
  void begin_eof_pages(Context& context);
  bool ends_elsewhere(Context& context);
  void note_pages();

  void answer(Lane& lane, int error);
  void reply(Context& context);
  std::vector<std::shared_ptr<Operation>> end_near_end();
  bool in_one_buffer(Lane& lane);
  Inode& inode() const noexcept { return *fetch_.inode(); }
  uint64_t end() const noexcept { return fetch_.offset() + fetch_.size(); }

  Fetch fetch_{*this};
  prefetch::Parts parts_;  // prefetched bytes, which answer it instead of the Fetch's buffer
  uint64_t closes_ = 0;    // the handle that is closed with it; 0: none
  uint64_t request_ = 0;   // the lease request whose answer suffices; 0: none was made
  uint32_t ends_ = 0;
  uint64_t eof_read_ = 0;  // its number in fuse/eof_pages.h, if it has no lease
  bool registered_ = false;
  bool fills_pages_ = false;   // it fills pages of the kernel
  bool near_end_ = false;      // it is in Inode::near_end
  bool passed_lanes_ = false;  // each lane has begun what it had taken from the kernel before it
  bool asked_prefetcher_ = false;
};

}  // namespace braidfs::client
