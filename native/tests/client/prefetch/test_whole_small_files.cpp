// WholeSmallFiles: when small files are fetched as they are opened, which opens are probes, and
// which files servers are told of.
#include <gtest/gtest.h>

#include "client/prefetch/whole_small_files.h"

namespace braidfs::client::prefetch {
namespace {

struct Probe {
  uint64_t bytes_read;
  uint64_t size;
};
struct Case {
  const char* what;
  std::vector<std::pair<int, Probe>> probes;  // how often, which
  bool are_usual;
};

TEST(WholeSmallFiles, AreUsualAfterManyThatWereReadWhole) {
  constexpr int kEnough = WholeSmallFiles::kScoreEnough;
  constexpr int kMany = 10 * WholeSmallFiles::kScoreMax;
  const std::vector<Case> cases = {
      {"nothing is known", {}, false},
      {"not enough", {{kEnough - 1, {10, 10}}}, false},
      {"enough", {{kEnough, {10, 10}}}, true},
      {"READs are of whole pages", {{kEnough, {4096, 4000}}}, true},
      {"three quarters are enough", {{kEnough, {75, 100}}}, true},
      {"less is not", {{kMany, {74, 100}}}, false},
      {"nothing was read", {{kMany, {0, 1}}}, false},
      {"one of another kind in between", {{kEnough, {10, 10}}, {1, {1, 10}}}, false},
      {"after very many it takes some", {{kMany, {10, 10}}, {2, {7, 10}}}, true},
      {"but not many", {{kMany, {10, 10}}, {3, {7, 10}}}, false},
  };
  for (const Case& one : cases) {
    WholeSmallFiles files;
    for (const auto& [count, probe] : one.probes)
      for (int number = 0; number < count; ++number) files.probed(probe.bytes_read, probe.size);
    EXPECT_EQ(files.are_usual(), one.are_usual) << one.what;
  }
}

class UsualFiles : public ::testing::Test {
 protected:
  UsualFiles() {
    for (int count = 0; count < WholeSmallFiles::kScoreMax; ++count) files_.probed(10, 10);
  }
  uint32_t fetched(uint32_t opens, uint64_t size = 10) {
    uint32_t count = 0;
    for (uint32_t open = 0; open < opens; ++open)
      count += files_.opened(size) == Sink::kKernelPages ? 1 : 0;
    return count;
  }
  WholeSmallFiles files_;
};

TEST_F(UsualFiles, OneOfManyIsLeftToBeSeen) {
  files_.turn(true, true);
  EXPECT_EQ(fetched(4 * WholeSmallFiles::kProbeEvery), 4 * (WholeSmallFiles::kProbeEvery - 1));
}

TEST_F(UsualFiles, NothingIsFetchedInTheBeginningOrWhereItIsOff) {
  EXPECT_EQ(files_.opened(10), Sink::kNone);
  files_.turn(true, true);
  EXPECT_GT(fetched(10), 0u);
  files_.turn(false, true);
  EXPECT_EQ(files_.opened(10), Sink::kNone);
}

TEST_F(UsualFiles, AllAreProbesWherePagesMayNotBeFilled) {
  files_.turn(true, false);
  for (int open = 0; open < 100; ++open) EXPECT_EQ(files_.opened(10), Sink::kProbe);
}

TEST_F(UsualFiles, OthersThanSmallOnesAreLeftAlone) {
  files_.turn(true, true);
  EXPECT_GT(fetched(2, Policy::kSmallFileMax), 0u);
  EXPECT_EQ(files_.opened(Policy::kSmallFileMax + 1), Sink::kNone);
  EXPECT_EQ(files_.opened(0), Sink::kNone);
}

TEST(GrantedFile, IsForServersWhenItIsSmallAndOfOneObject) {
  WholeSmallFiles files;
  FileView wide;
  wide.chunk_size = 1u << 20;
  FileView narrow;
  narrow.chunk_size = 65536;
  FileView in_record = wide;
  in_record.inline_bytes = "abc";
  struct Granted {
    uint64_t size;
    const FileView& view;
    Sink sink;
  };
  const std::vector<Granted> cases = {
      {1, wide, Sink::kServers},
      {limits::kFetchLengthMax, wide, Sink::kServers},
      {limits::kFetchLengthMax + 1, wide, Sink::kNone},
      {0, wide, Sink::kNone},
      {65536, narrow, Sink::kServers},
      {65537, narrow, Sink::kNone},
      {3, in_record, Sink::kNone},
  };
  for (const Granted& one : cases) {
    Attributes attributes;
    attributes.size = one.size;
    files.turn(false, true);
    EXPECT_EQ(files.granted(attributes, one.view), Sink::kNone) << "off";
    files.turn(true, false);
    EXPECT_EQ(files.granted(attributes, one.view), one.sink) << one.size;
  }
}

}  // namespace
}  // namespace braidfs::client::prefetch
