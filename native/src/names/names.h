// The requests about names that lanes answer: from what this client knows of names and attributes
// under its leases, and in directories that are delegated to it by changing them.
//
// Names is the NameHandler of the mount. It owns the tables, answers requests from them through the
// session, and leaves to Python what it does not know for certain. Python fills the tables
// (bindings); a recall empties them (drop_leases). Each table has its own mutexes; when several are
// held, they are locked in the order: a directory's names, a child, attributes, delegated changes.
// The requests are in lookups.cpp, opening.cpp, creating.cpp, setting.cpp, cutting.cpp,
// renaming.cpp. Threads: NameHandler's methods on lanes; everything else ANY THREAD.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "braidfs/leases.h"
#include "fuse/name_handler.h"
#include "fuse/notifier.h"
#include "fuse/session.h"
#include "names/attribute_table.h"
#include "names/change_journal.h"
#include "names/child_table.h"
#include "names/dentry_table.h"
#include "names/known.h"
#include "names/lister.h"

namespace braidfs::names {

// An inode on which a lease is lost, and the ranges of pages that may be locked by READs which wait
// for this loss itself: its mark does not wait for their invalidation.
struct LostLease {
  uint64_t ino;
  fuse::Ranges locked = {};
};

class Names final : public fuse::NameHandler {
 public:
  // changes_wait: called on a lane when a first change waits for Python to take it.
  Names(fuse::DataHandler& file_bytes, fuse::FuseSession& session,
        std::function<void()> changes_wait);

  // Before the session starts: the tree is sealed and mounted read-only
  // (docs/decisions/0033-sealed-mounts.md).
  void seal() noexcept { attributes_.seal(); }

  void begin(const fuse::MountFacts& facts) override;
  bool lookup(const fuse::RequestHead& head, std::string_view name) override;
  bool getattr(const fuse::RequestHead& head) override;
  bool getxattr(const fuse::RequestHead& head, std::string_view name) override;
  bool readdirplus(const fuse::RequestHead& head, uint64_t offset, uint32_t size) override;
  bool open(const fuse::RequestHead& head, uint32_t open_flags) override;
  bool read_unopened(const fuse::ReadRequest& request) override;
  bool create(const fuse::RequestHead& head, const fuse_create_in& in,
              std::string_view name) override;
  bool setattr(const fuse::RequestHead& head, const fuse_setattr_in& in) override;
  bool unlink(const fuse::RequestHead& head, std::string_view name) override;
  bool rename(const fuse::RequestHead& head, const fuse::RenameRequest& request) override;

  // The answer of a lane to READDIRPLUS now. False: it would leave the request to Python.
  bool list(uint64_t directory, uint64_t offset, uint32_t size, const Lister::Send& send) {
    return lister_.read(directory, offset, size, send);
  }

  // Leases are lost: the tables forget what was known under them, and the kernel is told to do the
  // same; SessionObserver::notified(token) is called when it has. Without a facet: when the kernel
  // has all earlier notifications of pages; without inodes: when it has all earlier notifications.
  // Returns how many names the kernel had cached.
  size_t drop_leases(uint64_t token, std::span<const LostLease> lost, uint32_t facets);

  AttributeTable& attributes() noexcept { return attributes_; }
  DentryTable& dentries() noexcept { return dentries_; }
  ChildTable& children() noexcept { return children_; }
  ChangeJournal& journal() noexcept { return journal_; }
  std::vector<std::pair<std::string, uint64_t>> counters() const;

 private:
  using Clock = AttributeTable::Clock;

  Known known() noexcept { return {attributes_, children_}; }
  uint64_t ino_of(uint64_t nodeid) const noexcept {
    return nodeid == FUSE_ROOT_ID ? facts_.root_ino : nodeid;
  }
  template <typename Body>
  void reply(const fuse::RequestHead& head, const Body& body) noexcept {
    session_.reply_body(head.channel, head.unique, std::as_bytes(std::span(&body, 1)));
  }
  void reply_error(const fuse::RequestHead& head, int error) noexcept {
    session_.reply_error(head.channel, head.unique, error);
  }

  // lookups.cpp
  bool answer_name(const fuse::RequestHead& head, const DentryTable::Found& found,
                   Clock::time_point now);
  // opening.cpp
  fuse::Opening open_child(uint64_t ino, uint64_t fh, uint32_t open_flags);
  bool open_sealed_child(uint64_t ino, uint64_t fh);
  // creating.cpp. Answers the kernel and returns the inode of the new file; 0: it could not be made
  // here.
  uint64_t give_birth(const fuse::RequestHead& head, const fuse_create_in& in,
                      std::string_view name, std::chrono::nanoseconds valid);
  // setting.cpp
  bool may_be_set(const record::Record& record, const Setting& setting);
  template <typename Ahead>
  bool take_setting(const fuse::RequestHead& head, Setting setting, Clock::time_point now,
                    Ahead ahead);
  // cutting.cpp
  bool cut(const fuse::RequestHead& head, const fuse_setattr_in& in);
  // renaming.cpp. False: the name cannot be removed, or renamed, here.
  bool take_name(uint64_t parent, std::string_view name, uint64_t ino);
  bool take_move(Move move);
  // Forgets the inode's entry by its directory's grant. False: it is in use, so Python must act
  // first.
  bool let_go(uint64_t ino, Clock::time_point now);
  // Calls make() if there is room for one more change that the metaserver has not answered. True:
  // there was, and make() made the change.
  template <typename Make>
  bool with_room(Make make) {
    if (!journal_.take_room()) return false;
    if (make()) return true;
    journal_.changes_reported(1);  // frees the room
    return false;
  }
  void push(Change change);
  // leases.cpp
  struct LostBatch;
  size_t drop_names(uint64_t ino, LostBatch& lost);

  fuse::DataHandler& file_bytes_;
  fuse::FuseSession& session_;
  std::function<void()> changes_wait_;
  fuse::MountFacts facts_;
  AttributeTable attributes_;
  DentryTable dentries_;
  ChildTable children_;
  ChangeJournal journal_;
  Lister lister_;
};

// Whether a SETATTR (FATTR_*) sets the size of an open file and nothing else.
bool cuts_alone(uint32_t valid) noexcept;

}  // namespace braidfs::names
