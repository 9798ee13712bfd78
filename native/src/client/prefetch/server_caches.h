// The page caches of storage servers as a sink: which small files servers are told to read before
// anybody asks (docs/decisions/0049-fetched-ahead.md).
//
// Wanted files wait at most kPatience until programs are known to read files whole
// (whole_small_files.h). Then they go to their target, at most kFetchMax files in a request, one
// request at a time. A target without room is left alone for kRest; a target whose server does not
// know FETCH, and hangs up, for kUnknownRest. What waited for it is forgotten, since nothing
// depends on it. Invariant: of each target at most one batch is taken and not ended. Threads: ANY
// THREAD, guarded by mu_. Not here: the requests (server_fetch.h), what servers do with them
// (server/fetcher.h).
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
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

  // The target is on this host: of several replicas of a file this one is read.
  void is_near(uint32_t target);
  // Wants a file whose bytes lie in one object, where it will be read (read_replica.h).
  void want(const Attributes& attributes, const FileView& view, Clock::time_point now);

  struct Batch {
    uint32_t target = 0;
    Clock::time_point since{};  // when its oldest file was wanted
    std::vector<FetchedObject> objects{};
  };
  // Takes the batches that are to be sent now. Each of their targets has a request under way until
  // ended().
  std::vector<Batch> take(Clock::time_point now);
  enum class Outcome : uint8_t { kTaken, kRefused, kUnknown, kUnreached };
  // Returns when to call take() again at the latest; nothing if no file is left for that target.
  std::optional<Clock::time_point> ended(Batch batch, Outcome outcome, Clock::time_point now);

  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

 private:
  struct Waiting {
    FetchedObject object;
    Clock::time_point since{};
  };
  struct Target {
    std::deque<Waiting> waiting{};
    bool is_under_way = false;  // a request is under way
    Clock::time_point not_before{};
  };
  // The replica that read_replica.h asks first while no server is busier than another.
  const Replica& read_first_locked(uint64_t file_id, std::span<const Replica> replicas) const;
  void refused_locked(Target& target, size_t count, Clock::time_point until);

  std::atomic<size_t> waiting_{0};    // files of all targets
  std::atomic<uint64_t> wanted_{0};   // files that servers were asked for
  std::atomic<uint64_t> refused_{0};  // files that servers refused, and that were forgotten
  std::mutex mu_;
  std::map<uint32_t, Target> targets_;
  std::set<uint32_t> near_;
};

}  // namespace braidfs::client::prefetch
