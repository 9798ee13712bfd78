// A client whose lanes count leases, for tests of what they do with and without one.
#pragma once
#include <fcntl.h>

#include "rig.h"

namespace braidfs::client::rig {

inline constexpr uint64_t kFh = Rig::kFh;
inline constexpr uint64_t kIno = Rig::kIno;
inline constexpr uint32_t kBoth = kLeaseData | kLeaseDataExclusive;
inline constexpr int kShortly_ms = 100;

// One file is open; leases count, and none is held.
struct LeasedRig : Rig {
  explicit LeasedRig(uint64_t size = 0) {
    core->page_invalidator(
        [this](uint64_t ino, uint64_t offset, uint64_t length, uint64_t read, const auto& then) {
          if (read != 0) eof_pages.end(ino, read);
          if (then) then();
          const std::scoped_lock lock(mu);
          if (at_invalidation) at_invalidation();
          invalidated.emplace_back(offset, length);
        },
        eof_pages);
    open(kFh, O_RDWR, size);
    core->lease_until(Clock::now() + std::chrono::hours(1));
  }
  ~LeasedRig() { core->stop(0); }  // lanes use what is below
  size_t asked() { return events(EventKind::kAsk).size(); }
  void wait_asked(size_t count) {
    for (int tries = 0; tries < 5000 && asked() < count; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(asked(), count);
  }
  void stall(Op op) {
    targets[0]->decide([op](const FrameHeader& header) {
      const bool stalls = header.op == static_cast<uint8_t>(op);
      return FakeTarget::Decision{stalls ? FakeTarget::Fault::kStall : FakeTarget::Fault::kNone,
                                  {}};
    });
  }
  // Under the exclusive lease; the bytes are at the target then, and not durable.
  void write_and_flush(uint64_t offset = 0) {
    core->inode_lease(kIno, kBoth, 0);
    EXPECT_EQ(write(kFh, offset, pattern(1000, 7)).count, 1000u);
    EXPECT_EQ(flush(kFh), 0);
  }
  // A lane invalidates pages behind its answer, in the same turn.
  size_t invalidates() {
    for (uint32_t lane = 0; lane < RigSettings{}.lanes; ++lane)
      on_lane(lane, [](fuse::LaneContext&) {});
    const std::scoped_lock lock(mu);
    return invalidated.size();
  }
  std::mutex mu;
  std::function<void()> at_invalidation;  // guarded by mu
  std::vector<std::pair<uint64_t, uint64_t>> invalidated;
  fuse::EofPages eof_pages{[](auto, auto) {}};
};

}  // namespace braidfs::client::rig
