#include "truth.h"

#include <algorithm>

namespace braidfs::world {

bool Truth::is_free(uint32_t first, uint32_t count) const {
  return std::none_of(units_.begin() + first, units_.begin() + first + count,
                      [](const Unit& unit) { return unit.is_busy; });
}

void Truth::writes(uint32_t first, uint32_t count, uint64_t value) {
  for (uint32_t at = first; at < first + count; ++at) {
    units_[at].values.push_back(value);
    units_[at].is_busy = true;
  }
}

void Truth::wrote(uint32_t first, uint32_t count, bool is_durable) {
  for (uint32_t at = first; at < first + count; ++at) {
    Unit& unit = units_[at];
    unit.is_busy = false;
    unit.answered = static_cast<uint32_t>(unit.values.size()) - 1;
    if (is_durable) unit.safe = unit.answered;
  }
}

Truth::Places Truth::answered() const {
  Places places;
  for (const Unit& unit : units_) places.push_back(unit.answered);
  return places;
}

Truth::Places Truth::safe() const {
  Places places;
  for (const Unit& unit : units_) places.push_back(unit.safe);
  return places;
}

void Truth::synced(const Places& answered) {
  for (uint32_t at = 0; at < count(); ++at)
    units_[at].safe = std::max(units_[at].safe, answered[at]);
}

std::string Truth::check(const Places& least, uint32_t first,
                         std::span<const uint64_t> values) const {
  for (uint32_t index = 0; index < values.size(); ++index) {
    const Unit& unit = units_[first + index];
    const auto found = std::find(unit.values.rbegin(), unit.values.rend(), values[index]);
    const auto place = unit.values.rend() - found;  // and one
    if (place > static_cast<ptrdiff_t>(least[first + index])) continue;
    return "unit " + std::to_string(first + index) + " has value " + std::to_string(values[index]) +
           ", and not " + std::to_string(unit.values[least[first + index]]) + " or a later one";
  }
  return {};
}

}  // namespace braidfs::world
