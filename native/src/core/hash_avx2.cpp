// XXH3 with 256-bit vectors. This file is compiled with -mavx2. It must include nothing with inline
// functions: the linker could use the copies compiled here in code that must run on every
// processor.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/hash.h"

uint64_t braidfs_xxh3_avx2(const void* bytes, size_t length) { return XXH3_64bits(bytes, length); }
