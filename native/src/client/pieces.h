// Acts on what a piece table decided: sends pieces and resumes operations.
//
// Invariant: the table decides under the inode's mutex, and the decision is carried out after the
// mutex was released; nothing here may be called with an inode's mutex held. Threads: LANE ONLY,
// except lose(). Not here: which piece may be sent when (piece_table.h).
#pragma once
#include <memory>

#include "client/inode.h"
#include "client/lane.h"

namespace braidfs::client {

class Context;

// Sends the pieces and resumes the operations that the actions name.
void run_actions(Lane& lane, const InodePtr& inode, Actions& actions);

// Sends the partial pieces that have aged by `now`. False: some are too young, or a cut is not yet
// to be reported, so the lane looks again later.
bool send_aged(Lane& lane, const InodePtr& inode, Clock::time_point now);
// Sends all partial pieces.
void send_partial(Lane& lane, const InodePtr& inode);

// The target has lost unsynced bytes and has this incarnation now: held pieces that it lost are
// queued again.
void resend_lost(Lane& lane, uint32_t target, uint64_t incarnation);

// The lease of this file was lost: drops what was written and not committed (Inode::lose). ANY
// THREAD.
Inode::Loss lose(Context& context, const InodePtr& inode);

}  // namespace braidfs::client
