// The network of a world: connections that carry whole frames, late but in order, until they break.
//
// A program has an ordinary socket, whose other end the network holds; so streams and parsers are
// the real ones. Each direction has its own delay. A break takes what is on its way along, or lets
// the beginning of a frame through, or is noticed by one side much later than by the other.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clockwork.h"
#include "frames.h"
#include "net/unique_fd.h"

namespace braidfs::world {

enum class Side : uint8_t { kClient, kServer };
constexpr Side other(Side side) noexcept {
  return side == Side::kClient ? Side::kServer : Side::kClient;
}

class Network;
class Wire;

// What a mutant does to frames. It may change the frame, send others, and say that this one is
// lost.
class Tampering {
 public:
  virtual ~Tampering() = default;
  // False: the frame does not arrive.
  virtual bool pass(Wire& wire, Side from, Frame& frame) = 0;
};

class Wire : public std::enable_shared_from_this<Wire> {
 public:
  // client: its session; 0: the metaserver's.
  Wire(Clockwork& clockwork, Network& network, std::string name, uint32_t host,
       Tampering* tampering, uint64_t client);

  // The end for a program on this side.
  net::UniqueFd plug_in(Side side);
  // The world itself is the client: where it gets replies, and hears of the end.
  std::function<void(const Frame&)> received;
  std::function<void()> ended;
  void send(Side from, Frame frame);
  void forge(Side from, Frame frame);  // the same, past all tampering

  int fd(Side side) const noexcept { return ends_[index(side)].socket.get(); }
  void take_in(Side side);  // its socket is readable
  // Both directions are shut now, or when `learns` has come, for a side.
  void cut(Time client_learns, Time server_learns);
  // Nothing of that side arrives before.
  void stall(Side from, Time until);
  // What that side sends from now on is lost; so is what it has sent, but for a part of a frame.
  void go_dead(Side from) { ends_[index(from)].is_lost = true; }
  void lose(Side from);
  bool is_over() const noexcept { return ends_[0].is_shut && ends_[1].is_shut; }
  uint32_t host() const noexcept { return host_; }
  uint64_t client() const noexcept { return client_; }
  const std::string& name() const noexcept { return name_; }

 private:
  struct End {
    net::UniqueFd socket;  // the network's; the program has the other one
    bool is_shut = false;
    bool is_lost = false;  // what is sent there does not arrive any more
    FrameCutter cutter{};
    std::deque<Bytes> sent{};  // by the program there; an empty one is the end
    Time last{};               // when the last of them arrives
    Time stalled_until{};
  };
  static constexpr size_t index(Side side) noexcept { return static_cast<size_t>(side); }
  Duration delay();
  void arrive(Side from);
  void push(Side from, Bytes bytes);
  void shut(Side side);

  Clockwork& clockwork_;
  Network& network_;
  const std::string name_;
  const uint32_t host_;
  Tampering* const tampering_;
  const uint64_t client_;
  std::array<End, 2> ends_;
};

class Network {
 public:
  explicit Network(Clockwork& clockwork) : clockwork_(clockwork) {}

  std::shared_ptr<Wire> connect(std::string name, uint32_t host, Tampering* tampering,
                                uint64_t client = 0);
  std::vector<std::shared_ptr<Wire>>& wires();  // those that are not over
  // What becomes of connections when a host loses its power, or its program: who talked to it
  // learns of it later.
  void host_is_gone(uint32_t host, Duration learns_most);
  void break_something();  // one connection, in some way
  void break_wire(Wire& wire);
  // Called at each frame that is sent.
  std::function<void(Wire&, Side from, const Frame&)> at_frame = [](Wire&, Side, const Frame&) {};

 private:
  Clockwork& clockwork_;
  std::vector<std::shared_ptr<Wire>> wires_;
};

}  // namespace braidfs::world
