// Which replica of a stripe a READ or SEEK asks, and which one it asks next when that one fails.
//
// A replica on this node's own host comes first, else the one whose server owes this lane fewer
// answers, counted by powers of two from 8 on; where that is equal, the file id decides, so load is
// spread over servers and a file over few of their caches. Each is asked once, and the next one at
// once; one that does not answer for some seconds, though its server is there, is given up, and its
// server comes last as long as that answer is owed (link.h). A block that came damaged is asked for
// once more where it lies, checked there, so that the target reports it. When all have failed, and
// one of them may come back, they are asked again after a rest, until the deadline. A stripe with
// one replica is asked as ever.
//
// An object that was durable once is missing only if all replicas say so. One that never was is a
// hole if one replica has none and the others cannot be asked: a target that has lost power loses
// its replicas of all files with bytes that are not durable, but never the last one, before it
// answers anybody (docs/decisions/0063-mirrors.md). So its word counts as much as its zeros do.
// Threads: LANE ONLY.
#pragma once
#include <cstdint>

#include "client/call.h"

namespace braidfs::client {

class Lane;

// Aims a call, which is not submitted yet, at the replica that is asked first.
void aim_read(Lane& lane, Call& call, const FileViewPtr& view, uint32_t stripe_index);

// A call that aim_read() aimed has ended. True: another one was submitted in its place, with the
// same owner. False: its status stands. kNoObject: no replica has the object.
bool ask_next(Lane& lane, Call& ended);

}  // namespace braidfs::client
