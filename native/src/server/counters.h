// What one lane has done, as numbers that only rise (gauges are marked).
//
// Threads: written by the lane, or by a worker that serves it; read by ANY THREAD: relaxed atomics,
// summed over the lanes by ChunkServer.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace braidfs::server {

using Counter = std::atomic<uint64_t>;

inline void add(Counter& counter, uint64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}
inline void subtract(Counter& counter, uint64_t amount = 1) {
  counter.fetch_sub(amount, std::memory_order_relaxed);
}

// How long requests of one kind took: a count for each span of time, and the sum. The time begins
// with the header of the frame, so it includes receiving the bytes of a WRITE, and ends when the
// reply is handed to the connection.
struct Latency {
  // Upper bounds in microseconds; longer ones are in the last count.
  static constexpr std::array<uint64_t, 15> kBounds = {
      25,     50,     100,    250,     500,     1000,      2500,      5000,
      10'000, 25'000, 50'000, 100'000, 500'000, 1'000'000, 10'000'000};
  std::array<Counter, kBounds.size() + 1> counts{};
  Counter sum_us{0};

  void took(uint64_t us) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), us);
    add(counts[static_cast<size_t>(bound - kBounds.begin())]);
    add(sum_us, us);
  }
};

struct alignas(64) Counters {
  Counter reads{0}, writes{0}, syncs{0}, truncates{0}, punches{0}, stats{0}, deletes{0}, fences{0},
      pings{0}, seeks{0}, copies{0}, deletes_all{0}, deleted_objects{0}, fetches{0},
      epoch_raises{0}, name_drops{0};
  // copied: on this server, not for a client
  Counter read_bytes{0}, written_bytes{0}, copied_bytes{0};
  // The last one counts lent reads of all three kinds.
  Counter reads_inline{0}, reads_uring{0}, reads_worker{0}, reads_lent{0};
  Counter writes_inline{0}, writes_uring{0}, writes_worker{0};
  Counter payload_checksum_errors{0}, corrupt_blocks{0};
  Counter refused_requests{0}, refused_frames{0}, refused_capabilities{0}, busy_requests{0};
  Counter connections{0}, connections_adopted{0}, in_flight{0};      // the 1st and 3rd are gauges
  Counter buffer_bytes{0}, buffer_waits{0}, stalled_connections{0};  // the 1st is a gauge
  Latency read_time, write_time, sync_time, other_time;

  // Calls visit(name, counter) for each counter; the names are those of ChunkServer.counters().
  template <typename Visit>
  void each(Visit visit) const {
    visit("reads", reads);
    visit("writes", writes);
    visit("syncs", syncs);
    visit("truncates", truncates);
    visit("punches", punches);
    visit("stats", stats);
    visit("deletes", deletes);
    visit("fences", fences);
    visit("pings", pings);
    visit("seeks", seeks);
    visit("copies", copies);
    visit("deletes_all", deletes_all);
    visit("deleted_objects", deleted_objects);
    visit("fetches", fetches);
    visit("epoch_raises", epoch_raises);
    visit("name_drops", name_drops);
    visit("read_bytes", read_bytes);
    visit("written_bytes", written_bytes);
    visit("copied_bytes", copied_bytes);
    visit("reads_inline", reads_inline);
    visit("reads_lent", reads_lent);
    visit("reads_uring", reads_uring);
    visit("reads_worker", reads_worker);
    visit("writes_inline", writes_inline);
    visit("writes_uring", writes_uring);
    visit("writes_worker", writes_worker);
    visit("payload_checksum_errors", payload_checksum_errors);
    visit("corrupt_blocks", corrupt_blocks);
    visit("refused_requests", refused_requests);
    visit("refused_frames", refused_frames);
    visit("refused_capabilities", refused_capabilities);
    visit("busy_requests", busy_requests);
    visit("connections", connections);
    visit("connections_adopted", connections_adopted);
    visit("in_flight", in_flight);
    visit("buffer_bytes", buffer_bytes);
    visit("buffer_waits", buffer_waits);
    visit("stalled_connections", stalled_connections);
  }

  // Calls visit(op, latency) for each kind of request.
  template <typename Visit>
  void each_latency(Visit visit) const {
    visit("READ", read_time);
    visit("WRITE", write_time);
    visit("SYNC", sync_time);
    visit("OTHER", other_time);
  }
};

}  // namespace braidfs::server
