// The public interface of the store: opening, creating and stopping a target, its superblock, the
// background thread.
#include "store/chunk_store.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "store/body.h"
#include "store/fault.h"
#include "store/io.h"
#include "store/recovery.h"

namespace braidfs::store {

namespace {

constexpr char kSuperblock[] = "superblock";
constexpr char kSuperblockNew[] = "superblock.new";
constexpr auto kBackgroundPeriod = std::chrono::milliseconds(500);

}  // namespace

StoreBody::StoreBody(std::shared_ptr<Device> files, const StoreConfig& settings)
    : device_(std::move(files)),
      config_(settings),
      space_(*device_, settings.capacity_bytes, settings.reserve_bytes),
      table_({settings.objects_cached_max, settings.groups_cached_max, settings.files_open_max}) {
  device_->make_room = [this] { return table_.close_files(); };
}

StoreBody::~StoreBody() {
  device_->make_room = [] { return false; };
  thread_.request_stop();
  room_.notify_all();
}

void StoreBody::say(int level, const std::string& text) const {
  if (config_.on_log) config_.on_log(level, text);
}

Status StoreBody::write_superblock() {
  seal(superblock_);
  std::shared_ptr<File> file;
  if (int r = device_->open(kSuperblockNew, OpenMode::kCreate, file); r < 0) return status_of(r);
  const auto raw = std::as_bytes(std::span(&superblock_, 1));
  if (int r = write_whole(*file, raw, 0); r < 0) return status_of(r);
  if (int r = file->sync(); r < 0) return status_of(r);
  fault(FaultPoint::kSuperblockBeforeRename);
  if (int r = device_->rename(kSuperblockNew, kSuperblock); r < 0) return status_of(r);
  fault(FaultPoint::kSuperblockAfterRename);
  return status_of(device_->sync_directory(""));
}

// Creates a target. An interrupted creation is completed; a directory that holds anything else is
// not touched.
Status StoreBody::create_target(std::string& message) {
  std::string foreign;
  device_->list("", [&](std::string_view name) {
    static constexpr std::string_view known[] = {"lock", "wal", "objects", kSuperblockNew,
                                                 "lost+found"};
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) foreign = name;
  });
  message = "the directory has no superblock and is not empty: it holds " + foreign;
  if (!foreign.empty()) return Status::kEinval;
  if (Status s = count_objects(); s == Status::kOk && objects_ != 0) {
    message = "the directory holds objects but no superblock";
    return Status::kEinval;
  }
  message = "cannot create the target";
  int r = device_->make_directory("wal");
  if (r == 0) r = device_->make_directory("objects");
  for (uint32_t i = 0; r == 0 && i < 256; ++i) {
    char path[16];
    std::snprintf(path, sizeof path, "objects/%02x", i);
    r = device_->make_directory(path);
  }
  if (r == 0) r = device_->sync_directory("objects");
  if (r == 0) r = device_->sync_directory("");
  if (r < 0) return status_of(r);
  if (Status s = log_->create(); s != Status::kOk) return s;
  superblock_.cluster = config_.cluster;
  superblock_.uuid = config_.target;
  superblock_.incarnation = 1;
  superblock_.clean = 1;
  superblock_.next_sequence = 1;
  return write_superblock();
}

Status StoreBody::read_superblock(std::string& message) {
  std::shared_ptr<File> file;
  const int opened = device_->open(kSuperblock, OpenMode::kExisting, file);
  if (opened == -ENOENT && config_.create) {
    log_ = std::make_unique<Log>(*device_, config_.target);
    if (Status s = create_target(message); s != Status::kOk) return s;
    return Status::kOk;
  }
  message = opened == -ENOENT ? "the directory is not a target: it has no superblock"
                              : "cannot read the superblock";
  if (opened < 0) return opened == -ENOENT ? Status::kEinval : status_of(opened);
  const auto raw = std::as_writable_bytes(std::span(&superblock_, 1));
  if (int r = read_whole(*file, raw, 0); r < 0) return status_of(r);
  message = refusal(superblock_, config_.cluster);
  if (!message.empty()) return Status::kEinval;
  if (config_.target != Uuid{} && config_.target != superblock_.uuid) {
    message = "it is another target than the one configured";
    return Status::kEinval;
  }
  return Status::kOk;
}

// Counts objects and bytes on the device. That is slow with many objects, so it happens only after
// an unclean end.
Status StoreBody::count_objects() {
  uint64_t objects = 0;
  uint64_t used = 0;
  for (uint32_t i = 0; i < 256; ++i) {
    char path[16];
    std::snprintf(path, sizeof path, "objects/%02x", i);
    const int r = device_->list(path, [&](std::string_view name) {
      ObjectId id;
      std::shared_ptr<File> file;
      FileFigures figures;
      if (!parse_object_name(name, id)) return;
      ++objects;
      if (device_->open(object_path(id), OpenMode::kExisting, file) == 0 &&
          file->figures(figures) == 0)
        used += figures.allocated;
    });
    if (r < 0) return status_of(r);
  }
  objects_ = objects;
  space_.reset(used);
  return Status::kOk;
}

