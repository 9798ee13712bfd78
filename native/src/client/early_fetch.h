// A fetch of bytes that nobody has asked for yet. It asks for no lease, waits for no memory, and
// ends without bytes if there is neither.
//
// Invariant: `done` is called once. Threads: one at a time, the lane that let it proceed. Not here:
// what is to be fetched (prefetch/prefetcher.h), who begins it (prefetching.h).
#pragma once
#include <cstdint>
#include <memory>

#include "client/fetch.h"

namespace braidfs::client {

class EarlyFetch final : public FetchUser {
 public:
  struct Wanted {
    InodePtr inode{};
    uint64_t offset = 0;
    uint32_t size = 0;
    HandlePtr handle{};  // returned in the Result; may be empty
  };
  struct Result {
    CachedExtent extent{};
    bool is_whole = false;  // the extent is as long as it was wanted
    HandlePtr handle{};
    Buffer bytes{};  // of extent.stamp, which is still the file's stamp; empty: there are none
  };
  using Done = void (*)(Lane& lane, Result result);

  static void start(Lane& lane, const Wanted& wanted, Done done);
  void proceed(Lane& lane) override;
  void fetched(Lane& lane, int error) override;
  bool is_read() const noexcept override { return true; }

 private:
  Fetch fetch_{*this};
  HandlePtr handle_;
  Done done_ = nullptr;
};

}  // namespace braidfs::client
