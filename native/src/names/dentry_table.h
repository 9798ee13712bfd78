// The names about which lanes may answer without an upcall: names of directories on which this
// client holds an ENTRIES lease, as far as they are known, including names that are known to be
// absent.
//
// A directory is *leased* (valid while the session's leases last), or only *valid until* a time of
// its own (for a client that is alone, docs/decisions/0007). All names of a *complete* directory
// are known: a name that was never put is absent. A name that a request in flight may change is
// *unsure* until the reply says what it is now. Each name remembers whether the kernel was told of
// it with a time: a recall removes the directory here and returns these names, whose dentries must
// expire. A recalled directory is *contended* for kContended: its names get no time in the kernel,
// so that the next recall has nothing to invalidate there. (An invalidation takes the directory's
// lock, which a CREATE of this client that waits for us may hold.) A rename moves the kernel's
// dentry with its time: moves().
//
// A process may not have stored yet what its LOOKUP was told within the last kSettling: Linux sets
// the time of a dentry that it looked up again without a lock, even after an invalidation
// (fuse_dentry_revalidate). drop() returns these names separately; they are invalidated once more.
// An absent name gets kAbsentLife at most: a process that takes over the mount can list the names
// that exist and have the kernel forget them, but cannot list the absent ones.
//
// A leased directory is *delegated* when its lease is exclusive: lanes add and remove names
// themselves, and only they change a name that is certain here; put() of something else is too
// late. The *home* of an inode is a delegated directory in which it has a certain name.
//
// A leased directory may have a *listing*: its names in the order of their cookies, from one cookie
// on, as far as they were read. A name that this client removes is skipped in it; a name that is,
// or may have been, added ends it.
//
// Bounded: directories and names beyond the bounds are not kept. ANY THREAD; one mutex for each
// group of directories, held while an answer is sent: after drop() no older answer is on its way.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/clock.h"

namespace braidfs::names {

class DentryTable {
 public:
  using Clock = braidfs::Clock;
  static constexpr size_t kDirectoriesMax = 1u << 16;
  static constexpr size_t kNamesMax = 1u << 21;  // of all directories together
  static constexpr std::chrono::seconds kContended{30};
  static constexpr size_t kContendedMax = 4096;
  static constexpr std::chrono::milliseconds kSettling{100};
  static constexpr std::chrono::seconds kAbsentLife{1};

  // Called with each renewal: the session's leases last until then.
  void believe(Clock::time_point until) noexcept {
    lease_until_.store(until.time_since_epoch().count());
  }

  // This client holds an ENTRIES lease on the directory from now on.
  void lease(uint64_t directory, Clock::time_point now);
  // The directory is new: all its names are known, as there are none.
  void complete(uint64_t directory, Clock::time_point until);
  // The directory's lease is exclusive: create(), remove() and rename() may change names until
  // drop() or undelegate(). False when the directory is not leased here, or contended.
  bool delegate(uint64_t directory);
  // Once it returns, create(), remove() and rename() change no more names of the directory.
  void undelegate(uint64_t directory);
  // The owners with quotas are known, until undelegate(): before the metaserver gives an owner a
  // quota it recalls all delegated directories (docs/decisions/0015-quotas-by-size.md).
  void owners_told() noexcept { owners_known_.store(true); }
  bool any_delegated() const noexcept { return delegated_count_.load() != 0; }
  bool owners_known() const noexcept { return owners_known_.load() && any_delegated(); }
  // The directory is still complete, and valid until then. Does nothing if it is not known here.
  void extend(uint64_t directory, Clock::time_point until);
  // The name is ino's, or absent (0). True when the kernel may be told so with a time. In a
  // delegated directory a name that is certain is not changed by it.
  bool put(uint64_t directory, std::string_view name, uint64_t ino, Clock::time_point now);
  // Like put() without telling the kernel; does nothing for a name that is known.
  void learn(uint64_t directory, std::string_view name, uint64_t ino);
  // A request is about to be sent that may change the name.
  void unsure(uint64_t directory, std::string_view name);
  // A request is about to be sent that may rename `name` to `new_name`. False when the kernel has
  // cached the first name, so will cache the second, and there is no entry here in which to
  // remember that.
  bool moves(uint64_t directory, std::string_view name, uint64_t new_directory,
             std::string_view new_name);
  struct Dropped {
    std::vector<std::string> cached;    // names that the kernel has cached
    std::vector<std::string> settling;  // those that it may be about to cache once more
    Clock::time_point looked_at{};      // when the last of these was answered
  };
  // The directory's lease is recalled: forgets the directory.
  Dropped drop(uint64_t directory, Clock::time_point now);
  void clear();

