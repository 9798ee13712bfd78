// The acting half of the piece table: sends pieces, resumes operations. Invariant: what a table
// decided under the inode's mutex is done behind it. LANE ONLY, but for lose(); none of these may
// be called with an inode's mutex held.
#pragma once
#include <memory>

#include "client/inode.h"
#include "client/lane.h"

namespace braidfs::client {

class Context;

// Does what became possible.
void run_actions(Lane& lane, const InodePtr& inode, Actions& actions);

// Sends the partial pieces that were first written before `before`. False: look again later.
bool send_aged(Lane& lane, const InodePtr& inode, Clock::time_point now);
// Sends all partial pieces.
void send_partial(Lane& lane, const InodePtr& inode);

// Queues again what is held for a target that lost it: that is another incarnation by now.
void resend_lost(Lane& lane, uint32_t target, uint64_t incarnation);

// Of a file whose lease was lost: drops what was written and not committed (Inode::lose). ANY
// THREAD.
Inode::Loss lose(Context& context, const InodePtr& inode);

}  // namespace braidfs::client
