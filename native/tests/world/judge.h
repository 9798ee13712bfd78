// Looks at every step of a world with replicas, by the invariants of docs/decisions/0063-mirrors.md
// (I1 is looked at when hosts start, I9 when programs read). What does not hold is thrown.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "clockwork.h"
#include "metaserver.h"
#include "network.h"
#include "storage_host.h"
#include "truth.h"

namespace braidfs::world {

// Something that was promised does not hold.
class BrokenPromise : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One file, as its programs know it.
struct SharedFile {
  uint64_t ino = 0;
  uint32_t chunk_units = 0;
  Truth truth;
  uint64_t size = 0;          // as a program would see it
  bool is_size_known = true;  // a client that ended may have changed it
  // Such a client may have left bytes behind the file's end, which show when it grows.
  bool has_remains = false;
  uint64_t file_id = 0;
  bool was_closed = false;  // so its bytes are held no more, or not for sure
  uint64_t cutter = 0;      // the session that cuts it: nobody lets a write begin
  uint64_t refuser = 0;     // the session that waits until no write is under way
  bool may_be_written() const noexcept { return cutter == 0 && refuser == 0; }
};

// The values of `units` units, one after another; bytes that are missing are zeros. A unit that is
// not of one value has one that nobody wrote.
std::vector<uint64_t> values_of(Bytes bytes, uint32_t units);

class Judge final : public Watcher {
 public:
  Judge(Clockwork& clockwork, Metaserver& metaserver,
        std::vector<std::unique_ptr<StorageHost>>& hosts,
        std::vector<std::unique_ptr<SharedFile>>& files)
      : clockwork_(clockwork), metaserver_(metaserver), hosts_(hosts), files_(files) {}

  std::function<void(uint64_t session)> evicted;
  // Clients give bytes up that are not synced: if these are lost then, they tell an error.
  bool recalls_leases = true;

  // ---- Watcher ----
  void layout_changed(uint64_t ino) override;
  void added(uint64_t ino) override;
  void told_dropped(const Name& name) override;
  void deleted(const Name& name) override { gone_.erase(name); }
  void freed(uint64_t ino) override;
  void let_go(uint64_t session, uint64_t ino) override;
  void has_closed(uint64_t session, uint64_t ino) override;
  void is_evicted(uint64_t session) override { evicted(session); }
  void was_evicted(uint64_t session) override;

  void lost_power(const StorageHost& host);
  // Its stores are recovered, and nobody has sent anything again yet.
  void recovered(StorageHost& host);
  void closed(SharedFile& file, uint64_t session, const Truth::Since& since);
  void frame(const Wire& wire, Side from, const Frame& frame);
  void at_the_end();

 private:
  SharedFile* file_of(uint64_t ino);
  void may_have_lost(SharedFile& file);
  void look_equal(uint64_t ino);
  // Nothing: the host or its disk does not work just now.
  std::optional<Bytes> object(const Name& name);
  std::string check(const SharedFile& file, const Name& name, const Truth::Places& least);

  Clockwork& clockwork_;
  Metaserver& metaserver_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  std::vector<std::unique_ptr<SharedFile>>& files_;
  std::map<Name, Time> lost_power_;  // when last
  std::map<Name, Time> gone_;        // since when nobody may get an answer for them
  std::map<uint64_t, Time> ended_;   // sessions; the same
  std::map<std::pair<const Wire*, uint64_t>, std::pair<Name, Time>> asked_;
};

}  // namespace braidfs::world