Status StoreBody::open(std::string& message) {
  if (int r = device_->lock("lock"); r < 0) {
    message =
        r == -EWOULDBLOCK ? "the target is in use by another process" : "cannot lock the target";
    return r == -EWOULDBLOCK ? Status::kBusy : status_of(r);
  }
  if (Status s = read_superblock(message); s != Status::kOk) return s;
  space_.refresh();
  const std::string boot = device_->boot_id().substr(0, superblock_.boot_id.size() - 1);
  const bool clean = superblock_.clean != 0;
  const bool same_boot = clean || (!boot.empty() && boot == superblock_.boot_id.data());
  log_ = std::make_unique<Log>(*device_, superblock_.uuid);
  Recovery recovery(*this, same_boot);
  if (Status s = recovery.run(message); s != Status::kOk) return s;
  if (same_boot && recovery.lossy()) {
    ++superblock_.incarnation;
    say(30,
        "the log was damaged: clients are to send again what they had not synced; incarnation " +
            std::to_string(superblock_.incarnation));
  }
  if (!same_boot) {
    ++superblock_.incarnation;
    say(30, "the host was lost: " + std::to_string(recovery.dropped()) +
                " log entries that were not synced are dropped; incarnation " +
                std::to_string(superblock_.incarnation));
  }
  message = "cannot count the objects";
  objects_ = superblock_.objects;
  space_.reset(superblock_.used_bytes);
  if (!clean) {
    if (Status s = count_objects(); s != Status::kOk) return s;
  }
  message = "cannot write the superblock";
  superblock_.clean = 0;
  superblock_.boot_id = {};
  std::copy(boot.begin(), boot.end(), superblock_.boot_id.begin());
  target_ = superblock_.target;
  if (Status s = write_superblock(); s != Status::kOk) return s;
  if (config_.background)
    thread_ = std::jthread([this](const std::stop_token& stop) { background(stop); });
  return Status::kOk;
}

Status StoreBody::stop() {
  if (thread_.joinable()) {
    thread_.request_stop();
    room_.notify_all();
    thread_.join();
  }
  if (Status s = sync_batch(table_.dirty()); s != Status::kOk) return s;
  if (Status s = checkpoint(); s != Status::kOk) return s;
  const std::lock_guard guard(superblock_mu_);
  superblock_.clean = 1;
  superblock_.next_sequence = log_->last_sequence() + 1;
  superblock_.objects = objects_;
  superblock_.used_bytes = space_.used();
  return write_superblock();
}

Status StoreBody::set_target(uint32_t target) {
  const std::lock_guard guard(superblock_mu_);
  superblock_.target = target;
  const Status written = write_superblock();
  if (written == Status::kOk) target_ = target;
  return written;
}

void StoreBody::background(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "braid-store");
  bool failed = false;
  while (!stop.stop_requested()) {
    bool due = true;
    {
      Guard guard(room_mu_);
      due = !room_.wait_for(guard, stop, kBackgroundPeriod, [&] {
        return !failed && (checkpoint_wanted_ || log_->has_much_to_write_out());
      });
    }
    if (stop.stop_requested()) return;
    if (log_->has_much_to_write_out()) log_->write_out();
    if (!due && !checkpoint_wanted_) continue;
    const Status status = background_round();
    const bool fails = status != Status::kOk;
    if (fails && !failed)
      say(40, "cannot sync or checkpoint: status " + std::to_string(static_cast<int>(status)));
    failed = fails;
  }
}

Status StoreBody::background_round() {
  // Writers may have asked again while a checkpoint ran. The flag is cleared even if nothing is
  // left to do: otherwise the thread would never wait again.
  checkpoint_wanted_ = false;
  space_.refresh();
  Status status = sync_older_than(std::chrono::milliseconds(config_.sync_age_ms));
  if (half_full()) status = checkpoint();
  return status;
}

StoreFigures StoreBody::figures() {
  StoreFigures figures;
  figures.target = target_;
  figures.uuid = superblock_.uuid;
  figures.incarnation = superblock_.incarnation;
  figures.bytes_total = space_.bytes_total();
  figures.bytes_free = space_.bytes_free();
  figures.files_total = space_.files_total();
  figures.files_free = space_.files_free();
  figures.objects = objects_;
  figures.errors = errors_;
  figures.log_bytes = log_->bytes();
  figures.redo_bytes = redo_bytes_;
  figures.checkpoints = checkpoints_;
  figures.objects_cached = table_.object_count();
  figures.groups_cached = table_.group_counter();
  figures.files_open = table_.file_counter();
  return figures;
}

