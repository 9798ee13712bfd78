#include "client/streams.h"

#include <algorithm>
#include <bit>

#include "client/operation.h"

namespace braidfs::client {

// Whether the READ is of that stream, which is as far as this then.
bool Streams::follow(Stream& stream, const CachedExtent& extent) {
  if (stream.size == 0 ||
      (extent.length != stream.size && extent.offset + extent.length != extent.file_size)) {
    return false;
  }
  if (extent.offset < stream.next) {  // asked again, or overtaken
    return stream.next - extent.offset <= uint64_t{stream.size} * kEarlyMax &&
           (stream.next - extent.offset) % stream.size == 0;
  }
  const uint64_t behind = extent.offset - stream.next;
  if (behind % stream.size != 0 || behind / stream.size > kEarlyMax) return false;
  if (behind > 0) {
    stream.early |= 1u << (behind / stream.size - 1);
    return true;
  }
  const auto steps = static_cast<uint32_t>(std::countr_one(stream.early)) + 1;
  stream.early = steps < 32 ? stream.early >> steps : 0;
  stream.next += uint64_t{stream.size} * steps;
  stream.run += steps;
  return true;
}

// The one that it follows, or the one that nobody followed for longest, begun anew.
Streams::Stream& Streams::stream_of(File& file, const CachedExtent& extent, Clock::time_point now) {
  Stream* oldest = &file.streams.front();
  for (Stream& stream : file.streams) {
    if (follow(stream, extent)) {
      stream.used = now;
      return stream;
    }
    if (stream.used < oldest->used) oldest = &stream;
  }
  const uint64_t end = extent.offset + extent.length;
  *oldest = {.size = extent.length, .run = 1, .next = end, .ahead = end, .used = now};
  return *oldest;
}

// The first piece that ends behind that place.
Streams::Pieces::iterator Streams::piece_over(File& file, uint64_t offset) {
  auto piece = file.pieces.upper_bound(offset);
  if (piece == file.pieces.begin()) return piece;
  const auto before = std::prev(piece);
  return before->first + before->second.length > offset ? before : piece;
}

// False: there is no room. What is there of it stays.
bool Streams::add(File& file, uint64_t begin, uint64_t end, Wanted& wanted, Clock::time_point now) {
  for (uint64_t at = begin; at < end;) {
    const auto over = piece_over(file, at);
    const bool is_there = over != file.pieces.end() && over->first <= at;
    const uint64_t to = is_there ? std::min(end, over->first + over->second.length)
                                 : std::min(end, over == file.pieces.end() ? end : over->first);
    if (!is_there) {
      const auto length = static_cast<uint32_t>(to - at);
      if (bytes_ + length > bytes_max_ && !(make_room(now) && bytes_ + length <= bytes_max_))
        return false;
      file.pieces.try_emplace(at).first->second.length = length;
      bytes_ += length;
      ++under_way_;
      wanted.push_back({at, length});
    }
    at = to;
  }
  return true;
}

void Streams::want(File& file, Stream& stream, const CachedExtent& extent, Wanted& wanted,
                   Clock::time_point now) {
  if (stream.run < kRunMin) return;
  const uint64_t window = std::min(uint64_t{stream.run} * stream.size, kWindowMax);
  const uint64_t end = std::min(stream.next + window, extent.file_size);
  uint64_t at = std::max(stream.next, stream.ahead);
  if (stream.early != 0) {  // those were asked for
    at = std::max(at, stream.next + uint64_t{stream.size} * (std::bit_width(stream.early) + 1u));
  }
  for (; at < end && has_room_for(at - stream.next); at += stream.size) {
    if (!add(file, at, std::min(at + stream.size, extent.file_size), wanted, now)) return;
    stream.ahead = at + stream.size;
  }
}

// What lies beyond a READ for the page cache, when what lies behind it was asked for.
void Streams::want_beyond(File& file, const CachedExtent& extent, Wanted& wanted,
                          Clock::time_point now) {
  const uint64_t begin = extent.offset + extent.length;
  const auto run = file.asked.run_before(begin);
  if (run.is_first ? run.bytes < kFirstMin : run.bytes <= kAroundMax) return;
  const uint64_t window = std::min(run.bytes, kPagesAheadMax);
  const uint64_t end = std::min(begin + kPagesAheadMax + kSkipMax, extent.file_size);
  uint64_t ahead = 0;
  for (uint64_t at = begin; at < end && ahead < window && has_room_for(ahead);) {
    const auto piece = piece_over(file, at);
    uint64_t to = std::min(end, (at / Asked::kUnit + 1) * Asked::kUnit);
    if (piece != file.pieces.end() && piece->first <= at) {
      to = piece->first + piece->second.length;
      ahead += to - at;
    } else {
      if (piece != file.pieces.end()) to = std::min(to, piece->first);
      const auto stretch = file.asked.unasked(at, to);
      if (stretch.begin < stretch.end) {
        if (!add(file, stretch.begin, stretch.end, wanted, now)) return;
        file.pieces.find(stretch.begin)->second.given = static_cast<uint32_t>(stretch.asked);
        ahead += stretch.end - stretch.begin;
        to = stretch.end;
      }
    }
    at = to;
  }
}

void Streams::want_windows(File& file, const Asked::Windows& windows, const CachedExtent& extent,
                           Wanted& wanted, Clock::time_point now) {
  if (windows.stride == 0 || windows.length == 0) return;
  const uint64_t count = std::clamp<uint64_t>(kWindowMax / windows.length, 1, kWindowsMax);
  const uint64_t step = std::max(extent.length, kReadMin);
  for (uint64_t number = 0; number < count; ++number) {
    const uint64_t begin = windows.begin + number * windows.stride;
    const uint64_t end = std::min(begin + std::min(windows.length, kWindowMax), extent.file_size);
    for (uint64_t at = begin; at < end; at += step) {
      if (!add(file, at, std::min(at + step, end), wanted, now)) return;
    }
  }
}

void Streams::drop_other_versions(File& file, const CachedExtent& extent) {
  const uint64_t end = extent.offset + extent.length;
  for (auto piece = piece_over(file, extent.offset);
       piece != file.pieces.end() && piece->first < end;) {
    const Kept& kept = piece->second;
    if (kept.under_way || (kept.stamp == extent.stamp && kept.file_size == extent.file_size)) {
      ++piece;
    } else {
      unused_.fetch_add(1, std::memory_order_relaxed);
      piece = drop(file, piece);
    }
  }
}

// Whether all of it is there. Where some of it is, the rest is fetched if it may be.
Streams::Found Streams::find(File& file, const CachedExtent& extent, bool fetches,
                             const std::shared_ptr<Operation>& reader, Wanted& wanted,
                             Clock::time_point now) {
  drop_other_versions(file, extent);
  const uint64_t end = extent.offset + extent.length;
  const auto is_over = [&](Pieces::iterator piece) {
    return piece != file.pieces.end() && piece->first < end;
  };
  auto piece = piece_over(file, extent.offset);
  if (!is_over(piece) || (fetches && !paused_ && !add(file, extent.offset, end, wanted, now)))
    return Found::kNo;
  for (uint64_t at = extent.offset; at < end;) {
    piece = piece_over(file, at);
    if (!is_over(piece) || piece->first > at) return Found::kNo;
    at = piece->first + piece->second.length;
  }
  for (piece = piece_over(file, extent.offset); is_over(piece); ++piece) {
    if (!piece->second.under_way) continue;
    piece->second.waiters.push_back(reader);
    return Found::kWait;
  }
  return Found::kYes;
}

// What has come of that extent is given, or (no parts) need not be.
void Streams::give(File& file, const CachedExtent& extent, Parts* parts) {
  const uint64_t end = extent.offset + extent.length;
  for (auto piece = piece_over(file, extent.offset);
       piece != file.pieces.end() && piece->first < end;) {
    Kept& kept = piece->second;
    if (kept.under_way) {
      ++piece;
      continue;
    }
    const uint64_t from = std::max(extent.offset, piece->first);
    const auto length = static_cast<uint32_t>(std::min(end, piece->first + kept.length) - from);
    if (parts != nullptr)
      parts->push_back({kept.bytes, static_cast<uint32_t>(from - piece->first), length});
    const bool was_rest = kept.is_rest();
    kept.given += length;
    if (kept.given >= kept.length) {
      piece = drop(file, piece);
      continue;
    }
    if (kept.is_rest() && !was_rest) file.rests.push_back(piece->first);
    ++piece;
  }
  while (file.rests.size() > kRestsMax) {
    const auto rest = file.pieces.find(file.rests.front());
    file.rests.pop_front();
    if (rest != file.pieces.end() && !rest->second.under_way && rest->second.is_rest())
      drop(file, rest);
  }
}

Streams::File* Streams::file_of(const CachedExtent& extent, Clock::time_point now) {
  auto at = files_.find(extent.ino);
  if (at == files_.end()) {
    if (extent.length < kReadMin) return nullptr;
    if (files_.size() >= kFilesMax && !make_room(now)) return nullptr;
    at = files_.try_emplace(extent.ino).first;
    count_.store(files_.size(), std::memory_order_relaxed);
  }
  at->second.used = now;
  return &at->second;
}

Streams::Found Streams::read(const CachedExtent& extent, For whom, Parts& parts,
                             const std::shared_ptr<Operation>& reader, std::vector<Piece>& wanted,
                             Clock::time_point now) {
  if (bytes_max_ == 0) return Found::kNo;
  const std::scoped_lock lock(mu_);
  File* const file = file_of(extent, now);
  if (file == nullptr) return Found::kNo;
  const auto found = find(*file, extent, whom != For::kAgain, reader, wanted, now);
  if (found == Found::kYes) reads_.fetch_add(1, std::memory_order_relaxed);
  if (found != Found::kWait) give(*file, extent, found == Found::kYes ? &parts : nullptr);
  if (whom == For::kPages) {
    const auto windows = file->asked.note(extent.offset, extent.length);
    if (paused_) return found;
    want_windows(*file, windows, extent, wanted, now);
    want_beyond(*file, extent, wanted, now);
  } else if (whom == For::kProgram) {
    Stream& stream = stream_of(*file, extent, now);
    if (!paused_) want(*file, stream, extent, wanted, now);
  }
  return found;
}

Streams::Waiters Streams::fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  const auto file = files_.find(extent.ino);
  if (file == files_.end()) return {};
  const auto piece = file->second.pieces.find(extent.offset);
  if (piece == file->second.pieces.end() || !piece->second.under_way) return {};
  Kept& kept = piece->second;
  --under_way_;
  kept.under_way = false;
  kept.stamp = extent.stamp;
  kept.file_size = extent.file_size;
  bytes_ += extent.length;
  bytes_ -= std::exchange(kept.length, extent.length);
  kept.since = now;
  bytes.move_to(Buffer::Account::kAnnounced);
  kept.bytes = std::make_shared<Buffer>(std::move(bytes));
  return std::exchange(kept.waiters, {});
}

