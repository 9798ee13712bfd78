#include "truth.h"

#include <algorithm>
#include <utility>

namespace braidfs::world {

bool Truth::is_free(uint32_t first, uint32_t count) const {
  return std::none_of(units_.begin() + first, units_.begin() + first + count,
                      [](const Unit& unit) { return unit.is_busy; });
}

void Truth::writes(uint32_t first, uint32_t count, uint64_t value, uint64_t holder) {
  for (uint32_t at = first; at < first + count; ++at) {
    units_[at].values.push_back(value);
    units_[at].is_busy = true;
    units_[at].is_newest_lost = false;
    units_[at].newest_holder = units_[at].writer = holder;
    units_[at].written_at = VirtualTime::now();
  }
}

void Truth::wrote(uint32_t first, uint32_t count, bool is_durable) {
  for (uint32_t at = first; at < first + count; ++at) {
    Unit& unit = units_[at];
    unit.is_busy = false;
    unit.holder = std::exchange(unit.newest_holder, 0);
    unit.is_closed = false;
    if (unit.is_newest_lost) continue;
    unit.answered = unit.newest();
    unit.answered_to = unit.writer;
    unit.sent_at = unit.written_at;
    if (is_durable) unit.safe = unit.closed = unit.answered;
  }
}

void Truth::failed(uint32_t first, uint32_t count) {
  for (uint32_t at = first; at < first + count; ++at) units_[at].is_busy = false;
}

void Truth::uncovered(uint32_t first, uint32_t count) {
  failed(first, count);
  for (uint32_t at = first; at < first + count; ++at) {
    Unit& unit = units_[at];
    unit.answered = std::min(unit.answered, unit.closed);
    unit.safe_at_losses.push_back(unit.safe);
  }
}

Truth::Since Truth::since() const {
  Since now;
  for (const Unit& unit : units_) {
    now.answered.push_back(unit.answered);
    now.losses.push_back(unit.losses());
  }
  return now;
}

Truth::Places Truth::answered_to(uint64_t session) const {
  Places places;
  for (const Unit& unit : units_) places.push_back(unit.answered_to == session ? unit.answered : 0);
  return places;
}

Truth::Places Truth::safe() const {
  Places places;
  for (const Unit& unit : units_) places.push_back(unit.safe);
  return places;
}

void Truth::synced(const Places& answered) {
  for (uint32_t at = 0; at < count(); ++at) {
    Unit& unit = units_[at];  // what may have been lost meanwhile is not answered for any more
    unit.safe = std::max(unit.safe, std::min(unit.answered, answered[at]));
    unit.closed = std::max(unit.closed, unit.safe);
  }
}

void Truth::closed(const Places& answered) {
  for (uint32_t at = 0; at < count(); ++at)
    units_[at].closed = std::max(units_[at].closed, answered[at]);
}

void Truth::died(uint64_t holder) {
  for (Unit& unit : units_) {
    const bool writes = unit.newest_holder == holder || (unit.is_busy && unit.writer == holder);
    if (!writes && unit.holder != holder && unit.answered_to != holder) continue;
    if (unit.holder == holder) unit.holder = 0;
    if (writes) unit.newest_holder = 0;
    if (writes) unit.is_busy = false;
    if (unit.closed == unit.newest()) continue;
    unit.answered = std::min(unit.answered, unit.closed);
    unit.safe_at_losses.push_back(unit.safe);
  }
}

void Truth::let_go(uint64_t holder) {
  for (Unit& unit : units_) {
    if (unit.holder == holder) unit.holder = 0;
    if (unit.newest_holder == holder) unit.newest_holder = 0;
  }
}

void Truth::has_closed(uint64_t holder) {
  for (Unit& unit : units_) {
    const bool writes = unit.is_busy && unit.writer == holder;
    if (unit.holder == holder && !writes) unit.is_closed = true;
  }
}

void Truth::lost_power(uint32_t at, Time when) {
  Unit& unit = units_[at];
  if (unit.newest_holder == 0 && when >= unit.written_at) unit.is_newest_lost = true;
  if (when < unit.sent_at) return;
  unit.closed = unit.safe;
  const bool is_held = unit.holder != 0 && !unit.is_closed;
  if (is_held || unit.safe == unit.newest()) return;
  unit.answered = unit.safe;
  unit.safe_at_losses.push_back(unit.safe);
  has_lost_ = true;
}

std::string Truth::wrong(uint32_t at, uint32_t least, uint64_t value) const {
  const Unit& unit = units_[at];
  const auto found = std::find(unit.values.rbegin(), unit.values.rend(), value);
  const auto place = unit.values.rend() - found;  // and one
  if (place > static_cast<ptrdiff_t>(least)) return {};
  return "unit " + std::to_string(at) + " has value " + std::to_string(value) + ", and not " +
         std::to_string(unit.values[least]) + " or a later one";
}

std::string Truth::check(const Places& least, uint32_t first,
                         std::span<const uint64_t> values) const {
  for (uint32_t index = 0; index < values.size(); ++index) {
    const std::string what = wrong(first + index, least[first + index], values[index]);
    if (!what.empty()) return what;
  }
  return {};
}

std::string Truth::check(const Since& since, uint32_t first,
                         std::span<const uint64_t> values) const {
  Places least = since.answered;
  for (uint32_t at = 0; at < count(); ++at) {
    const auto& safe = units_[at].safe_at_losses;
    if (safe.size() != since.losses[at]) least[at] = std::min(least[at], safe[since.losses[at]]);
  }
  return check(least, first, values);
}

void Truth::saw(const Since& since, uint32_t first, std::span<const uint64_t> values) {
  for (uint32_t index = 0; index < values.size(); ++index) {
    Unit& unit = units_[first + index];
    const bool is_held = unit.holder != 0 || unit.newest_holder != 0;
    const bool is_open = unit.answered < unit.newest() && !unit.is_busy && !is_held;
    if (!is_open || unit.losses() != since.losses[first + index]) continue;
    unit.values.push_back(values[index]);
    unit.answered = unit.closed = unit.newest();
    unit.answered_to = 0;
    unit.sent_at = VirtualTime::now();
  }
}

}  // namespace braidfs::world
