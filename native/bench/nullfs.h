// A FUSE filesystem without storage, on the same lanes as the client. What it costs is the cost of
// FUSE itself: the limit with which benchmarks compare.
//
// Files f0 .. fN-1 have a fixed size, read as zeros, and drop what is written. Everything else that
// is created exists only in the kernel's caches.
//
// Threads: any lane, several at once; the only state that changes is the counter of created inodes.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuse/lane.h"
#include "fuse/protocol.h"
#include "fuse/request.h"
#include "fuse/session.h"

namespace braidfs::bench {

struct NullShape {
  uint64_t file_count = 1;
  uint64_t file_size = 1u << 30;
  // A directory with these files, which the kernel reads by itself (passthrough). "": there is
  // none.
  std::string backing{};
};

class NullFileSystem final : public fuse::DataHandler, public fuse::UpcallSink {
 public:
  NullFileSystem(const NullShape& shape, fuse::FuseSession& session);
  // Gives it the device of the mount; only with a backing directory.
  void device(net::UniqueFd device);

  void read(fuse::LaneContext&, const fuse::ReadRequest& request) override;
  void write(fuse::LaneContext&, const fuse::WriteRequest& request) override;
  void flush(fuse::LaneContext&, const fuse::FlushRequest& request) override;
  void release(fuse::LaneContext&, const fuse::ReleaseRequest& request) override;
  void fsync(fuse::LaneContext&, const fuse::FsyncRequest& request) override;
  // Every request is answered before its call returns.
  std::optional<fuse::Waiting> waiting(uint64_t) override { return std::nullopt; }
  bool interrupt(uint64_t) override { return true; }

  void upcall(const fuse::UpcallRequest& request) override;
  void forget(const fuse::ForgetRequest&) override {}

 private:
  using Bytes = std::span<const std::byte>;

  void done(const fuse::RequestHead& head, int error = 0) noexcept;
  template <typename T>
  void answer(const fuse::RequestHead& head, const T& body) noexcept;
  void lookup(const fuse::RequestHead& head, Bytes name);
  void create(const fuse::RequestHead& head);
  void readdir(const fuse::RequestHead& head, Bytes body);
  void statfs(const fuse::RequestHead& head);
  void open(const fuse::RequestHead& head);
  int begin_passthrough(uint64_t nodeid) const noexcept;
  std::optional<uint64_t> file_named(std::string_view name) const;
  fuse_attr attributes(uint64_t nodeid) const noexcept;
  fuse_attr_out attributes_out(uint64_t nodeid) const noexcept;
  fuse_entry_out entry(uint64_t nodeid) const noexcept;

  NullShape shape_;
  net::UniqueFd device_;
  net::UniqueFd backing_;
  std::vector<uint64_t> sizes_;  // of the backing files
  fuse::FuseSession& session_;
  std::vector<std::byte> zeros_;
  std::atomic<uint64_t> created_{0};
};

}  // namespace braidfs::bench
