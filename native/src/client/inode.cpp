#include "client/inode.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace braidfs::client {

bool Inode::put(const Attributes& attributes, const FileViewPtr& view, Actions& actions) {
  const std::scoped_lock lock(mu_);
  if (lifetime == Lifetime::kGone) return false;
  lifetime = Lifetime::kKnown;
  if (view_ && view_->file_id != view->file_id) {  // another client truncated it to size 0
    if (attributes.change_version < change_version_) return true;
    other_objects(actions);
  }
  // The record is older than the answer to a commit.
  const bool is_former = attributes.change_version < change_version_;
  const bool has_former_bytes = is_former && !view->inline_bytes.empty();
  if (!is_older(*view) && !has_former_bytes) {
    pieces_.see(*view, actions);
    view_ = view;
  }
  if (is_former) return true;
  change_version_ = attributes.change_version;
  note_stamp(attributes);
  if (cuts.unreported()) return true;  // the record is older than the cut
  note_size(attributes.size);
  return true;
}

// Under the exclusive lease nobody else changes the size, and a size that Python has taken may not
// be committed yet: the larger of both is right. Without that lease another client may have cut the
// file, so size_ may be too large. Only sizes that were written here, and that the metaserver has
// not acknowledged, count beside the record then. A commit that is under way need not have one: it
// may tell of durable stripes alone.
void Inode::note_size(uint64_t recorded) noexcept {
  stored_end_ = std::max(stored_end_, recorded);
  const bool alone = ((lease | recalling) & kLeaseDataExclusive) != 0;
  uint64_t own = alone || pieces_.unacknowledged() > 0 ? size_ : 0;
  if ((written_.flags & kCommitSize) != 0) own = std::max(own, written_.size);
  if (committing && (in_commit.flags & kCommitSize) != 0) own = std::max(own, in_commit.size);
  size_ = std::max(own, recorded);
}

bool Inode::view_put(const FileViewPtr& view) {
  Actions actions;  // has only released pieces
  const std::scoped_lock lock(mu_);
  if (lifetime == Lifetime::kGone || !view_ || view_->file_id != view->file_id || is_older(*view))
    return false;
  const bool is_cut_alike =
      view_->stripe_width == view->stripe_width && view_->chunk_size == view->chunk_size;
  if (!is_cut_alike || view_->inline_bytes.empty() != view->inline_bytes.empty()) return false;
  pieces_.see(*view, actions);
  view_ = view;
  return true;
}

std::optional<Event> Inode::drop_replicas(uint32_t target, std::optional<uint32_t> object_number,
                                          Clock::time_point now) {
  const FileView& view = *view_;
  std::erase_if(drops_, [&](const Drop& told) { return now >= told.again; });
  const auto is_told = [&](const Replica& replica) {
    return std::ranges::count(drops_, replica, &Drop::replica) != 0;
  };
  std::string rows;
  for (uint32_t stripe = 0; stripe < view.stripe_width; ++stripe) {
    if (!view.is_mirrored(stripe)) continue;
    for (const Replica& replica : view.replicas(stripe)) {
      const bool is_meant =
          replica.target == target && (!object_number || replica.object_number == *object_number);
      if (!is_meant || is_told(replica)) continue;
      drops_.push_back({replica, now + kDropAgain});
      const std::array<uint32_t, 2> row{replica.object_number, replica.target};
      rows.append(reinterpret_cast<const char*>(row.data()), sizeof(row));
    }
  }
  if (rows.empty()) return std::nullopt;
  std::string head(sizeof(uint64_t) + sizeof(uint32_t), '\0');
  std::memcpy(head.data(), &view.file_id, sizeof(uint64_t));
  std::memcpy(head.data() + sizeof(uint64_t), &view.truncate_epoch, sizeof(uint32_t));
  return Event{.kind = EventKind::kDropReplicas, .ino = ino_, .payload = head + rows};
}

