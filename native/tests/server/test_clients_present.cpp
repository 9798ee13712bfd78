// Whether clients use a target: others make room for them, also where their bytes come from.
#include <thread>

#include "peer.h"

namespace braidfs::server {
namespace {

using ClientsPresent = ServerTest;

TEST_F(ClientsPresent, OthersAreToldWhenTheyRead) {
  Peer other = connect_metaserver();
  ASSERT_EQ(other.status_of(write(0, pattern(4096))), Status::kOk);
  EXPECT_FALSE(server_->has_clients(kTarget));
  EXPECT_EQ(other.ask(read(0, 4096)).header.epoch, 0u);
  Peer client = connect();
  EXPECT_EQ(client.ask(read(0, 4096)).header.epoch, 0u) << "clients are told nothing";
  EXPECT_TRUE(server_->has_clients(kTarget));
  EXPECT_FALSE(server_->has_clients(kTarget + 1)) << "there is no such target";
  EXPECT_EQ(other.ask(read(0, 4096)).header.epoch, 1u);
  std::this_thread::sleep_for(kClientsPresent + std::chrono::milliseconds(50));
  EXPECT_FALSE(server_->has_clients(kTarget));
  EXPECT_EQ(other.ask(read(0, 4096)).header.epoch, 0u);
}

TEST_F(ClientsPresent, ADroppedNameIsNotExamined) {
  Peer other = connect_metaserver();
  ASSERT_EQ(other.status_of(write(0, pattern(4096))), Status::kOk);
  const store::ObjectId object{write(0, pattern(4096)).header.file_id,
                               write(0, pattern(4096)).header.stripe_index};
  store::Examined found;
  ASSERT_EQ(server_->examine(kTarget, object, 0, true, found), Status::kOk);
  EXPECT_EQ(found.sums.size(), 1u);
  EXPECT_EQ(server_->examine(kTarget + 1, object, 0, true, found), Status::kNoTarget);
  ASSERT_TRUE(server_->drop_names(kTarget, std::span(&object, 1)));
  EXPECT_EQ(server_->examine(kTarget, object, 0, true, found), Status::kDropped);
  store::Mended mended;
  EXPECT_EQ(server_->mend(kTarget, object, 0, pattern(4096), mended), Status::kDropped);
}

}  // namespace
}  // namespace braidfs::server
