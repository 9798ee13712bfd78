// One accepted request, from the last byte of its frame to the last byte of its reply.
//
// Dropping the request returns its buffer and its place in the connection's bound, so the reply
// queue keeps it until the reply was given to the kernel.
//
// Threads: LANE ONLY, except while a worker runs it: then only the worker touches it, and hands it
// back through Lane::complete().
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "braidfs/frame.h"
#include "core/clock.h"
#include "server/buffer_pool.h"
#include "server/target_table.h"
#include "store/chunk_store.h"

namespace braidfs::server {

class Connection;

struct Request {
  Request(std::shared_ptr<Connection> owner, const FrameHeader& head)
      : connection(std::move(owner)), header(head) {}
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // These tell the connection how much of the lane's memory it holds.
  void take_buffer(Buffer taken);
  void drop_buffer();

  std::shared_ptr<Connection> connection;
  FrameHeader header;
  Buffer buffer;                   // the bytes of a WRITE, or room for those of a READ
  std::span<std::byte> payload{};  // in buffer, at the offset's place in its block
  store::Lent lent;                // beginning of a READ's bytes; payload has the rest
  bool may_lend = false;           // the connection takes pages by reference
  bool fetched = false;            // its blocks were read into the page cache
  std::vector<uint64_t> sums;      // of a WRITE as sent, of a READ as found
  std::vector<std::byte> body;     // of the reply, when it is not sums
  Status status = Status::kOk;
  uint64_t incarnation = 0;
  Clock::time_point accepted = Clock::now();

  store::ChunkStore* store = nullptr;
  DroppedNames* dropped = nullptr;       // of its target
  ClientTime* clients = nullptr;         // of its target
  CopySource source;                     // of a COPY
  std::vector<store::ObjectId> objects;  // of a DELETE_ALL
  store::ChunkStore* source_store = nullptr;
  store::ReadOp reading;
  store::WriteOp writing;
  uint32_t segments_out = 0;  // segments of the plan that io_uring has

  Op op() const { return static_cast<Op>(header.op); }
  uint32_t payload_length() const {
    return static_cast<uint32_t>(length_of(lent.parts) + payload.size());
  }
  store::ObjectId object() const { return {header.file_id, header.stripe_index}; }
};

}  // namespace braidfs::server
