// Makes replicas again that were dropped, one file after the other: claim, plan, copy, sync of what
// stays, raised epochs, addition (docs/decisions/0063-mirrors.md). A job may end at any step.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "metaserver.h"

namespace braidfs::world {

class Repair {
 public:
  Repair(Clockwork& clockwork, Metaserver& metaserver, Network& network,
         std::vector<std::unique_ptr<StorageHost>>& hosts, Mutant mutant);
  void start();

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  // layout: as it was planned. at: how far it is.
  struct Job {
    uint64_t ino = 0;
    FileRecord layout{};
    std::vector<Name> names{};
    uint32_t epoch = 0;
    std::map<uint32_t, uint64_t> incarnations{};
    std::map<Name, uint64_t> sinks{};  // the incarnations of the targets of copies
    std::vector<std::function<void(const JobPtr&)>> steps{};
    size_t at = 0;
  };

  void look();
  void begin(uint64_t ino);
  bool plan(Job& job);
  bool may_be_resent(const FileRecord& file) const;
  void copy(const JobPtr& job, const Name& name);
  void move(const JobPtr& job, const Name& name, const Name& source, uint64_t length,
            uint64_t offset);
  void finish_copy(const JobPtr& job, const Name& name, uint64_t length);
  void ask_all(const JobPtr& job, Op op, uint32_t epoch, bool must_exist);
  void add(const JobPtr& job);
  void next(const JobPtr& job);
  void end(const JobPtr& job, const char* why);
  bool is_claimed(const Job& job) const;
  void lost(const JobPtr& job, const Name& name);
  bool has_power(const Job& job, const Name& name, const Answer& answer) const;
  static bool has_kept(Job& job, const Name& name, const Answer& answer);

  Clockwork& clockwork_;
  Metaserver& metaserver_;
  const Mutant mutant_;
  StorageCalls calls_;
};

}  // namespace braidfs::world
