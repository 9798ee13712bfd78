#include "client/open_record.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "client/tables.h"

namespace braidfs::client {

namespace {

// The memory is sparse: rows that were never used take none.
constexpr size_t kRowsMax = kHandlesMax + (kHandlesMax >> 2);
constexpr size_t kBytes = kRowsMax * sizeof(OpenRecord::Row);
static_assert(sizeof(OpenRecord::Row) == 32);

}  // namespace

OpenRecord::~OpenRecord() {
  if (!rows_.empty()) (void)::munmap(rows_.data(), kBytes);
}

int OpenRecord::make() {
  net::UniqueFd memory(::memfd_create("braidfs-open", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(kBytes)) != 0) return -errno;
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return -errno;
  const std::scoped_lock lock(mu_);
  rows_ = {static_cast<Row*>(at), kRowsMax};
  rows_[0].fh = kMagic;
  rows_[0].ino = next_;
  return memory.release();
}

OpenRecord::Slot OpenRecord::put(const Row& row) noexcept {
  const std::scoped_lock lock(mu_);
  if (rows_.empty() || (free_.empty() && next_ == kRowsMax)) return kNone;
  Slot slot = next_;
  if (free_.empty()) {
    ++next_;
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  Row& at = rows_[slot];
  at.fh = row.fh;
  at.ino = row.ino;
  at.open_flags = row.open_flags;
  at.direct = row.direct;
  std::atomic_ref(at.kind).store(row.kind, std::memory_order_release);
  std::atomic_ref(rows_[0].ino).store(next_, std::memory_order_release);
  return slot;
}

void OpenRecord::drop(Slot& slot) noexcept {
  if (slot == kNone) return;
  const std::scoped_lock lock(mu_);
  std::atomic_ref(rows_[slot].kind).store(Kind::kFree, std::memory_order_release);
  free_.push_back(slot);
  slot = kNone;
}

void OpenRecord::directory_opened(uint64_t fh, uint64_t ino) {
  const Slot slot = put({.fh = fh, .ino = ino, .kind = Kind::kDirectory});
  if (slot == kNone) return;
  const std::scoped_lock lock(mu_);
  directories_[fh] = slot;
}

void OpenRecord::directory_closed(uint64_t fh) {
  Slot slot = kNone;
  {
    const std::scoped_lock lock(mu_);
    const auto found = directories_.find(fh);
    if (found == directories_.end()) return;
    slot = found->second;
    directories_.erase(found);
  }
  drop(slot);
}

}  // namespace braidfs::client
