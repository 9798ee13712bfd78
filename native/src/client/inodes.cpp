#include "client/inodes.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

namespace braidfs::client {

std::optional<FileRecords> decode_file(Bytes attributes, Bytes layout, Bytes capability) {
  const auto decoded = decode_attributes(attributes);
  auto view = decode_view(layout, capability);
  if (!decoded || !view) return std::nullopt;
  return FileRecords{*decoded, std::make_shared<const FileView>(std::move(*view))};
}

bool Inodes::put(Bytes attributes, Bytes layout, Bytes capability) {
  const auto records = decode_file(attributes, layout, capability);
  return records && put(*records);
}

bool Inodes::put(const FileRecords& records) {
  const uint64_t ino = records.attributes.ino;
  Actions actions;  // has only released pieces, so there is nothing to run
  while (const InodePtr inode = table_.find_or(ino, [&] { return std::make_shared<Inode>(ino); })) {
    if (inode->put(records.attributes, records.view, actions)) return true;
  }  // put() failed: a lane has just taken the dropped inode out of the table, so look again
  return false;
}

bool Inodes::view_put(uint64_t ino, Bytes layout, Bytes capability) {
  auto view = decode_view(layout, capability);
  const InodePtr inode = find(ino);
  return view && inode && inode->view_put(std::make_shared<const FileView>(std::move(*view)));
}

void Inodes::drop(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return;
  {
    const std::scoped_lock lock(inode->mu());
    inode->set_dropped(true);
  }
  idle(inode);
}

void Inodes::idle(const InodePtr& inode) {
  OpenRecord& record = commits_.record();
  {
    const std::scoped_lock lock(inode->mu());
    if (inode->is_clean()) record.drop(inode->noted);
    if (inode->lifetime == Lifetime::kKnown) return;
  }
  table_.take_if(inode->ino(), [&](Inode& entry) {
    const std::scoped_lock lock(entry.mu());
    if (entry.lifetime == Lifetime::kKnown || entry.busy()) return false;
    entry.lifetime = Lifetime::kGone;
    record.drop(entry.noted);
    return true;
  });
}

std::optional<Written> Inodes::written(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  return inode->uncommitted();
}

std::optional<Written> Inodes::take_written(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  return inode->take_written();
}

bool Inodes::commits(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->committing;
}

void Inodes::size_limit(uint64_t ino, uint64_t limit) {
  if (const InodePtr inode = find(ino)) inode->size_limit = limit;
}

bool Inodes::closed_unsynced(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  const FileViewPtr& view = inode->view_locked();
  if (!view || !view->is_replicated || inode->is_synced()) return false;
  inode->tells_synced = true;
  return true;
}

bool Inodes::fail(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  inode->fail(EIO);
  return true;
}

void Inodes::set_ids_put(uint64_t ino, uint32_t mode, uint32_t gid) {
  const InodePtr inode = find(ino);
  if (!inode) return;
  const std::scoped_lock lock(inode->mu());
  inode->note_set_ids(mode, gid);
}

bool Inodes::is_ahead(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->committing || inode->written();
}

bool Inodes::is_busy(uint64_t ino) {
  const InodePtr inode = find(ino);
  if (!inode) return false;
  const std::scoped_lock lock(inode->mu());
  return inode->handles > 0 || inode->committing || inode->written();
}

std::optional<fuse::DataHandler::Ahead> Inodes::before_setting(uint64_t ino, bool sets_mtime) {
  const InodePtr inode = find(ino);
  if (!inode || !leases_.count()) return std::nullopt;
  const std::scoped_lock lock(inode->mu());
  if (inode->recalling != 0 || inode->committing || inode->asking.is_under_way() ||
      inode->cuts.unreported() || !leases_.holds(*inode, kLeaseDataExclusive)) {
    return std::nullopt;
  }
  const Written written = inode->written().value_or(Written{});
  if ((written.flags & kCommitKillSuidgid) != 0) return std::nullopt;
  const fuse::DataHandler::Ahead ahead{inode->size(), written.mtime_ns};
  if (sets_mtime) {
    inode->forget_written_time();
    inode->birth.time_set = true;
  }
  return ahead;
}

std::optional<names::BirthSince> Inodes::birth_take(uint64_t ino, bool spare_open) {
  const InodePtr inode = find(ino);
  if (!inode) return names::BirthSince{};
  const std::scoped_lock lock(inode->mu());
  Inode::Birth& birth = inode->birth;
  if (spare_open && birth.untaken && birth.since.is_open) return std::nullopt;
  birth.untaken = false;
  if (!birth.since.is_open) inode->lease &= ~kLeaseDataExclusive;  // as CLOSE does
  names::BirthSince since = birth.since;
  birth.since.inline_bytes.clear();
  return since;
}

void Inodes::creations_reported(std::span<const uint64_t> inos) {
  for (const uint64_t ino : inos) {
    const InodePtr inode = find(ino);
    if (!inode) continue;
    const std::scoped_lock lock(inode->mu());
    inode->end_inlining();
  }
}

Inodes::CutState Inodes::pause_cuts(uint64_t ino, bool paused) {
  const InodePtr inode = find(ino);
  if (!inode) return CutState::kUnknown;
  const std::scoped_lock lock(inode->mu());
  if (paused) {
    ++inode->cuts.pauses;
  } else {
    --inode->cuts.pauses;
  }
  return inode->cuts.unreported() ? CutState::kUnreported : CutState::kReported;
}

}  // namespace braidfs::client
