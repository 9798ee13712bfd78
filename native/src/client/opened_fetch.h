// Fetches the whole of a small file with its first OPEN, and then answers the OPEN. So the bytes
// are pages of the kernel before a program can ask for them
// (docs/decisions/0045-fetched-with-the-open.md).
//
// It asks for no lease and waits for no memory: if it gets no bytes, the kernel asks for them by
// READs as usual. Invariant: the OPEN is answered once, and nothing is stored as a page after that.
// Threads: one at a time, the lane that let it proceed; answered_early() ANY THREAD. Not here:
// which files are fetched so (prefetch/whole_small_files.h).
#pragma once
#include <cstdint>

#include "client/fetch.h"

namespace braidfs::client {

class OpenedFetch final : public FetchUser {
 public:
  // Whether the operation takes over the answer to the OPEN. It does so for the first handle of a
  // file that is small and likely to be read whole.
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
