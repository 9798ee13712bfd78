// Random operations, a death at a random change or a named fault point, a power cut (or only a kill
// of the process), recovery (sometimes cut itself), and then a check: every object is exactly what
// it was after some prefix of its operations that includes all that were synced (after a kill: all
// that were answered). No block may fail its checksum.
//
// BRAIDFS_CUTS sets the number of cuts (default 500), BRAIDFS_SEED the first seed; a failure prints
// the seed that repeats it.
#include <cstdlib>
#include <span>

#include "fixture.h"
#include "store/fault.h"

namespace braidfs::store::test {
namespace {

constexpr uint32_t kObjects = 4;
constexpr uint32_t kSpan = (1u << 20) + (320u << 10);  // it is a whole group and some of the next
constexpr uint32_t kCutsPerHost = 25;

Host* hooked_host = nullptr;
int hooked_point = -1;
int hooked_skip = 0;
std::array<uint64_t, kFaultNames.size()> hits{};

void on_fault(FaultPoint point) {
  if (static_cast<int>(point) != hooked_point || hooked_host == nullptr || hooked_host->dead())
    return;
  if (hooked_skip-- > 0) return;
  ++hits[static_cast<size_t>(point)];
  hooked_host->die();
}

struct Model {  // the model of one object
  Bytes8 now;
  std::vector<uint64_t> states;  // a hash after each operation, failed ones included
  size_t synced = 0;             // states before this index can no longer appear
  size_t answered = 0;
  uint32_t epoch = 0;
  uint32_t epoch_durable = 0;
  bool deleted = false;

  void push() { states.push_back(xxh3(now)); }
};

class Trial {
 public:
  explicit Trial(uint64_t seed) : host_(seed), random_(seed) {
    for (Model& model : models_) model.push();
  }

  void round() {
    if (!store_ && !recover(Death::kKill)) return;
    arm();
    const uint64_t operations = 5 + random_() % 30;
    for (uint64_t i = 0; i < operations && !host_.dead(); ++i) operate();
    const Death death = random_() % 5 == 0 ? Death::kKill : Death::kCut;
    store_.reset();
    end(death);
    if (!recover(death)) return;
    verify();
  }
  bool failed() const { return failed_ || ::testing::Test::HasFailure(); }

 private:
  enum class Death { kKill, kCut };

  ObjectId id(size_t index) const { return {(generation_ << 8) | (index + 1), 0}; }

  void arm() {
    hooked_host = &host_;
    hooked_point = -1;
    if (random_() % 2 == 0) {
      hooked_point = static_cast<int>(random_() % kFaultNames.size());
      hooked_skip = static_cast<int>(random_() % 3);
      for (int tries = 0; tries < 8 && hits[static_cast<size_t>(hooked_point)] != 0; ++tries) {
        // Points that were not hit yet are preferred.
        hooked_point = static_cast<int>(random_() % kFaultNames.size());
        hooked_skip = 0;
      }
    } else {
      host_.die_after(1 + random_() % 120);
    }
  }

  void end(Death death) {
    tell(death == Death::kCut ? "cut" : "kill", 0, static_cast<uint64_t>(hooked_point),
         host_.dead());
    hooked_point = -1;
    if (death == Death::kCut)
      host_.cut();
    else
      host_.kill();
    cut_ = cut_ || death == Death::kCut;
  }

  // Opens the target, sometimes with a cut or kill in the middle of it.
  bool recover(Death death) {
    bool reboot = death == Death::kCut;
    while (random_() % 4 == 0) {
      auto device = host_.boot(reboot);
      arm();
      StoreOpened opened = ChunkStore::open(device, config());
      if (opened.store) opened.store.reset();
      const Death next = random_() % 2 == 0 ? Death::kKill : Death::kCut;
      end(next);
      reboot = next == Death::kCut;
    }
    StoreOpened opened = ChunkStore::open(host_.boot(reboot), config());
    EXPECT_EQ(opened.status, Status::kOk) << opened.message;
    store_ = std::move(opened.store);
    failed_ = failed_ || !store_;
    return store_ != nullptr;
  }

