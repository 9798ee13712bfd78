// Every kind of damage to every file of a target: flipped bits in each field, zeroed pages,
// truncated and missing files. Whatever was synced before is read as it was or gives an error, and
// nothing else, in the first run after it, after writes beside it, and in later runs. An error is
// logged with the object's name. Only a target without a good superblock is refused, and other
// objects than the damaged ones are read as before.
//
// BRAIDFS_DAMAGES sets how many places of each scenario are tried (default 200), BRAIDFS_SEED which
// ones.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "fixture.h"
#include "store/fault.h"

namespace braidfs::store::test {
namespace {

struct Extent {
  uint64_t offset = 0;
  Bytes8 bytes;
};

// What reads of these places return; empty: there is no object.
using Content = std::vector<Extent>;

constexpr uint64_t kMiB = 1 << 20;
const ObjectId kSmall{1, 0}, kLarge{2, 0}, kSparse{3, 1}, kCut{4, 0}, kRemoved{5, 0},
    kPunched{6, 2}, kGrown{7, 0};

struct Target {
  Host host{1};
  bool rebooted = false;
  std::map<ObjectId, Content> wanted;
};

// How the target's run ended, and which of its changes are in pages and which in the log.
struct Scenario {
  const char* name;
  bool first_in_pages;
  bool second_in_pages;
  enum End : uint8_t { kStop, kKill, kCutPower, kKillInCheckpoint } end;
};

constexpr Scenario kScenarios[] = {
    {"all in the log, killed", false, false, Scenario::kKill},
    {"all in the log, power cut", false, false, Scenario::kCutPower},
    {"pages and log, killed", true, false, Scenario::kKill},
    {"pages and log, power cut", true, false, Scenario::kCutPower},
    {"pages written twice, killed", true, true, Scenario::kKill},
    {"pages written once, stopped", false, false, Scenario::kStop},
    {"pages written twice, stopped", true, false, Scenario::kStop},
    {"killed in a checkpoint", true, false, Scenario::kKillInCheckpoint},
};

class Builder {
 public:
  Builder(Target& target, const Scenario& scenario) : target_(target), scenario_(scenario) {}

  void build() {
    device_ = target_.host.boot();
    store_ = open_store(device_);
    first();
    const Status first_done = scenario_.first_in_pages ? store_->checkpoint() : Status::kOk;
    EXPECT_EQ(first_done, Status::kOk);
    second();
    const Status second_done = scenario_.second_in_pages ? store_->checkpoint() : Status::kOk;
    EXPECT_EQ(second_done, Status::kOk);
    end();
  }

 private:
  void write(ObjectId id, uint64_t offset, size_t length) {
    EXPECT_EQ(put(*store_, id, offset, pattern(++serial_, length), epochs_[id]), Status::kOk);
    EXPECT_EQ(store_->sync(id), Status::kOk);
  }
  void truncate(ObjectId id, uint64_t length) {
    EXPECT_EQ(store_->truncate(id, length, ++epochs_[id]), Status::kOk);
  }
  void first() {
    write(kSmall, 0, 10000);
    write(kLarge, 0, kMiB + 70000);
    write(kSparse, 300 * kMiB, 5000);
    write(kCut, 0, 3 * kMiB);
    write(kRemoved, 0, 9000);
    write(kPunched, 0, 2 * kMiB);
    write(kGrown, 0, 4096);
  }
  void second() {
    write(kLarge, 0, kMiB);             // it changes its slot
    write(kLarge, kMiB + 4096, 12288);  // REDO
    write(kSmall, 5000, 100);
    write(kSparse, 70000 * kMiB, 4096);
    write(kGrown, kMiB, 8192);
    truncate(kCut, 5000);
    write(kCut, 2 * kMiB, 4096);
    EXPECT_EQ(store_->remove(kRemoved), Status::kOk);
    EXPECT_EQ(store_->punch(kPunched, 4096, kMiB, epochs_[kPunched]), Status::kOk);
    EXPECT_EQ(store_->sync(kPunched), Status::kOk);
    write(kGrown, 2 * kMiB, 4096);
    keep(kSmall, {{0, 20000}});
    keep(kLarge, {{0, kMiB + 80000}});
    keep(kSparse, {{0, 4096}, {300 * kMiB - 4096, 20000}, {70000 * kMiB - 4096, 20000}});
    keep(kCut, {{0, 3 * kMiB}});
    keep(kPunched, {{0, 3 * kMiB}});
    keep(kGrown, {{0, 3 * kMiB}});
    target_.wanted[kRemoved] = {};
  }
  void keep(ObjectId id, std::initializer_list<std::pair<uint64_t, uint32_t>> places) {
    for (const auto& [offset, length] : places)
      target_.wanted[id].push_back({offset, get(*store_, id, offset, length).bytes});
  }
  void end() {
    Host& host = target_.host;
    switch (scenario_.end) {
      case Scenario::kStop:
        EXPECT_EQ(store_->stop(), Status::kOk);
        break;
      case Scenario::kKillInCheckpoint:
        dying_ = &host;
        fault_hook = [](FaultPoint point) {
          if (point == FaultPoint::kCheckpointAfterPages) dying_->die();
        };
        EXPECT_NE(store_->checkpoint(), Status::kOk);
        fault_hook = nullptr;
        break;
      // It comes some time later, when everything has reached the device by itself.
      case Scenario::kCutPower:
        EXPECT_EQ(device_->sync_all(), 0);
        target_.rebooted = true;
        break;
      case Scenario::kKill:
        break;
    }
    store_.reset();
    if (scenario_.end == Scenario::kCutPower)
      host.cut();
    else
      host.kill();
  }