  struct Found {
    enum class Kind : uint8_t { kUnknown, kAbsent, kPresent };
    Kind kind = Kind::kUnknown;
    uint64_t ino = 0;
    std::chrono::nanoseconds valid{0};  // how long the kernel may cache it
  };
  // Calls answer(found), with the directory's group locked, if the name is known; it returns
  // whether the kernel was answered. Answer: bool(const Found&).
  template <typename Answer>
  bool find(uint64_t directory, std::string_view name, Clock::time_point now, Answer answer) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Name* entry = nullptr;
    const Found found = look(in, directory, name, now, entry);
    if (found.kind == Found::Kind::kUnknown || !answer(found)) return false;
    if (entry != nullptr && found.valid.count() > 0) {
      entry->cached = true;
      entry->looked = stamp(now);
    }
    return true;
  }

  // Calls make(valid), with the directory's group locked, if the directory is delegated and the
  // name is certainly absent. The name becomes that of the inode that make() returns; 0 changes
  // nothing. True when there is an inode. Make: uint64_t(std::chrono::nanoseconds), which answers
  // the kernel.
  template <typename Make>
  bool create(uint64_t directory, std::string_view name, Clock::time_point now, Make make) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Directory* there = delegated(in, directory);
    if (there == nullptr) return false;
    Name* entry = nullptr;
    if (look(in, directory, name, now, entry).kind != Found::Kind::kAbsent) return false;
    entry = entry_of(*there, name);
    if (entry == nullptr) return false;
    const uint64_t ino = make(end_of(*there) - now);
    set(directory, *there, *entry,
        {.ino = ino, .sure = true, .cached = entry->cached || ino != 0, .looked = entry->looked});
    if (ino != 0) came(*there);
    return ino != 0;
  }

  // Calls take(ino), with the directory's group locked, if the directory is delegated and the name
  // is certain; when it returns true the name is removed. Take: bool(uint64_t), which answers the
  // kernel: the kernel drops the name then, so a recall need not invalidate it.
  template <typename Take>
  bool remove(uint64_t directory, std::string_view name, Clock::time_point now, Take take) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Directory* there = delegated(in, directory);
    if (there == nullptr) return false;
    Name* entry = nullptr;
    const Found found = look(in, directory, name, now, entry);
    if (found.kind != Found::Kind::kPresent || !take(found.ino)) return false;
    take_out(directory, *there, name, *entry);
    return true;
  }

  // Calls take(ino, replaced), with the directory's group locked, if the directory is delegated and
  // both names are certain: the new one is absent (replaced: 0) or another inode's. When it returns
  // true the inode has the new name instead. Take: bool(uint64_t, uint64_t), which answers the
  // kernel: the kernel moves the dentry with its time.
  template <typename Take>
  bool rename(uint64_t directory, std::string_view name, std::string_view new_name,
              Clock::time_point now, Take take) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Directory* there = delegated(in, directory);
    if (there == nullptr) return false;
    Name* entry = nullptr;
    Name* other = nullptr;
    const Found found = look(in, directory, name, now, entry);
    const Found taken = look(in, directory, new_name, now, other);
    if (found.kind != Found::Kind::kPresent || taken.kind == Found::Kind::kUnknown) return false;
    if (other == nullptr) other = entry_of(*there, new_name);
    if (other == nullptr || found.ino == taken.ino) return false;
    other->sure = true;  // a new entry here is an absent name
    if (!take(found.ino, taken.ino)) return false;
    const bool cached = entry->cached || other->cached;
    const uint32_t looked = std::max(entry->looked, other->looked);
    take_out(directory, *there, name, *entry);
    set(directory, *there, *other,
        {.ino = found.ino, .sure = true, .cached = cached, .looked = looked});
    came(*there);
    return true;
  }

  // Calls change() with the group of the inode's home locked, so that lookups of its name come
  // after it; returns its result, or false when the inode has no home. Change: bool().
  template <typename Change>
  bool at_home(uint64_t ino, Clock::time_point now, Change change) {
    const uint64_t directory = home_of(ino);
    if (directory == 0) return false;
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    const Directory* there = delegated(in, directory);
    if (there == nullptr || end_of(*there) <= now) return false;
    return home_of(ino) == directory && change();
  }

  // ---- listings ----
  struct Row {
    std::string_view name;
    uint64_t ino;
    uint64_t cookie;
  };
  // A page of names from the metaserver, in order: those behind a cookie (0: from the first). end:
  // there are no more. asked: the value of changes() before the page was requested.
  struct Page {
    uint64_t behind;
    std::span<const Row> rows;
    bool end;
    uint64_t asked;
  };
  // Rises with every change of a name by this client, in any directory.
  uint64_t changes() const noexcept { return changes_.load(); }
  // Adds the page to the listing if it continues it, else begins a new one. False when the page may
  // be older than a change by this client, or the kernel may not cache the directory's names.
  bool list(uint64_t directory, const Page& page, Clock::time_point now);
  enum class Given : uint8_t {
    kTaken,
    kFull,     // there is no room for this one
    kUnknown,  // lanes cannot answer it: Python must
  };
  // Calls each(row, valid) for the names behind the cookie as long as it takes them, then done(),
  // all with the directory's group locked. False, without done(), when not even the first name is
  // known, nor that there are none. Each: Given(const Row&, std::chrono::nanoseconds).
  template <typename Each, typename Done>
  bool give(uint64_t directory, uint64_t behind, Clock::time_point now, Each each, Done done) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Directory* there = known(in, directory);
    if (!may_list(there, now) || !there->listing || behind < there->listing->from) return false;
    const Listing& listing = *there->listing;
    const auto valid = end_of(*there) - now;
    size_t taken = 0;
    Given given = listing.end ? Given::kTaken : Given::kUnknown;
    for (auto place = listing.first_behind(behind); place != listing.rows.end(); ++place) {
      auto& [name, entry] = *place->name;
      if (entry.sure && entry.ino == 0) continue;
      given = entry.sure ? each(Row{name, entry.ino, place->cookie}, valid) : Given::kUnknown;
      if (given != Given::kTaken) break;
      entry.cached = true;
      ++taken;
    }
    if (taken == 0 && given == Given::kUnknown) return false;
    done();
    return true;
  }

  size_t names() const noexcept { return name_count_; }
  size_t homes() const noexcept { return home_count_; }

 private:
  struct Name {
    uint64_t ino = 0;
    bool sure = false;
    bool cached = false;
    uint32_t looked = 0;  // stamp() of when a LOOKUP last got it with a time; 0: never
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Places = std::unordered_map<std::string, Name, Hash, std::equal_to<>>;
  struct Place {
    Places::value_type* name;  // stays among the directory's names as long as this does
    uint64_t cookie;
  };
  struct Listing {
    uint64_t from;     // rows has what comes behind this cookie
    bool end = false;  // there are no more
    std::vector<Place> rows{};

    std::vector<Place>::const_iterator first_behind(uint64_t cookie) const {
      return std::ranges::upper_bound(rows, cookie, {}, &Place::cookie);
    }
    uint64_t to() const { return rows.empty() ? from : rows.back().cookie; }
  };
  struct Directory {
    Clock::time_point until{};
    bool leased = false;
    bool complete = false;
    bool contended = false;
    bool delegated = false;
    Places names;
    std::unique_ptr<Listing> listing;  // may be nullptr
    uint64_t changed = 0;              // value of changes_ at this client's last change
  };
  struct alignas(64) Group {
    std::mutex mu;
    std::unordered_map<uint64_t, Directory> directories;        // guarded by mu
    std::unordered_map<uint64_t, Clock::time_point> contended;  // guarded by mu: the end
  };
  static constexpr size_t kGroupCount = 32;
  // Locked after a directory's group, never before.
  struct alignas(64) Homes {
    std::mutex mu;
    std::unordered_map<uint64_t, uint64_t> directories;  // by inode. guarded by mu
  };
  static constexpr size_t kHomesMax = 1u << 18;  // inodes beyond this have none

  // In milliseconds, never 0; it wraps around after 49 days.
  static uint32_t stamp(Clock::time_point now) noexcept {
    const auto since =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
    return std::max(static_cast<uint32_t>(since.count()), 1u);
  }
  Group& group(uint64_t directory) noexcept { return groups_[directory % kGroupCount]; }
  Directory* known(Group& in, uint64_t directory);
  Directory* delegated(Group& in, uint64_t directory);  // nullptr: it is not
  Directory* make(Group& in, uint64_t directory);
  Places::value_type* place_of(Directory& there, std::string_view name);
  Name* entry_of(Directory& there, std::string_view name);
  bool may_list(const Directory* there, Clock::time_point now) const noexcept;
  void changed(Directory& there) noexcept { there.changed = ++changes_; }
  // A name was, or may have been, added that the listing does not have.
  void came(Directory& there) noexcept;
  void set(uint64_t directory, const Directory& there, Name& entry, const Name& now);
  // The name is removed for certain. In a complete directory no entry is kept for it.
  void take_out(uint64_t directory, Directory& there, std::string_view name, Name& entry);
  Homes& homes_of(uint64_t ino) noexcept { return homes_[ino % homes_.size()]; }
  uint64_t home_of(uint64_t ino);
  void home(uint64_t directory, const Name& entry);
  void unhome(uint64_t directory, const Name& entry);
  static bool contradicts(const Directory& there, std::string_view name, uint64_t ino);
  void forget(Group& in, uint64_t directory);
  void end_delegation(uint64_t directory, Directory& there);
  Clock::time_point end_of(const Directory& directory) const noexcept;
  Found look(Group& in, uint64_t directory, std::string_view name, Clock::time_point now,
             Name*& entry);

  std::array<Group, kGroupCount> groups_;
  std::array<Homes, kGroupCount> homes_;
  std::atomic<size_t> home_count_{0};
  std::atomic<size_t> directory_count_{0};
  std::atomic<size_t> name_count_{0};
  std::atomic<size_t> delegated_count_{0};
  std::atomic<uint64_t> changes_{0};
  std::atomic<bool> owners_known_{false};
  std::atomic<Clock::rep> lease_until_{0};
};

}  // namespace braidfs::names
