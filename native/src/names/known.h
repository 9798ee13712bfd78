// The attributes with which lanes may answer: those of the attribute table, and those of files that
// are known by their directory's grant, which are copied into the table first. ANY THREAD.
#pragma once
#include <cstdint>
#include <optional>

#include "fuse/request.h"
#include "names/attribute_table.h"
#include "names/child_table.h"

namespace braidfs::names {

struct Known {
  using Clock = AttributeTable::Clock;

  AttributeTable& attributes;
  ChildTable& children;

  // False: the file is not known by its directory's grant.
  bool learn(uint64_t ino, Clock::time_point now) const {
    return children.find(ino, now, [&](const ChildTable::Child& child) {
      return attributes.put(child.attributes, std::chrono::milliseconds(0), now, true);
    });
  }
  fuse::Sealing sealing(uint64_t ino, Clock::time_point now) const {
    auto known = attributes.is_immutable(ino, now);
    if (!known && learn(ino, now)) known = attributes.is_immutable(ino, now);
    if (!known) return fuse::Sealing::kUnknown;
    return *known ? fuse::Sealing::kImmutable : fuse::Sealing::kMutable;
  }
  std::optional<fuse_attr_out> find(uint64_t ino, uint64_t nodeid, Clock::time_point now) const {
    const auto known = attributes.getattr(ino, nodeid, now);
    return known || !learn(ino, now) ? known : attributes.getattr(ino, nodeid, now);
  }
};

}  // namespace braidfs::names
