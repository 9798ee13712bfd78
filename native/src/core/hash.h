// XXH3 with the widest vectors that this processor has; core/frame.cpp chooses the implementation.
// Pure: ANY THREAD.
#pragma once
#include <stddef.h>
#include <stdint.h>

// XXH3-64 of bytes of any length. Only for a processor that has AVX2.
extern "C" uint64_t braidfs_xxh3_avx2(const void* bytes, size_t length);
