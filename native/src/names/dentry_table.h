// What lanes may answer about names without an upcall: the names of directories on which this
// client holds an ENTRIES lease, as far as they were told, absent ones included.
//
// A directory is *leased* (believed while the session's lease lasts), or only *believed until* a
// time of its own (a client that is alone, docs/decisions/0007). A new directory is *complete*: a
// name that never was put is absent. A name that a request on its way may change is *unsure* until
// the reply says what became of it.
// Each name remembers whether the kernel was told it with a time: a recall takes the directory out
// and gives those names, whose dentries must expire. A directory that was recalled is *contended*
// for kContended: its names get no time in the kernel, so that its next recall finds nothing to
// invalidate there; invalidating takes the directory's lock, which a CREATE of this client that
// waits for us may hold.
// A rename takes the kernel's dentry along, with the time that it was told: moves().
// What a LOOKUP was told within the last kSettling may not have been noted by the process that
// asked: Linux sets the time of a dentry that it asked for again without any lock, also after an
// invalidation (fuse_dentry_revalidate). drop() names these, which are to be invalidated once more.
// An absent name is told for kAbsentLife at most: a process that goes on with the mount can ask for
// the names that are there, and make the kernel forget them, but not for those that are not. A
// leased directory is *delegated* when its lease is exclusive: lanes add and take names themselves,
// and what is certain here changes by them alone: put() of something else comes too late. Of inodes
// that have a certain name in a delegated directory that directory is their *home* (one of them).
// Of a leased directory a *listing* may be known: its names in the order of their cookies, from one
// cookie on, as far as they were asked for. A name that this client takes away is passed over in
// it; one that comes, or may have come, ends it. Bounded: directories and names beyond the bounds
// are not kept, that is, asked for. ANY THREAD; one mutex for each group of directories, held while
// an answer is sent: after drop() no answer from before it is on its way.
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

namespace braidfs::names {

class DentryTable {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kDirectoriesMax = 1u << 16;
  static constexpr size_t kNamesMax = 1u << 21;  // of all directories together
  static constexpr std::chrono::seconds kContended{30};
  static constexpr size_t kContendedMax = 4096;
  static constexpr std::chrono::milliseconds kSettling{100};
  static constexpr std::chrono::seconds kAbsentLife{1};

  // Leases last until then; called with each renewal. ANY THREAD.
  void believe(Clock::time_point until) noexcept {
    lease_until_.store(until.time_since_epoch().count());
  }

  // An ENTRIES lease on it is held from now on.
  void lease(uint64_t directory, Clock::time_point now);
  // It is new, all its names are known: there are none.
  void complete(uint64_t directory, Clock::time_point until);
  // Its lease is exclusive: create() and remove() may change names until drop() or undelegate().
  // False when it is not leased here, or contended.
  bool delegate(uint64_t directory);
  // After it create() and remove() change no more names.
  void undelegate(uint64_t directory);
  // Who has quotas was told, and holds until undelegate(): whoever gives somebody a quota takes all
  // of the delegated directories back (docs/decisions/0015-quotas-by-size.md).
  void owners_told() noexcept { owners_known_.store(true); }
  bool any_delegated() const noexcept { return delegated_count_.load() != 0; }
  bool owners_known() const noexcept { return owners_known_.load() && any_delegated(); }
  // Still complete, believed until then; nothing when it was forgotten here.
  void extend(uint64_t directory, Clock::time_point until);
  // name is ino there, or absent (0). True when the kernel may be told so with a time. In a
  // delegated directory nothing that is certain is changed by it.
  bool put(uint64_t directory, std::string_view name, uint64_t ino, Clock::time_point now);
  // The same of a name that the kernel is not told now; nothing for one that is there already.
  void learn(uint64_t directory, std::string_view name, uint64_t ino);
  // A request leaves that may change the name.
  void unsure(uint64_t directory, std::string_view name);
  // A request leaves that may give what `name` is the name `new_name`. False when the kernel
  // believes the first, so will believe the second, and there is no directory here to keep that in.
  bool moves(uint64_t directory, std::string_view name, uint64_t new_directory,
             std::string_view new_name);
  struct Dropped {
    std::vector<std::string> told;      // names that the kernel believes
    std::vector<std::string> settling;  // those that it may be about to believe once more
    Clock::time_point looked_at{};      // when the last of these was told
  };
  // The lease is recalled: forgets the directory.
  Dropped drop(uint64_t directory, Clock::time_point now);
  void clear();

