// Which storage servers are not there, and since when, as all lanes together have found.
//
// A server is missing after an attempt to connect has failed, or a connection was silent until it
// was cut. It is so as long as attempts to reach it go on: while one is under way, and for kCounts
// after the last one has failed. So a call that comes later, at whichever lane and of whichever
// file, need not wait as long again as the first one did before its replica is dropped (link.cpp),
// and what was found a while ago does not count against a server that may be back.
// Threads: ANY THREAD, guarded by mu_.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/clock.h"

namespace braidfs::client {

class MissingServers {
 public:
  // Longer than a link pauses between two attempts.
  static constexpr std::chrono::seconds kCounts{3};

  // An attempt to connect begins, and ends.
  void attempt_begins(uint32_t node, Clock::time_point now);
  void attempt_ends(uint32_t node);
  // It has not been there since then.
  void failed(uint32_t node, Clock::time_point since, Clock::time_point now);
  // It is there: it has answered, or the cluster map says so.
  void found(uint32_t node);
  // Since when it has been missing; nothing if it is not.
  std::optional<Clock::time_point> since(uint32_t node, Clock::time_point now);
  // For so long before `now` the process did not run, and could not hear of any server.
  void excuse(Clock::duration late, Clock::time_point now);

 private:
  struct Server {
    std::optional<Clock::time_point> missing_since;
    Clock::time_point failed{};  // last
    uint32_t attempts = 0;       // under way
  };
  static std::optional<Clock::time_point> since(const Server& server, Clock::time_point now);

  std::mutex mu_;
  std::unordered_map<uint32_t, Server> servers_;  // guarded by mu_
};

}  // namespace braidfs::client
