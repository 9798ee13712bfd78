// What each data operation does with the store, and where it runs: inline on the lane when the
// bytes are cached or few; by io_uring (or a worker) when the disk is needed; on a worker when the
// call may block.
//
// Invariants: every request given to execute() reaches Lane::finish() once, on the lane. An op that
// was begun on the lane never waits in a queue of threads (chunk_store.h): it is dropped, and the
// worker begins it again.
//
// Threads: LANE ONLY, except perform_*(), which a worker runs on a request that it alone holds. Not
// here: admission (admission.h, connection.h).
#pragma once
#include <memory>

#include "net/uring.h"
#include "server/request.h"
#include "server/services.h"

namespace braidfs::server {

class Lane;

class Operations {
 public:
  Operations(Lane& lane, Services& services) : lane_(lane), services_(services) {}

  // Performs an admitted request; a READ has its buffer, a WRITE its payload.
  void execute(std::shared_ptr<Request> request);
  void use_uring(net::Uring* uring) { uring_ = uring; }  // the lane owns it

 private:
  void read(std::shared_ptr<Request> request);
  void write(std::shared_ptr<Request> request);
  void fence(std::shared_ptr<Request> request);
  void finish_read(std::shared_ptr<Request> request);
  void finish_write(std::shared_ptr<Request> request);
  void on_worker(WorkerPool& pool, std::shared_ptr<Request> request);
  bool by_uring(const std::shared_ptr<Request>& request);
  void submit(const std::shared_ptr<Request>& request, uint32_t index);

  Lane& lane_;
  Services& services_;
  net::Uring* uring_ = nullptr;
};

}  // namespace braidfs::server
