// What lanes changed themselves in delegated directories, for Python.
#pragma once
#include <nanobind/nanobind.h>

#include "client/datapath.h"

namespace braidfs::bindings {

void bind_changes(nanobind::class_<client::Datapath>& type);

}  // namespace braidfs::bindings
