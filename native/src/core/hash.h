// XXH3 in the widest vectors that this processor has; core/frame.cpp chooses.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Only where the processor has AVX2. Any length.
extern "C" uint64_t braidfs_xxh3_avx2(const void* bytes, size_t length);