  struct Found {
    enum class Kind : uint8_t { kUnknown, kAbsent, kPresent };
    Kind kind = Kind::kUnknown;
    uint64_t ino = 0;
    std::chrono::nanoseconds valid{0};  // how long the kernel may believe it
  };
  // Calls answer(found) with the directory's group locked, unless nothing is known; its result
  // tells whether the kernel was answered. Answer: bool(const Found&).
  template <typename Answer>
  bool find(uint64_t directory, std::string_view name, Clock::time_point now, Answer answer) {
    Group& in = group(directory);
    const std::scoped_lock lock(in.mu);
    Name* entry = nullptr;
    const Found found = look(in, directory, name, now, entry);
    if (found.kind == Found::Kind::kUnknown || !answer(found)) return false;
    if (entry != nullptr && found.valid.count() > 0) {
      entry->told = true;
      entry->looked = stamp(now);
    }
    return true;
  }

  // Calls make(valid) with the directory's group locked if the directory is delegated and has no
  // such name for certain; the inode that it returns has the name then, 0 leaves things as they
  // are. True when there is an inode. Make: uint64_t(std::chrono::nanoseconds), which answers the
  // kernel.
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
        {.ino = ino, .sure = true, .told = entry->told || ino != 0, .looked = entry->looked});
    if (ino != 0) came(*there);
    return ino != 0;
  }

  // Calls take(ino) with the directory's group locked if the directory is delegated and the name is
  // there for certain; when it says so the name is gone. Take: bool(uint64_t), which answers the
  // kernel: it believes the name no longer, so a recall need not speak of it.
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

  // Calls take(ino, replaced) with the directory's group locked if the directory is delegated, the
  // name is there for certain, and what the new one is is certain too: another inode, or nothing
  // (0). When it says so the inode has the new name instead. Take: bool(uint64_t, uint64_t), which
  // answers the kernel: its dentry goes along, with the time that it was told.
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
    other->sure = true;  // what it is now, if it is new here: absent
    if (!take(found.ino, taken.ino)) return false;
    const bool told = entry->told || other->told;
    const uint32_t looked = std::max(entry->looked, other->looked);
    take_out(directory, *there, name, *entry);
    set(directory, *there, *other,
        {.ino = found.ino, .sure = true, .told = told, .looked = looked});
    came(*there);
    return true;
  }

  // Calls change() with the group of the inode's home locked, so that whoever asks for its name
  // comes after; returns what it says, false when it has no home. Change: bool().
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
  // A page of names as the metaserver gave it: those behind a cookie (0: from the first), in order.
  // end: there are no more. asked: what changes() said before it was asked for.
  struct Page {
    uint64_t behind;
    std::span<const Row> rows;
    bool end;
    uint64_t asked;
  };
  // Rises with every change of names by this client, in whatever directory.
  uint64_t changes() const noexcept { return changes_.load(); }
  // Continues the listing if the page does, else begins one. False when the page may be of before a
  // change of this client's, or the directory is not one whose names the kernel may believe.
  bool list(uint64_t directory, const Page& page, Clock::time_point now);
  enum class Given : uint8_t {
    kTaken,
    kFull,     // it has no room for this one
    kUnknown,  // it cannot be told: Python must be asked
  };
  // Gives the names behind the cookie to each(row, valid) as long as they are taken, then calls
  // done(), all with the directory's group locked; false, and no done(), when not even the first is
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
      entry.told = true;
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
    bool told = false;
    uint32_t looked = 0;  // stamp() of when a LOOKUP was told it with a time; 0: never
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Places = std::unordered_map<std::string, Name, Hash, std::equal_to<>>;
  struct Place {
    Places::value_type* name;  // is not taken out of the names while this is there
    uint64_t cookie;
  };
  struct Listing {
    uint64_t from;     // what comes behind this cookie is in rows
    bool end = false;  // and that is all there is
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
    std::unique_ptr<Listing> listing;  // nullptr: none is known
    uint64_t changed = 0;              // by this client: what changes_ was then
  };
  struct alignas(64) Group {
    std::mutex mu;
    std::unordered_map<uint64_t, Directory> directories;        // guarded by mu
    std::unordered_map<uint64_t, Clock::time_point> contended;  // guarded by mu: until when
  };
  static constexpr size_t kGroupCount = 32;
  // Locked behind a directory's group.
  struct alignas(64) Homes {
    std::mutex mu;
    std::unordered_map<uint64_t, uint64_t> directories;  // by inode. guarded by mu
  };
  static constexpr size_t kHomesMax = 1u << 18;  // the others have none

  // Milliseconds, never 0; begins again after 49 days.
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
  // A name may be there that the listing does not have.
  void came(Directory& there) noexcept;
  void set(uint64_t directory, const Directory& there, Name& entry, const Name& now);
  // The name is gone for certain; where all are known none is kept for that.
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