void Inode::resize(const Attributes& attributes, FileView view, Actions& actions) {
  const std::scoped_lock lock(mu_);
  if (is_older(view)) return;  // its size is older, too: bytes that were written later stay
  const bool same_file = view_ && view_->file_id == view.file_id;
  pieces_.see(view, actions);
  view_ = std::make_shared<const FileView>(std::move(view));
  change_version_ = std::max(change_version_, attributes.change_version);
  note_stamp(attributes);
  size_ = stored_end_ = attributes.size;
  if (written_.size > size_) {
    written_.flags &= ~kCommitSize;
    written_.size = 0;
  }
  if (in_commit.size > size_) {
    in_commit.flags &= ~kCommitSize;
    in_commit.size = 0;
  }
  pieces_.trim(same_file ? size_ : 0, actions);
  if (!same_file) other_objects(actions);
}

// The objects of the new file id were never written, so nothing of them is to be synced. A SYNC of
// an object that does not exist would call its holes durable, and they would read as EIO.
void Inode::other_objects(Actions& actions) {
  pieces_.drop_all_held(actions);
  pieces_.forget_objects();
  synced_stripes = 0;
}

Inode::Loss Inode::lose(Actions& actions) {
  const std::scoped_lock lock(mu_);
  const bool lost =
      pieces_.unacknowledged() > 0 || (written_.flags & kCommitSize) != 0 || cuts.unreported();
  pieces_.drop_all_held(actions);
  pieces_.trim(0, actions, EIO);
  cuts.pending = Cuts::kNone;
  cut_ended(EIO, actions);
  const bool is_dropped = lifetime != Lifetime::kKnown;
  const bool unsynced = is_dropped && pieces_.unsynced();
  if (is_dropped) pieces_.forget_objects();  // nobody will sync them
  written_ = {};
  end_inlining();
  data_version_ = stamp_ = stamped_from_ = 0;
  change_version_ = 0;  // the metaserver may have lost the versions that this session knows
  lease = recalling = 0;
  ++lost_count;
  if (lost) fail(EIO);
  return lost ? Loss::kWritten : unsynced ? Loss::kUnsynced : Loss::kNone;
}

void Inode::committed(const Attributes& attributes) {
  if (attributes.change_version < change_version_) return;
  change_version_ = attributes.change_version;
  note_stamp(attributes);
  if (!cuts.unreported()) note_size(attributes.size);
}

void Inode::mark_durable(uint64_t file_id, uint64_t stripe_bits) {
  if (view_->file_id != file_id ||
      (view_->durable_stripes | stripe_bits) == view_->durable_stripes) {
    return;
  }
  auto changed = std::make_shared<FileView>(*view_);
  changed->durable_stripes |= stripe_bits;
  view_ = std::move(changed);
}

uint64_t Inode::stamp() const noexcept {
  const bool at_rest =
      written_.flags == 0 && !committing && writing == 0 && pieces_.unacknowledged() == 0;
  return at_rest ? stamp_ : 0;
}

void Inode::bytes_change() noexcept {
  stamp_ = 0;
  stamped_from_ = data_version_ + 1;
}

void Inode::note_stamp(const Attributes& known) {
  data_version_ = std::max(data_version_, known.data_version);
  stamp_ = known.data_version >= stamped_from_ ? stamp_of(known, *view_) : 0;
  record_stamp_ = stamp_;
  immutable_ = known.is_immutable;
  note_set_ids(known.mode, known.gid);
}

bool Inode::wrote(uint64_t end, int64_t mtime_ns, uint32_t kill) {
  bytes_change();
  const bool grew = end > size_;
  if (grew) {
    size_ = end;
    written_.flags |= kCommitSize;
    written_.size = end;
  }
  written_.mtime_ns = mtime_ns;
  written_.flags |= kCommitMtime | kill;
  return grew;
}

void Inode::forget_written_time() noexcept {
  written_.flags &= ~kCommitMtime;
  written_.mtime_ns = 0;
}

std::optional<Written> Inode::written() const {
  if (cuts.unreported())
    return Written{size_, written_.mtime_ns, written_.flags | kCommitSize | kWrittenCut};
  if (written_.flags == 0) return std::nullopt;
  Written now = written_;
  now.size = std::max(now.size, size_);
  return now;
}

