// Read-ahead of sequential readers beyond the kernel's (docs/decisions/0040-streams.md): when the
// READs of a large file follow each other, what comes next is fetched before it is asked for, and
// READs are answered from memory.
//
// READs of programs (O_DIRECT): a stream is a run of READs of one size, each where the last one
// ended (a little out of order, as lanes take them at once). A file has some, told apart by where
// they are. Beyond the newest READ a stream fetches pieces of the READs' size, as much as it has
// read, up to kWindowMax. READs for the kernel's page cache come once for each page, in windows
// around what is touched or ahead of it, by several threads at once (asked.h). When what lies
// behind a READ was asked for, nearly all of it, what lies beyond is fetched that was not, as much
// again, up to kPagesAheadMax. Until more was asked for than the kernel's own window it may be just
// that, around one page; but not at the file's beginning. When windows follow each other at one
// distance, the next ones are fetched. Readers share half of the limit: what is far ahead of one
// would be in the way of what another waits for. So a program that stops has cost at most as much
// as it read. A piece is named by inode, place and stamp (Inode::stamp), and given, until all of it
// was, to READs that saw under the inode's mutex that DATA is leased and the stamp is this one.
// What nobody reads for kKeptFor goes. So many bytes are under way or kept at most. Threads: ANY
// THREAD, guarded by mu_. Not here: the fetching (early_fetch.h).
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/asked.h"
#include "client/local_cache.h"
#include "client/memory.h"
#include "net/event_loop.h"

namespace braidfs::client {

class Operation;

class Streams {
 public:
  using Clock = net::Clock;
  using Waiters = std::vector<std::shared_ptr<Operation>>;
  static constexpr uint32_t kReadMin = 128u << 10;  // smaller READs are no stream's
  static constexpr uint64_t kFileMin = 8u << 20;    // smaller files are the kernel's read-ahead's
  static constexpr uint64_t kWindowMax = 16u << 20;
  static constexpr uint32_t kRunMin = 4;           // READs
  static constexpr uint64_t kFirstMin = 4u << 20;  // for the page cache, from the file's beginning
  static constexpr uint64_t kPagesAheadMax = 32u << 20;
  static constexpr uint64_t kAheadLeast =
      4u << 20;  // of a reader, where all together have their share
  static constexpr uint64_t kAroundMax =
      8u << 20;  // the kernel's window, twice its default: POSIX_FADV_SEQUENTIAL
  static constexpr uint32_t kRestMax = 64u
                                       << 10;  // what is left of a piece that is given but for that
  static constexpr size_t kRestsMax =
      16;  // such pieces of a file: the next READs may begin in them
  static constexpr uint64_t kWindowsMax = 4;  // at one distance, ahead
  static constexpr uint64_t kSkipMax =
      64u << 20;  // of what was asked for before, in search of what was not
  static constexpr uint32_t kEarlyMax = 8;  // that came before an earlier one, in sizes of READs
  static constexpr size_t kStreamsMax = 8;  // of a file
  static constexpr size_t kFilesMax = 1024;
  static constexpr std::chrono::seconds kKeptFor{10};
  static constexpr std::chrono::milliseconds kLookEvery{
      100};  // for what may go, when there is no room

  struct Piece {
    uint64_t offset = 0;
    uint32_t length = 0;
  };

  enum class Found : uint8_t { kNo, kWait, kYes };
  enum class For : uint8_t { kProgram, kPages, kAgain };  // kAgain: the same READ asks once more
  // Of a READ's bytes, one behind the other.
  struct Part {
    std::shared_ptr<Buffer> buffer;
    uint32_t from = 0;
    uint32_t length = 0;
    std::span<std::byte> span() const noexcept { return buffer->span().subspan(from, length); }
  };
  using Parts = std::vector<Part>;

  // Of what is under way or kept; 0, as in the beginning: nothing is fetched.
  void limit(uint64_t bytes_max) noexcept { bytes_max_ = bytes_max; }
  // Nothing more is begun, or again.
  void pause(bool paused) noexcept { paused_ = paused; }
  // Smaller READs for the page cache are of a file that is read already: threads that touch one
  // window at once make the kernel read it in bits.
  bool may_be_of(const CachedExtent& extent, For whom) const noexcept {
    if (extent.stamp == 0 || extent.file_size < kFileMin) return false;
    return extent.length >= kReadMin || (whom == For::kPages && any());
  }

