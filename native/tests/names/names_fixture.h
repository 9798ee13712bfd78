// A FuseSession as in session_fixture.h, whose names are answered by tables that the test fills.
#pragma once
#include "../fuse/session_fixture.h"
#include "names/names.h"

namespace braidfs::names::testing {

using namespace fuse::testing;  // NOLINT: this is the same fixture with names

class NamesTest : public SessionTest {
 protected:
  fuse::NameHandler& names() override { return names_; }

  Names names_{echo_, session_, [this] { observer_.changes_wait(); }};
};

}  // namespace braidfs::names::testing
