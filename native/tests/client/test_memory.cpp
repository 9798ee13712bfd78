// Budgets of buffers, and what is kept of those that came back.
#include "client/memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace braidfs::client {
namespace {

constexpr uint32_t kPiece = 1u << 20;
constexpr uint32_t kQuarter = 256u << 10;

std::vector<Buffer> take(Memory& memory, size_t count, uint32_t size) {
  std::vector<Buffer> out;
  for (size_t number = 0; number < count; ++number) out.push_back(memory.dirty(size, true));
  return out;
}

TEST(Memory, KeepsWhatCameBackUntilNobodyNeedsIt) {
  Memory memory({.dirty_bytes_max = 64u << 20, .held_bytes_max = 64u << 20}, 2);
  take(memory, 100, kPiece);
  EXPECT_EQ(memory.account(Buffer::Account::kDirty), 0u);
  EXPECT_EQ(memory.idle_bytes(), 100u * kPiece);
  memory.rest({});
  take(memory, 10, kPiece);
  memory.rest({});
  EXPECT_EQ(memory.idle_bytes(), 10u * kPiece);
  memory.rest({});
  EXPECT_EQ(memory.idle_bytes(), 0u);
}

TEST(Memory, GivesAllBackThatIsIdle) {
  Memory memory({.dirty_bytes_max = 64u << 20, .held_bytes_max = 64u << 20}, 2);
  take(memory, 100, kPiece);
  const auto used = take(memory, 3, kPiece);
  memory.give_back();
  EXPECT_EQ(memory.idle_bytes(), 0u);
  EXPECT_EQ(memory.account(Buffer::Account::kDirty), 3u * kPiece);
}

TEST(Memory, WriteBehindHasLessWhereMemoryIsShort) {
  Memory memory({.dirty_bytes_max = 64u << 20, .held_bytes_max = 64u << 20}, 2);
  const auto behind = [&memory] {
    std::vector<Buffer> taken;
    while (Buffer buffer = memory.dirty(kPiece, false)) taken.push_back(std::move(buffer));
    return taken.size();
  };
  const size_t usual = behind();
  memory.squeeze(true);
  EXPECT_EQ(behind(), usual / 4);
  EXPECT_TRUE(memory.dirty(kPiece, true)) << "who waits is let through";
  memory.squeeze(false);
  EXPECT_EQ(behind(), usual);
}

TEST(Memory, KeepsSomeReadyForTheNextBurst) {
  constexpr uint64_t kWarm = 100u * kPiece;
  Memory memory({.dirty_bytes_max = 64u << 20, .held_bytes_max = 64u << 20}, 2);
  memory.rest({.pieces = kWarm});
  EXPECT_EQ(memory.idle_bytes(), kWarm);
  take(memory, 120, kPiece);
  EXPECT_EQ(memory.idle_bytes(), 120u * kPiece);
  memory.rest({.pieces = kWarm});
  memory.rest({.pieces = kWarm});
  EXPECT_EQ(memory.idle_bytes(), kWarm);
  memory.rest({.pieces = 1000u * kPiece});
  EXPECT_EQ(memory.idle_bytes(), 128u * kPiece);  // the budgets
  memory.rest({});
  memory.rest({});
  EXPECT_EQ(memory.idle_bytes(), 0u);
}

TEST(Memory, KeepsSomeReadyForTheNextRestore) {
  constexpr uint64_t kWarm = 16u * kPiece;
  Memory memory(
      {.dirty_bytes_max = 64u << 20, .held_bytes_max = 64u << 20, .read_bytes_max = 32u << 20}, 2);
  memory.rest({.pieces = kWarm, .reads = kWarm});
  EXPECT_EQ(memory.idle_bytes(), 2 * kWarm);
  {
    const Buffer buffer = memory.read(kPiece);
    EXPECT_EQ(memory.idle_bytes(), 2 * kWarm - kPiece) << "it was one of those";
  }
  memory.rest({.pieces = kWarm, .reads = 1000u * kPiece});
  EXPECT_EQ(memory.idle_bytes(), kWarm + (32u << 20)) << "the budget";
  memory.rest({});
  memory.rest({});
  EXPECT_EQ(memory.idle_bytes(), 0u);
}

TEST(Memory, NeverKeepsMoreThanTheBudgetsBesideWhatIsInUse) {
  constexpr uint64_t kBudget = 32u << 20;
  constexpr uint64_t kBesides = 32u << 20;
  Memory memory({.dirty_bytes_max = kBudget / 2, .held_bytes_max = kBudget / 2}, 2);
  take(memory, 32, kPiece);
  const auto small = take(memory, 240, kQuarter);
  EXPECT_LE(memory.account(Buffer::Account::kDirty) + memory.idle_bytes(), kBudget + kBesides);
  EXPECT_GT(memory.idle_bytes(), 0u);
  const auto large = take(memory, 40, kPiece);
  EXPECT_EQ(memory.idle_bytes(), 0u);
}

}  // namespace
}  // namespace braidfs::client
