// Reads the log at start: finds all valid entries in order, and the places where some are missing.
//
// Entries are sought behind damage, too. They carry their sequence and the key of their segment, so
// none is taken for another, and no user's bytes are taken for an entry. A gap whose entries were
// durable is damage, and stays a gap; at the first gap whose entries were not durable, the log
// ends.
//
// Threads: used once, before anybody else knows the log.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "store/io.h"
#include "store/log.h"

namespace braidfs::store {

namespace {

constexpr std::string_view kPromisesSuffix = ".synced";

bool any_set(std::span<const std::byte> bytes) {
  return std::any_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte != std::byte{0}; });
}

// The next position from `at` on where an entry may begin.
size_t next_magic(std::span<const std::byte> raw, size_t at) {
  for (; at + sizeof(EntryHeader) <= raw.size(); at += 8) {
    uint32_t magic = 0;
    std::memcpy(&magic, raw.data() + at, sizeof magic);
    if (magic == kEntryMagic) return at;
  }
  return raw.size();
}

}  // namespace

struct Log::Scan {
  LogScan result;
  std::vector<LogGap> gaps;
  uint64_t expected = 0;  // sequence of the next entry; 0: not known
  uint64_t proven = 0;    // durable, as later entries say
  uint64_t promised = 0;  // durable, as completed syncs said
  bool has_promises = false;
  // Behind the last valid entry is something other than zeros.
  bool garbage = false;
};

std::vector<uint64_t> Log::list(std::string_view suffix) {
  std::vector<uint64_t> numbers;
  (void)device_.list("wal", [&](std::string_view name) {
    uint64_t number = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number, 16);
    const std::string_view rest(parsed.ptr,
                                static_cast<size_t>(name.data() + name.size() - parsed.ptr));
    if (parsed.ec == std::errc{} && number != 0 && rest == suffix) numbers.push_back(number);
  });
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int Log::read_file(const std::string& path, std::vector<std::byte>& content,
                   std::shared_ptr<File>& file) {
  if (int r = device_.open(path, OpenMode::kExisting, file); r < 0) return r;
  FileFigures figures;
  if (int r = file->figures(figures); r < 0) return r;
  content.resize(figures.size);
  return read_whole(*file, content, 0);
}

int Log::read_promises(Scan& scan) {
  for (const uint64_t number : list(kPromisesSuffix)) {
    std::vector<std::byte> raw;
    std::shared_ptr<File> file;
    if (int r = read_file(promises_path_of(number), raw, file); r < 0) return r;
    const uint64_t key = segment_key(uuid_, number);
    for (size_t at = 0; at < raw.size();) {
      PromiseHeader header;
      std::span<const Promise> promises;
      const size_t length = decode_promises(std::span(raw).subspan(at), key, header, promises);
      at += std::max(length, size_t{8});
      if (length == 0) continue;  // the record is damaged; what follows may be readable
      scan.promised = std::max(scan.promised, header.durable_sequence);
      scan.has_promises = true;
      loaded_promises_.insert(loaded_promises_.end(), promises.begin(), promises.end());
    }
  }
  return 0;
}

// Reads a segment's header. False: it is damaged, so first sequence and format are unknown.
bool Log::scan_header(size_t number, Scan& scan) {
  Segment& segment = segments_[number];
  SegmentHeader header;
  const std::span<const std::byte> raw = segment.content;
  segment.key = segment_key(uuid_, segment.number);
  auto state = SegmentState::kDamaged;
  if (raw.size() >= kSegmentHeaderSize) {
    std::memcpy(&header, raw.data(), sizeof header);
    state = check(header, segment.number, uuid_);
  }
  if (state == SegmentState::kDamaged) return false;
  segment.is_old = state == SegmentState::kValidOld;
  if (segment.is_old) segment.key = 0;
  segment.valid_length = kSegmentHeaderSize;
  segment.first_sequence = header.first_sequence;
  if (scan.expected == 0) scan.expected = header.first_sequence;
  if (header.first_sequence > scan.expected) {
    scan.gaps.push_back({scan.expected, header.first_sequence, number, 0});
    scan.expected = header.first_sequence;
  }
  return true;
}

void Log::accept(size_t number, size_t at, const EntryView& view, Scan& scan) {
  Segment& segment = segments_[number];
  const uint64_t sequence = view.header.sequence;
  if (sequence > scan.expected)
    scan.gaps.push_back({scan.expected, sequence, number, segment.entries.size()});
  if (!view.whole) scan.gaps.push_back({sequence, sequence, number, segment.entries.size()});
  segment.entries.push_back(at);
  segment.valid_length = at + view.length;
  scan.expected = sequence + 1;
  scan.proven = std::max(scan.proven, view.header.durable_sequence);
  ++scan.result.entries;
}

