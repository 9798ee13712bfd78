// Requests of a world's metaserver to storage servers. Each is tried once: it ends with the
// server's answer, or because its connection has ended, it took too long, or nobody is there. Late
// requests of an attempt that was given up may still be carried out.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clockwork.h"
#include "network.h"
#include "storage_host.h"

namespace braidfs::world {

struct Answer {
  enum class Kind : uint8_t { kReply, kFailed, kNobody };
  Kind kind = Kind::kFailed;
  Frame frame{};

  bool is(Status status) const noexcept { return kind == Kind::kReply && frame.status() == status; }
  bool is_ok() const noexcept { return is(Status::kOk); }
  uint64_t incarnation() const noexcept { return frame.header.offset; }
};

class StorageCalls {
 public:
  using Done = std::function<void(const Answer&)>;

  // `name`: of its connections.
  StorageCalls(std::string name, Clockwork& clockwork, Network& network,
               std::vector<std::unique_ptr<StorageHost>>& hosts, Tampering* tampering)
      : name_(std::move(name)),
        clockwork_(clockwork),
        network_(network),
        hosts_(hosts),
        tampering_(tampering),
        links_(hosts.size()) {}

  void call(uint32_t target, Frame frame, Duration patience, Done done);
  void call_host(uint32_t host, Frame frame, Duration patience, Done done);
  uint32_t host_of(uint32_t target) const;

 private:
  struct Link {
    std::shared_ptr<Wire> wire{};
    std::map<uint64_t, Done> asked{};
  };

  bool connect(uint32_t host);
  void answered(uint32_t host, const Frame& reply);
  void end(uint32_t host, uint64_t request, const Answer& answer);

  const std::string name_;
  Clockwork& clockwork_;
  Network& network_;
  std::vector<std::unique_ptr<StorageHost>>& hosts_;
  Tampering* const tampering_;
  std::vector<Link> links_;
  uint64_t last_request_ = 0;
};

// A request about an object.
Frame frame_of(Op op, const store::ObjectId& object, uint32_t target, uint32_t epoch = 0);

}  // namespace braidfs::world
