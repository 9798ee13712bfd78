#include "client/streams.h"

#include <algorithm>
#include <bit>

#include "client/operation.h"

namespace braidfs::client {

// Whether the READ is of that stream, which is as far as this then.
bool Streams::follow(Stream& stream, const CachedExtent& extent) {
  if (stream.size == 0 || (extent.length != stream.size && extent.offset + extent.length != extent.file_size)) {
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

void Streams::want(File& file, Stream& stream, const CachedExtent& extent, std::vector<Piece>& wanted,
                   Clock::time_point now) {
  if (paused_ || stream.run < kRunMin) return;
  const uint64_t window = std::min(uint64_t{stream.run} * stream.size, kWindowMax);
  const uint64_t end = std::min(stream.next + window, extent.file_size);
  uint64_t at = std::max(stream.next, stream.ahead);
  if (stream.early != 0) {  // those were asked for
    at = std::max(at, stream.next + uint64_t{stream.size} * (std::bit_width(stream.early) + 1u));
  }
  for (; at < end; at += stream.size) {
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(stream.size, extent.file_size - at));
    if (bytes_ + length > bytes_max_ && !(make_room(now) && bytes_ + length <= bytes_max_)) return;
    const auto [piece, is_new] = file.pieces.try_emplace(at);
    stream.ahead = at + stream.size;
    if (!is_new) continue;
    piece->second.length = length;
    bytes_ += length;
    ++under_way_;
    wanted.push_back({at, length});
  }
}

Streams::Found Streams::read(const CachedExtent& extent, Buffer& place, const std::shared_ptr<Operation>& reader,
                             std::vector<Piece>& wanted, Clock::time_point now) {
  if (bytes_max_ == 0) return Found::kNo;
  const std::scoped_lock lock(mu_);
  auto at = files_.find(extent.ino);
  if (at == files_.end()) {
    if (files_.size() >= kFilesMax && !make_room(now)) return Found::kNo;
    at = files_.try_emplace(extent.ino).first;
    count_.store(files_.size(), std::memory_order_relaxed);
  }
  File& file = at->second;
  file.used = now;
  Stream& stream = stream_of(file, extent, now);
  auto found = Found::kNo;
  const auto piece = file.pieces.find(extent.offset);
  if (piece != file.pieces.end()) {
    Kept& kept = piece->second;
    if (kept.under_way && kept.length == extent.length) {
      kept.waiters.push_back(reader);
      found = Found::kWait;
    } else if (!kept.under_way) {
      if (kept.stamp == extent.stamp && kept.file_size == extent.file_size && kept.length == extent.length) {
        reads_.fetch_add(1, std::memory_order_relaxed);
        place = std::move(kept.bytes);
        place.move_to(Buffer::Account::kRead);
        found = Found::kYes;
      } else {
        unused_.fetch_add(1, std::memory_order_relaxed);
      }
      drop(file, piece);
    }
  }
  want(file, stream, extent, wanted, now);
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
  kept.bytes = std::move(bytes);
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
