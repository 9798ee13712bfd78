// What the metaserver was told, through Python, of files that lanes have written or cut.
#pragma once
#include <nanobind/nanobind.h>

#include "client/datapath.h"

namespace braidfs::bindings {

void bind_commits(nanobind::class_<client::Datapath>& type);

}  // namespace braidfs::bindings
