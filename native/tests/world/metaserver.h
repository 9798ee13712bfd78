// The part of the metaserver in a world: the records of files, and TRUNCATE at the targets, which
// it repeats until each has answered. It never fails and never forgets; it may only be slow.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "clockwork.h"
#include "network.h"
#include "storage_host.h"

namespace braidfs::world {

struct FileRecord {
  uint64_t ino = 0;
  uint64_t file_id = 0;
  uint64_t size = 0;
  uint64_t version = 1;
  uint32_t epoch = 0;
  uint32_t chunk_size = 0;
  uint64_t durable_stripes = 0;
  std::vector<uint32_t> targets{};

  // How long the object of a stripe is in a file of that size.
  uint64_t object_length(uint32_t stripe, uint64_t file_size) const noexcept;
};

class Metaserver {
 public:
  Metaserver(Clockwork& clockwork, Network& network,
             std::vector<std::unique_ptr<StorageHost>>& hosts, const KeyBytes& key,
             Tampering* tampering);

  FileRecord& create(uint64_t ino, std::vector<uint32_t> targets, uint32_t chunk_size);
  FileRecord& file(uint64_t ino) { return files_.at(ino); }
  std::map<uint64_t, FileRecord>& files() noexcept { return files_; }

  Bytes attributes(uint64_t ino) const;
  Bytes layout(uint64_t ino) const;
  Bytes capability(uint64_t ino, uint64_t session) const;

  struct Commit {
    uint64_t file_id = 0;
    uint64_t size = 0;
    uint32_t flags = 0;
    uint64_t stripes = 0;
  };
  void commit(uint64_t ino, const Commit& commit);
  // The file gets this size. reach: it may have bytes up to there that nobody has committed.
  void set_size(uint64_t ino, uint64_t size, uint64_t reach, std::function<void()> done);

 private:
  static constexpr Duration kPatience = seconds(4);
  struct Asked {
    Frame frame;
    std::function<void(Status)> done;
  };
  struct Link {  // to a host; one request at a time
    std::shared_ptr<Wire> wire{};
    uint64_t connection = 0;
    uint64_t attempt = 0;
    std::deque<Asked> asked{};
  };

  static Frame truncate_of(const FileRecord& file, uint32_t stripe, uint64_t size, uint32_t epoch);
  void ask(uint32_t target, Frame frame, std::function<void(Status)> done);
  void send(uint32_t host);
  void connect(uint32_t host);
  void answered(uint32_t host, const Frame& reply);
  void again(uint32_t host, Duration rest);

  Clockwork& clockwork_;
  Network& network_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  const KeyBytes key_;
  Tampering* const tampering_;
  std::map<uint64_t, FileRecord> files_;
  std::vector<Link> links_;
  uint64_t last_connection_ = 1u << 20;
  uint64_t last_request_ = 0;
  uint64_t last_file_id_ = 1000;
};

}  // namespace braidfs::world
