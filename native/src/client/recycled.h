// Recycles objects of one kind that come and go with requests: an object that nobody else holds any
// more is used again, so that requests allocate none. Invariant: at most kKept objects are kept.
// Threads: LANE ONLY.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace braidfs::client {

template <typename T>
class Recycled {
 public:
  std::shared_ptr<T> take() {
    if (kept_.empty()) kept_.resize(kKept);
    auto& slot = kept_[next_++ % kKept];
    if (!slot || slot.use_count() > 1) slot = std::make_shared<T>();
    return slot;
  }

 private:
  static constexpr size_t kKept = 64;
  std::vector<std::shared_ptr<T>> kept_;
  size_t next_ = 0;
};

}  // namespace braidfs::client
