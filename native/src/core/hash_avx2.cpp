// XXH3 with 256-bit vectors. Compiled with -mavx2, so nothing is included here whose inline
// functions the linker could give to code that must run on every processor.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/hash.h"

uint64_t braidfs_xxh3_avx2(const void* bytes, size_t length) { return XXH3_64bits(bytes, length); }