Streams::Waiters Streams::missed(uint64_t ino, uint64_t offset) {
  const std::scoped_lock lock(mu_);
  const auto file = files_.find(ino);
  if (file == files_.end()) return {};
  const auto piece = file->second.pieces.find(offset);
  if (piece == file->second.pieces.end() || !piece->second.under_way) return {};
  missed_.fetch_add(1, std::memory_order_relaxed);
  --under_way_;
  Waiters waiters = std::move(piece->second.waiters);
  drop(file->second, piece);
  return waiters;
}

Streams::Pieces::iterator Streams::drop(File& file, Pieces::iterator piece) {
  bytes_ -= piece->second.length;
  return file.pieces.erase(piece);
}

// Pieces that nobody reads, or all that are not under way.
void Streams::drop_unused(File& file, bool all, Clock::time_point now) {
  for (auto piece = file.pieces.begin(); piece != file.pieces.end();) {
    if (!piece->second.under_way && (all || now - piece->second.since >= kKeptFor)) {
      unused_.fetch_add(1, std::memory_order_relaxed);
      piece = drop(file, piece);
    } else {
      ++piece;
    }
  }
}

// Files and pieces that nobody read for long go.
void Streams::sweep(Clock::time_point now) {
  for (auto file = files_.begin(); file != files_.end();) {
    drop_unused(file->second, false, now);
    const bool is_over = file->second.pieces.empty() && now - file->second.used >= kKeptFor;
    file = is_over ? files_.erase(file) : std::next(file);
  }
  count_.store(files_.size(), std::memory_order_relaxed);
}