  static inline Host* dying_ = nullptr;
  Target& target_;
  const Scenario scenario_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<ChunkStore> store_;
  std::map<ObjectId, uint32_t> epochs_;
  uint64_t serial_ = 0;
};

struct Damage {
  enum Kind : uint8_t { kFlip, kZero, kShorten, kRemove } kind;
  std::string path;
  uint64_t offset = 0;
};

std::string name_of(const Damage& damage) {
  static constexpr const char* kNames[] = {"flip", "zero", "shorten", "remove"};
  return std::string(kNames[damage.kind]) + " " + damage.path + " at " +
         std::to_string(damage.offset);
}

bool is_record_page(uint64_t offset) { return offset % kSlotDistance % kGroupStride == 0; }

// Places of all classes in a file; of blocks' bytes only some, because they are all alike.
void places_of(const std::string& path, Inode& inode, std::vector<Damage>& damages) {
  const bool is_object = path.starts_with("objects/");
  damages.push_back({Damage::kRemove, path});
  damages.push_back({Damage::kShorten, path, 0});
  uint64_t number = 0;
  for (const uint64_t page : inode.now.page_offsets()) {
    if (is_object && !is_record_page(page) && ++number % 61 != 1) continue;
    damages.push_back({Damage::kZero, path, page});
    damages.push_back({Damage::kShorten, path, page});
    damages.push_back({Damage::kShorten, path, page + 24});
    for (uint64_t at = 0; at < 4096; at += at < 96 ? 4 : 251) {
      if (page + at < inode.now.size()) damages.push_back({Damage::kFlip, path, page + at});
    }
  }
}

bool apply(Host& host, const Damage& damage) {
  const auto inode = host.find(damage.path);
  std::array<std::byte, 4096> before{};
  switch (damage.kind) {
    case Damage::kFlip:
      inode->now.flip(damage.offset, static_cast<uint8_t>(1u << (damage.offset / 4 % 8)));
      return true;
    case Damage::kZero:
      inode->now.read(damage.offset, before);
      inode->now.zero(damage.offset, std::min<uint64_t>(4096, inode->now.size() - damage.offset));
      return before != std::array<std::byte, 4096>{};
    case Damage::kShorten:
      if (damage.offset >= inode->now.size()) return false;
      inode->now.resize(damage.offset);
      return true;
    case Damage::kRemove:
      host.forget(damage.path);
      return true;
  }
  return false;
}

class Check {
 public:
  Check(const Target& target, const Damage& damage) : target_(target), damage_(damage) {
    host_.become(target.host);
    applied_ = test::apply(host_, damage);
  }

  void run() {
    if (!applied_) return;
    if (!look("after the damage", Then::kKill) || !look("after a kill", Then::kWrite)) return;
    if (look("after writes beside it", Then::kStop)) look("after a stop", Then::kKill);
  }
  bool found() const { return !errors_.empty() || refused_; }

 private:
  enum class Then : uint8_t { kKill, kWrite, kStop };

  bool look(const char* when, Then then) {
    SCOPED_TRACE(name_of(damage_) + ", " + when);
    std::string told;
    StoreConfig config = small_config();
    config.on_log = [&](int level, const std::string& text) {
      if (level >= 30) told += text + "\n";
    };
    config.on_corrupt = [&](const CorruptBlock& block) {
      told += object_path(block.object) + "\n";
    };
    const bool is_first = std::exchange(first_look_, false);
    StoreOpened opened = ChunkStore::open(host_.boot(is_first && target_.rebooted), config);
    if (!opened.store) {
      refused_ = true;
      EXPECT_EQ(damage_.path, "superblock") << opened.message;
      EXPECT_FALSE(opened.message.empty());
      return false;
    }
    read_all(*opened.store, told);
    if (then == Then::kWrite) write_beside(*opened.store);
    if (then == Then::kStop) {
      EXPECT_EQ(opened.store->stop(), Status::kOk);
    }
    opened.store.reset();
    host_.kill();
    return !::testing::Test::HasFailure();
  }

