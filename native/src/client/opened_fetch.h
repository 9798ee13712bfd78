// The whole of a small file, fetched with its first OPEN, which is answered then: the bytes are the
// kernel's pages before a program can ask for them (docs/decisions/0045-fetched-with-the-open.md).
//
// It asks for no lease and waits for no memory: of a file of which nothing came the kernel asks as
// ever. Invariant: the OPEN is answered once, and nothing becomes a page after that. Threads: one
// at a time, the lane that let it proceed; answered_early() ANY THREAD.
#pragma once
#include <cstdint>

#include "client/fetch.h"

namespace braidfs::client {

class OpenedFetch final : public FetchUser {
 public:
  // Whether it answers the OPEN: of a file that is small and likely to be read whole, with its
  // first handle.
  static bool start(Lane& lane, const HandlePtr& handle, const fuse::RequestHead& head);
  void proceed(Lane& lane) override;
  void fetched(Lane& lane, int error) override;
  void about_to_wait(Lane& lane) override;
  bool answered_early(Context& context) override;
  bool is_read() const noexcept override { return true; }

 private:
  prefetch::Found ask_prefetcher(Lane& lane, prefetch::Parts& parts);

  Fetch fetch_{*this};
  uint64_t fh_ = 0;  // the kernel is not told of this handle yet
  bool registered_ = false;
};

}  // namespace braidfs::client
