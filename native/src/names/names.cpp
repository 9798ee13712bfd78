#include "names/names.h"

namespace braidfs::names {

Names::Names(fuse::DataHandler& file_bytes, fuse::FuseSession& session,
             std::function<void()> changes_wait)
    : file_bytes_(file_bytes),
      session_(session),
      changes_wait_(std::move(changes_wait)),
      lister_(known(), dentries_, file_bytes, session) {}

void Names::begin(const fuse::MountFacts& facts) {
  facts_ = facts;
  lister_.root(facts.root_ino);
}

void Names::push(Change change) {
  if (journal_.push(std::move(change))) changes_wait_();
}

std::vector<std::pair<std::string, uint64_t>> Names::counters() const {
  return {{"attributes_answered", attributes_.answered()},
          {"names_known", dentries_.names()},
          {"listings_answered", lister_.answered()},
          {"children_known", children_.count()},
          {"children_used", children_.used()},
          {"children_unused", children_.unused()},
          {"births", journal_.count()},
          {"renames", journal_.move_count()},
          {"removals", journal_.removal_count()},
          {"settings", journal_.setting_count()}};
}

}  // namespace braidfs::names