  static StoreConfig config() {
    StoreConfig config = small_config();
    config.log_bytes_max = 1 << 20;
    config.direct_bytes_min = 64 << 10;
    if (std::getenv("BRAIDFS_VERBOSE") != nullptr) {
      config.on_log = [](int, const std::string& text) {
        std::printf("store: %s\n", text.c_str());
      };
      config.on_corrupt = [](const CorruptBlock& block) {
        std::printf("corrupt: object %lx offset %lu\n", block.object.file_id, block.offset);
      };
    }
    return config;
  }

  void operate() {
    const size_t index = random_() % kObjects;
    Model& model = models_[index];
    const uint64_t dice = random_() % 100;
    if (dice < 60)
      write(model, index);
    else if (dice < 75)
      sync(model, index);
    else if (dice < 82)
      punch(model, index);
    else if (dice < 87)
      truncate(model, index);
    else if (dice < 90)
      raise_epoch(model, index);
    else if (dice < 92)
      remove(model, index);
    else if (dice < 95)
      checkpoint();
    else
      read(model, index);
  }

  void tell(const char* what, size_t index, uint64_t a, uint64_t b) const {
    if (std::getenv("BRAIDFS_VERBOSE") != nullptr)
      std::printf("%s object %zu %lu %lu\n", what, index, a, b);
  }
  void answered(Model& model, Status status) {
    tell("answered", 0, static_cast<uint64_t>(status), model.states.size());
    model.push();
    if (status == Status::kOk)
      model.answered = model.states.size() - 1;
    else
      EXPECT_TRUE(host_.dead()) << "status " << static_cast<int>(status);
  }
  // Everything up to the last answered operation is durable.
  void durable(Model& model, Status status) {
    if (status == Status::kOk) model.synced = model.answered;
  }
  static void epoch_is_durable(Model& model, Status status) {
    if (status == Status::kOk) model.epoch_durable = model.epoch;
  }

  void write(Model& model, size_t index) {
    if (model.deleted) return;
    uint64_t offset = random_() % kSpan;
    uint64_t length = 1 + random_() % 20000;
    if (random_() % 3 == 0) {
      offset = offset / 4096 * 4096;
      length = (1 + random_() % 6) * 4096;
    }
    if (random_() % 6 == 0) {  // groups change slots
      offset = 0;
      length = (1 + random_() % 2) * (160u << 10);
    }
    if (random_() % 40 == 0) {
      offset = 0;
      length = 1u << 20;
    }
    length = std::min<uint64_t>(length, kSpan - offset);
    const Bytes8 bytes = pattern(++serial_, length);
    if (model.now.size() < offset + length) model.now.resize(offset + length);
    std::copy(bytes.begin(), bytes.end(), model.now.begin() + static_cast<ptrdiff_t>(offset));
    tell("write", index, offset, length);
    answered(model, put(*store_, id(index), offset, bytes, model.epoch));
  }
  void sync(Model& model, size_t index) {
    tell("sync", index, 0, 0);
    durable(model, store_->sync(id(index)));
  }
  void punch(Model& model, size_t index) {
    const uint64_t offset = random_() % kSpan;
    const uint64_t length = 1 + random_() % (200u << 10);
    if (offset < model.now.size()) {
      const uint64_t end = std::min<uint64_t>(offset + length, model.now.size());
      std::fill(model.now.begin() + static_cast<ptrdiff_t>(offset),
                model.now.begin() + static_cast<ptrdiff_t>(end), std::byte{0});
    }
    tell("punch", index, offset, length);
    const Status status = store_->punch(id(index), offset, length, model.epoch);
    // There is no object, and none is created.
    answered(model, status == Status::kNoObject ? Status::kOk : status);
  }
  void truncate(Model& model, size_t index) {
    if (model.deleted) return;
    const uint64_t length = random_() % 3 == 0 ? 0 : random_() % kSpan;
    model.now.resize(length);
    tell("truncate", index, length, model.epoch);
    const Status status = store_->truncate(id(index), length, ++model.epoch);
    answered(model, status);
    durable(model, status);
    epoch_is_durable(model, status);
  }
  void raise_epoch(Model& model, size_t index) {
    if (model.deleted) return;
    tell("raise", index, model.epoch, 0);
    const Status status = store_->raise_epoch(id(index), ++model.epoch);
    answered(model, status);
    durable(model, status);
    epoch_is_durable(model, status);
  }
  void remove(Model& model, size_t index) {
    tell("remove", index, 0, 0);
    Model* const models[] = {&model, &models_[(index + 1) % kObjects]};
    const ObjectId ids[] = {id(index), id((index + 1) % kObjects)};
    Status statuses[] = {Status::kOk, Status::kOk};
    const size_t count = 1 + random_() % 2;
    store_->remove_all(std::span(ids).first(count), std::span(statuses).first(count));
    for (size_t i = 0; i < count; ++i) {
      models[i]->now.clear();
      answered(*models[i], statuses[i]);
      durable(*models[i], statuses[i]);
      models[i]->deleted = true;
    }
  }
  void checkpoint() {
    tell("checkpoint", 0, 0, 0);
    const Status status = store_->checkpoint();
    for (Model& model : models_) durable(model, status);
  }
  void read(Model& model, size_t index) {
    const Got got = get(*store_, id(index), 0, kSpan);
    if (host_.dead()) return;
    EXPECT_TRUE(got.status == Status::kOk || got.status == Status::kNoObject);
    EXPECT_EQ(got.bytes, model.now);
  }

