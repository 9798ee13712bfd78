// A fetch that nobody has asked for: it asks for no lease, waits for no memory, and ends without
// bytes where it has none of them. Threads: one at a time, the lane that let it proceed.
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
    HandlePtr handle{};  // under which it is fetched, if that is to be known at the end
  };
  struct Result {
    CachedExtent extent{};
    bool is_whole = false;  // the extent is what was wanted, to its end
    HandlePtr handle{};
    Buffer bytes{};  // of extent.stamp, which still is the file's; empty: there are none
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
