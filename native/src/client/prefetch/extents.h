// The words that the table, the policies and the sinks of the prefetcher have in common.
// Plain values, any thread.
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

// For whom the kernel sends a READ: for a program that reads past the page cache (O_DIRECT), or to
// fill its page cache, which it does once for each page as long as it keeps that.
enum class For : uint8_t { kProgram, kPages };

// Whether the bytes of a READ are in the table: not all of them; all of them, but some are still
// under way; or all of them.
enum class Found : uint8_t { kNo, kWait, kYes };

// kNear: a reader is at these bytes, or will be next. kFar: somebody will read them some day; then
// all pieces of one share take no more than that share's part of the budget.
enum class Priority : uint8_t { kNear, kFar };

// Where fetched bytes go. kNone: nothing is fetched. kProbe: nothing is fetched, and what the
// program reads by itself is counted.
enum class Sink : uint8_t { kNone, kProbe, kMemory, kKernelPages, kServers };

// Some bytes of one file that are to be fetched.
struct Extent {
  uint64_t offset = 0;
  uint32_t length = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};
using Extents = std::vector<Extent>;

// Some of the bytes that answer a READ; the parts of one READ lie one behind the other in the file.
struct Part {
  std::shared_ptr<Buffer> buffer;
  uint32_t from = 0;
  uint32_t length = 0;
  std::span<std::byte> span() const noexcept { return buffer->span().subspan(from, length); }
};
using Parts = std::vector<Part>;

// Operations that wait for bytes under way. Whoever gets them has them proceed.
using Waiter = std::shared_ptr<Operation>;
using Waiters = std::vector<Waiter>;

}  // namespace braidfs::client::prefetch
