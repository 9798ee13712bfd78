// Core: what it has counted, by name.
#include <string>
#include <utility>
#include <vector>

#include "client/core.h"

namespace braidfs::client {

std::vector<std::pair<std::string, uint64_t>> Core::counters() {
  const auto sum = [&](std::atomic<uint64_t> LaneCounters::*field) {
    uint64_t total = 0;
    for (const auto& lane : lanes_)
      total += (lane->counters().*field).load(std::memory_order_relaxed);
    return total;
  };
  uint64_t polls_paid = 0;
  for (const auto& lane : lanes_) polls_paid += lane->loop().polls_paid();
  auto all = std::vector<std::pair<std::string, uint64_t>>{
      {"reads", sum(&LaneCounters::reads)},
      {"bytes_read", sum(&LaneCounters::bytes_read)},
      {"inline_reads", sum(&LaneCounters::inline_reads)},
      {"inline_births", sum(&LaneCounters::inline_births)},
      {"inline_writes", sum(&LaneCounters::inline_writes)},
      {"commits_with_births", sum(&LaneCounters::commits_with_births)},
      {"opens", own_opens_.load(std::memory_order_relaxed)},
      {"opens_granted", granted_opens_.load(std::memory_order_relaxed)},
      {"opens_stored", opens_stored_.load(std::memory_order_relaxed)},
      {"writes", sum(&LaneCounters::writes)},
      {"bytes_written", sum(&LaneCounters::bytes_written)},
      {"bytes_sent", sum(&LaneCounters::bytes_sent)},
      {"cuts", sum(&LaneCounters::cuts)},
      {"retries", sum(&LaneCounters::retries)},
      {"connections_lost", sum(&LaneCounters::connections_lost)},
      {"polls_paid", polls_paid},
      {"bytes_dirty", memory_.account(Buffer::Account::kDirty)},
      {"bytes_held", memory_.account(Buffer::Account::kHeld)},
      {"bytes_reading", memory_.account(Buffer::Account::kRead)},
      {"bytes_announced", memory_.account(Buffer::Account::kAnnounced)},
      {"inodes", inodes_.count()},
      {"handles", handles_.count()},
      {"logs_dropped", events_.logs_dropped()}};
  announced_.add_counters(all);
  fetch_ahead_.add_counters(all);
  streams_.add_counters(all);
  return all;
}

}  // namespace braidfs::client
