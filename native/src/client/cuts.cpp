#include "client/cuts.h"

#include <cstring>
#include <string>
#include <utility>

#include "client/inode.h"

namespace braidfs::client {

namespace {

constexpr auto kRetryAfter = std::chrono::seconds(1);

std::string packed(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

}  // namespace

bool CutWait::wait(Inode& inode, std::shared_ptr<Operation> who, std::optional<Event>& event,
                   int& error) {
  Cuts& cuts = inode.cuts;
  if (began && cuts.ended != ended) error = cuts.error;
  if (!cuts.unreported() || error != 0) return false;
  began = true;
  ended = cuts.ended;
  cuts.waiting.push_back(std::move(who));
  event = inode.report_cut();
  return true;
}

// ---- the inode: LOCKED ----

bool Inode::may_be_cut(uint64_t size) const noexcept {
  const bool at_rest =
      !committing && writing == 0 && recalling == 0 && !asking.is_under_way() && cuts.pauses == 0;
  if (!at_rest || lies_inline() || set_ids.mode != 0 || (written_.flags & kCommitKillSuidgid) != 0)
    return false;
  if (size > std::min<uint64_t>(storable_end(*view_), INT64_MAX)) return false;
  // Under a quota others may wait for the room, so the metaserver must know the size at once.
  return size_limit.load(std::memory_order_relaxed) == kUnlimited;
}

// Bytes that were never sent, and are in no size that was reported, concern nobody else: cutting
// them off is not reported.
void Inode::cut(uint64_t size, int64_t mtime_ns, Clock::time_point now, Actions& actions) {
  bytes_change();
  const uint64_t known_elsewhere = cuts.unreported() ? cuts.level() : stored_end_;
  if (size < known_elsewhere) {
    if (cuts.pending == Cuts::kNone) {
      cuts.reach = known_elsewhere;
      cuts.due = now + PieceTable::kAge;
    }
    cuts.pending = size;
    pieces_.bar(cuts.bar());
  }
  if (size < size_) {
    pieces_.trim(size, actions);
    pieces_.send_all_ready(actions);  // some waited for pieces that are gone now
  }
  size_ = written_.size = size;
  written_.mtime_ns = mtime_ns;
  written_.flags |= kCommitSize | kCommitMtime;
}

std::optional<Event> Inode::report_cut() {
  if (cuts.pending == Cuts::kNone || cuts.under_way != Cuts::kNone) return std::nullopt;
  cuts.under_way = std::exchange(cuts.pending, Cuts::kNone);
  cuts.reach_under_way = cuts.reach;
  pieces_.bar(cuts.bar());
  return Event{.kind = EventKind::kCut,
               .token = ++cuts.number,
               .ino = ino_,
               .a = static_cast<int64_t>(cuts.under_way),
               .b = written_.mtime_ns,
               .payload = packed(cuts.reach_under_way)};
}

void Inode::cut_reported(const Attributes& attributes, FileView view, Actions& actions) {
  if (!is_older(view)) {
    const bool same_file = view_->file_id == view.file_id;
    pieces_.see(view, actions);
    view_ = std::make_shared<const FileView>(std::move(view));
    if (!same_file) other_objects(actions);
  }
  change_version_ = std::max(change_version_, attributes.change_version);
  note_stamp(attributes);
  stored_end_ = cuts.under_way;
  cut_ended(0, actions);
}

void Inode::cut_failed(int error, Clock::time_point now, Actions& actions) {
  cuts.reach = cuts.pending == Cuts::kNone ? cuts.reach_under_way
                                           : std::max(cuts.reach, cuts.reach_under_way);
  cuts.pending = cuts.level();
  cuts.due = now + kRetryAfter;
  cut_ended(error, actions);
}

void Inode::cut_ended(int error, Actions& actions) {
  cuts.under_way = Cuts::kNone;
  cuts.error = error;
  ++cuts.ended;
  pieces_.bar(cuts.bar());
  pieces_.send_all_ready(actions);
  if (error != 0)
    actions.report_cut = false;  // the next report is when it is due, or somebody waits
  for (auto& waiter : std::exchange(cuts.waiting, {})) actions.proceed.push_back(std::move(waiter));
}

}  // namespace braidfs::client