std::optional<Written> Inode::uncommitted() const {
  Written all = written().value_or(Written{});
  if (committing) {
    all.size = std::max(all.size, in_commit.size);
    if ((all.flags & kCommitMtime) == 0) all.mtime_ns = in_commit.mtime_ns;
    all.flags |= in_commit.flags;
  }
  return all.flags == 0 ? std::nullopt : std::optional(all);
}

bool Inode::commit_with_birth() {
  const auto now = written();
  const uint32_t others = birth.time_set ? ~kCommitSize : ~(kCommitSize | kCommitMtime);
  if (!birth.untaken || committing || cuts.unreported() || !now || (now->flags & others) != 0)
    return false;
  committing = true;
  in_commit = *now;
  written_ = {};
  ++birth.since.changes;
  if ((now->flags & kCommitSize) != 0) birth.since.size = std::max(birth.since.size, now->size);
  stored_end_ = std::max(stored_end_, birth.since.size);
  if ((now->flags & kCommitMtime) != 0) birth.since.mtime_ns = now->mtime_ns;
  const uint64_t version = 1 + uint64_t{birth.since.changes};
  committed({.ino = ino_,
             .size = birth.since.size,
             .data_version = version,
             .change_version = version,
             .mtime_ns = birth.since.mtime_ns});
  return true;
}

bool Inode::may_lie_inline(uint32_t length_max) const noexcept {
  return is_unreported() && birth.since.changes == 0 && size_ > 0 && size_ <= length_max &&
         (written_.flags & kCommitSize) != 0 && (written_.flags & kCommitKillSuidgid) == 0 &&
         !committing && writing == 0 && recalling == 0 && error_reported_ &&
         pieces_.only_filling(size_) != nullptr;
}

void Inode::end_inlining() noexcept {
  inlining = is_handing_over() ? Inlining::kReportedMeanwhile : Inlining::kNo;
}

void Inode::lies_inline(const FileViewPtr& with, std::string bytes) {
  if (view_ != with) return;
  auto changed = std::make_shared<FileView>(*view_);
  changed->inline_bytes = std::move(bytes);
  view_ = std::move(changed);
}

std::optional<Written> Inode::take_written() {
  const auto taken = written();
  if (cuts.unreported()) return taken;  // not taken: the size would bring back what was cut off
  if (taken && (taken->flags & kCommitSize) != 0) stored_end_ = std::max(stored_end_, taken->size);
  written_ = {};
  return taken;
}

void Inode::give_back(const Written& written) {
  written_.size = std::max(written_.size, written.size);
  if ((written_.flags & kCommitMtime) == 0)
    written_.mtime_ns = written.mtime_ns;  // if there is one, a later write has set it
  written_.flags |= written.flags;
}

void Inode::fail(int error) noexcept {
  if (!error_reported_) return;  // the first error is not reported yet
  error_ = error;
  ++error_generation_;
  error_reported_ = false;
}

int Inode::report(uint64_t& seen) noexcept {
  if (seen == error_generation_) return 0;
  seen = error_generation_;
  error_reported_ = true;
  return error_;
}

uint64_t Inode::error_seen_at_open() const noexcept {
  return error_reported_ ? error_generation_ : error_generation_ - 1;
}

std::vector<std::shared_ptr<void>> Inode::take_waiters() {
  std::vector<std::shared_ptr<void>> waiters;
  for (auto* const list : {&commit_waiters, &cuts.waiting, &writing_waiters, &behind_end})
    std::ranges::move(std::exchange(*list, {}), std::back_inserter(waiters));
  for (Waiter& waiter : take_asking()) waiters.push_back(std::move(waiter.operation));
  pieces_.take_waiters(waiters);
  return waiters;
}

bool Inode::busy() const noexcept {
  return handles > 0 || committing || written_.flags != 0 || !pieces_.empty() || watched ||
         !error_reported_ || pieces_.unsynced() || asking.is_under_way() || writing != 0 ||
         cuts.unreported() || cuts.pauses != 0;
}

}  // namespace braidfs::client