bool Streams::make_room(Clock::time_point now) {
  if (now - looked_ < kLookEvery) return false;
  looked_ = now;
  const auto files = files_.size();
  const uint64_t bytes = bytes_;
  sweep(now);
  return files_.size() < files || bytes_ < bytes;
}

void Streams::closed(uint64_t ino) {
  const std::scoped_lock lock(mu_);
  const auto file = files_.find(ino);
  if (file == files_.end()) return;
  drop_unused(file->second, true, {});
  if (file->second.pieces.empty()) {
    files_.erase(file);
    count_.store(files_.size(), std::memory_order_relaxed);
  } else {
    file->second.streams = {};  // what is under way comes to nobody
  }
}

bool Streams::expire(Clock::time_point now) {
  const std::scoped_lock lock(mu_);
  sweep(now);
  return !files_.empty();
}

void Streams::let_go() {
  const std::scoped_lock lock(mu_);
  for (auto& [ino, file] : files_) drop_unused(file, true, {});
}

void Streams::add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const {
  all.emplace_back("stream_reads", reads_.load(std::memory_order_relaxed));
  all.emplace_back("stream_unused", unused_.load(std::memory_order_relaxed));
  all.emplace_back("stream_missed", missed_.load(std::memory_order_relaxed));
}

}  // namespace braidfs::client
