#include "client/lanes.h"

namespace braidfs::client {

Lanes::Lanes(Context& context, uint32_t count, const LaneDuties& duties) {
  for (uint32_t index = 0; index < count; ++index) {
    lanes_.push_back(std::make_unique<Lane>(context, index, duties));
  }
}

void Lanes::start() {
  for (const auto& lane : lanes_) lane->start();
}

void Lanes::stop() {
  for (const auto& lane : lanes_) lane->stop();
}

int Lanes::fault() const noexcept {
  for (const auto& lane : lanes_) {
    if (const int fault = lane->loop().fault(); fault != 0) return fault;
  }
  return 0;
}

void Lanes::hurry() {
  for (const auto& lane : lanes_) lane->hurry();
}

void Lanes::send_partial() {
  if (sending_partial_.exchange(true)) return;
  const auto send = [](Lane& at) { at.send_partial_pieces(); };
  if (!post(send, [this](Lane&) { sending_partial_ = false; })) sending_partial_ = false;
}

}  // namespace braidfs::client
