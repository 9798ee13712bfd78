// The metaserver of a world, by the rules of docs/decisions/0063-mirrors.md: sessions and their
// leases, layouts with generations, names that were dropped, what may not be durable everywhere (W
// and U), targets and their leases, truncation at the targets, evictions. It never fails and never
// forgets; it may only be slow. Who asks gets its answer through a function; nothing: its session
// is being evicted. Copies are made by Repair (repair.h).
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clockwork.h"
#include "layouts.h"
#include "mutants.h"
#include "storage_calls.h"
#include "storage_host.h"

namespace braidfs::world {

// Who looks at what the metaserver does (judge.h).
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void layout_changed(uint64_t ino) = 0;
  virtual void added(uint64_t ino) = 0;
  virtual void told_dropped(const Name& name) = 0;
  virtual void deleted(const Name& name) = 0;
  virtual void freed(uint64_t ino) = 0;                         // nobody may write it now
  virtual void let_go(uint64_t session, uint64_t ino) = 0;      // it holds no bytes of it any more
  virtual void has_closed(uint64_t session, uint64_t ino) = 0;  // its lease is a shared one now
  virtual void is_evicted(uint64_t session) = 0;                // from now on
  virtual void was_evicted(uint64_t session) = 0;               // others get what it held
};

class Metaserver {
 public:
  struct Held {
    uint32_t flags = 0;  // kLeaseData*
    uint64_t number = 0;
  };
  struct Grant {
    Held held{};
    Records records{};
  };
  struct Commit {
    uint64_t file_id = 0;
    uint64_t size = 0;
    uint32_t flags = 0;
    uint64_t stripes = 0;
    std::vector<std::pair<uint32_t, uint64_t>> acknowledged{};  // targets, incarnations
  };
  struct Committed {
    Status status = Status::kOk;
    Bytes attributes{};
  };
  struct Drop {
    uint64_t ino = 0;
    uint64_t file_id = 0;
    uint32_t epoch = 0;
    std::vector<Name> names{};
  };
  template <typename T>
  using Done = std::function<void(std::optional<T>)>;  // nothing: the session is evicted

  Metaserver(Clockwork& clockwork, Network& network,
             std::vector<std::unique_ptr<StorageHost>>& hosts, const KeyBytes& key, Mutant mutant,
             Tampering* tampering);

  Watcher* watcher = nullptr;
  // Asks a session to give these bits of a lease back, up to that grant.
  std::function<void(uint64_t session, uint64_t ino, Held what)> recall;

  void start();
  FileRecord& create(uint64_t ino, uint32_t width, uint32_t replicas, uint32_t chunk_size);
  FileRecord& file(uint64_t ino) { return files_.at(ino); }
  std::map<uint64_t, FileRecord>& files() noexcept { return files_; }
  Records records(uint64_t ino, uint64_t session, bool writable = true) const;

  // ---- sessions (metaserver.cpp) ----
  uint64_t open_session();
  bool renew(uint64_t session);  // false: it is evicted
  bool is_live(uint64_t session) const;

  // ---- leases ----
  void acquire(uint64_t session, uint64_t ino, bool exclusive, Done<Grant> done);
  void give_back(uint64_t session, uint64_t ino, Held what);
  bool holds(uint64_t session, uint64_t ino, uint32_t flags) const;

  // ---- files ----
  void open(uint64_t session, uint64_t ino, bool writable, Done<Records> done);
  void close(uint64_t session, uint64_t ino, bool is_unsynced, uint64_t serial);
  void synced(uint64_t session, uint64_t ino, uint64_t serial);
  void commit(uint64_t session, uint64_t ino, const Commit& commit, Done<Committed> done);
  void drop(uint64_t session, const Drop& drop, Done<Records> done);
  // The file gets this size. reach: it may have bytes up to there that nobody has committed.
  void set_size(uint64_t session, uint64_t ino, uint64_t size, uint64_t reach, Done<Records> done);
  // When it took the session's last commit of the file.
  Time committed_at(uint64_t session, uint64_t ino) const;
  bool is_torn(uint64_t ino) const;  // in W or U
  bool is_quiet() const;             // nothing is left to be done
  std::string is_left() const;       // what is

