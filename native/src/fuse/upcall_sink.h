// Takes the requests that native does not answer: Python answers them.
//
// Threads: ANY LANE calls; no call may block. Invariant: each request that upcall() gets is
// answered once.
#pragma once
#include <cstdint>
#include <optional>

#include "fuse/parse.h"
#include "fuse/request.h"

namespace braidfs::fuse {

class UpcallSink {
 public:
  virtual ~UpcallSink() = default;
  // The request will be answered once.
  virtual void upcall(const UpcallRequest& request) = 0;
  virtual void forget(const ForgetRequest& request) = 0;
  // A handle of an inode with locks was closed. This is only a report: the RELEASE is answered
  // elsewhere.
  virtual void released(const ReleaseRequest&) {}
  // As in DataHandler.
  virtual std::optional<Waiting> waiting(uint64_t unique) = 0;
  virtual bool interrupt(uint64_t unique) = 0;
};

}  // namespace braidfs::fuse