  // A READ of that extent. kYes: `parts` are it. kWait: `reader` proceeds when more has come.
  // Whatever it is, what is to be fetched now goes to `wanted`: each is under way then, until
  // fetched() or missed().
  Found read(const CachedExtent& extent, For whom, Parts& parts,
             const std::shared_ptr<Operation>& reader, std::vector<Piece>& wanted,
             Clock::time_point now);
  // Whoever waits looks again.
  Waiters fetched(const CachedExtent& extent, Buffer bytes, Clock::time_point now);
  Waiters missed(uint64_t ino, uint64_t offset);
  // Nobody has the file open any more.
  void closed(uint64_t ino);
  // True when something is left that has to go some day.
  bool expire(Clock::time_point now);
  void let_go();

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  size_t under_way() const {
    const std::scoped_lock lock(mu_);
    return under_way_;
  }
  uint64_t bytes() const {
    const std::scoped_lock lock(mu_);
    return bytes_;
  }
  void add_counters(std::vector<std::pair<std::string, uint64_t>>& all) const;

 private:
  struct Stream {
    uint32_t size = 0;   // of its READs
    uint32_t run = 0;    // READs that followed each other
    uint64_t next = 0;   // where the next one begins
    uint64_t ahead = 0;  // end of what was wanted
    uint32_t early = 0;  // bit n: the READ that begins n + 1 sizes behind next was seen
    Clock::time_point used{};
  };
  struct Kept {
    uint64_t stamp = 0;
    uint64_t file_size = 0;
    uint32_t length = 0;
    uint32_t given = 0;
    bool under_way = true;
    Clock::time_point since{};
    std::shared_ptr<Buffer> bytes{};
    Waiters waiters{};
    bool is_rest() const noexcept { return given + kRestMax >= length; }
  };
  using Pieces = std::map<uint64_t, Kept>;  // by offset; none over another
  struct File {
    std::array<Stream, kStreamsMax> streams{};
    Asked asked{};
    Pieces pieces{};
    std::deque<uint64_t> rests{};  // where they begin, oldest first; some may be gone
    Clock::time_point used{};
  };
  using Files = std::unordered_map<uint64_t, File>;
  using Wanted = std::vector<Piece>;

  // All LOCKED.
  static bool follow(Stream& stream, const CachedExtent& extent);
  static Stream& stream_of(File& file, const CachedExtent& extent, Clock::time_point now);
  static Pieces::iterator piece_over(File& file, uint64_t offset);
  File* file_of(const CachedExtent& extent, Clock::time_point now);
  Found find(File& file, const CachedExtent& extent, bool fetches,
             const std::shared_ptr<Operation>& reader, Wanted& wanted, Clock::time_point now);
  void drop_other_versions(File& file, const CachedExtent& extent);
  void give(File& file, const CachedExtent& extent, Parts* parts);
  void want(File& file, Stream& stream, const CachedExtent& extent, Wanted& wanted,
            Clock::time_point now);
  void want_beyond(File& file, const CachedExtent& extent, Wanted& wanted, Clock::time_point now);
  void want_windows(File& file, const Asked::Windows& windows, const CachedExtent& extent,
                    Wanted& wanted, Clock::time_point now);
  bool has_room_for(uint64_t ahead) const noexcept {
    return bytes_ < bytes_max_ / 2 || ahead < kAheadLeast;
  }
  bool add(File& file, uint64_t begin, uint64_t end, Wanted& wanted, Clock::time_point now);
  Pieces::iterator drop(File& file, Pieces::iterator piece);
  void drop_unused(File& file, bool all, Clock::time_point now);
  void sweep(Clock::time_point now);
  bool make_room(Clock::time_point now);

  std::atomic<uint64_t> bytes_max_{0};
  std::atomic<bool> paused_{false};
  std::atomic<size_t> count_{0};     // of files_
  std::atomic<uint64_t> reads_{0};   // that were answered from here
  std::atomic<uint64_t> unused_{0};  // pieces that went unread
  std::atomic<uint64_t> missed_{0};  // pieces that could not be fetched

  mutable std::mutex mu_;
  Files files_;
  size_t under_way_ = 0;
  uint64_t bytes_ = 0;  // under way or kept
  Clock::time_point looked_{};
};

}  // namespace braidfs::client
