// Types that the table, the policies and the sinks of the prefetcher share. Plain values, ANY
// THREAD.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/memory.h"
#include "net/event_loop.h"

namespace braidfs::client {
class Operation;
}

namespace braidfs::client::prefetch {

using net::Clock;

// For whom the kernel sends a READ: for a program that bypasses the page cache (O_DIRECT), or to
// fill its page cache. It asks for each page of the cache once, for as long as it keeps the page.
enum class For : uint8_t { kProgram, kPages };

// Whether the bytes of a READ are in the table. kNo: not all of them. kWait: all of them, but some
// are still under way. kYes: all of them.
enum class Found : uint8_t { kNo, kWait, kYes };

// kNear: a reader is at these bytes, or will be there next. kFar: somebody will read them later,
// and all far entries of one share take at most that share's part of the budget.
enum class Priority : uint8_t { kNear, kFar };

// Where fetched bytes go. kNone: nothing is fetched. kProbe: nothing is fetched, and the bytes that
// the program reads by itself are counted.
enum class Sink : uint8_t { kNone, kProbe, kMemory, kKernelPages, kServers };

// An extent of one file that is to be fetched.
struct Extent {
  uint64_t offset = 0;
  uint32_t length = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};
using Extents = std::vector<Extent>;

// One part of the bytes that answer a READ. The parts of one READ follow each other in the file.
struct Part {
  std::shared_ptr<Buffer> buffer;
  uint32_t from = 0;
  uint32_t length = 0;
  std::span<std::byte> span() const noexcept { return buffer->span().subspan(from, length); }
};
using Parts = std::vector<Part>;

// Operations that wait for bytes under way. Whoever gets this list calls proceed() of each.
using Waiter = std::shared_ptr<Operation>;
using Waiters = std::vector<Waiter>;

}  // namespace braidfs::client::prefetch
