// A WRITE by one who may not keep a file's set-id bits: what of them goes, and when it is answered.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/set_ids.h"
#include "fuse/eof_pages.h"
#include "rig.h"

namespace braidfs::client {
namespace {

using rig::Bytes;
using rig::Rig;

constexpr uint32_t kGroup = 4242;

// Its notifications wait until forgotten() is called.
struct Written : Rig {
  explicit Written(uint32_t open_flags) {
    core->page_invalidator(
        [this](uint64_t, uint64_t offset, uint64_t, uint64_t, auto then) {
          const std::scoped_lock lock(mu);
          offsets.push_back(offset);
          if (then) waiting.push_back(std::move(then));
        },
        eof_pages);
    open(kFh, open_flags, 100);
  }
  ~Written() { core->stop(0); }
  uint64_t start(uint32_t write_flags) {
    const Bytes bytes = rig::pattern(10, 1);
    const uint64_t unique = ++last;
    on_lane(0, [&](fuse::LaneContext& context) {
      core->write(context, {.head = {.unique = unique, .gid = kGroup + 1},
                            .fh = kFh,
                            .write_flags = write_flags,
                            .payload = bytes});
    });
    return unique;
  }
  void forgotten() {
    const std::scoped_lock lock(mu);
    for (const auto& then : std::exchange(waiting, {})) then();
  }
  std::vector<uint64_t> invalidated() {
    const std::scoped_lock lock(mu);
    return offsets;
  }

  uint64_t last = 1000;
  std::mutex mu;
  std::vector<uint64_t> offsets;
  std::vector<std::function<void()>> waiting;
  fuse::EofPages eof_pages{[](auto, auto) {}};
};

TEST(SetIds, ADirectWriteIsAnsweredWhenTheKernelHasForgottenThem) {
  Written rig(O_RDWR | O_DIRECT);
  rig.core->set_ids_put(Rig::kIno, S_IFREG | 04777, kGroup);
  const uint64_t first = rig.start(fuse::kWriteKillSuidgid);
  EXPECT_FALSE(rig.replier.wait_for(first, 50));
  EXPECT_EQ(rig.invalidated(), std::vector{Core::kAttributesAlone});
  rig.forgotten();
  EXPECT_EQ(rig.replier.wait(first).count, 10u);
  EXPECT_EQ(rig.replier.wait(rig.start(fuse::kWriteKillSuidgid)).count, 10u) << "told once";
  EXPECT_EQ(rig.flush(Rig::kFh), 0);
  EXPECT_EQ(rig.commits().at(0).flags & (kCommitKillSuidgid | kCommitKillSgid), kCommitKillSuidgid);
}

// The kernel waits for its answer before it forgets anything of the page.
TEST(SetIds, TheWriteBackOfAPageNeverWaits) {
  Written rig(O_RDWR | O_DIRECT);
  rig.core->set_ids_put(Rig::kIno, S_IFREG | 04777, kGroup);
  EXPECT_EQ(rig.replier.wait(rig.start(fuse::kWriteKillSuidgid | fuse::kWriteFromCache)).count,
            10u);
  EXPECT_TRUE(rig.invalidated().empty());
}

TEST(SetIds, NoOtherWriteWaits) {
  Written direct(O_RDWR | O_DIRECT);
  EXPECT_EQ(direct.replier.wait(direct.start(fuse::kWriteKillSuidgid)).count, 10u) << "it has none";
  direct.core->set_ids_put(Rig::kIno, S_IFREG | 0777, kGroup);
  EXPECT_EQ(direct.replier.wait(direct.start(fuse::kWriteKillSuidgid)).count, 10u);
  direct.core->set_ids_put(Rig::kIno, S_IFREG | 06777, kGroup);
  EXPECT_EQ(direct.replier.wait(direct.start(0)).count, 10u) << "who writes may keep them";
  Written buffered(O_RDWR);
  buffered.core->set_ids_put(Rig::kIno, S_IFREG | 06777, kGroup);
  EXPECT_EQ(buffered.replier.wait(buffered.start(fuse::kWriteKillSuidgid)).count, 10u);
}

uint32_t killed(uint32_t mode, uint32_t gid, uint32_t pid) {
  const fuse::WriteRequest request{
      .head = {.gid = gid, .pid = pid}, .write_flags = fuse::kWriteKillSuidgid, .payload = {}};
  return kill_flags(request, {mode, kGroup});
}

TEST(SetIds, ThatOfAGroupThatMayNotExecuteStaysForItsMembers) {
  EXPECT_EQ(killed(S_IFREG | 02767, kGroup, 0), kCommitKillSuidgid);
  EXPECT_EQ(killed(S_IFREG | 02767, kGroup + 1, 0), kCommitKillSuidgid | kCommitKillSgid)
      << "no such process";
  EXPECT_EQ(killed(S_IFREG | 02777, kGroup + 1, 0), kCommitKillSuidgid)
      << "the usual rule takes it";
  gid_t groups[1024];
  const int count = getgroups(1024, groups);
  for (int index = 0; index < count; ++index) {
    const fuse::WriteRequest request{
        .head = {.gid = kGroup, .pid = static_cast<uint32_t>(getpid())},
        .write_flags = fuse::kWriteKillSuidgid,
        .payload = {}};
    EXPECT_EQ(kill_flags(request, {S_IFREG | 02767, groups[index]}), kCommitKillSuidgid);
  }
  EXPECT_EQ(kill_flags({}, {S_IFREG | 06777, kGroup}), 0u);
}

}  // namespace
}  // namespace braidfs::client
