#include "network.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace braidfs::world {

namespace {

constexpr Duration kUsualDelay = microseconds(400);
constexpr Duration kLongDelay = milliseconds(1500);
constexpr Duration kFullSocketRest = milliseconds(2);
constexpr uint32_t kChangedOneIn = 1000;
constexpr int kSocketBytes = 1 << 20;

}  // namespace

Wire::Wire(Clockwork& clockwork, Network& network, std::string name, uint32_t host,
           Tampering* tampering, uint64_t client)
    : clockwork_(clockwork),
      network_(network),
      name_(std::move(name)),
      host_(host),
      tampering_(tampering),
      client_(client) {}

net::UniqueFd Wire::plug_in(Side side) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("no socket");
  for (const int one : pair)
    (void)setsockopt(one, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof(kSocketBytes));
  End& end = ends_[index(side)];
  end.socket = net::UniqueFd(pair[0]);
  if (end.is_shut) end.socket.reset();
  return net::UniqueFd(pair[1]);
}

Duration Wire::delay() {
  Chance& chance = clockwork_.chance;
  const uint32_t kind = clockwork_.calm ? 1000 : chance.pick(1000);
  if (kind < 4) return chance.up_to(kLongDelay * 6);
  if (kind < 30) return chance.up_to(kLongDelay);
  return chance.up_to(kUsualDelay);
}

void Wire::take_in(Side side) {
  End& end = ends_[index(side)];
  std::array<std::byte, 65536> part;
  bool has_ended = false;
  while (end.socket) {
    const ssize_t count = recv(end.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    has_ended = count <= 0;
    if (has_ended) break;
    end.cutter.add(std::span(part).first(static_cast<size_t>(count)));
  }
  while (auto frame = end.cutter.next()) send(side, *std::move(frame));
  if (!has_ended) return;
  end.socket.reset();
  end.is_shut = true;
  push(side, {});
}

void Wire::send(Side from, Frame frame) {
  clockwork_.trace.note("%s %s %s", name_.c_str(), from == Side::kClient ? ">" : "<",
                        name_of(frame).c_str());
  network_.at_frame(*this, from, frame);
  if (tampering_ == nullptr || tampering_->pass(*this, from, frame)) forge(from, std::move(frame));
}

void Wire::forge(Side from, Frame frame) {
  if (from == Side::kServer && received) {
    return clockwork_.agenda.after(delay(), [self = shared_from_this(), frame] {
      if (self->received) self->received(frame);
    });
  }
  Bytes bytes = frame.packed();
  const bool is_changed = !clockwork_.calm && clockwork_.chance.one_in(kChangedOneIn);
  if (is_changed && !frame.payload.empty()) bytes.back() ^= std::byte{1};  // only its sum tells
  push(from, std::move(bytes));
}

void Wire::push(Side from, Bytes bytes) {
  End& end = ends_[index(from)];
  if (end.is_lost && !bytes.empty()) return;
  end.last = std::max(end.last, VirtualTime::now() + delay());
  end.sent.push_back(std::move(bytes));
  clockwork_.agenda.at(end.last, [self = shared_from_this(), from] { self->arrive(from); });
}

void Wire::arrive(Side from) {
  End& end = ends_[index(from)];
  if (end.sent.empty()) return;  // it was lost
  if (VirtualTime::now() < end.stalled_until) {
    return clockwork_.agenda.at(end.stalled_until,
                                [self = shared_from_this(), from] { self->arrive(from); });
  }
  Bytes& bytes = end.sent.front();
  End& to = ends_[index(other(from))];
  if (bytes.empty()) {
    shut(other(from));
  } else if (to.socket) {
    const ssize_t count =
        ::send(to.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t taken = count > 0 ? static_cast<size_t>(count) : 0;
    if (taken < bytes.size() && (count > 0 || errno == EAGAIN)) {  // the socket is full
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
      end.stalled_until = VirtualTime::now() + kFullSocketRest;
      return arrive(from);
    }
  }
  end.sent.pop_front();
}

void Wire::shut(Side side) {
  End& end = ends_[index(side)];
  end.is_shut = true;
  end.socket.reset();
  if (side == Side::kClient && ended) std::exchange(ended, nullptr)();
}

void Wire::cut(Time client_learns, Time server_learns) {
  clockwork_.agenda.at(client_learns, [self = shared_from_this()] { self->shut(Side::kClient); });
  clockwork_.agenda.at(server_learns, [self = shared_from_this()] { self->shut(Side::kServer); });
}

void Wire::stall(Side from, Time until) {
  End& end = ends_[index(from)];
  end.stalled_until = std::max(end.stalled_until, until);
}

void Wire::lose(Side from) {
  End& end = ends_[index(from)];
  go_dead(from);
  if (end.sent.empty()) return;
  Bytes first = std::move(end.sent.front());
  end.sent.clear();
  const End& to = ends_[index(other(from))];
  if (!to.socket || first.empty()) return;
  const size_t part = clockwork_.chance.next() % first.size();
  (void)::send(to.socket.get(), first.data(), part, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// ---- the network ----

std::shared_ptr<Wire> Network::connect(std::string name, uint32_t host, Tampering* tampering,
                                       uint64_t client) {
  wires_.push_back(
      std::make_shared<Wire>(clockwork_, *this, std::move(name), host, tampering, client));
  return wires_.back();
}

std::vector<std::shared_ptr<Wire>>& Network::wires() {
  std::erase_if(wires_, [](const auto& wire) { return wire->is_over(); });
  return wires_;
}

void Network::host_is_gone(uint32_t host, Duration learns_most) {
  for (const auto& wire : wires()) {
    if (wire->host() != host) continue;
    clockwork_.chance.one_in(2) ? wire->lose(Side::kServer) : wire->go_dead(Side::kServer);
    wire->lose(Side::kClient);
    const Time learns = VirtualTime::now() + clockwork_.chance.up_to(learns_most);
    wire->cut(learns, VirtualTime::now());
  }
}

void Network::break_something() {
  Chance& chance = clockwork_.chance;
  auto& all = wires();
  if (all.empty()) return;
  break_wire(*all[chance.pick(static_cast<uint32_t>(all.size()))]);
}

void Network::break_wire(Wire& wire) {
  Chance& chance = clockwork_.chance;
  const Time now = VirtualTime::now();
  const Time soon = now + chance.up_to(milliseconds(20));
  const Time late = now + chance.up_to(seconds(12));
  const uint32_t kind = chance.pick(6);
  clockwork_.trace.note("%s breaks in way %u", wire.name().c_str(), kind);
  switch (kind) {
    case 0:  // reset: what is on its way is lost
      wire.lose(Side::kClient);
      wire.lose(Side::kServer);
      return wire.cut(now, now);
    case 1:  // the client has gone; the server still gets what was sent, and learns late
      wire.stall(Side::kClient, now + chance.up_to(seconds(4)));
      return wire.cut(now, late);
    case 2:  // the server has gone
      wire.lose(Side::kServer);
      return wire.cut(late, soon);
    case 3:
      wire.stall(Side::kClient, late);
      return;
    case 4:
      wire.stall(Side::kServer, late);
      return;
    default:
      wire.stall(Side::kClient, late);
      wire.stall(Side::kServer, late);
  }
}

}  // namespace braidfs::world
