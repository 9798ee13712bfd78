// Storage servers' page caches as a sink: which small files servers are told to read before anybody
// asks (docs/decisions/0049-fetched-ahead.md).
//
// What is wanted waits until programs are known to read files whole (whole_small_files.h), at most
// kPatience; then it goes to its target, kFetchMax files in a request, one request at a time. A
// target without room is left alone for kRest, one whose server does not know FETCH (and hangs up)
// for kUnknownRest, and what waited for it is forgotten: nothing depends on it. Invariant: of each
// target at most one batch is taken and not ended. Threads: ANY THREAD, guarded by mu_. Not here:
// the requests (server_fetch.h), what servers do with them (server/fetcher.h).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "braidfs/frame.h"
#include "client/prefetch/extents.h"
#include "client/records.h"

namespace braidfs::client::prefetch {

class ServerCaches {
 public:
  static constexpr size_t kWaitingMax = 1u << 16;
  static constexpr std::chrono::seconds kPatience{30};
  static constexpr std::chrono::milliseconds kRest{1000};
  static constexpr std::chrono::milliseconds kUnreachedRest{100};
  static constexpr std::chrono::minutes kUnknownRest{1};

  bool any() const noexcept { return waiting_.load(std::memory_order_relaxed) > 0; }

  // The file is bytes of one object.
  void want(const Attributes& attributes, const FileView& view, Clock::time_point now);

  struct Batch {
    uint32_t target = 0;
    Clock::time_point since{};  // when its oldest file was wanted
    std::vector<FetchedObject> objects{};
  };
  // What is to be sent now. For each of these targets a request is under way until ended().
  std::vector<Batch> take(Clock::time_point now);
  enum class Outcome : uint8_t { kTaken, kRefused, kUnknown, kUnreached };
  // When to take() again at the latest; nothing: there is nothing left for that target.
  std::optional<Clock::time_point> ended(Batch batch, Outcome outcome, Clock::time_point now);

  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

 private:
  struct Waiting {
    FetchedObject object;
    Clock::time_point since{};
  };
  struct Target {
    std::deque<Waiting> waiting{};
    bool is_under_way = false;  // a request
    Clock::time_point not_before{};
  };
  void refused_locked(Target& target, size_t count, Clock::time_point until);

  std::atomic<size_t> waiting_{0};    // of all targets
  std::atomic<uint64_t> wanted_{0};   // of servers, files
  std::atomic<uint64_t> refused_{0};  // by servers, and forgotten with that
  std::mutex mu_;
  std::map<uint32_t, Target> targets_;
};

}  // namespace braidfs::client::prefetch