  void read_all(ChunkStore& store, const std::string& told) {
    for (const auto& [id, content] : target_.wanted) {
      bool failed = false;
      for (const Extent& extent : content) failed |= !is_right(store, id, extent);
      if (content.empty()) {
        EXPECT_NE(get(store, id, 0, 9000).status, Status::kOk) << object_path(id) << " is back";
      } else {
        failed |= !finds_data(store, id, content);
      }
      if (!failed) continue;
      errors_.insert(id);
      EXPECT_NE(told.find(object_path(id)), std::string::npos)
          << object_path(id) << " is not told: " << told;
      if (damage_.path.starts_with("objects/")) {
        EXPECT_EQ(damage_.path, object_path(id)) << "it is not concerned";
      }
    }
    if (damage_.kind == Damage::kFlip) {
      EXPECT_LE(errors_.size(), 1u) << "the rest of the target goes on";
    }
  }

  // False: a read gave an error.
  bool is_right(ChunkStore& store, ObjectId id, const Extent& extent) {
    const Got got = get(store, id, extent.offset,
                        static_cast<uint32_t>(std::max<size_t>(extent.bytes.size(), 4096)));
    const bool gone = damage_.kind == Damage::kRemove && damage_.path == object_path(id);
    if (got.status == Status::kNoObject && gone)
      return true;  // the metaserver knows that there must be an object
    if (got.status != Status::kOk) {
      EXPECT_EQ(got.status, Status::kCorrupt) << object_path(id);
      return false;
    }
    Bytes8 wanted = extent.bytes;
    if (const auto found = written_.find(id); found != written_.end())
      lay_over(wanted, extent.offset, found->second);
    EXPECT_GE(got.bytes.size(), wanted.size())
        << object_path(id) << " at " << extent.offset << " is short";
    const bool same = got.bytes.size() >= wanted.size() &&
                      std::equal(wanted.begin(), wanted.end(), got.bytes.begin());
    EXPECT_TRUE(same) << object_path(id) << " has other bytes at " << extent.offset;
    return true;
  }
  static void lay_over(Bytes8& wanted, uint64_t offset, const Extent& written) {
    for (size_t i = 0; i < written.bytes.size(); ++i) {
      const uint64_t at = written.offset + i;
      if (at >= offset && at < offset + wanted.size()) wanted[at - offset] = written.bytes[i];
    }
  }

  // A seek must not skip data: programs that copy would leave it out.
  bool finds_data(ChunkStore& store, ObjectId id, const Content& content) {
    SeekResult result{.at = 0, .ended = false};
    Status status = Status::kOk;
    for (uint64_t from = 0; status == Status::kOk && !result.ended; from = result.at)
      status = store.seek(id, 9, from, false, result);
    if (status != Status::kOk)
      return damage_.kind == Damage::kRemove && status == Status::kNoObject;
    const uint64_t first = content.size() == 1 ? 0 : 300 * kMiB;  // this is for kSparse
    EXPECT_LE(result.at, first) << object_path(id);
    return true;
  }

  // Bytes beside damage may be written; that must not make the damage look right.
  void write_beside(ChunkStore& store) {
    for (const auto& [id, content] : target_.wanted) {
      if (content.empty()) continue;
      if (damage_.kind == Damage::kRemove && damage_.path == object_path(id)) continue;
      Extent extent{content[0].offset + 4096, pattern(99, 4096)};
      if (put(store, id, extent.offset, extent.bytes, 9) != Status::kOk) continue;
      EXPECT_EQ(store.sync(id), Status::kOk);
      written_[id] = std::move(extent);
    }
  }

  const Target& target_;
  const Damage damage_;
  Host host_{2};
  bool applied_ = false;
  bool refused_ = false;
  bool first_look_ = true;
  std::set<ObjectId> errors_;
  std::map<ObjectId, Extent> written_;
};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class EveryDamage : public ::testing::TestWithParam<Scenario> {};

TEST_P(EveryDamage, IsAnErrorOrWithoutEffect) {
  Target target;
  Builder(target, GetParam()).build();
  std::vector<Damage> damages;
  target.host.for_each_file("", [&](const std::string& path, Inode& inode) {
    places_of(path.starts_with("/") ? path.substr(1) : path, inode, damages);
  });
  std::mt19937_64 random(number_from("BRAIDFS_SEED", 1));
  std::shuffle(damages.begin(), damages.end(), random);
  // Rare kinds come first: missing or shorter files, whole pages.
  std::stable_partition(damages.begin(), damages.end(),
                        [](const Damage& damage) { return damage.kind != Damage::kFlip; });
  const size_t count = std::min<size_t>(damages.size(), number_from("BRAIDFS_DAMAGES", 200));
  size_t found = 0;
  for (const Damage& damage : std::span(damages).first(count)) {
    Check check(target, damage);
    check.run();
    found += check.found() ? 1 : 0;
    ASSERT_FALSE(HasFailure()) << GetParam().name << ": " << name_of(damage);
  }
  EXPECT_GT(found, count / 8) << "of " << count << " damages";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, EveryDamage, ::testing::ValuesIn(kScenarios));

}  // namespace
}  // namespace braidfs::store::test