  // ---- targets (targets.cpp) ----
  StorageHost::Registered register_host(uint32_t host, uint64_t life,
                                        const std::map<uint32_t, uint64_t>& incarnations);
  // The sessions that the server may serve; nothing: it has to register again.
  std::optional<std::vector<uint64_t>> beat(uint32_t host, uint64_t life);
  std::vector<uint64_t> live_sessions() const;
  bool is_up(uint32_t target) const;
  // Its process is the one that registered, and has the incarnation that is known.
  bool is_known(uint32_t target) const;
  uint64_t incarnation(uint32_t target) const;
  Time raised_at(uint32_t target) const;  // when it learned that the target had lost power

 private:
  friend class Repair;
  static constexpr uint64_t kSystem = 1;
  enum class Session : uint8_t { kLive, kEvicting, kEnded };
  struct Host {
    uint64_t life = 0;
    Time lease_ends{};
    Time heard{};
  };
  struct Wanting {
    uint64_t session;
    bool exclusive;
    Done<Grant> done;
  };
  struct Planned {
    uint64_t file_id = 0;
    uint32_t epoch = 0;
    std::vector<Name> names{};
  };
  struct Cut {
    uint64_t size = 0;
    std::vector<std::function<void()>> parked{};
    std::map<uint32_t, Time> failing{};  // targets
  };
  struct Fenced {
    uint64_t session = 0;
    std::set<uint32_t> hosts{};
    size_t left = 0;
  };

  void watch_sessions();
  void serve(uint64_t ino);
  void serve_later(uint64_t ino);
  bool is_free_for(const Wanting& wanting, uint64_t ino);
  void when_cut(uint64_t ino, std::function<void()> then);
  void replace(FileRecord& file);
  std::vector<uint32_t> place(uint32_t count, const std::vector<uint32_t>& without);
  void every(Duration rest, const std::function<void()>& what);

  std::vector<Name> droppable(const FileRecord& file, const std::vector<Name>& names,
                              const std::function<bool(uint32_t)>& is_there) const;
  void remove(uint64_t ino, const std::vector<Name>& names);
  void settle(const std::vector<Name>& names, const std::function<void()>& then);
  void settle_one(const Name& name);
  void settled(const Name& name);
  bool has_run_out(uint32_t target) const;
  void lost_power(uint32_t target);
  std::vector<uint64_t> served_sessions() const;

  void begin_cut(uint64_t ino, uint64_t size);
  void cut_targets(uint64_t ino);
  void was_cut(uint64_t ino, const std::set<uint32_t>& failed);
  void cut_again(uint64_t ino);
  uint32_t next_epoch(const FileRecord& file) const;
  void give_up_plan(uint64_t ino);

  void evict(uint64_t session);
  void fence(const std::shared_ptr<Fenced>& fenced, uint32_t host);
  void make_whole(const std::shared_ptr<Fenced>& fenced);
  bool keep_one(uint64_t ino, const std::set<uint32_t>& hosts);
  void forget(uint64_t session);
  void sync_closed();
  void clean_up();

  Clockwork& clockwork_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  const KeyBytes key_;
  const Mutant mutant_;
  StorageCalls calls_;
  std::map<uint64_t, FileRecord> files_;
  std::map<uint64_t, Session> sessions_;
  std::map<uint64_t, Time> heard_;
  std::map<uint64_t, std::map<uint64_t, Held>> leases_;  // by inode and session
  std::map<uint64_t, std::deque<Wanting>> wanting_;
  std::set<uint64_t> serving_;                                  // these are looked at again soon
  std::set<std::pair<uint64_t, uint64_t>> writing_;             // W: inode, session
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> unsynced_;  // U: the serial number
  std::vector<Host> known_hosts_;
  std::map<uint32_t, uint64_t> incarnations_;
  std::map<uint32_t, Time> raised_at_;
  std::map<std::pair<uint64_t, uint64_t>, Time> committed_at_;  // by session and inode
  std::set<Name> dropped_;
  std::set<Name> settled_;
  std::map<Name, std::vector<std::function<void()>>> settling_;
  std::set<Name> doomed_;
  std::map<uint64_t, Planned> planned_;
  std::map<uint64_t, Cut> cuts_;
  std::set<uint64_t> syncing_;
  uint64_t last_number_ = 1000;
};

}  // namespace braidfs::world
