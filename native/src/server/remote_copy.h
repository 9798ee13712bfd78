// Makes an object of a target of this server from an object of another server.
//
// While it is written the new object has the epoch that it had, 0 if it is new; at the end its
// epoch is raised. So what an attempt that was given up has written does not look like a copy that
// is done. An object that a former attempt left is emptied first. Holes stay holes.
//
// Threads: step() blocks, and is called by one thread at a time; cut() is ANY THREAD. Not here: how
// fast it goes, and who may ask for it (storageserver/copying.py).
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "server/source_connection.h"
#include "server/worker_pool.h"
#include "store/chunk_store.h"

namespace braidfs::server {

struct CopyOrder {
  RemoteObject source;
  uint32_t target = 0;  // of this server
  store::ObjectId object;
  uint32_t epoch = 0;       // that the object gets
  bool must_exist = false;  // a missing source is kNoObject; otherwise it is a hole
};

// How far a copy has come.
struct CopyProgress {
  Status status = Status::kOk;
  std::string message{};  // when the status is not kOk; may be empty
  bool is_done = false;
  uint64_t bytes = 0;  // copied so far
  uint64_t incarnation = 0;
  uint64_t source_incarnation = 0;
  bool serves_clients = false;  // the source's target had requests of clients a moment ago
};

class RemoteCopy {
 public:
  // The connection is to the source's server, as a storage server.
  RemoteCopy(net::Socket socket, std::chrono::milliseconds patience);

  // Another object is copied from now on. Only when the former one is done, or has failed.
  void begin(const CopyOrder& order);
  const CopyOrder& order() const noexcept { return order_; }
  // Copies about this many bytes, or to the end; `writers` write to the device beside the caller.
  // After a failure the copy is over.
  CopyProgress step(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes);
  void cut() noexcept { source_.cut(); }
  // Whether another object can be copied over this connection.
  bool is_usable() const noexcept { return source_.fault().empty(); }

 private:
  struct Figures {
    uint64_t length = 0;
    uint32_t epoch = 0;
    bool operator==(const Figures&) const = default;
  };

  Status advance(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes);
  Status open(store::ChunkStore& store);
  Status move(store::ChunkStore& store, WorkerPool& writers, uint64_t bytes);
  Status close(store::ChunkStore& store);
  Status stat(std::optional<Figures>& found);
  Status next_extent();
  Status seek(uint64_t from, bool hole, uint64_t& at);
  void write(store::ChunkStore& store, WorkerPool& writers, SourceConnection::Arrived arrived);
  Status refuse(Status status, std::string why);

  SourceConnection source_;
  CopyOrder order_;
  std::string why_;
  bool is_open_ = false;
  bool is_done_ = false;
  std::optional<Figures> before_;  // of the source, when it began
  uint64_t source_length_ = 0;
  uint64_t incarnation_ = 0;  // of the target
  uint32_t epoch_ = 0;        // of the new object, while it is written
  uint64_t length_ = 0;       // of the new object, with what a former attempt left
  uint64_t bytes_ = 0;
  uint64_t at_ = 0;          // where the copy goes on
  uint64_t extent_end_ = 0;  // up to where there is data from at_
};

}  // namespace braidfs::server
