// Another process goes on with a mount (docs/decisions/0032-restart.md, 0034-survival.md).
#pragma once
#include <nanobind/nanobind.h>

#include "client/datapath.h"

namespace braidfs::bindings {

void bind_handover(nanobind::class_<client::Datapath>& type);

}  // namespace braidfs::bindings