void Log::scan_segment(size_t number, Scan& scan) {
  const bool has_header = scan_header(number, scan);
  const std::span<const std::byte> raw = segments_[number].content;
  const uint64_t key = segments_[number].key;
  EntryView view;
  if (!has_header && scan.expected == 0) {
    const bool at_start =
        raw.size() > kSegmentHeaderSize && decode_entry(raw.subspan(kSegmentHeaderSize), key, view);
    scan.expected = at_start ? view.header.sequence : 1;
  }
  size_t at = std::min(kSegmentHeaderSize, raw.size());
  size_t end = at;  // of what is valid
  while (at < raw.size()) {
    const bool whole = decode_entry(raw.subspan(at), key, view);
    if ((whole || view.sealed) && view.header.sequence >= scan.expected) {
      accept(number, at, view, scan);
      at = end = at + view.length;
    } else {
      at = next_magic(raw, at + 8);
    }
  }
  scan.garbage = any_set(raw.subspan(end));  // only the value of the last segment counts
}

// Ends the log before the gap.
void Log::cut_at(const LogGap& gap, Scan& scan) {
  Segment& segment = segments_[gap.segment];
  segment.entries.resize(gap.entry);
  segment.valid_length = kSegmentHeaderSize;
  if (gap.entry != 0) {
    EntryView view;
    decode_entry(std::span(segment.content).subspan(segment.entries.back()), segment.key, view);
    segment.valid_length = segment.entries.back() + view.length;
  }
  const bool stays = gap.entry != 0 || segment.first_sequence == gap.first;
  good_segments_ = gap.segment + (stays ? 1 : 0);
  scan.expected = gap.first;
}

void Log::judge(bool same_boot, Scan& scan) {
  uint64_t durable = std::max(scan.proven, scan.promised);
  if (same_boot) durable = std::max(durable, scan.expected - 1);
  std::vector<LogGap> damaged;
  for (const LogGap& gap : scan.gaps) {
    if (gap.first > durable || gap.end > durable + 1) {
      cut_at(gap, scan);
      if (gap.first <= durable) damaged.push_back({gap.first, durable + 1, gap.segment, gap.entry});
      break;
    }
    damaged.push_back(gap);
  }
  if (scan.expected <= durable && (damaged.empty() || damaged.back().end <= scan.expected))
    damaged.push_back({scan.expected, durable + 1, segments_.size() - 1, 0});
  next_sequence_ = std::max(scan.expected, durable + 1);
  scan.result.lossy = !damaged.empty() || (same_boot && scan.garbage);
  for (const LogGap& gap : damaged) report_damage(gap, scan);
}

// Reports damage. The target is refused when it is not known what was promised about that part.
void Log::report_damage(const LogGap& gap, Scan& scan) {
  const std::string place = " (" + path_of(segments_[gap.segment].number) + ")";
  std::string& message = scan.result.message;
  if (gap.first == gap.end) {
    message += "; the log is damaged: bytes of entry " + std::to_string(gap.first) + place;
    return;
  }
  message += "; the log is damaged: entries " + std::to_string(gap.first) + " to " +
             std::to_string(gap.end - 1) + " are missing" + place;
  const bool known =
      std::min(gap.end - 1, scan.proven) <= scan.promised && !segments_[gap.segment].is_old;
  if (known) return;
  scan.result.status = Status::kCorrupt;
  message +=
      " and nothing tells which objects they belong to: bring the directory wal back as it was, or "
      "give the "
      "target up";
}

LogScan Log::load(bool same_boot) {
  Scan scan;
  std::vector<uint64_t> numbers = list("");
  loaded_segments_ = numbers.size();
  const std::vector<uint64_t> promised = list(kPromisesSuffix);  // includes segments that are gone
  numbers.insert(numbers.end(), promised.begin(), promised.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const uint64_t number : numbers) {
    Segment segment{.number = number};
    const int r = read_file(path_of(number), segment.content, segment.file);
    if (r < 0 && r != -ENOENT)
      return {.status = status_of(r), .message = "cannot read " + path_of(number)};
    segments_.push_back(std::move(segment));
  }
  if (read_promises(scan) < 0)
    return {.status = Status::kEio, .message = "cannot read what was synced (wal)"};
  if (loaded_segments_ == 0 && !scan.has_promises)
    return {.status = Status::kCorrupt, .message = "the log (directory wal) is missing or empty"};
  for (size_t number = 0; number < segments_.size(); ++number) {
    scan_segment(number, scan);
    if (segments_[number].valid_length != 0) good_segments_ = number + 1;
  }
  oldest_start_ = segments_[0].first_sequence;
  if (good_segments_ == 0 && !scan.has_promises) {
    scan.result.status = Status::kCorrupt;
    scan.result.message = "the first log segment " + path_of(segments_[0].number) + " is damaged";
    return scan.result;
  }
  judge(same_boot, scan);
  if (!scan.result.message.empty()) scan.result.message.erase(0, 2);
  return scan.result;
}

void Log::load_nothing(uint64_t next_sequence) {
  segments_.clear();
  for (const uint64_t number : list("")) segments_.push_back({.number = number});
  stale_promises_ = list(kPromisesSuffix);
  loaded_promises_.clear();
  good_segments_ = 0;
  loaded_segments_ = 1;
  next_sequence_ = next_sequence;
}

void Log::visit(const std::function<void(const EntryView&)>& visit) const {
  EntryView view;
  for (size_t i = 0; i < good_segments_; ++i) {
    const Segment& segment = segments_[i];
    for (const size_t at : segment.entries) {
      decode_entry(std::span(segment.content).subspan(at), segment.key, view);
      visit(view);
    }
  }
}

}  // namespace braidfs::store