ChunkStore::ChunkStore(std::unique_ptr<StoreBody> body) noexcept : body_(std::move(body)) {}
ChunkStore::~ChunkStore() = default;

StoreOpened ChunkStore::open(std::shared_ptr<Device> device, const StoreConfig& config) {
  StoreOpened opened;
  auto body = std::make_unique<StoreBody>(std::move(device), config);
  opened.status = body->open(opened.message);
  if (opened.status != Status::kOk) return opened;
  opened.message.clear();
  opened.store.reset(new ChunkStore(std::move(body)));
  return opened;
}

Status ChunkStore::stop() { return body_->stop(); }

Status ChunkStore::begin_write(WriteOp& op, const WriteRequest& request, Wait wait) {
  return body_->begin_write(op, request, wait);
}
Status ChunkStore::finish_write(WriteOp& op) { return body_->finish_write(op); }
Status ChunkStore::begin_read(ReadOp& op, const ReadRequest& request, Wait wait) {
  return body_->begin_read(op, request, wait);
}
ReadResult ChunkStore::finish_read(ReadOp& op, std::span<uint64_t> sums) {
  return body_->finish_read(op, sums);
}
ReadResult ChunkStore::lend_read(ReadOp& op, std::span<uint64_t> sums, Lent& lent) {
  return body_->lend_read(op, sums, lent);
}

bool ChunkStore::fetch_to_lend(ReadOp& op) { return body_->fetch_to_lend(op); }

Status ChunkStore::fetch(ObjectId object, uint32_t length, Fetching& fetching) {
  return body_->fetch(object, length, fetching);
}

Status ChunkStore::write(const WriteRequest& request) {
  WriteOp op;
  if (Status s = begin_write(op, request, Wait::kYes); s != Status::kOk) return s;
  op.plan().run();
  return finish_write(op);
}

ReadResult ChunkStore::read(const ReadRequest& request, std::span<uint64_t> sums) {
  ReadOp op;
  if (Status s = begin_read(op, request, Wait::kYes); s != Status::kOk) return {s, 0, 0};
  op.plan().run();
  return finish_read(op, sums);
}

Status ChunkStore::sync(ObjectId object, uint32_t epoch) { return body_->sync(object, epoch); }
Status ChunkStore::raise_epoch(ObjectId object, uint32_t epoch, bool must_exist) {
  return body_->raise_epoch(object, epoch, must_exist);
}
Status ChunkStore::make(ObjectId object, uint32_t epoch, bool must_exist) {
  return body_->make(object, epoch, must_exist);
}
Status ChunkStore::truncate(ObjectId object, uint64_t length, uint32_t epoch, bool must_exist) {
  return body_->truncate(object, length, epoch, must_exist);
}
Status ChunkStore::punch(ObjectId object, uint64_t offset, uint64_t length, uint32_t epoch) {
  return body_->punch(object, offset, length, epoch);
}
Status ChunkStore::stat(ObjectId object, ObjectFigures& figures) {
  return body_->stat(object, figures);
}
Status ChunkStore::seek(ObjectId object, uint32_t epoch, uint64_t offset, bool hole,
                        SeekResult& result) {
  return body_->seek(object, epoch, offset, hole, result);
}
Status ChunkStore::examine(ObjectId object, uint32_t group, bool reads, Examined& found) {
  return body_->examine(object, group, reads, found);
}
Status ChunkStore::mend(ObjectId object, uint64_t block, std::span<const std::byte> bytes,
                        Mended& mended) {
  return body_->mend(object, block, bytes, mended);
}
Status ChunkStore::remove(ObjectId object) {
  Status status = Status::kOk;
  body_->remove_all({&object, 1}, {&status, 1});
  return status;
}

void ChunkStore::remove_all(std::span<const ObjectId> objects, std::span<Status> statuses) {
  body_->remove_all(objects, statuses);
}
Status ChunkStore::sync_all() { return body_->sync_older_than(Clock::duration::zero()); }
Status ChunkStore::checkpoint() { return body_->checkpoint(); }
Status ChunkStore::background_round() { return body_->background_round(); }
Status ChunkStore::set_target(uint32_t target) { return body_->set_target(target); }
uint64_t ChunkStore::incarnation() const noexcept { return body_->incarnation(); }
StoreFigures ChunkStore::figures() { return body_->figures(); }
void ChunkStore::limit_files(uint32_t files_open_max) { body_->limit_files(files_open_max); }

}  // namespace braidfs::store