  void verify() {
    for (size_t index = 0; index < kObjects; ++index) verify(models_[index], index);
    cut_ = false;
    if (random_() % 8 == 0) start_anew();
  }

  void verify(Model& model, size_t index) {
    const Got got = get(*store_, id(index), 0, kSpan);
    const bool read = got.status == Status::kOk || got.status == Status::kNoObject;
    EXPECT_TRUE(read) << "object " << index << " status " << static_cast<int>(got.status);
    const uint64_t hash = xxh3(got.bytes);
    const size_t first = cut_ ? model.synced : model.answered;
    const auto found =
        std::find(model.states.begin() + static_cast<ptrdiff_t>(first), model.states.end(), hash);
    EXPECT_NE(found, model.states.end())
        << "object " << index << (cut_ ? " after a cut" : " after a kill")
        << ": not what it was after any allowed operation; length " << got.bytes.size();
    ObjectFigures figures;
    if (store_->stat(id(index), figures) == Status::kOk) {
      EXPECT_GE(figures.epoch, model.epoch_durable) << "object " << index;
    } else {
      EXPECT_TRUE(model.epoch_durable == 0 || model.deleted) << "object " << index << " is gone";
    }
    model.now = got.bytes;
    model.states.clear();
    model.push();
    model.synced = model.answered = 0;
  }

  // Uses new object ids: those that were deleted stay deleted.
  void start_anew() {
    for (size_t index = 0; index < kObjects; ++index) {
      EXPECT_EQ(store_->remove(id(index)), Status::kOk);
      models_[index] = Model{};
      models_[index].push();
    }
    ++generation_;
  }

  Host host_;
  std::mt19937_64 random_;
  std::unique_ptr<ChunkStore> store_;
  std::array<Model, kObjects> models_{};
  uint64_t serial_ = 0;
  uint64_t generation_ = 1;
  bool cut_ = false;
  bool failed_ = false;
};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(PowerCut, NothingSyncedIsLostAndNothingFailsItsChecksum) {
  const uint64_t cuts = number_from("BRAIDFS_CUTS", 500);
  uint64_t seed = number_from("BRAIDFS_SEED", 1);
  fault_hook = on_fault;
  for (uint64_t done = 0; done < cuts; ++seed) {
    Trial trial(seed);
    for (uint32_t i = 0; i < kCutsPerHost && done < cuts; ++i, ++done) {
      trial.round();
      if (trial.failed()) {
        fault_hook = nullptr;
        FAIL() << "repeat with BRAIDFS_SEED=" << seed << " (round " << i << ")";
      }
    }
  }
  fault_hook = nullptr;
  for (size_t point = 0; point < kFaultNames.size(); ++point)
    EXPECT_GT(hits[point], 0u) << "fault point " << kFaultNames[point] << " was never hit";
}

}  // namespace
}  // namespace braidfs::store::test
