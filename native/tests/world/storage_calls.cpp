#include "storage_calls.h"

#include <algorithm>
#include <stdexcept>

namespace braidfs::world {

namespace {

constexpr Duration kRefused = milliseconds(5);
constexpr Duration kLearns = seconds(3);  // that a connection has ended
constexpr uint64_t kFirstConnection = uint64_t{1} << 40;

}  // namespace

Frame frame_of(Op op, const store::ObjectId& object, uint32_t target, uint32_t epoch) {
  Frame frame;
  frame.header.op = static_cast<uint8_t>(op);
  frame.header.file_id = object.file_id;
  frame.header.stripe_index = object.stripe_index;
  frame.header.target = target;
  frame.header.epoch = epoch;
  return frame;
}

uint32_t StorageCalls::host_of(uint32_t target) const {
  for (const auto& host : hosts_) {
    if (std::count(host->targets().begin(), host->targets().end(), target) != 0)
      return host->number();
  }
  throw std::logic_error("no such target");
}

void StorageCalls::call(uint32_t target, Frame frame, Duration patience, Done done) {
  call_host(host_of(target), std::move(frame), patience, std::move(done));
}

void StorageCalls::call_host(uint32_t host, Frame frame, Duration patience, Done done) {
  const uint64_t request = ++last_request_;
  Link& link = links_[host];
  link.asked.emplace(request, std::move(done));
  StorageHost& at = *hosts_[host];
  const auto end_later = [this, host, request](Duration rest, Answer::Kind kind) {
    clockwork_.agenda.after(rest, [this, host, request, kind] { end(host, request, {kind, {}}); });
  };
  if (!at.is_up()) return end_later(clockwork_.chance.up_to(kRefused), Answer::Kind::kNobody);
  end_later(patience, Answer::Kind::kFailed);
  if (!link.wire && (at.is_cut_off() || at.is_standing() || !connect(host))) return;
  frame.header.request_id = request;
  link.wire->send(Side::kClient, frame);
}

bool StorageCalls::connect(uint32_t host) {
  Link& link = links_[host];
  auto wire = network_.connect(name_ + "-" + std::to_string(host), host, tampering_);
  const bool is_adopted =
      hosts_[host]->adopt({.socket = wire->plug_in(Side::kServer),
                           .purpose = server::Purpose::kServer,
                           .session = 0,
                           .connection = kFirstConnection + clockwork_.number()});
  if (!is_adopted) {
    wire->cut(VirtualTime::now(), VirtualTime::now());
    return false;
  }
  link.wire = wire;
  wire->received = [this, host, at = wire.get()](const Frame& frame) {
    if (links_[host].wire.get() == at) answered(host, frame);
  };
  wire->ended = [this, host, at = wire.get()] {
    Link& ended = links_[host];
    if (ended.wire.get() != at) return;
    ended.wire.reset();
    while (!ended.asked.empty()) end(host, ended.asked.begin()->first, {});
  };
  return true;
}

void StorageCalls::answered(uint32_t host, const Frame& reply) {
  end(host, reply.header.request_id, {Answer::Kind::kReply, reply});
}

void StorageCalls::end(uint32_t host, uint64_t request, const Answer& answer) {
  auto found = links_[host].asked.extract(request);
  if (found.empty()) return;
  if (answer.kind == Answer::Kind::kFailed && links_[host].wire) {  // it may be silent for good
    const Time now = VirtualTime::now();
    std::exchange(links_[host].wire, nullptr)->cut(now, now + clockwork_.chance.up_to(kLearns));
  }
  found.mapped()(answer);
}

}  // namespace braidfs::world
